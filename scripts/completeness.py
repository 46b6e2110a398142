"""Completeness: is certified what can be? Planted models whose truth is known.

    python scripts/completeness.py             all families, about an hour
    python scripts/completeness.py --quick     one seed of the small ones
    python scripts/completeness.py kernel      families whose name contains a word
    python scripts/completeness.py --growth    time against states and against blocks

Up to 1,500 states the truth is the exact metric: the interval of thresholds from the longest link
inside a group to the shortest one between two. "x r" is its width, high over low. The groups of a
larger model are those of a smaller one, with more states in each: "~ r" is the width of that one's
interval, and groups without noise in their rows are simply "far" apart. Every certificate is
compared with the exact metric, where that is known, and verified.

A case counts as certified if some threshold is found at which both arms agree (the widest such
interval need not be that of the groups), and if the groups are certified at a true threshold.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract import Blocks, Certificate, TabularMDP, bisimulation_metric, certify, verify
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._linkage.forests import spanning_forest

console = Console(width=150, highlight=False)
SLACK = 1e-9  # relative: two solvers of the same metric
MOST = 1_500  # states whose metric is solved for


@dataclass(frozen=True)
class Planted:
    """A model of groups of similar states.

    Attributes:
        name: Of the family.
        n_states: Number of states.
        n_groups: Number of groups.
        gamma: The discount.
        n_actions: Number of actions.
        reward_noise: Width of what is added to rewards.
        kernel_noise: Share of a row's mass that goes elsewhere, drawn for each state and action.
        goes_near: Whether that is to the groups next to it, or to any.
        is_unequal: Whether a few groups are large and many small.
        has_shared_rewards: Whether all groups but one pay the same: only the future tells them
            apart.
        n_between: States between two groups each, by as much in rewards as in rows.
        apart: If given, every second group differs from the one before by so much of its rewards,
            and in nothing else.
        support: Groups that a group leads to.
        max_pairs: See `Blocks`.
    """

    name: str
    n_states: int
    n_groups: int
    gamma: float = 0.9
    n_actions: int = 3
    reward_noise: float = 0.0
    kernel_noise: float = 0.0
    goes_near: bool = False
    is_unequal: bool = False
    has_shared_rewards: bool = False
    n_between: int = 0
    apart: float | None = None
    support: int = 3
    max_pairs: int | None = None

    def build(self, seed: int) -> tuple[TabularMDP, IntArray]:
        """The model, and the group of each state."""
        rng = np.random.default_rng(seed)
        k, a = self.n_groups, self.n_actions
        sizes = self._sizes(rng)
        groups, begins = np.repeat(np.arange(k), sizes), np.cumsum(sizes) - sizes
        base = rng.random((k, a))
        if self.has_shared_rewards:
            base[1:] = base[1]
        support = min(self.support, k)
        targets = np.array([rng.choice(k, support, replace=False) for _ in range(k * a)])
        weights = rng.dirichlet(np.ones(support), size=k * a)
        if self.apart is not None:
            odd = np.arange(1, k, 2)
            base[odd] = base[odd - 1] + self.apart * (base[odd] - base[odd - 1])
            for own in (targets.reshape(k, -1), weights.reshape(k, -1)):
                own[odd] = own[odd - 1]
        kinds = (groups[:, None] * a + np.arange(a)).ravel()
        columns, masses = targets[kinds], weights[kinds] * (1.0 - self.kernel_noise)
        if self.kernel_noise:
            away = rng.integers(k, size=kinds.size)
            if self.goes_near:
                away = (groups.repeat(a) + rng.choice([-1, 1], kinds.size)) % k
            columns = np.column_stack([columns, away])
            masses = np.column_stack([masses, np.full(kinds.size, self.kernel_noise)])
        successors = begins[columns] + (rng.random(columns.shape) * sizes[columns]).astype(np.int64)
        rewards = base[groups]
        rewards += self.reward_noise * rng.uniform(-0.5, 0.5, rewards.shape)
        for s in rng.choice(groups.size, self.n_between, replace=False).tolist():
            other = base[(groups[s] + 1) % k]
            rewards[s] += 0.2 * (other - rewards[s])  # still nearer to its own
        indptr = np.arange(kinds.size + 1) * columns.shape[1]
        mdp = TabularMDP.from_rows(indptr, successors.ravel(), masses.ravel(), rewards)
        return mdp, groups

    def _sizes(self, rng: np.random.Generator) -> IntArray:
        shares = np.ones(self.n_groups)
        if self.is_unequal:
            shares = rng.pareto(1.0, self.n_groups) + 0.05
        sizes = np.maximum(2, (shares / shares.sum() * self.n_states).astype(np.int64))
        sizes[np.argmax(sizes)] += self.n_states - sizes.sum()
        return np.asarray(sizes)


@dataclass
class Outcome:
    """One case: what is true, and what was certified."""

    case: Planted
    low: float
    high: float
    found: str = "no"
    is_given: bool = False
    seconds: list[float] = field(default_factory=list)
    stop: str = ""
    violations: int = 0

    @property
    def ratio(self) -> float:
        """Width of the true interval; infinite where it is known by construction only."""
        return self.high / self.low if self.low > 0.0 else np.inf


def families() -> Iterator[Planted]:
    """The cases, from small to large."""
    for gamma in (0.5, 0.9, 0.99, 0.999):
        yield Planted("reward noise", 560, 5, gamma, reward_noise=0.05)
        yield Planted("kernel noise", 560, 20, gamma, kernel_noise=0.02)
        yield Planted("kernel noise near", 560, 20, gamma, kernel_noise=0.1, goes_near=True)
    capped: dict[str, Any] = {"max_pairs": 80_000}
    yield Planted("kernel noise, few pairs", 560, 10, 0.5, kernel_noise=0.1, **capped)
    yield Planted("kernel noise, few pairs", 560, 20, kernel_noise=0.02, **capped)
    yield Planted("kernel noise, few pairs", 560, 20, kernel_noise=0.05, **capped)
    yield Planted(
        "both noises, few pairs", 600, 20, kernel_noise=0.02, reward_noise=0.02, max_pairs=100_000
    )
    yield Planted("in between", 400, 8, reward_noise=0.01, n_between=20)
    yield Planted("shared rewards", 400, 8, kernel_noise=0.005, has_shared_rewards=True)
    yield Planted("unequal", 600, 30, reward_noise=0.01, kernel_noise=0.01, is_unequal=True)
    yield Planted("deterministic", 600, 12, reward_noise=0.02, support=1)
    for apart in (0.8, 0.5, 0.3):
        yield Planted("close, reward noise", 500, 10, reward_noise=0.05, apart=apart)
        yield Planted("close, kernel noise", 500, 10, kernel_noise=0.02, apart=apart)
        yield Planted("close, kernel noise", 500, 10, 0.99, kernel_noise=0.002, apart=apart)
    yield Planted("both noises", 1500, 20, kernel_noise=0.02, reward_noise=0.005)
    yield Planted("large deterministic", 5_000, 50, 0.99, reward_noise=1e-3, support=1)
    yield Planted("large unequal", 20_000, 500, reward_noise=1e-5, is_unequal=True)
    for gamma in (0.5, 0.9, 0.99, 0.999):
        noise = 0.05 * (1.0 - gamma)
        yield Planted("large reward noise", 20_000, 50, gamma, reward_noise=noise)
        yield Planted("large kernel noise", 20_000, 50, gamma, kernel_noise=0.5 * noise)
    yield Planted("large kernel noise", 5_000, 50, kernel_noise=0.02)
    yield Planted("large kernel noise", 20_000, 50, kernel_noise=0.05)
    yield Planted("large kernel noise near", 20_000, 50, kernel_noise=0.05, goes_near=True)
    yield Planted("large shared rewards", 20_000, 20, kernel_noise=2e-3, has_shared_rewards=True)
    yield Planted("large both noises", 20_000, 100, kernel_noise=0.005, reward_noise=1e-3)
    yield Planted("large both noises", 20_000, 50, kernel_noise=0.02, reward_noise=0.05)
    yield Planted("large kernel noise", 90_000, 100, kernel_noise=0.005)


def truth(mdp: TabularMDP, groups: IntArray, gamma: float) -> tuple[float, float, Any]:
    """The true interval of the groups, and the metric."""
    metric = bisimulation_metric(mdp, gamma)
    first, second = np.triu_indices(mdp.n_states, 1)
    lower, upper = metric.bounds(first, second)
    same = groups[first] == groups[second]
    inside = spanning_forest(mdp.n_states, first[same], second[same], upper[same])
    return float(inside.weights.max(initial=0.0)), float(lower[~same].min()), metric


def violations(found: Certificate, metric: Any) -> int:
    """Pairs whose certified bounds do not enclose the exact metric."""
    if metric is None:
        return 0
    pairs = np.triu_indices(found.n_states, 1)
    low, high = metric.bounds(*pairs)
    bounds: tuple[FloatArray, FloatArray] = found.bounds(*pairs)
    grain = SLACK * (1.0 + high)
    return int(((bounds[0] > high + grain) | (bounds[1] < low - grain)).sum())


def is_right(found: Certificate, groups: IntArray) -> bool:
    """Whether the planted groups are what is certified."""
    if not found.is_certified:
        return False
    cells = np.unique(np.stack([groups, found.labels_upper]), axis=1).shape[1]
    return bool(cells == np.unique(groups).size == np.unique(found.labels_upper).size)


def interval(case: Planted, seed: int) -> tuple[float, float, Any]:
    """What `truth` says, of a smaller model of the same groups if the case is large.

    (0, infinity) where even that would be too large.
    """
    if case.n_states <= MOST:
        return truth(*case.build(seed), case.gamma)
    if case.n_groups > 100 or case.is_unequal:  # these draw their groups after their sizes
        return 0.0, np.inf, None
    small = replace(case, n_states=12 * case.n_groups)
    return *truth(*small.build(seed), case.gamma)[:2], None


def judge(case: Planted, seed: int) -> Outcome:
    """Certify a case, with the threshold to be found and with it given."""
    mdp, groups = case.build(seed)
    low, high, metric = interval(case, seed)
    out = Outcome(case, low, high)
    taus: list[float | str] = ["auto"]
    if np.isfinite(high) and high > low:
        taus.append(float(np.sqrt(max(low, 1e-6 * high) * high)))
    for tau in taus:
        begin = time.perf_counter()
        found = certify(mdp, case.gamma, tau=tau, method=Blocks(max_pairs=case.max_pairs))
        out.seconds.append(time.perf_counter() - begin)
        out.violations += violations(found, metric)
        if found.is_certified:
            verify(mdp, found).raise_if_rejected()
        right = is_right(found, groups)
        if tau == "auto":
            out.found = "groups" if right else "others" if found.is_certified else "no"
            out.stop = "" if found.is_certified else found.stop
        else:
            out.is_given, out.stop = right, out.stop if right else found.stop
    if len(taus) == 1:
        out.is_given = out.found == "groups"
    return out


def show(outcomes: list[Outcome]) -> None:
    """A row for each case, and shares by true ratio."""
    table = Table(title="Planted groups: true and certified", title_justify="left")
    for name in ("family", "states", "groups", "gamma", "true x", "found", "given", "s", "unsound"):
        table.add_column(name, justify="left" if name == "family" else "right")
    for x in outcomes:
        table.add_row(
            x.case.name,
            f"{x.case.n_states:,}",
            f"{x.case.n_groups}",
            f"{x.case.gamma:g}",
            ("" if x.case.n_states <= MOST else "~ ") + f"{x.ratio:.3g}"
            if np.isfinite(x.ratio)
            else "far",
            x.found,
            "yes" if x.is_given else "-" if x.ratio <= 1.0 else "no",
            " ".join(f"{s:.1f}" for s in x.seconds),
            str(x.violations),
        )
    console.print(table)
    for low, high in ((2.0, np.inf), (1.5, 2.0), (1.0, 1.5)):
        some = [x for x in outcomes if low <= x.ratio and (x.ratio < high or high == np.inf)]
        if some:
            found, given = sum(x.found != "no" for x in some), sum(x.is_given for x in some)
            span = f"at least {low:g}" if high == np.inf else f"from {low:g} to {high:g}"
            console.print(
                f"true ratio {span}: of {len(some)}, {found} are certified at a threshold that was "
                f"looked for, {given} at one that was given"
            )
    console.print(f"bounds that do not enclose the metric: {sum(x.violations for x in outcomes)}")


def show_growth() -> None:
    """Seconds of certificates against states and against blocks, and log-log slopes."""
    both: dict[str, Any] = {"kernel_noise": 0.005, "reward_noise": 1e-3}
    for what, cases in (
        ("states", [Planted("", n, 50, **both) for n in (2_500, 10_000, 40_000, 160_000)]),
        (
            "groups",
            [Planted("", 40_000, k, reward_noise=1e-3) for k in (50, 100, 200, 400, 800)],
        ),
        # Rows that lead anywhere: every pair of blocks reads all others.
        ("groups", [Planted("", 40_000, k, **both) for k in (25, 50, 100)]),
    ):
        sizes, seconds = [], []
        for case in cases:
            mdp, groups = case.build(0)
            begin = time.perf_counter()
            found = certify(mdp, case.gamma, tau="auto")
            seconds.append(time.perf_counter() - begin)
            verify(mdp, found).raise_if_rejected()
            sizes.append(getattr(case, f"n_{what}"))
            verdict = "certified" if is_right(found, groups) else "NOT CERTIFIED"
            console.print(
                f"{case.n_states:8,} states, {case.n_groups:4} groups: "
                f"{seconds[-1]:6.1f} s, {verdict}"
            )
        slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
        console.print(f"log-log slope of time against {what}: {slope:.2f}")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="Is certified what can be?")
    parser.add_argument("words", nargs="*", help="of families to run; all by default")
    parser.add_argument("--quick", action="store_true", help="small models, one seed")
    parser.add_argument("--seeds", type=int, default=3, help="models of each kind (3)")
    parser.add_argument("--growth", action="store_true", help="time against size alone")
    options = parser.parse_args()
    certify(Planted("", 60, 4, reward_noise=0.01).build(0)[0], 0.9)  # compiles
    if options.growth:
        show_growth()
        return
    outcomes = []
    for case in families():
        if options.words and not any(word in case.name for word in options.words):
            continue
        if options.quick and case.n_states > 600:
            continue
        for seed in range(1 if options.quick else options.seeds):
            outcome = judge(case, seed)
            outcomes.append(outcome)
            if outcome.stop and outcome.ratio > 1.0:
                console.print(f"[dim]{case.name}, {case.n_states:,}, {seed}: {outcome.stop}[/dim]")
    show(outcomes)


if __name__ == "__main__":
    main()
