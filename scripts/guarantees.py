"""What agents get by the default of `certify`: proven, true, and simulated.

    python scripts/guarantees.py                       all environments, all discounts, in Markdown
    python scripts/guarantees.py --only Taxi --gamma 0.9
    python scripts/guarantees.py --json rows.json      the same rows as JSON

Every certificate is verified by independent code. The true figures are those of one agent that
solves the small environment: its greedy policy, evaluated on the model. In every line whose verdict
is green, this agent also plays episodes of the environment itself. The command fails if a
certificate is rejected, if a proof contradicts the truth, or if simulated episodes end clearly less
often than the best policy's, or return what the proof rules out, by more than three standard
errors.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from bisim_abstract import Certificate, TabularMDP, certify, value_iteration, verify
from bisim_abstract._abstract.episodes import bound_episodes
from bisim_abstract._abstract.value import LEARNER_TERMS, ProvenShare, amount_text, share_text
from bisim_abstract._app.runs import plain
from bisim_abstract.wrappers import AbstractedEnv, extract_mdp, make_env

GAMMAS = (0.9, 0.95, 0.99)
HORIZON = 1_000  # steps of simulated episodes, where the environment has no time limit
ENOUGH = 0.95  # of the best policy's episodes are to end
ERRORS = 3.0  # standard errors
ROUNDING = 1e-6  # of a share: how far evaluations of one policy may be apart
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Taxi": ("Taxi-v3", {}),
    "FrozenLake 4x4": ("FrozenLake-v1", {"map_name": "4x4"}),
    "FrozenLake 8x8": ("FrozenLake-v1", {"map_name": "8x8"}),
    "CliffWalking": ("CliffWalking-v1", {}),
    "CliffWalking, slippery": ("CliffWalking-v1", {"is_slippery": True}),
    "Blackjack": ("Blackjack-v1", {}),
    "MiniGrid Empty-8x8": ("MiniGrid-Empty-8x8-v0", {}),
    "MiniGrid DoorKey-5x5": ("MiniGrid-DoorKey-5x5-v0", {}),
    "MiniGrid FourRooms": ("MiniGrid-FourRooms-v0", {}),
    "RoomsGrid, noise 0.02": ("bisim_abstract/RoomsGrid-v0", {"noise": 0.02}),
}
COLUMNS = (
    "environment",
    "γ",
    "clusters",
    "level",
    "policy",
    "solver (true)",
    "learner",
    "converged",
    "margin",
    "loss (true)",
    "episodes that end: solver (true, best)",
    "simulated",
)


@dataclass(frozen=True)
class Simulated:
    """Episodes of an agent in the environment itself.

    Attributes:
        ended: Share of episodes that ended within the limit.
        low: Mean discounted return, at least: of an episode that was cut off, what is proven to
            follow at least is added.
        high: The same, at most.
        error: Standard error of the mean discounted return.
        returned: Mean return within the limit, without discount.
        return_error: Its standard error.
    """

    ended: float
    low: float
    high: float
    error: float
    returned: float
    return_error: float


@dataclass(frozen=True)
class Row:
    """A line of the table; shares and ends are lower bounds, but for those that are true."""

    environment: str
    gamma: float
    states: int
    clusters: int | None
    level: str
    sentence: str
    policy: float | None = None
    solver: float | None = None
    solver_true: float | None = None
    learner: float | None = None
    converged: float | None = None
    margin: float | None = None
    margin_kept: float | None = None
    loss: float | None = None
    loss_true: float | None = None
    horizon: int | None = None
    ended: float | None = None
    ended_true: float | None = None
    ended_best: float | None = None
    simulated: Simulated | None = None
    problem: str = ""

    def cells(self) -> Iterator[str]:
        """As the table shows it."""
        yield self.environment
        yield f"{self.gamma:g}"
        yield "none" if self.clusters is None else f"{self.clusters:,} of {self.states:,}"
        yield self.level
        for kept, true in (
            (self.policy, None),
            (self.solver, self.solver_true),
            (self.learner, None),
            (self.converged, None),
        ):
            text = "–" if kept is None else _cell(kept)
            yield text if true is None else f"{text} ({_percent(true)})"
        if self.margin is None or self.margin_kept is None:
            yield "–"
        else:
            yield "any" if math.isinf(self.margin) else f"{self.margin:.2g}"
        if self.loss is None or self.loss_true is None:
            yield "–"
        else:
            yield f"{amount_text(self.loss)} ({self.loss_true:.3g})"
        if self.ended is None or self.ended_true is None or self.ended_best is None:
            yield "–"
        else:
            own, best = _percent(self.ended_true), _percent(self.ended_best)
            yield f"{_percent(self.ended)} ({own}, {best})"
        found = self.simulated
        if found is None:
            yield "–"
        else:
            ends = f"{_percent(found.ended)} end, " if self.ended_best is not None else ""
            yield f"{ends}return {found.low:.4g}"


def _percent(share: float) -> str:
    return "100%" if share >= 1.0 - 1e-9 else f"{100.0 * share:.1f}%"


def _cell(kept: float) -> str:
    return share_text(kept).replace("at least ", "")


def row_of(name: str, gamma: float, episodes: int) -> Row:
    """One environment at one discount."""
    env_id, args = CASES[name]
    mdp = made(lambda: extract_mdp(make_env(env_id, **args)))
    found = certify(mdp, gamma)
    verdict, value = found.verdict, found.value
    checked = verify(mdp, found)
    row = Row(name, gamma, found.n_live, verdict.clusters, verdict.level, verdict.sentence)
    if not checked.is_valid:
        return _changed(row, problem=f"rejected: {checked.problem}")
    if value is None:
        return row
    small = found.aggregate(mdp)
    best = np.asarray(value_iteration(small.mdp, gamma).policy, dtype=np.int64)
    env = made(lambda: AbstractedEnv(make_env(env_id, **args), found, dynamics="ground", mdp=mdp))
    limit = HORIZON if value.episodes is None else value.episodes.horizon
    true = env.evaluate(best, horizon=limit)
    assert true.episodes is not None
    assert true.best_episodes is not None
    solver, learner = value.solver, value.learner
    converged = None if learner is None else learner.converged
    sure = None if value.episodes is None else value.episodes.solver.ended
    row = _changed(
        row,
        policy=value.kept,
        solver=solver.kept,
        solver_true=true.share.kept,
        learner=None if learner is None else learner.kept,
        converged=None if converged is None else converged.kept,
        margin=solver.margin,
        margin_kept=solver.margin_kept,
        loss=solver.loss,
        loss_true=true.share.loss,
        horizon=limit,
        ended=None if sure is None else sure[0],
        ended_true=None if true.episodes.ended is None else true.episodes.ended[0],
        ended_best=None if true.best_episodes.ended is None else true.best_episodes.ended[0],
        problem=_contradiction(solver, true.share),
    )
    if verdict.level == "useful" and not row.problem:
        played = made(lambda: simulate(env, best, episodes, limit, solver))
        row = _changed(row, simulated=played, problem=_misses(played, found, mdp, limit, episodes))
    env.close()
    return row


def _changed(row: Row, **changes: Any) -> Row:
    return Row(**{name: getattr(row, name) for name in row.__dataclass_fields__} | changes)


def _contradiction(proven: ProvenShare, true: ProvenShare) -> str:
    """Whether what is true of one agent is less than what is proven of all."""
    # What is true is known from below, up to the tightness of its own proof.
    if true.kept < proven.kept - ROUNDING or true.loss > proven.loss * (1.0 + ROUNDING) + 1e-9:
        return f"the proof says {proven.summary()}, but one agent {true.summary()}"
    return ""


def simulate(
    env: AbstractedEnv,
    policy: np.ndarray[Any, np.dtype[np.int64]],
    episodes: int,
    limit: int,
    solver: ProvenShare,
) -> Simulated:
    """Episodes of a policy over clusters in the environment itself.

    Where a condition of the certificate says that rewards are those of step 0, each step pays
    these.
    """
    mdp, gamma = env.mdp, env.certificate.gamma
    value = env.certificate.value
    assert value is not None
    is_still = any(text.startswith("rewards as at") for text in env.certificate.conditions)
    ends = np.zeros(episodes)
    low, high, plain = (np.zeros(episodes) for _ in range(3))
    for k in range(episodes):
        cluster, info = env.reset(seed=k)
        weight, is_over = 1.0, False
        for _ in range(limit):
            action, state = int(policy[cluster]), int(info["state"])
            cluster, reward, terminated, truncated, info = env.step(action)
            paid = float(mdp.rewards[state, action] if is_still else reward)
            low[k] += weight * paid
            plain[k] += paid
            weight *= gamma
            is_over = bool(terminated)
            if terminated or truncated:
                break
        high[k] = low[k]
        ends[k] = is_over
        if not is_over:
            state = int(info["state"])
            low[k] += weight * solver.lower[state]
            high[k] += weight * value.optimal_upper[state]
    error = max(low.std(), high.std()) / math.sqrt(episodes)
    return Simulated(
        ended=float(ends.mean()),
        low=float(low.mean()),
        high=float(high.mean()),
        error=float(error),
        returned=float(plain.mean()),
        return_error=float(plain.std() / math.sqrt(episodes)),
    )


def _misses(
    found: Simulated, certificate: Certificate, mdp: TabularMDP, limit: int, episodes: int
) -> str:
    """What simulated episodes contradict; empty if nothing."""
    value = certificate.value
    assert value is not None
    weights = mdp.start / mdp.start.sum()
    least, most = float(weights @ value.solver.lower), value.optimal_start[1]
    slack = ERRORS * found.error + 1e-9 * max(abs(least), abs(most))
    if found.high < least - slack or found.low > most + slack:
        return (
            f"episodes return {found.low:.6g} to {found.high:.6g}, proven {least:.6g} to {most:.6g}"
        )
    best = bound_episodes(mdp, value.optimal_policy, limit)
    if best.ended is None:
        return ""
    bar = ENOUGH * best.ended[0]
    spread = ERRORS * math.sqrt(max(bar * (1.0 - bar), 0.0) / episodes)
    returns_less = found.returned + ERRORS * found.return_error < best.mean_return[0]
    if found.ended < bar - spread and returns_less:
        return f"{found.ended:.1%} of episodes end in {limit:,} steps, {best.ended[0]:.1%} at best"
    return ""


def made(work: Callable[[], Any]) -> Any:
    """A result, without the warnings of ids that this Gymnasium has retired."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=tuple(CASES), help="(repeatable)")
    parser.add_argument("--gamma", type=float, action="append", help="(repeatable)")
    parser.add_argument("--episodes", type=int, default=2_000, help="to simulate (2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON, too")
    options = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    print(f"| {' | '.join(COLUMNS)} |")
    print("|" + "---|" * len(COLUMNS))
    rows = []
    for name in options.only or CASES:
        for gamma in options.gamma or GAMMAS:
            rows.append(row_of(name, gamma, options.episodes))
            print(f"| {' | '.join(rows[-1].cells())} |", flush=True)
    print(f"\nShares of learners hold if {LEARNER_TERMS}.")
    if options.json is not None:
        text = json.dumps(plain([asdict(row) for row in rows]), indent=1, allow_nan=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    faults = [row for row in rows if row.problem]
    for row in faults:
        print(f"{row.environment}, gamma {row.gamma:g}: {row.problem}", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
