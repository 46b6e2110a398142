"""Estimates: how many samples an abstraction takes that is proven for the true model.

    python scripts/estimates.py             the whole table, a few minutes
    python scripts/estimates.py --quick     small sizes, to see that it runs

The environment is a stochastic one without a table: RoomsGrid, four rooms of nine cells, behind a
wrapper that shows nothing but observations. Its true model is known here, to draw steps from it
quickly and to see whether proofs hold.

Three ways to get radii out of n steps:

- plain: one radius per row, the same price for every outcome that a row could have (Weissman et
  al. 2003, with a share of alpha for every number of visits). All steps are counted.
- sets: the price of the sets of outcomes that were seen (`estimate_mdp`). All steps are counted.
- halves: blocks are proposed from the first half; the second is counted, and rows summed by blocks
  have radii of their own (`estimate_mdp(..., blocks=)`).

And two goals: a policy over the rooms is proven to retain 95% of the achievable return; and
`certify` finds clusters of the metric that reach its default goal, as `AbstractedEnv` requires.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract import TabularMDP, certify, estimate_mdp, prove_value, value_iteration, verify
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._propose.embedding import scaled_points
from bisim_abstract._propose.partitions import propose_components
from bisim_abstract.encoders import Transitions, sample_transitions
from bisim_abstract.wrappers import RoomsGridEnv

console = Console(width=130, highlight=False)
GAMMAS = (0.5, 0.8, 0.9)
KEEP = 0.95
ALPHA = 0.05
RANGE = (0.0, 1.0)
METHODS = ("plain", "sets", "halves")
GRID: dict[str, Any] = {"side": 6, "room_size": 3, "slip": 0.2, "noise": 0.0, "seed": 0}


class Hidden(gym.Env[Any, Any]):
    """RoomsGrid without its table."""

    def __init__(self) -> None:
        self._inner = RoomsGridEnv(**GRID)
        self.observation_space = self._inner.observation_space
        self.action_space = self._inner.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start in a random cell."""
        return self._inner.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Take an action."""
        return self._inner.step(action)


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    quick = parser.parse_args().quick
    begun = time.perf_counter()
    true = RoomsGridEnv(**GRID).to_mdp()
    console.print(
        f"{true.n_states} states, {true.n_actions} actions, alpha {ALPHA}, rewards known to lie in "
        f"{list(RANGE)} and to be the same every time"
    )
    needed(true, range(12, 15) if quick else range(13, 24))
    coverage(true, 10 if quick else 200)
    gathering(1 << (13 if quick else 19))
    console.print(f"{time.perf_counter() - begun:.0f} s")


# -- samples needed ------------------------------------------------------------------------------


def needed(true: TabularMDP, sizes: range) -> None:
    """The least power of two of steps at which each goal is met."""
    found: dict[tuple[str, float, str], int] = {}
    radii: dict[tuple[str, int], float] = {}
    for k in sizes:
        steps = sample_transitions(true, 1 << k, seed=k)
        for method in METHODS:
            mdp, blocks = model(steps, method)
            assert mdp.estimate is not None
            radii[method, k] = float(mdp.estimate.radius_of(blocks).mean())
            for gamma in GAMMAS:
                if (method, gamma, "certificate") in found:
                    continue
                if prove_value(mdp, blocks, gamma).kept < KEEP:
                    continue
                found.setdefault((method, gamma, "value"), 1 << k)
                certificate = certify(mdp, gamma, keep=KEEP, max_seconds=10.0)
                if certificate.verdict.level == "useful" and verify(mdp, certificate).is_valid:
                    found[method, gamma, "certificate"] = 1 << k
        del steps
    last = 1 << sizes[-1]
    for goal, title in (
        ("value", f"Steps until a policy over blocks is proven to retain {KEEP:.0%}"),
        ("certificate", "Steps until clusters are certified besides, and verified"),
    ):
        table = Table(title=title, title_justify="left")
        table.add_column("gamma")
        for method in METHODS:
            table.add_column(method, justify="right")
        for gamma in GAMMAS:
            cells = [found.get((method, gamma, goal)) for method in METHODS]
            shown = [f"> {last:,}" if cell is None else f"{cell:,}" for cell in cells]
            table.add_row(f"{gamma:g}", *shown)
        console.print(table)
    table = Table(title="Mean radius of rows, as values on blocks see them", title_justify="left")
    table.add_column("steps", justify="right")
    for method in METHODS:
        table.add_column(method, justify="right")
    for k in sizes[::3]:
        table.add_row(f"{1 << k:,}", *(f"{radii[method, k]:.4f}" for method in METHODS))
    console.print(table)


def model(steps: Transitions, method: str) -> tuple[TabularMDP, IntArray]:
    """The estimate, and the blocks that values are proven for."""
    half = len(steps) // 2
    first, second = part(steps, slice(half)), part(steps, slice(half, None))
    blocks = proposed(estimated(first if method == "halves" else steps))
    if method == "halves":
        return estimated(second, blocks=blocks), blocks
    mdp = estimated(steps)
    if method == "sets":
        return mdp, blocks
    assert mdp.estimate is not None
    radius = weissman(mdp.estimate.counts, mdp.n_states)
    return replace(mdp, estimate=replace(mdp.estimate, row_radius=radius)), blocks


def estimated(steps: Transitions, **options: Any) -> TabularMDP:
    """With what is known of the environment."""
    return estimate_mdp(
        steps,
        reward_range=RANGE,
        alpha=ALPHA,
        deterministic_rewards=True,
        never_ends=True,
        **options,
    )


def part(steps: Transitions, which: slice) -> Transitions:
    """Some of the steps."""
    names = ("states", "actions", "rewards", "next_states", "terminated")
    taken: dict[str, Any] = {name: getattr(steps, name)[which] for name in names}
    return replace(steps, **taken)


def proposed(mdp: TabularMDP) -> IntArray:
    """Blocks of states that pay alike."""
    found = propose_components(scaled_points(mdp.rewards), mdp.n_states, seed=0)
    return np.arange(mdp.n_states) if found is None else found


def weissman(counts: IntArray, outcomes: int) -> FloatArray:
    """One radius per row: (2^k - 2) exp(-2 N e²) is half of a row's share of alpha, and of N's."""
    n = np.maximum(counts, 1).astype(np.float64)
    share = ALPHA / counts.size / 2.0 / (n * (n + 1.0))
    radius = np.sqrt((outcomes * np.log(2.0) - np.log(share)) / (2.0 * n))
    return np.where(counts == 0, 1.0, np.minimum(radius, 1.0))


# -- coverage ------------------------------------------------------------------------------------


def coverage(true: TabularMDP, draws: int) -> None:
    """How often everything that is claimed holds for the truth, whenever one looks."""
    gamma, looks = 0.9, (1_000, 4_000, 16_000)
    values = value_iteration(true, gamma)
    rows = true.kernel().toarray()
    held = {"rows": 0, "rows summed by blocks": 0, "values": 0}
    scales = (0.5, 0.25)
    smaller = dict.fromkeys(scales, 0)
    for draw in range(draws):
        steps = sample_transitions(true, 2 * looks[-1], seed=1_000 + draw)
        blocks = proposed(estimated(part(steps, slice(looks[-1]))))
        lift = (blocks[:, None] == np.unique(blocks)).astype(float)
        ratios = []
        for n in looks:
            mdp = estimated(part(steps, slice(looks[-1], looks[-1] + n)), blocks=blocks)
            estimate = mdp.estimate
            assert estimate is not None
            assert estimate.block_radius is not None
            off = mdp.kernel().toarray() - rows
            whole = np.abs(off).sum(axis=1) / 2.0 / estimate.row_radius.ravel()
            sums = np.abs(off @ lift).sum(axis=1) / 2.0 / estimate.block_radius.ravel()
            ratios.append((float(whole.max()), float(sums.max())))
        worst, by_blocks = (max(column) for column in zip(*ratios, strict=True))
        held["rows"] += worst <= 1.0
        held["rows summed by blocks"] += by_blocks <= 1.0
        value = prove_value(mdp, blocks, gamma)
        is_below = (value.optimal_lower <= values.upper).all()
        held["values"] += bool(is_below and (values.lower <= value.optimal_upper).all())
        for scale in scales:
            smaller[scale] += max(worst, by_blocks) <= scale
    console.print(f"Coverage of the true model in {draws} draws, looked at after {looks} steps:")
    for what, count in held.items():
        console.print(f"  {what}: {count} of {draws} (at least {1 - ALPHA:.0%} are promised)")
    for scale, count in smaller.items():
        console.print(f"  radii times {scale:g} would have held in {count}")


# -- gathering -----------------------------------------------------------------------------------


def gathering(most: int) -> None:
    """The same from the environment itself, by `estimate_mdp`."""
    made: Any = Hidden  # a class is called, as a maker is
    gym.register(id="Hidden-v0", entry_point=made, disable_env_checker=True)
    for goal in ("value", "certificate"):
        begun = time.perf_counter()
        mdp = estimate_mdp(
            "Hidden-v0",
            gamma=0.5,
            goal=goal,
            keep=KEEP,
            reward_range=RANGE,
            alpha=ALPHA,
            deterministic_rewards=True,
            never_ends=True,
            max_steps=most,
            seed=0,
        )
        about = mdp.metadata["gathered"]
        assert mdp.estimate is not None
        assert mdp.estimate.blocks is not None
        count = np.unique(mdp.estimate.blocks).size
        console.print(
            f"gathered at gamma 0.5, goal {goal}: {about['steps']:,} steps, {about['counted']:,} "
            f"counted, {count} blocks, {'met' if about['is_met'] else 'not met'}, "
            f"{time.perf_counter() - begun:.0f} s"
        )


if __name__ == "__main__":
    main()
