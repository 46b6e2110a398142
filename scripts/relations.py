"""Which relation gives the fewest clusters: all of them side by side, over the usual environments.

    python scripts/relations.py                        all environments and discounts, in Markdown
    python scripts/relations.py --only Taxi --gamma 0.9
    python scripts/relations.py --guarantee learner    for one-step Q-learners on real steps
    python scripts/relations.py --json rows.json       the same rows as JSON

Every certificate is verified by independent code, and the command fails if one is rejected. A cell
holds the number of clusters, what the policy, solvers and learners are proven to retain ("<0":
below the baseline), and seconds; "–" means that nothing was certified that reaches the goal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from guarantees import CASES as USUAL
from guarantees import GAMMAS, made

from bisim_abstract import Reading, TabularMDP, certify, verify
from bisim_abstract._abstract.value import share_text
from bisim_abstract._app.runs import plain
from bisim_abstract.wrappers import extract_mdp, make_env

RELATIONS = ("plain", "lax", "optimal")
CASES: dict[str, tuple[str, dict[str, Any]]] = USUAL | {
    "FrozenLake 8x8, not slippery": ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}),
    "RoomsGrid, noise 0.1": ("bisim_abstract/RoomsGrid-v0", {"noise": 0.1}),
}
# The sizes that are compared elsewhere are those of one layout.
STARTS = {"MiniGrid FourRooms": 1, "MiniGrid DoorKey-5x5": 1}
BELOW = "<0"  # shares below the baseline


@dataclass(frozen=True)
class Row:
    """A line of the table; shares are lower bounds."""

    environment: str
    states: int
    gamma: float
    relation: str
    clusters: int | None
    policy: float | None
    solver: float | None
    learner: float | None
    seconds: float
    problem: str

    def cell(self) -> str:
        """As the table shows it: clusters, three shares, seconds."""
        if self.clusters is None:
            return f"–, {self.seconds:.1f} s"
        shares = (self.policy, self.solver, self.learner)
        texts = (
            "–" if x is None else share_text(x).removeprefix("at least ") if x >= 0.0 else BELOW
            for x in shares
        )
        return f"**{self.clusters:,}**: {', '.join(texts)}; {self.seconds:.1f} s"


def row_of(
    name: str, mdp: TabularMDP, gamma: float, relation: str, guarantee: str, budget: float
) -> Row:
    """One environment at one discount, by one relation."""
    begin = time.perf_counter()
    found = certify(mdp, gamma, relation=relation, guarantee=guarantee, max_seconds=budget)
    seconds = time.perf_counter() - begin
    checked = verify(mdp, found)
    value = found.value
    is_good = value is not None and found.verdict.level == "useful"
    learner = None if value is None else value.learner
    return Row(
        environment=name,
        states=found.n_live,
        gamma=gamma,
        relation=relation,
        clusters=found.n_clusters if is_good else None,
        policy=value.kept if value is not None and is_good else None,
        solver=value.solver.kept if value is not None and is_good else None,
        learner=learner.kept if learner is not None and is_good else None,
        seconds=seconds,
        problem="" if checked.is_valid else f"rejected: {checked.problem}",
    )


def _extracted(env_id: str, args: dict[str, Any], starts: int | None) -> TabularMDP:
    return extract_mdp(make_env(env_id, **args), reading=Reading(starts=starts))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", choices=tuple(CASES), help="(repeatable)")
    parser.add_argument("--gamma", type=float, action="append", help="(repeatable)")
    parser.add_argument("--relation", action="append", choices=(*RELATIONS, "auto"))
    parser.add_argument("--guarantee", default="solver", choices=("solver", "policy", "learner"))
    parser.add_argument("--seconds", type=float, default=60.0, help="budget of each run (60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON, too")
    options = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    relations = options.relation or RELATIONS
    print(f"| environment | states | γ | {' | '.join(relations)} |")
    print("|" + "---|" * (3 + len(relations)))
    rows = []
    for name in options.only or CASES:
        env_id, args = CASES[name]
        mdp = made(partial(_extracted, env_id, args, STARTS.get(name)))
        for gamma in options.gamma or GAMMAS:
            own = [
                row_of(name, mdp, gamma, relation, options.guarantee, options.seconds)
                for relation in relations
            ]
            rows += own
            states = f"{own[0].states:,}"
            print(f"| {name} | {states} | {gamma:g} | {' | '.join(x.cell() for x in own)} |")
            sys.stdout.flush()
    if options.json is not None:
        text = json.dumps(plain([asdict(row) for row in rows]), indent=1, allow_nan=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    faults = [row for row in rows if row.problem]
    for row in faults:
        print(f"{row.environment}, gamma {row.gamma:g}: {row.problem}", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
