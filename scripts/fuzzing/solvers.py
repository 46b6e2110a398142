"""Solver targets: random small models, judged by slow code of our own."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    TabularMDP,
    aggregate,
    bisimulation_classes,
    bisimulation_metric,
    certify,
    estimate_mdp,
    evaluate_policy,
    lift_policy,
    prove_value,
    value_iteration,
    value_loss,
    verify,
)
from bisim_abstract.parts import (
    make_witness,
    single_build,
    solve_transport,
    value_bracket,
    value_features,
)
from fuzzing.core import Case, Run
from fuzzing.files import claim
from fuzzing.forge import Truth, check_clusters, check_enclosure, check_value
from fuzzing.models import Floats, dense, exact_rows, random_gamma, random_model, random_row
from fuzzing.mutate import pick
from fuzzing.truth import (
    exact_backup,
    exact_transport,
    exact_values,
    largest_share,
    metric_enclosure,
    start_mean,
    values_enclosure,
)

HUGE = 1e140  # rewards beyond may make a metric or a value overflow, which is refused


def on_models(
    work: Callable[[Case, TabularMDP, float], None],
    *,
    max_states: int = 8,
    patience: float = 1.0,
) -> Callable[[Path], Run]:
    """A target that runs on random models and discounts, few of them near 1 if that is slow."""

    def prepare(shared: Path) -> Run:
        def run(case: Case) -> bool:
            mdp = random_model(case.rng, max_states=max_states)
            gamma = random_gamma(case.rng, patience=patience)
            case.mdp, case.note = mdp, f"gamma {gamma!r}"
            try:
                work(case, mdp, gamma)
            except InvalidArgumentError:
                if float(np.abs(mdp.rewards).max()) < HUGE:
                    raise
                return False
            return True

        return run

    return prepare


def truth_of(mdp: TabularMDP, gamma: float) -> tuple[Floats, Floats]:
    """The metric between two tables, proven here; the guess is the package's."""
    found = bisimulation_metric(mdp, gamma, threads=1)
    return metric_enclosure(mdp, gamma, found.lower / 2.0 + found.upper / 2.0)


def is_sampled(case: Case, share: float, mdp: TabularMDP, n_states: int) -> bool:
    """Whether a case is also done in fractions, which take long."""
    return bool(case.rng.random() < share) and mdp.n_states <= n_states


def check_metric(case: Case, mdp: TabularMDP, gamma: float) -> None:
    """Two symmetric tables that enclose the metric, within the tolerance where promised."""
    tol = None
    if case.rng.random() < 0.3:
        tol = 10.0 ** float(case.rng.integers(-12, 3))
    sweeps = int(pick(case.rng, (1, 2, 10_000, 10_000)))
    found = bisimulation_metric(mdp, gamma, tol=tol, max_sweeps=sweeps, threads=1)
    lower, upper = found.lower, found.upper
    claim(np.isfinite(lower).all() and np.isfinite(upper).all(), "not finite")
    claim((lower >= 0.0).all() and (lower <= upper).all(), "lower above upper")
    claim((lower == lower.T).all() and (upper == upper.T).all(), "not symmetric")
    claim((np.diag(upper) == 0.0).all(), "a state apart from itself")
    claim((upper - lower).max() <= found.gap, "a gap larger than stated")
    low, high = metric_enclosure(mdp, gamma, lower / 2.0 + upper / 2.0)
    claim((lower <= high).all(), "a lower bound above the metric")
    claim((upper >= low).all(), "an upper bound below the metric")
    classes = bisimulation_classes(mdp, threads=1)
    if is_sampled(case, 0.1, mdp, 4) and classes.n_classes == mdp.n_states:
        # Without merged states both tables are solutions of inequalities, exactly.
        for table, is_lower in ((lower, True), (upper, False)):
            for (s, t), value in exact_backup(mdp, gamma, table).items():
                entry = Fraction(float(table[s, t]))
                claim(
                    entry <= value if is_lower else entry >= value,
                    f"{'lower' if is_lower else 'upper'} inequality broken at ({s}, {t})",
                )


def random_goal(rng: np.random.Generator, mdp: TabularMDP) -> dict[str, Any]:
    """Arguments of `certify`."""
    scale = float(np.ptp(mdp.rewards)) or 1.0
    n = mdp.n_states
    goal: dict[str, Any] = {"seed": int(rng.integers(100)), "threads": 1}
    if rng.random() < 0.5:
        goal["keep"] = pick(rng, (0.0, 0.5, 0.999, 1.0, float(rng.random())))
    kind = int(rng.integers(8))
    if kind == 0:
        goal["tau"] = scale * 10.0 ** float(rng.uniform(-3, 2))
    elif kind == 1:
        goal["tau"] = pick(rng, ("auto", 0.0, 5e-324, scale))
    elif kind == 2:
        goal["n_clusters"] = int(rng.integers(1, max(n - (mdp.terminal_state is not None), 1) + 1))
    elif kind == 3:
        goal["tol"] = max(scale * 10.0 ** float(rng.uniform(-6, 2)), 5e-324)
    elif kind == 4:
        goal |= {"max_loss": scale * 10.0 ** float(rng.uniform(-6, 2)), "scope": "all"}
    if rng.random() < 0.3:
        goal["embedding"] = rng.normal(size=(n, 2))
    if rng.random() < 0.4 and "max_loss" not in goal:
        goal |= {"scope": "covered", "max_rounds": int(rng.integers(1, 4))}
        goal["index"] = pick(rng, ("Flat", "LSH16", "HNSW16"))
        goal |= {"neighbours": int(rng.integers(0, 4)), "partners": int(rng.integers(0, 3))}
        goal["lower_start"] = pick(rng, ("reward", "zero"))
        goal["upper_start"] = pick(rng, ("reward", "constant"))
        goal["dim"] = int(rng.integers(1, 5))
        return goal
    sources = ("classes", "embedding", "rewards", "features")
    if rng.random() < 0.5:
        goal["propose"] = [name for name in sources if rng.random() < 0.5]
    if rng.random() < 0.5:
        goal["max_pairs"] = int(rng.integers(0, 8))
    if rng.random() < 0.3:
        goal["blocks"] = rng.integers(n, size=n)
    if rng.random() < 0.3:
        goal["max_rounds"] = int(rng.integers(1, 4))
    if rng.random() < 0.2:
        goal["max_backups"] = int(rng.integers(1, 50))
    return goal


def check_certify(case: Case, mdp: TabularMDP, gamma: float) -> None:
    """What is certified is verified, encloses the metric, and clusters as it does."""
    rng = case.rng
    if rng.random() < 0.1:
        options: dict[str, Any] = {"neighbours": int(rng.integers(0, 4)), "sweeps": 5}
        options["backup"] = pick(rng, ("exact", "index"))
        case.note += f", single_build {options}"
        certificate = single_build(mdp, gamma, threads=1, **options)
    else:
        goal = random_goal(rng, mdp)
        case.note += f", certify {goal}"
        certificate = certify(mdp, gamma, **goal)
    judge_bounds(certificate, mdp, confirmed(certificate, mdp))
    if is_sampled(case, 0.1, mdp, 4):
        exact = verify(mdp, certificate, mode="exact", threads=1)
        claim(exact.is_valid, f"rejected in fractions: {exact.problem}")
        judge_bounds(certificate, mdp, 0.0)


def confirmed(certificate: Certificate, mdp: TabularMDP) -> float:
    """The widening that `verify` asks for; it must accept what the package made."""
    found = verify(mdp, certificate, threads=1)
    claim(found.is_valid, f"our own certificate is rejected in {found.mode} mode: {found.problem}")
    return found.widening


def judge_bounds(certificate: Certificate, mdp: TabularMDP, widening: float) -> None:
    """Bounds, clusters and values against the truth."""
    truth = Truth(mdp)
    check_enclosure(certificate, truth, widening)
    check_clusters(certificate, truth)
    check_value(certificate, truth)
    if certificate.is_certified:
        claim(certificate.value is not None, "certified, and nothing proven about its value")
    claim(certificate.verdict.sentence, "no verdict")


def check_classes(case: Case, mdp: TabularMDP, gamma: float) -> None:
    """Exact classes have equal rewards and, summed by class, equal rows; rounded ones a bound."""
    digits = None if case.rng.random() < 0.7 else int(case.rng.integers(1, 16))
    initial = case.rng.integers(3, size=mdp.n_states) if case.rng.random() < 0.2 else None
    found = bisimulation_classes(mdp, digits=digits, initial=initial, threads=1)
    labels, rows = found.labels.tolist(), exact_rows(mdp)
    claim(sorted(set(labels)) == list(range(found.n_classes)), "labels have gaps")
    if initial is not None:
        claim(len(set(zip(labels, initial.tolist(), strict=True))) == found.n_classes, "too coarse")

    def lifted(s: int, a: int) -> dict[int, Fraction]:
        row: dict[int, Fraction] = {}
        for t, mass in rows[s][a].items():
            row[labels[t]] = row.get(labels[t], Fraction(0)) + mass
        return row

    for s, label in enumerate(labels):
        first = int(found.representatives[label])
        for a in range(mdp.n_actions):
            gap = abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[first, a])))
            claim(gap <= Fraction(found.reward_gap), "rewards differ by more than stated")
            one, two = lifted(s, a), lifted(first, a)
            moved = sum(
                (abs(one.get(k, Fraction(0)) - two.get(k, Fraction(0))) for k in one | two),
                Fraction(0),
            )
            claim(moved / 2 <= Fraction(found.variation), "rows differ by more than stated")
    low, high = truth_of(mdp, gamma)
    same = found.labels[:, None] == found.labels
    claim((low[same] <= found.distortion(gamma)).all(), "a class wider than its distortion")
    quotient = bisimulation_metric(found.quotient, gamma, threads=1)
    lower, upper = quotient.bounds(found.labels[:, None], found.labels)
    slack = found.distortion(gamma)
    claim((lower - slack <= high).all(), "the quotient's metric is too large")
    claim((upper + slack >= low).all(), "the quotient's metric is too small")


def check_planning(case: Case, mdp: TabularMDP, gamma: float) -> None:
    """Bounds on optimal values and on those of a random policy."""
    best = value_iteration(mdp, gamma, max_sweeps=int(pick(case.rng, (1, 3, 100_000))))
    check_values(case, mdp, gamma, best, None)
    n, n_actions = mdp.rewards.shape
    if case.rng.random() < 0.5:
        policy: Any = case.rng.integers(n_actions, size=n)
        weights = np.eye(n_actions)[policy]
    else:
        policy = weights = case.rng.dirichlet(np.ones(n_actions), size=n)
    check_values(case, mdp, gamma, evaluate_policy(mdp, gamma, policy), weights)


def check_values(
    case: Case, mdp: TabularMDP, gamma: float, found: Any, weights: Floats | None
) -> None:
    """One enclosure of values."""
    claim(np.isfinite(found.lower).all() and np.isfinite(found.upper).all(), "not finite")
    claim((found.lower <= found.upper).all(), "lower above upper")
    policy = None if weights is None else weights / weights.sum(axis=1, keepdims=True)
    low, high = values_enclosure(mdp, gamma, policy, found.lower / 2.0 + found.upper / 2.0)
    claim((found.lower <= high).all(), "a lower bound above the value")
    claim((found.upper >= low).all(), "an upper bound below the value")
    least, most = found.start_bounds(mdp)
    claim(least <= most, "start bounds")
    if is_sampled(case, 0.1, mdp, 4):
        exact_policy = None
        if weights is not None:
            lines = [[Fraction(x) for x in line] for line in weights.tolist()]
            exact_policy = [[x / sum(line) for x in line] for line in lines]
        values = exact_values(mdp, gamma, exact_policy)
        start = [Fraction(x) for x in mdp.start.tolist()]
        mean = sum((w * v for w, v in zip(start, values, strict=True)), Fraction(0)) / sum(start)
        claim(Fraction(least) <= mean <= Fraction(most), "the start value is outside")
        for s, value in enumerate(values):
            below, above = Fraction(float(found.lower[s])), Fraction(float(found.upper[s]))
            claim(below <= value <= above, f"the exact value of state {s} is outside")


def check_features(case: Case, mdp: TabularMDP, gamma: float) -> None:
    """Differences of features, and of witnesses, never exceed the metric."""
    rng = case.rng
    features = value_features(
        mdp,
        gamma,
        count=int(rng.integers(1, 8)),
        max_iter=int(pick(rng, (1, 5, 10_000))),
        seed=int(rng.integers(10)),
        threads=1,
    )
    s, t = rng.choice(mdp.n_states, size=2, replace=False).tolist()
    witness = make_witness(mdp, gamma, features, s, t, threads=1)
    features = features.with_witnesses([witness])
    states = np.arange(mdp.n_states)
    lower = features.lower(states[:, None], states)
    claim(np.isfinite(lower).all() and (lower >= 0.0).all(), "not finite")
    _, high = truth_of(mdp, gamma)
    claim((lower <= high).all(), "a feature above the metric")


def prepare_transport(shared: Path) -> Run:
    """Random transport problems against fractions."""

    def run(case: Case) -> bool:
        rng = case.rng
        m, n = rng.integers(1, 6, size=2).tolist()
        size = 10.0 ** float(pick(rng, (0, 0, 0, -300, -310, 150, 300)))
        kind = int(rng.integers(3))
        cost = rng.random((m, n)) if kind else rng.integers(0, 3, size=(m, n)).astype(float)
        cost = cost * size
        kinds = ("dense", "sparse", "deterministic", "dyadic", "ratios", "tiny", "loose")
        a, b = (random_row(rng, k, str(rng.choice(kinds))) for k in (m, n))
        a, b = (x * 10.0 ** float(pick(rng, (0, 0, 5, -5, 100))) for x in (a, b))
        case.note = f"cost {cost.tolist()}, a {a.tolist()}, b {b.tolist()}"
        plan = solve_transport(cost, a, b)
        p, q = ({i: Fraction(x) for i, x in enumerate(v.tolist()) if x} for v in (a, b))
        p, q = ({i: x / sum(v.values()) for i, x in v.items()} for v in (p, q))
        costs = {(i, j): Fraction(float(cost[i, j])) for i in p for j in q}
        value = exact_transport(costs, p, q)
        claim(not np.isnan(plan.lower) and not np.isnan(plan.upper), "NaN")
        claim(plan.lower <= plan.upper, "lower above upper")
        claim(Fraction(float(plan.lower)) <= value, f"lower {plan.lower!r} above {float(value)!r}")
        if np.isfinite(plan.upper):
            claim(Fraction(float(plan.upper)) >= value, f"upper {plan.upper!r} too small")
        else:
            claim(size > 1e290, "an infinite upper bound")
        claim(np.abs(plan.coupling.sum(axis=1) - a / a.sum()).max() < 1e-9, "marginals")
        return True

    return run


def check_aggregate(case: Case, mdp: TabularMDP, gamma: float) -> None:
    """Losses are within their bounds, and so are proven values, for any clusters."""
    rng, n = case.rng, mdp.n_states
    labels = rng.integers(int(rng.integers(1, n + 1)), size=n)
    weighting: Any = pick(rng, ("uniform", "start", "visitation", rng.random(n)))
    case.note += f", labels {labels.tolist()}, weighting {weighting}"
    small = aggregate(mdp, labels, weighting=weighting, gamma=gamma)
    claim(small.labels.shape == (n,), "labels")
    policy = value_iteration(small.mdp, gamma).policy
    if rng.random() < 0.3:
        policy = rng.integers(mdp.n_actions, size=small.mdp.n_states)
    lifted = lift_policy(small, policy)
    loss = value_loss(mdp, gamma, lifted)
    claim(loss.sup_lower <= loss.sup and loss.mean_lower <= loss.mean, "loss bounds cross")
    best = values_enclosure(mdp, gamma, None, value_iteration(mdp, gamma).lower)
    weights = np.eye(mdp.n_actions)[np.asarray(lifted, dtype=np.int64)]
    own = values_enclosure(mdp, gamma, weights, evaluate_policy(mdp, gamma, lifted).lower)
    at_least = best[0] - own[1]  # what is lost for certain
    claim(at_least.max() <= loss.sup, "a loss above value_loss.sup")
    claim(at_least.mean() <= loss.mean, "a loss above value_loss.mean")
    truth = Truth(mdp)
    optimal, reached = start_mean(mdp, best), start_mean(mdp, own)
    random = start_mean(mdp, truth.values(gamma, "random"))
    claim(optimal[0] - reached[1] <= Fraction(loss.start), "a loss above value_loss.start")
    span = Fraction(float(np.ptp(mdp.rewards))) / (1 - Fraction(gamma))
    share = largest_share(optimal, reached, random, span)
    claim(loss.kept == -np.inf or Fraction(loss.kept) <= share, "more kept than in truth")
    check_bracket(mdp, labels, gamma, truth)
    proven = prove_value(mdp, labels, gamma, by=str(pick(rng, ("start", "worst"))))
    own_values = truth.values(gamma, proven.lifted_policy.tolist())
    at_least = best[0] - own_values[1]
    claim(at_least.max() <= proven.loss, "a loss above the proven one")
    reached = start_mean(mdp, own_values)
    claim(optimal[0] - reached[1] <= Fraction(proven.start_loss), "a start loss above the proven")
    share = largest_share(optimal, reached, random, span)
    claim(proven.kept == -np.inf or Fraction(proven.kept) <= share, "more kept than in truth")


def check_bracket(mdp: TabularMDP, labels: Any, gamma: float, truth: Truth) -> None:
    """A bracket holds in every state of a cluster."""
    bracket, at = value_bracket(mdp, labels, gamma), aggregate(mdp, labels).labels
    low, _ = truth.values(gamma, "optimal")
    claim((bracket.upper[at] >= low).all(), "bracket.upper is below the values")
    _, high = truth.values(gamma, bracket.policy[at].tolist())
    claim((bracket.lower[at] <= high).all(), "bracket.lower is above the values")


def check_estimated(case: Case, mdp: TabularMDP, gamma: float) -> None:
    """Where the radii of an estimate hold, so do the bounds, for the true model."""
    rng = case.rng
    n, n_actions = mdp.rewards.shape
    size = int(rng.integers(1, 200))
    s, a = rng.integers(n, size=size), rng.integers(n_actions, size=size)
    P = dense(mdp)
    t = np.array([rng.choice(n, p=P[i, j] / P[i, j].sum()) for i, j in zip(s, a, strict=True)])
    low, high = float(mdp.rewards.min()), float(mdp.rewards.max())
    estimate = estimate_mdp(
        s,
        a,
        mdp.rewards[s, a],
        t,
        n_states=n,
        n_actions=n_actions,
        reward_range=(low, high),
        alpha=float(pick(rng, (0.05, 0.5, 1e-9))),
    )
    known = estimate.estimate
    assert known is not None
    for array in known.arrays():
        claim(np.isfinite(array).all() and (array >= 0).all(), "radii")
    claim((known.row_radius <= 1.0).all(), "a radius above 1")
    goal = {key: x for key, x in random_goal(rng, mdp).items() if key != "tau"}
    case.mdp, case.note = estimate, f"{case.note}, certify {goal}"
    certificate = certify(estimate, gamma, **goal)
    widening = confirmed(certificate, estimate)
    judge_bounds(certificate, estimate, widening)  # the estimate is within its own radii
    variation = np.abs(P - dense(estimate)).sum(axis=2) / 2.0
    is_held = (variation * (1.0 - 1e-12) <= known.row_radius - 1e-12 * (variation > 0.0)).all()
    is_held &= (np.abs(mdp.rewards - estimate.rewards) <= known.reward_radius).all()
    if is_held:
        check_enclosure(certificate, Truth(mdp), widening)
        check_value(certificate, Truth(mdp))


def targets() -> dict[str, Callable[[Path], Run]]:
    """Solver targets by name."""
    return {
        "metric": on_models(check_metric),
        "certify": on_models(check_certify, patience=0.1),
        "classes": on_models(check_classes),
        "planning": on_models(check_planning),
        "features": on_models(check_features),
        "transport": prepare_transport,
        "aggregate": on_models(check_aggregate, patience=0.1),
        "estimate": on_models(check_estimated, max_states=5, patience=0.1),
    }
