"""Agents on certified abstractions: learning curves against the same agent on raw states.

Every policy is lifted to the ground states and evaluated there exactly; nothing is estimated
from episodes. Scores are shares of the achievable return, as everywhere: of what the
optimal one has above that of random actions.

    python scripts/agents.py                     everything, with pictures in agents/
    python scripts/agents.py --quick             short runs, to see that it works
    python scripts/agents.py rooms taxi --out x  two of rooms, taxi, ends and deep
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract import (
    Curve,
    NotCertifiedError,
    QLearning,
    certify,
    learning_curve,
    lift_policy,
    plot_curves,
    value_loss,
)
from bisim_abstract._base.checks import require
from bisim_abstract.errors import MissingDependency
from bisim_abstract.parts import score_above_baseline
from bisim_abstract.wrappers import AbstractedEnv, Distractor, TabularEnv, extract_mdp, make_env

GAMMA = 0.9
ROOMS = "bisim_abstract/RoomsGrid-v0"
LABEL = "share of the achievable return"
console = Console(width=110, highlight=False)


@dataclass(frozen=True)
class Options:
    """How much to do, and where pictures go."""

    quick: bool
    seeds: int
    out: Path


def checkpoints(last: int, count: int) -> list[int]:
    """Steps at which to look, evenly spread."""
    return [last * (k + 1) // count for k in range(count)]


# -- pictures and tables -----------------------------------------------------------------------


def draw(title: str, label: str, curves: list[Curve], path: Path, *, level: float) -> None:
    """One picture: the median of the seeds, and their range."""
    from matplotlib.figure import Figure

    # Without pyplot no window system is looked for.
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = plot_curves(curves, level=level, ax=figure.subplots())
    axes.set(title=title, ylabel=label)
    axes.set_ylim(top=1.02)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    console.print(f"  picture   {path}")


def show(title: str, curves: list[Curve], marks: list[int]) -> None:
    """Shares of all seeds at a few marks."""
    table = Table(title=title, title_justify="left")
    table.add_column("agent")
    for mark in marks:
        table.add_column(f"{mark:,} steps", justify="right")
    for curve in curves:
        cells = [" ".join(f"{x:.1%}" for x in curve.at(mark)) for mark in marks]
        table.add_row(curve.name, *cells)
    console.print(table)


def prove(env: AbstractedEnv) -> None:
    """What is proven of the policy that comes with the clusters, beside what it really loses."""
    loss = value_loss(env.mdp, GAMMA, env.value.lifted_policy)
    console.print(env.summary())
    console.print(
        f"  loss      {env.value.loss:.4g} in any state by proof, {loss.sup_lower:.4g} at least "
        f"in truth; from the start {env.value.start_loss:.4g} and {loss.start_lower:.4g}"
    )


# -- the runs ----------------------------------------------------------------------------------


def run_rooms(options: Options) -> None:
    """RoomsGrid: 25 clusters against 2,500 states."""
    ground = gym.make(ROOMS, disable_env_checker=True)
    mdp = extract_mdp(ground)
    certificate = certify(mdp, GAMMA)
    env = AbstractedEnv(ground, certificate)
    prove(env)
    score = score_above_baseline(mdp, GAMMA)
    last = 8_000 if options.quick else 20_000
    marks = checkpoints(last, 16 if options.quick else 40)
    top = float(mdp.rewards.max()) / (1.0 - GAMMA)

    def agent(world: gym.Env[Any, Any]) -> Callable[[int], QLearning]:
        return lambda seed: QLearning(
            world, gamma=GAMMA, start=top, epsilon=(1.0, 0.5), decay=last, seed=seed
        )

    def lifted(policy: Any) -> float:
        return score(lift_policy(env.aggregation, policy))

    below = AbstractedEnv(ground, certificate, dynamics="ground")
    curves = [
        learning_curve("25 clusters, aggregated", agent(env), lifted, marks, seeds=options.seeds),
        learning_curve(
            "25 clusters, ground steps", agent(below), lifted, marks, seeds=options.seeds
        ),
        learning_curve(
            "2,500 raw states",
            agent(ground),
            score,
            marks,
            seeds=options.seeds,
        ),
    ]
    quarter = marks[len(marks) // 4 - 1]
    show("RoomsGrid, Q-learning", curves, [marks[0], quarter, marks[len(marks) // 2 - 1], last])
    reached = curves[0].first_above(0.95)
    if reached is None:
        console.print("[red]the abstraction did not reach 95% in all seeds[/red]")
    else:
        raw = float(curves[2].at(reached).max())
        console.print(
            f"  95% retained on the abstraction, in all seeds, from {reached:,} steps on; raw "
            f"states are then at {raw:.1%} at best",
            style="green" if raw < 0.8 else "red",
        )
    draw("RoomsGrid, Q-learning", LABEL, curves, options.out / "rooms.png", level=0.95)


def run_taxi(options: Options) -> None:
    """Taxi with a background: 500 clusters against 50,000 states (fewer if quick)."""
    size = 10 if options.quick else 100
    ground = Distractor(_quiet("Taxi-v3", disable_env_checker=True), n_background=size)
    mdp = extract_mdp(ground)
    begin = time.perf_counter()
    certificate = certify(mdp, GAMMA, tau=1e-6)
    console.print(f"Taxi x {size} backgrounds: certified in {time.perf_counter() - begin:.1f} s")
    env = AbstractedEnv(ground, certificate)
    prove(env)
    score = score_above_baseline(mdp, GAMMA)
    marks = checkpoints(20_000 if options.quick else 300_000, 4 if options.quick else 12)
    below, raw = AbstractedEnv(ground, certificate, dynamics="ground"), TabularEnv(ground)
    curves = [
        learning_curve(
            f"{env.aggregation.n_clusters:,} certified clusters",
            lambda seed: QLearning(below, gamma=GAMMA, start=0.0, seed=seed),
            lambda policy: score(lift_policy(env.aggregation, policy)),
            marks,
            seeds=options.seeds,
        ),
        learning_curve(
            f"{certificate.n_live:,} raw states",
            lambda seed: QLearning(raw, gamma=GAMMA, start=0.0, n_states=mdp.n_states, seed=seed),
            score,
            marks,
            seeds=options.seeds,
        ),
    ]
    title = f"Taxi with a background of {size} states, Q-learning"
    show(title, curves, [marks[0], marks[len(marks) // 2 - 1], marks[-1]])
    draw(title, LABEL, curves, options.out / "taxi.png", level=1.0)


def run_ends(options: Options) -> None:
    """From `gym.make` to a trained agent, in one go, on four environments."""
    steps = 20_000 if options.quick else 400_000
    table = Table(
        title=f"From gym.make to an agent of {steps:,} steps: share of the achievable return",
        title_justify="left",
    )
    for column in ("environment", "states", "clusters", "tau", "learned", "proven", "worst loss"):
        table.add_column(column, justify="left" if column == "environment" else "right")
    worlds: list[tuple[str, dict[str, Any]]] = [
        ("FrozenLake-v1", {"map_name": "8x8"}),
        ("Taxi-v3", {}),
        ("CliffWalking-v1", {}),
        ("MiniGrid-DoorKey-5x5-v0", {}),
    ]
    for name, kwargs in worlds:
        try:
            ground = _quiet(name, disable_env_checker=True, **kwargs)
        except ImportError as error:
            console.print(f"[yellow]{name} left out: {error}[/yellow]")
            continue
        mdp = extract_mdp(ground)
        certificate = certify(mdp, GAMMA)
        try:
            env = AbstractedEnv(ground, certificate, require="all")
        except NotCertifiedError as refusal:
            console.print(f"[yellow]{name} refused: {refusal}[/yellow]")
            continue
        score = score_above_baseline(mdp, GAMMA)
        top = max(0.0, float(mdp.rewards.max()))  # optimistic: it is paid once in these worlds
        agent = QLearning(env, gamma=GAMMA, start=top, seed=0)
        agent.learn(steps)
        table.add_row(
            name,
            f"{certificate.n_live:,}",
            f"{certificate.n_clusters:,}",
            f"{env.tau:.2g}",
            f"{score(lift_policy(env.aggregation, agent.policy())):.1%}",
            f"{env.value.kept:.1%}",
            f"{env.value.loss:.2g}",
        )
    console.print(table)


def run_deep(options: Options) -> None:
    """Stable-Baselines3 on the abstraction against itself on raw states."""
    try:
        sb3 = require("stable_baselines3", extra="agents")
    except MissingDependency as error:
        console.print(f"left out: {error}", style="yellow", markup=False)
        return
    import torch

    torch.set_num_threads(1)
    ground = gym.make(ROOMS, disable_env_checker=True)
    mdp = extract_mdp(ground)
    score = score_above_baseline(mdp, GAMMA)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rooms.npz"
        certify(mdp, GAMMA).save(path)
        env = AbstractedEnv(ground, path)
        steps = 512 if options.quick else 6_000
        makers: dict[str, Callable[[Any, int], Any]] = {
            "PPO": lambda e, s: sb3.PPO(
                "MlpPolicy",
                e,
                gamma=GAMMA,
                seed=s,
                n_steps=256,
                learning_rate=3e-3,
                device="cpu",
            ),
            "DQN": lambda e, s: sb3.DQN(
                "MlpPolicy",
                e,
                gamma=GAMMA,
                seed=s,
                learning_starts=200,
                target_update_interval=200,
                learning_rate=1e-3,
                exploration_fraction=0.5,
                device="cpu",
            ),
            # With the library's own n_steps = 5 and step size results are erratic on either side
            # after so few steps.
            "A2C": lambda e, s: sb3.A2C(
                "MlpPolicy", e, gamma=GAMMA, seed=s, n_steps=32, learning_rate=3e-3, device="cpu"
            ),
        }
        console.print(
            f"RoomsGrid, {steps:,} steps each: share of the achievable return, by seed, and margins"
        )
        worlds: list[tuple[Any, Callable[[Any], Any]]] = [
            (env, lambda policy: lift_policy(env.aggregation, policy)),
            (ground, lambda policy: policy),
        ]
        for name, make in makers.items():
            scores: list[list[float]] = [[], []]
            for seed in range(1 if options.quick else options.seeds):
                for k, (world, lift) in enumerate(worlds):
                    model: Any = make(world, seed)
                    model.learn(steps)
                    size = model.observation_space.n
                    policy = model.predict(np.arange(size), deterministic=True)[0]
                    scores[k].append(score(lift(np.asarray(policy, np.int64))))
            margins = np.array(scores[0]) - np.array(scores[1])
            shown = (" ".join(f"{x:6.1%}" for x in row) for row in scores)
            margin = " ".join(f"{100.0 * x:+5.1f}" for x in margins)
            console.print("  {}  abstraction {}  raw states {}  {}".format(name, *shown, margin))


def _quiet(name: str, **kwargs: Any) -> gym.Env[Any, Any]:
    with warnings.catch_warnings():
        # Where an id is retired its successor, with the same dynamics, stands in.
        warnings.simplefilter("ignore", UserWarning)
        return make_env(name, **kwargs)


RUNS: dict[str, Callable[[Options], None]] = {
    "rooms": run_rooms,
    "taxi": run_taxi,
    "ends": run_ends,
    "deep": run_deep,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(RUNS)}")
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--seeds", type=int, default=3, help="repeats with other seeds")
    parser.add_argument("--out", type=Path, default=Path("agents"), help="folder for pictures")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in RUNS]
    if unknown:
        parser.error(f"no run {unknown[0]!r}; there are {', '.join(RUNS)}")
    options = Options(given.quick, given.seeds, given.out)
    for name in given.names or RUNS:
        console.rule(name)
        begin = time.perf_counter()
        RUNS[name](options)
        console.print(f"  time      {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
