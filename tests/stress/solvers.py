"""Solver targets: random small models, judged by slow code of our own."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    TabularMDP,
    aggregate,
    bisimulation_classes,
    bisimulation_metric,
    estimate_mdp,
    evaluate_policy,
    lift_policy,
    prove_value,
    value_iteration,
    value_loss,
    verify,
)
from bisim_abstract.parts import (
    build_blocks,
    make_witnesses,
    solve_transport,
    value_bracket,
    value_features,
)
from tests.stress.certifying import ONE, goals, make_certificate
from tests.stress.running import HANG_SECONDS, Case, Target
from tests.stress.strategies import (
    ROWS,
    Floats,
    gammas,
    models,
    pick,
    rarely,
    rows,
    weights,
    whole,
)
from tests.stress.truth import (
    Truth,
    check_certificate,
    check_enclosure,
    check_value,
    dense,
    metric_enclosure,
    values_enclosure,
)
from tests.support.oracles import (
    backup_exact,
    lifted_exact,
    optimal_values_exact,
    policy_values_exact,
    transport_exact,
    variation_exact,
)

Ints = npt.NDArray[np.int64]
Options = dict[str, st.SearchStrategy[Any]]
HUGE = 1e140  # rewards beyond may make a metric or a value overflow, which is refused
# At a discount of 0.999 every proposal may take 10,000 sweeps: slow, and still no hang.
SLOW = 60.0
TARGETS: list[Target] = []


def model_target(
    options: Callable[[TabularMDP], Options],
    *,
    max_states: int = 8,
    patience: float = 1.0,
    limit: float = HANG_SECONDS,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a check a target for random models, discounts and options.

    Args:
        options: Further arguments of the check, for a model.
        max_states: Of the models.
        patience: Share of the discounts near 1 that are kept.
        limit: Seconds of work.
    """

    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        gamma, mdp = draw(gammas(patience=patience)), draw(models(max_states=max_states))
        return {"mdp": mdp, "gamma": gamma, **draw(st.fixed_dictionaries(options(mdp)))}

    def register(check: Callable[..., None]) -> Callable[..., None]:
        def run(folder: Path, mdp: TabularMDP, **given: Any) -> bool:
            try:
                check(mdp, **given)
            except InvalidArgumentError:
                if float(np.abs(mdp.rewards).max()) < HUGE:
                    raise
                return False
            return True

        name = check.__name__.removeprefix("check_")
        TARGETS.append(Target(name, lambda shared: (cases(), run), limit=limit, warm=20))
        return check

    return register


def is_exact(mdp: TabularMDP) -> st.SearchStrategy[bool]:
    """Whether a case is also done in fractions, which take long."""
    return rarely(0.1 if mdp.n_states <= 4 else 0.0, st.just(True)).map(bool)


def check_bounds(lower: Floats, upper: Floats) -> None:
    """Two tables of numbers, one below the other."""
    assert np.isfinite(lower).all(), "lower is not finite"
    assert np.isfinite(upper).all(), "upper is not finite"
    assert (lower <= upper).all(), "lower above upper"


# -- the metric ------------------------------------------------------------------------------------


@model_target(
    lambda mdp: {
        "tol": rarely(0.3, st.integers(-12, 2).map(lambda e: float(10.0**e))),
        "max_sweeps": st.sampled_from((10_000, 10_000, 1, 2)),
        "in_fractions": is_exact(mdp),
    }
)
def check_metric(mdp: TabularMDP, gamma: float, *, in_fractions: bool, **options: Any) -> None:
    """Two symmetric tables that enclose the metric, within the tolerance where promised."""
    found = bisimulation_metric(mdp, gamma, resources=ONE, **options)
    lower, upper = found.lower, found.upper
    check_bounds(lower, upper)
    assert (lower >= 0.0).all(), "a negative lower bound"
    assert (lower == lower.T).all(), "lower is not symmetric"
    assert (upper == upper.T).all(), "upper is not symmetric"
    assert (np.diag(upper) == 0.0).all(), "a state apart from itself"
    assert (upper - lower).max() <= found.gap, "a gap larger than stated"
    least, most = metric_enclosure(mdp, gamma, lower / 2.0 + upper / 2.0)
    assert (lower <= most).all(), "a lower bound above the metric"
    assert (upper >= least).all(), "an upper bound below the metric"
    n, classes = mdp.n_states, bisimulation_classes(mdp, resources=ONE)
    if in_fractions and classes.n_classes == n:
        # Without merged states both tables are solutions of inequalities, exactly.
        below, above = backup_exact(mdp, gamma, lower), backup_exact(mdp, gamma, upper)
        for s, t in np.ndindex(n, n):
            low, high = Fraction(float(lower[s, t])), Fraction(float(upper[s, t]))
            assert low <= below[s][t], f"lower inequality broken at ({s}, {t})"
            assert high >= above[s][t], f"upper inequality broken at ({s}, {t})"


@model_target(
    lambda mdp: {
        "digits": rarely(0.3, st.integers(1, 15)),
        "initial": rarely(0.2, whole(mdp.n_states, 3)),
    }
)
def check_classes(
    mdp: TabularMDP, gamma: float, *, digits: int | None, initial: Ints | None
) -> None:
    """Exact classes have equal rewards and, summed by class, equal rows; rounded ones a bound."""
    found = bisimulation_classes(mdp, digits=digits, initial=initial, resources=ONE)
    labels = found.labels.tolist()
    assert sorted(set(labels)) == list(range(found.n_classes)), "labels have gaps"
    if initial is not None:
        finer = set(zip(labels, initial.tolist(), strict=True))
        assert len(finer) == found.n_classes, "too coarse"
    for s, a in np.ndindex(*mdp.rewards.shape):
        first = int(found.representatives[labels[s]])
        gap = abs(Fraction(float(mdp.rewards[s, a])) - Fraction(float(mdp.rewards[first, a])))
        assert gap <= Fraction(found.reward_gap), "rewards differ by more than stated"
        moved = variation_exact(*(lifted_exact(mdp, labels, k, a) for k in (s, first)))
        assert moved <= Fraction(found.variation), "rows differ by more than stated"
    low, high = Truth(mdp).tables(gamma)
    slack = found.distortion(gamma)
    same = found.labels[:, None] == found.labels
    assert (low[same] <= slack).all(), "a class wider than its distortion"
    quotient = bisimulation_metric(found.quotient, gamma, resources=ONE)
    lower, upper = quotient.bounds(found.labels[:, None], found.labels)
    assert (lower - slack <= high).all(), "the quotient's metric is too large"
    assert (upper + slack >= low).all(), "the quotient's metric is too small"


@model_target(
    lambda mdp: {
        "labels": st.lists(st.integers(0, 3), min_size=mdp.n_states, max_size=mdp.n_states),
        "rounds": st.sampled_from((1, 2, 200)),
        "count": st.integers(1, 7),
        "max_iter": st.sampled_from((1, 5, 10_000)),
        "seed": st.integers(0, 9),
    }
)
def check_features(
    mdp: TabularMDP, gamma: float, *, labels: list[int], rounds: int, **options: Any
) -> None:
    """Differences of features, and of witnesses, never exceed the metric."""
    features = value_features(mdp, gamma, resources=ONE, **options)
    model = build_blocks(mdp, np.unique(labels, return_inverse=True)[1])
    if model.n_blocks > 1:
        first, second = np.triu_indices(model.n_blocks, 1)
        found = make_witnesses(
            mdp, gamma, features, model, first, second, tol=1e-6, max_rounds=rounds, resources=ONE
        )
        features = features.with_witnesses(found)
    states = np.arange(mdp.n_states)
    lower = features.lower(states[:, None], states)
    assert np.isfinite(lower).all(), "not finite"
    assert (lower >= 0.0).all(), "negative"
    _, high = Truth(mdp).tables(gamma)
    assert (lower <= high).all(), "a feature above the metric"


@st.composite
def transport_cases(draw: st.DrawFn) -> Case:
    """Costs from 0 to 1e300, and masses of every kind and size on both sides."""
    m, n = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    size = 10.0 ** pick(draw, (0, 0, 0, -300, -310, 150, 300))
    entry = st.floats(0.0, 1.0) | st.integers(0, 2).map(float)
    cost = np.array(draw(st.lists(entry, min_size=m * n, max_size=m * n))).reshape(m, n)
    a, b = (
        draw(rows(k, pick(draw, ROWS))) * 10.0 ** pick(draw, (0, 0, 5, -5, 100)) for k in (m, n)
    )
    return {"cost": cost * size, "a": a, "b": b, "is_huge": size > 1e290}


def check_transport(folder: Path, cost: Floats, a: Floats, b: Floats, *, is_huge: bool) -> bool:
    """Bounds of one transport against fractions."""
    plan = solve_transport(cost, a, b)
    value = transport_exact(cost, a.tolist(), b.tolist())
    assert plan.lower <= plan.upper, "lower above upper, or NaN"
    assert Fraction(float(plan.lower)) <= value, f"lower {plan.lower!r} above {float(value)!r}"
    if np.isfinite(plan.upper):
        assert Fraction(float(plan.upper)) >= value, f"upper {plan.upper!r} too small"
    else:
        assert is_huge, "an infinite upper bound"
    assert np.abs(plan.coupling.sum(axis=1) - a / a.sum()).max() < 1e-9, "marginals"
    return True


# -- certificates ----------------------------------------------------------------------------------


@model_target(
    lambda mdp: {"goal": goals(mdp, has_single=True), "in_fractions": is_exact(mdp)},
    patience=0.1,
    limit=SLOW,
)
def check_certify(
    mdp: TabularMDP, gamma: float, *, goal: dict[str, Any], in_fractions: bool
) -> None:
    """What is certified is verified, encloses the metric, and clusters as it does."""
    certificate = make_certificate(mdp, gamma, **goal)
    judge(certificate, mdp, confirmed(certificate, mdp))
    if in_fractions:
        exact = verify(mdp, certificate, mode="exact", resources=ONE)
        assert exact.is_valid, f"rejected in fractions: {exact.problem}"
        judge(certificate, mdp, 0.0)


def confirmed(certificate: Certificate, mdp: TabularMDP) -> float:
    """The widening that `verify` asks for; it must accept what the package made."""
    found = verify(mdp, certificate, resources=ONE)
    assert found.is_valid, f"our own certificate is rejected in {found.mode} mode: {found.problem}"
    return found.widening


def judge(certificate: Certificate, mdp: TabularMDP, widening: float) -> None:
    """Bounds, clusters and values against the truth."""
    check_certificate(certificate, Truth(mdp), widening)
    if certificate.is_certified:
        assert certificate.value is not None, "certified, and nothing proven about its value"
    assert certificate.verdict.sentence, "no verdict"


@model_target(
    lambda mdp: {
        "size": st.integers(1, 199),
        "seed": st.integers(0, 2**32 - 1),  # a fair sample: radii are about those
        "alpha": st.sampled_from((0.05, 0.5, 1e-9)),
        "goal": goals(mdp, has_tau=False),
    },
    max_states=5,
    patience=0.1,
    limit=SLOW,
)
def check_estimate(
    mdp: TabularMDP, gamma: float, *, size: int, seed: int, alpha: float, goal: dict[str, Any]
) -> None:
    """Where the radii of an estimate hold, so do the bounds, for the true model."""
    rng, P = np.random.default_rng(seed), dense(mdp)
    n, n_actions = mdp.rewards.shape
    s, a = rng.integers(n, size=size), rng.integers(n_actions, size=size)
    t = np.array([rng.choice(n, p=P[i, j] / P[i, j].sum()) for i, j in zip(s, a, strict=True)])
    estimate = estimate_mdp(
        s,
        a,
        mdp.rewards[s, a],
        t,
        n_states=n,
        n_actions=n_actions,
        reward_range=(float(mdp.rewards.min()), float(mdp.rewards.max())),
        alpha=alpha,
    )
    known = estimate.estimate
    assert known is not None, "an estimate without radii"
    for array in known.arrays():
        assert np.isfinite(array).all(), "radii are not finite"
        assert (array >= 0).all(), "a negative radius"
    assert (known.row_radius <= 1.0).all(), "a radius above 1"
    certificate = make_certificate(estimate, gamma, **goal)
    widening = confirmed(certificate, estimate)
    judge(certificate, estimate, widening)  # the estimate is within its own radii
    variation = np.abs(P - dense(estimate)).sum(axis=2) / 2.0
    is_held = (variation * (1.0 - 1e-12) <= known.row_radius - 1e-12 * (variation > 0.0)).all()
    is_held &= (np.abs(mdp.rewards - estimate.rewards) <= known.reward_radius).all()
    if is_held:
        check_enclosure(certificate, Truth(mdp), widening)
        check_value(certificate, Truth(mdp), averaged=estimate)


# -- values ----------------------------------------------------------------------------------------


@model_target(
    lambda mdp: {
        "policy": whole(mdp.n_states, mdp.n_actions)
        | st.tuples(*[weights(mdp.n_actions)] * mdp.n_states).map(np.array),
        "max_sweeps": st.sampled_from((1, 3, 100_000)),
        "in_fractions": is_exact(mdp),
    }
)
def check_planning(
    mdp: TabularMDP, gamma: float, *, policy: Any, max_sweeps: int, in_fractions: bool
) -> None:
    """Bounds on optimal values and on those of a random policy."""
    found = evaluate_policy(mdp, gamma, policy)
    chances = policy if policy.ndim == 2 else np.eye(mdp.n_actions)[policy]
    exact = policy_values_exact(mdp, chances.tolist(), gamma) if in_fractions else None
    check_values(mdp, gamma, found, chances / chances.sum(axis=1, keepdims=True), exact)
    found = value_iteration(mdp, gamma, max_sweeps=max_sweeps)
    exact = optimal_values_exact(mdp, gamma) if in_fractions else None
    check_values(mdp, gamma, found, None, exact)


def check_values(
    mdp: TabularMDP, gamma: float, found: Any, policy: Floats | None, exact: list[Fraction] | None
) -> None:
    """One enclosure of values."""
    check_bounds(found.lower, found.upper)
    low, high = values_enclosure(mdp, gamma, policy, found.lower / 2.0 + found.upper / 2.0)
    assert (found.lower <= high).all(), "a lower bound above the value"
    assert (found.upper >= low).all(), "an upper bound below the value"
    least, most = found.start_bounds(mdp)
    assert least <= most, "start bounds"
    if exact is not None:
        start = [Fraction(x) for x in mdp.start.tolist()]
        mean = sum((w * v for w, v in zip(start, exact, strict=True)), Fraction(0)) / sum(start)
        assert Fraction(least) <= mean <= Fraction(most), "the start value is outside"
        for s, value in enumerate(exact):
            assert Fraction(found.lower[s]) <= value, f"the exact value of state {s} is below"
            assert Fraction(found.upper[s]) >= value, f"the exact value of state {s} is above"


@model_target(
    lambda mdp: {
        "labels": st.integers(1, mdp.n_states).flatmap(lambda top: whole(mdp.n_states, top)),
        "weighting": st.sampled_from(("uniform", "start", "visitation")) | weights(mdp.n_states),
        "actions": rarely(0.3, whole(mdp.n_states, mdp.n_actions)),
        "by": st.sampled_from(("start", "worst")),
    },
    patience=0.1,
)
def check_aggregate(
    mdp: TabularMDP, gamma: float, *, labels: Ints, weighting: Any, actions: Ints | None, by: Any
) -> None:
    """Losses are within their bounds, and so are proven values, for any clusters."""
    small = aggregate(mdp, labels, weighting=weighting, gamma=gamma)
    assert small.labels.shape == (mdp.n_states,), "labels"
    policy = value_iteration(small.mdp, gamma).policy
    if actions is not None:
        policy = actions[: small.mdp.n_states]
    lifted = lift_policy(small, policy)
    loss = value_loss(mdp, gamma, lifted)
    assert loss.sup_lower <= loss.sup, "bounds of the largest loss cross"
    assert loss.mean_lower <= loss.mean, "bounds of the mean loss cross"
    truth, chosen = Truth(mdp), np.asarray(lifted, dtype=np.int64).tolist()
    lost = truth.values(gamma, "optimal")[0] - truth.values(gamma, chosen)[1]  # for certain
    assert lost.max() <= loss.sup, "a loss above value_loss.sup"
    assert lost.mean() <= loss.mean, "a loss above value_loss.mean"
    assert truth.start_loss(gamma, chosen) <= Fraction(loss.start), "a loss above value_loss.start"
    share = truth.largest_share(gamma, chosen)
    assert loss.kept == -np.inf or Fraction(loss.kept) <= share, "value_loss.kept is too large"
    check_bracket(mdp, labels, gamma, truth)
    proven = prove_value(mdp, labels, gamma, by=by)
    chosen = proven.lifted_policy.tolist()
    lost = truth.values(gamma, "optimal")[0] - truth.values(gamma, chosen)[1]
    assert lost.max() <= proven.loss, "a loss above the proven one"
    start_lost = truth.start_loss(gamma, chosen)
    assert start_lost <= Fraction(proven.start_loss), "a start loss above the proven one"
    share = truth.largest_share(gamma, chosen)
    assert proven.kept == -np.inf or Fraction(proven.kept) <= share, "the proven share is too large"


def check_bracket(mdp: TabularMDP, labels: Ints, gamma: float, truth: Truth) -> None:
    """A bracket holds in every state of a cluster."""
    bracket, at = value_bracket(mdp, labels, gamma), aggregate(mdp, labels).labels
    low, _ = truth.values(gamma, "optimal")
    assert (bracket.upper[at] >= low).all(), "bracket.upper is below the values"
    _, high = truth.values(gamma, bracket.policy[at].tolist())
    assert (bracket.lower[at] <= high).all(), "bracket.lower is above the values"


TARGETS.append(Target("transport", lambda shared: (transport_cases(), check_transport), warm=20))
