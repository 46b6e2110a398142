"""Certificates over all pairs: sound after every step, whatever is proposed, asked or cut short."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    Covering,
    InvalidArgumentError,
    Resources,
    TabularMDP,
    bisimulation_classes,
    bisimulation_metric,
    certify,
    verify,
)
from bisim_abstract._base.types import Progress
from bisim_abstract._bounds import spanning
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._certificate.certificate import TIMES
from bisim_abstract._linkage.thresholds import CertifiedInterval
from bisim_abstract._prove import refinement
from bisim_abstract._prove.options import Options
from bisim_abstract._prove.refinement import Refinement
from bisim_abstract.parts import grouped_mdp, prove_partition, random_mdp, sparse_mdp
from bisim_abstract.wrappers import AbstractedEnv, Distractor, RoomsGridEnv, extract_mdp
from tests.support.asking import certify_named
from tests.support.blocks import EDGES, ends, estimated, noisy_groups, sampled, true_models
from tests.support.examples import cases, naming, seeds
from tests.support.oracles import first_appearance, linked
from tests.support.worlds import BY_HAND

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# -- truth -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Truth:
    """The exact metric, enclosed far more tightly than anything that is compared with it."""

    lower: Floats
    upper: Floats

    @classmethod
    def of(cls, mdp: TabularMDP, gamma: float) -> Truth:
        found = bisimulation_metric(mdp, gamma, resources=Resources(threads=1))
        return cls(found.lower, found.upper)

    def clusters(self, tau: float) -> list[int] | None:
        """The clustering of the metric, where it is known well enough to tell."""
        found = linked(self.lower, tau)
        return found if found == linked(self.upper, tau) else None


def bounds(found: Certificate | Arms) -> tuple[Floats, Floats]:
    n = found.n_states if isinstance(found, Certificate) else found.n
    states = np.arange(n)
    return found.bounds(states[:, None], states)


def check_truth(certificate: Certificate, metric: Truth) -> int:
    """Enclosure and clusters; the number of clusterings that could be compared."""
    lower, upper = bounds(certificate)
    assert (lower <= metric.upper).all()
    assert (upper >= metric.lower).all()
    compared = 0
    if certificate.tau is not None:
        exact = metric.clusters(certificate.tau)
        if exact is not None:
            # Always between the two, and both where these agree.
            for fine, coarse in (
                (certificate.labels_upper.tolist(), exact),
                (exact, certificate.labels_lower.tolist()),
            ):
                assert len(set(zip(fine, coarse, strict=True))) == len(set(fine))
            if certificate.is_certified:
                assert certificate.labels_upper.tolist() == exact
                compared += 1
    for interval in certificate.certified_thresholds():
        for tau in inside(interval):
            exact = metric.clusters(tau)
            if exact is not None:
                below, above = certificate.partitions(tau)
                assert below.tolist() == above.tolist() == exact
                assert len(set(exact)) == interval.n_clusters
                compared += 1
    return compared


def inside(interval: CertifiedInterval) -> tuple[float, float]:
    """The lower end, and just below the upper end."""
    last = interval.high if np.isfinite(interval.high) else 2.0 * interval.low + 1.0
    return interval.low, float(np.nextafter(last, -np.inf))


def check_proof(certificate: Certificate, mdp: TabularMDP, *, mode: str = "float") -> None:
    found = verify(mdp, certificate, mode=mode, resources=Resources(threads=1))
    assert found.is_valid, found.problem


# -- models and goals --------------------------------------------------------------------------


def small_world(seed: int) -> tuple[TabularMDP, Ints]:
    """A model and a partition that is planted in it, or none (of single states)."""
    kind, rng = seed % 5, np.random.default_rng(seed)
    n = int(rng.integers(7, 13))
    if kind == 0:
        mdp = random_mdp(7, 2, seed=seed)
    elif kind == 1:
        mdp = sparse_mdp(n, 2, support=(1, 2, 3)[seed % 3], seed=seed)
    elif kind == 2:
        side, size = ((4, 2), (3, 1))[seed % 2]
        env = RoomsGridEnv(side, size, noise=float(rng.choice([0.0, 0.02, 0.1])), seed=seed)
        return env.to_mdp(), env.rooms
    else:
        noise = float(rng.choice([0.0, 0.01, 0.1, 0.3]))
        return grouped_mdp(n, 3, 2, noise=noise, support=2, seed=seed)
    return mdp, np.arange(mdp.n_states)


GOALS = ("none", "tau", "n_clusters", "tol", "given", "corrupted", "random", "embedding")


def asked(kind: str, planted: Ints, metric: Truth, seed: int) -> dict[str, Any]:
    """Options of `certify`."""
    rng = np.random.default_rng([seed, 11])
    n = planted.size
    if kind == "tau":
        return {"tau": float(rng.choice(metric.upper[np.triu_indices(n, 1)]) * rng.uniform(0.2, 1))}
    if kind == "n_clusters":
        return {"n_clusters": int(rng.integers(1, n + 1))}
    if kind == "tol":
        return {"tol": float(rng.choice([1e-6, 1e-3, 1.0]))}
    if kind == "given":
        return {"partition": planted}
    if kind == "corrupted":
        return {"partition": np.where(rng.random(n) < 0.2, rng.permutation(planted), planted)}
    if kind == "random":
        return {"partition": rng.integers(0, 4, n)}
    return {"embedding": rng.random((n, 2))} if kind == "embedding" else {}


def started(mdp: TabularMDP, gamma: float, **options: Any) -> Refinement:
    """A run as `certify` starts one."""
    table = Arms(mdp, gamma, resources=Resources(threads=1))
    goals = {name: options.pop(name) for name in ("tau", "n_clusters", "tol") if name in options}
    method = Blocks(**options)
    return Refinement(table, method, Options(method=method, **(goals or {"tau": "auto"})))


def go_on(stage: str, detail: str, *, may_end: bool = True) -> None:
    """No budget ends."""


@pytest.fixture
def thorough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few states are treated like many: no step is passed over."""
    monkeypatch.setattr(refinement, "AT_ONCE", 0.0)
    monkeypatch.setattr(refinement, "QUICK_CELLS", 0)


@pytest.fixture
def celled(thorough: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And states are compared by cells, looking into few of them."""
    monkeypatch.setattr(spanning, "SINGLE_LIMIT", 0)
    monkeypatch.setattr(spanning, "OPEN_LIMIT", 40)


# -- after every step --------------------------------------------------------------------------


def drive(work: Refinement, mdp: TabularMDP, metric: Truth, *, until_met: bool) -> int:
    """All steps, one by one, the certificate checked after each."""
    compared, before = 0, bounds(work.table)
    while True:
        if until_met and work.done and work.reason():
            return compared
        made = len(work.log)
        if not work.step(go_on):
            return compared
        if len(work.log) == made:  # passed over
            continue
        now = bounds(work.table)
        assert (now[0] >= before[0]).all()
        assert (now[1] <= before[1]).all()
        before = now
        certificate = work.certificate(stop="on the way", run={}, is_final=True)
        np.testing.assert_array_equal(bounds(certificate), now)
        compared += check_truth(certificate, metric)
        check_proof(certificate, mdp)


@pytest.mark.drawn
@pytest.mark.usefixtures("thorough")
@pytest.mark.parametrize("batch", range(cases(12)))
def test_every_step_is_sound(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    for seed in range(5 * batch, 5 * batch + 5):
        mdp, planted = small_world(seed)
        gamma = (0.3, 0.8, 0.9)[seed % 3]
        metric = Truth.of(mdp, gamma)
        options = asked(GOALS[(seed + batch) % len(GOALS)], planted, metric, seed)
        if seed % 2:  # by cells
            monkeypatch.setattr(spanning, "SINGLE_LIMIT", 0)
            monkeypatch.setattr(spanning, "OPEN_LIMIT", (0, 40)[seed // 2 % 2])
        work = started(mdp, gamma, **options)
        compared += drive(work, mdp, metric, until_met=batch % 4 == 3)
    assert compared > 0


@pytest.mark.usefixtures("celled")
def test_every_kind_of_step_is_made() -> None:
    kinds = ("blocks by", "value features", "inside", "across", "witnesses", "splitting", "all ")
    seen = dict.fromkeys(kinds, 0)
    runs = []
    for seed in range(6):
        mdp, planted = small_world(seed)
        runs.append(started(mdp, 0.8, **({"partition": planted % 3} if seed % 2 else {})))
    # What witnesses leave open is looked at pair by pair.
    mdp, planted, tau = noisy(0)
    runs.append(started(mdp, 0.8, tau=tau, partition=planted, max_pairs=600))
    for work in runs:
        while work.step(go_on):
            pass
        for kind in kinds:
            seen[kind] += any(kind in text for text in work.log)
    assert min(seen.values()) > 0, seen


@pytest.mark.usefixtures("thorough")
def test_the_exact_checker_accepts_every_step() -> None:
    for seed in (1, 3):
        mdp, planted = small_world(seed)
        work = started(mdp, 0.8, partition=planted % 3)
        while work.step(go_on):
            certificate = work.certificate(stop="on the way", run={}, is_final=True)
            assert verify(mdp, certificate, mode="exact").widening == 0.0
            check_proof(certificate, mdp, mode="exact")


@pytest.mark.usefixtures("celled")
def test_splitting_adds_a_finer_level() -> None:
    splits = 0
    for seed in range(1, 4):
        mdp, _ = grouped_mdp(40, 6, noise=0.15, seed=seed)
        work = started(mdp, 0.9, max_pairs=700)
        while work.step(go_on):
            pass
        levels = [first_appearance(x.model.labels.tolist()) for x in work.table.ground.levels]
        splits += len(levels) - 1
        assert len({tuple(labels) for labels in levels}) == len(levels), work.log
    assert splits > 0


# -- what certify returns ----------------------------------------------------------------------


@pytest.mark.drawn
@pytest.mark.parametrize("batch", range(cases(18)))
def test_certify_is_sound(batch: int) -> None:
    compared = 0
    for seed in range(100 + 5 * batch, 105 + 5 * batch):
        mdp, planted = small_world(seed)
        gamma = (0.0, 0.5, 0.9, 0.99)[seed % 4]
        metric = Truth.of(mdp, gamma)
        goal = GOALS[(seed + batch) % len(GOALS)]
        options = asked(goal, planted, metric, seed)
        certificate = certify_named(mdp, gamma, resources=Resources(threads=1), **options)
        assert certificate.scope == "all"
        compared += check_truth(certificate, metric)
        check_proof(certificate, mdp)
        if goal == "tau":
            assert certificate.tau == options["tau"]
        if goal == "n_clusters" and certificate.is_certified:
            assert certificate.labels_upper.max() + 1 == options["n_clusters"]
        if goal == "tol" and "within" in certificate.stop:
            assert certificate.global_width <= options["tol"]
        assert certificate.stop
    assert compared > 0


def test_hand_solved_models() -> None:
    for known in BY_HAND:
        with naming(name=known.name, gamma=known.gamma):
            certificate = certify(known.mdp, known.gamma)
            check_proof(certificate, known.mdp, mode="exact")
            lower, upper = (table.tolist() for table in bounds(certificate))
            for s, line in enumerate(known.metric):
                for t, d in enumerate(line):
                    assert Fraction(lower[s][t]) <= d <= Fraction(upper[s][t])
            at_zero = certify(known.mdp, known.gamma, tau=1e-9)
            if at_zero.is_certified and known.gamma > 0.0:
                assert at_zero.labels_upper.tolist() == known.labels


@pytest.mark.parametrize("few", [0, 150_000])
@pytest.mark.parametrize(
    "options", [{}, {"partition": [0, 1, 1]}, {"tol": 1e-3}, {"n_clusters": 2}]
)
def test_equal_rewards_leave_nothing_to_find(
    options: dict[str, Any], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every distance is 0, and so is the resolution."""
    monkeypatch.setattr(refinement, "AT_ONCE", float(few))
    monkeypatch.setattr(refinement, "QUICK_CELLS", few)
    P = np.array([[[0.5, 0.5, 0.0]], [[0.0, 0.0, 1.0]], [[1 / 3, 1 / 3, 1 / 3]]])
    mdp = TabularMDP.from_dense(P, [2.0, 2.0, 2.0])
    certificate = certify_named(mdp, 0.9, **options)
    assert not bounds(certificate)[1].any()
    check_proof(certificate, mdp)
    together = certify(mdp, 0.9, tau=0.0)
    assert together.is_certified
    assert together.labels_upper.tolist() == [0, 0, 0]


# -- budgets, interrupts, checkpoints ----------------------------------------------------------

ROOMS = RoomsGridEnv(4, 2, noise=0.1).to_mdp()  # 16 states in 4 rooms


@pytest.fixture(scope="module")
def rooms_metric() -> Truth:
    return Truth.of(ROOMS, 0.9)


@pytest.mark.usefixtures("thorough")
@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"max_seconds": 1e-6}, "seconds"),
        ({"max_backups": 1}, "pair backups"),
        ({"max_backups": 200}, "pair backups"),
        ({"max_rounds": 1}, "1 round"),
        ({"max_rounds": 4}, "4 rounds"),
    ],
)
def test_budgets_end_with_a_valid_certificate(
    budget: dict[str, Any], words: str, rooms_metric: Truth
) -> None:
    certificate = certify_named(ROOMS, 0.9, tol=1e-9, resources=Resources(threads=1), **budget)
    assert certificate.stop.startswith("budget: ")
    assert words in certificate.stop
    assert certificate.stop in certificate.summary()
    check_truth(certificate, rooms_metric)
    check_proof(certificate, ROOMS)


@pytest.mark.usefixtures("thorough")
def test_pairs_that_may_be_covered_are_a_budget(rooms_metric: Truth) -> None:
    for most in (0, 20, 100):
        certificate = certify(
            ROOMS, 0.9, tol=1e-9, method=Blocks(max_pairs=most), resources=Resources(threads=1)
        )
        assert certificate.n_covered <= most
        assert f"max_pairs = {most}" in certificate.stop
        check_truth(certificate, rooms_metric)
        check_proof(certificate, ROOMS)


class Interrupt:
    """Raises in the k-th call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("thorough")
def test_an_interrupt_returns_what_was_reached(rooms_metric: Truth) -> None:
    calls: list[Progress] = []
    whole = certify(ROOMS, 0.9, tol=1e-9, resources=Resources(threads=1), callback=calls.append)
    stages = [progress.stage for progress in calls]
    firsts = {stages.index(stage) + 1 for stage in stages}
    widths = []
    for at in sorted({1, 2, 3, len(calls) // 2, len(calls), *firsts}):
        certificate = certify(
            ROOMS, 0.9, tol=1e-9, resources=Resources(threads=1), callback=Interrupt(at)
        )
        assert certificate.stop.startswith("interrupted in step ")
        check_truth(certificate, rooms_metric)
        check_proof(certificate, ROOMS)
        lower, upper = bounds(certificate)
        widths.append(float((upper - lower).sum()))
    assert len(firsts) > 5
    assert widths == sorted(widths, reverse=True)
    assert not whole.stop.startswith("interrupted")


def content(certificate: Certificate) -> dict[str, Any]:
    """All that a certificate says, time apart; arrays as bytes."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, value.tobytes()
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return tuple(plain(x) for x in value) if isinstance(value, tuple) else value

    held = {f.name: plain(getattr(certificate, f.name)) for f in dataclasses.fields(certificate)}
    held["run"] = {name: x for name, x in certificate.run.items() if name not in TIMES}
    del held["model"]
    return held


CHECKPOINTED: dict[str, tuple[Callable[[], TabularMDP], dict[str, Any]]] = {
    "rooms, width": (lambda: ROOMS, {"tol": 1e-9}),
    "unstructured": (lambda: sparse_mdp(14, 2, support=2, seed=0), {"max_pairs": 40}),
    "planted, wrong blocks": (
        lambda: grouped_mdp(15, 3, 2, noise=0.1, seed=0)[0],
        {"partition": np.arange(15) % 4, "tau": 0.2},
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refinement, "AT_ONCE", 0.0)
    monkeypatch.setattr(refinement, "QUICK_CELLS", 0)
    make, options = CHECKPOINTED[name]
    mdp = make()
    whole = certify_named(mdp, 0.9, resources=Resources(threads=1), **options)
    rounds = whole.run["rounds"]
    for stop in {2, rounds - 1} & set(range(1, rounds)):
        path = tmp_path / f"{stop}.npz"
        part = certify_named(
            mdp, 0.9, resources=Resources(threads=1), max_rounds=stop, checkpoint=path, **options
        )
        assert part.stop == f"budget: {stop} rounds"
        check_proof(Certificate.load(path), mdp)
        resumed = certify_named(
            mdp, 0.9, resources=Resources(threads=1), checkpoint=path, **options
        )
        assert content(resumed) == content(whole)
    # Interrupted in the middle of a step: that step is made anew.
    path = tmp_path / "interrupted.npz"
    certify_named(
        mdp, 0.9, resources=Resources(threads=1), checkpoint=path, callback=Interrupt(40), **options
    )
    if path.exists():
        resumed = certify_named(
            mdp, 0.9, resources=Resources(threads=1), checkpoint=path, **options
        )
        assert content(resumed) == content(whole)


@pytest.mark.usefixtures("thorough")
def test_other_settings_are_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    first: dict[str, Any] = {"tau": 0.5, "partition": np.arange(16) % 4}
    certify_named(
        ROOMS, 0.9, max_rounds=2, checkpoint=path, resources=Resources(threads=1), **first
    )
    changes: list[dict[str, Any]] = [
        {"tau": 0.6},
        {"partition": np.arange(16) % 3},
        {"partition": None},
        {"seed": 1},
        {"max_pairs": 5},
        {"embedding": np.zeros((16, 1))},
        {"tol": 1e-3},
    ]
    for change in changes:
        with pytest.raises(InvalidArgumentError, match="other settings"):
            certify_named(
                ROOMS, 0.9, checkpoint=path, resources=Resources(threads=1), **first | change
            )
    for mdp, gamma in ((ROOMS, 0.8), (RoomsGridEnv(4, 2, noise=0.1, seed=1).to_mdp(), 0.9)):
        with pytest.raises(InvalidArgumentError, match="other settings"):
            certify_named(mdp, gamma, checkpoint=path, resources=Resources(threads=1), **first)
    assert certify_named(ROOMS, 0.9, checkpoint=path, resources=Resources(threads=1), **first).stop


@pytest.mark.usefixtures("celled")
def test_the_number_of_threads_does_not_matter() -> None:
    for options in ({"tol": 1e-9}, {"partition": np.arange(16) % 5}):
        one, two = (
            certify_named(ROOMS, 0.9, resources=Resources(threads=k), **options) for k in (1, 2)
        )
        assert content(one) == content(two)


def test_options_are_checked() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tau": 0.1, "n_clusters": 2}, "tau or n_clusters"),
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": 17}, "n_clusters"),
        ({"tol": 0.0}, "tol"),
        ({"partition": [0, 1]}, "partition must be one whole number"),
        (
            {"partition": np.arange(16), "method": "covering"},
            "partition is no option of method 'covering'",
        ),
        ({"max_pairs": -1}, "max_pairs"),
        ({"method": "none"}, "method"),
        ({"tau": "best"}, "tau"),
    ]
    for options, words in wrong:
        with pytest.raises(InvalidArgumentError, match=words):
            certify_named(ROOMS, 0.9, **options)


# -- whole jobs --------------------------------------------------------------------------------


def test_taxi_below_its_smallest_distance() -> None:
    mdp = extract_mdp(gym.make("Taxi-v3"))
    certificate = certify(mdp, 0.9, tau=1.0)
    assert certificate.is_certified
    assert certificate.labels_upper.tolist() == list(range(mdp.n_states))
    assert certificate.verdict.level == "poor"
    assert "nothing can be merged" in certificate.summary()
    check_proof(certificate, mdp)
    metric = Truth.of(mdp, 0.9)
    intervals = certificate.certified_thresholds()
    assert intervals[0].n_clusters == mdp.n_states - 1  # the end is none
    assert len(intervals) > 10
    for interval in intervals[:6]:
        tau = (interval.low + interval.high) / 2.0
        assert metric.clusters(tau) == certificate.at(tau).labels_upper.tolist()
        live = linked(metric.lower, tau)[: mdp.n_states - 1]
        assert len(set(live)) == interval.n_clusters


def test_no_structure_is_told_soon_and_in_words() -> None:
    mdp = sparse_mdp(2500, seed=0)
    begin = time.monotonic()
    certificate = certify(mdp, 0.9)
    assert time.monotonic() - begin < 60.0  # compiling included; a second or two without
    # Rewards alone keep all states apart, and that is all that is found.
    assert certificate.verdict.level == "poor"
    assert certificate.n_clusters == 2500
    assert certificate.stop.startswith("nothing was found that can be merged: 2,500 of 2,500")
    assert "seconds, which a larger max_seconds would allow" in certificate.stop
    check_proof(certificate, mdp)
    certificate = certify(mdp, 0.9, tau="auto")
    assert not certificate.is_certified
    assert certificate.stop.startswith("nothing left to try")
    assert "seconds, which a larger max_seconds would allow" in certificate.stop
    check_proof(certificate, mdp)
    # With a threshold, what is open at it is said.
    certificate = certify(mdp, 0.9, tau=0.5, method=Blocks(max_pairs=1_000_000))
    assert certificate.summary().startswith("NOT CERTIFIED at tau 0.5")
    assert certificate.undecided() is not None
    check_proof(certificate, mdp)


@pytest.mark.parametrize("relation", ["plain", "lax"])
def test_what_is_proven_but_not_certified_can_be_used(relation: str) -> None:
    """The line that a run ends with makes an environment of its blocks."""
    env = RoomsGridEnv(side=20, room_size=10, noise=0.1)
    mdp = env.to_mdp()
    certificate = certify(mdp, 0.9, relation=relation, method=Blocks(max_pairs=0))
    assert certificate.verdict.level == "poor"
    assert "; a partition into 4 is proven to retain at least 9" in certificate.stop
    assert "all 79,800 pairs are more than max_pairs = 0" in certificate.stop
    found = re.search(r"bisim_abstract\.parts\.(prove_partition\(.*\)) makes", certificate.stop)
    assert found is not None
    line = {"mdp": mdp, "certificate": certificate, "prove_partition": prove_partition}
    proof = eval(found[1], line)
    assert proof.verdict.level == "useful"
    small = AbstractedEnv(env, proof)
    assert small.summary().startswith("PROVEN FOR AGENTS, not certified: 4 clusters of 400 states")


def test_rooms_are_found_and_certified() -> None:
    env = RoomsGridEnv()
    mdp = env.to_mdp()
    rng = np.random.default_rng(0)
    wrong = env.rooms.copy()
    bad = rng.permutation(2500)[:125]
    wrong[bad] = (wrong[bad] + rng.integers(1, 25, bad.size)) % 25
    planted = first_appearance(env.rooms.tolist())
    for options in ({}, {"n_clusters": 25}, {"partition": env.rooms}, {"partition": wrong}):
        certificate = certify_named(mdp, 0.9, **options)
        assert certificate.is_certified
        assert certificate.scope == "all"
        assert certificate.labels_upper.tolist() == planted
        check_proof(certificate, mdp)
    assert certificate.run["steps"] == ["25 blocks by the partition given, repaired"]


def test_noisy_rooms_need_single_pairs() -> None:
    env = RoomsGridEnv(15, 5, noise=0.1)
    mdp = env.to_mdp()
    certificate = certify(mdp, 0.9, tau="auto")
    assert certificate.is_certified
    assert certificate.labels_upper.tolist() == first_appearance(env.rooms.tolist())
    assert certificate.n_covered > 0
    check_proof(certificate, mdp)


def test_noisy_rooms_by_pairs_inside_and_across(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with many states: only what blocks leave open is looked at."""
    monkeypatch.setattr(refinement, "AT_ONCE", 0.0)
    monkeypatch.setattr(refinement, "QUICK_CELLS", 0)
    monkeypatch.setattr(spanning, "SINGLE_LIMIT", 0)
    env = RoomsGridEnv(9, 3, noise=0.05)
    mdp = env.to_mdp()
    certificate = certify(mdp, 0.9, tau="auto")
    assert certificate.is_certified
    assert certificate.labels_upper.tolist() == first_appearance(env.rooms.tolist())
    assert certificate.coverage < 0.5
    check_truth(certificate, Truth.of(mdp, 0.9))
    check_proof(certificate, mdp)


@pytest.mark.parametrize(("n", "groups"), [(64, 8), (120, 6)])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_planted_groups_are_found(n: int, groups: int, noise: float) -> None:
    mdp, planted = grouped_mdp(n, groups, noise=noise, seed=1)
    certificate = certify(mdp, 0.9, tau="auto")
    assert certificate.is_certified
    assert certificate.labels_upper.tolist() == planted.tolist()
    check_truth(certificate, Truth.of(mdp, 0.9))
    check_proof(certificate, mdp)


def test_a_background_is_seen_through() -> None:
    env = gym.make("FrozenLake-v1", map_name="8x8", is_slippery=True)
    plain, mdp = extract_mdp(env), extract_mdp(Distractor(env, n_background=100))
    assert mdp.n_states == 6401
    certificate = certify(mdp, 0.9, tau=1e-6)
    assert certificate.is_certified
    classes = bisimulation_classes(plain).labels
    assert classes.max() + 1 == certificate.labels_upper.max() + 1 == 54
    # State o * 100 + b is FrozenLake's o; the absorbing state comes last.
    own = [int(classes[s // 100]) for s in range(6400)] + [int(classes[64])]
    assert certificate.labels_upper.tolist() == first_appearance(own)
    check_proof(certificate, mdp)


# -- estimated models --------------------------------------------------------------------------


@pytest.mark.parametrize(("few", "draws"), [(0, 20), (150_000, 100)])
def test_estimates_hold_for_the_true_model(
    few: int, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refinement, "AT_ONCE", float(few))
    monkeypatch.setattr(refinement, "QUICK_CELLS", few)
    held = 0
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        truth = sparse_mdp(4, 1, support=2, seed=seed)
        mdp = sampled(truth, 50, rng)
        certificate = certify(mdp, 0.5, resources=Resources(threads=1))
        assert certificate.alpha == 0.1
        if seed < 20:
            check_proof(certificate, mdp)
        exact = Truth.of(truth, 0.5)
        lower, upper = bounds(certificate)
        is_held = bool((lower <= exact.upper).all() and (upper >= exact.lower).all())
        held += is_held
        if is_held:
            check_truth(certificate, exact)
    assert held >= 0.9 * draws
    assert "with probability at least 0.9" in certificate.summary()


@pytest.mark.drawn
def test_covered_pairs_of_estimates_hold_for_the_true_model() -> None:
    held = 0
    for seed in range(cases(80)):
        truth = sparse_mdp(4, 1, support=2, seed=seed)
        mdp = sampled(truth, 50, np.random.default_rng(seed))
        certificate = certify(
            mdp, 0.5, method=Covering(), max_rounds=2, resources=Resources(threads=1)
        )
        assert certificate.alpha == 0.1
        exact = Truth.of(truth, 0.5)
        lower, upper = bounds(certificate)
        held += bool((lower <= exact.upper).all() and (upper >= exact.lower).all())
    assert held >= 0.9 * cases(80)


@pytest.mark.usefixtures("thorough")
@seeds(8)
def test_true_models_at_the_edge_are_enclosed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 6
    P = np.zeros((n, 2, n))
    for s, a in np.ndindex(n, 2):
        P[s, a, rng.choice(n, 2, replace=False)] = (lambda k: (k / 16, 1 - k / 16))(
            int(rng.integers(4, 13))
        )
    base = TabularMDP.from_dense(P, rng.integers(0, 8, (n, 2)) / 8)
    mdp = estimated(base, rng.integers(0, 3, (n, 2)) / 64, rng.integers(0, 4, (n, 2)) / 64)
    options = ({}, {"tau": 0.5}, {"tol": 1e-6}, {"partition": rng.integers(0, 3, n)})[seed % 4]
    certificate = certify_named(mdp, 0.6, resources=Resources(threads=1), **options)
    for truth in true_models(mdp, rng, 10):
        check_truth(certificate, Truth.of(truth, 0.6))


@pytest.mark.usefixtures("thorough")
def test_features_of_estimates_are_accepted() -> None:
    """Actions known to different degrees: a mean over actions is as far off as their mean is."""
    mdp = estimated(sparse_mdp(6, 2, support=2, seed=0), [[0.0, 0.05]] * 6, [[0.0, 0.1]] * 6)
    certificate = certify(mdp, 0.6, tol=1e-9, resources=Resources(threads=1))
    assert certificate.features is not None
    assert (certificate.features.kinds == 1).any()
    check_proof(certificate, mdp)
    check_proof(certificate, mdp, mode="exact")


@pytest.mark.parametrize("few", [0, 150_000])
@pytest.mark.parametrize("name", EDGES)
def test_radii_are_needed_in_full(name: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refinement, "AT_ONCE", float(few))
    monkeypatch.setattr(refinement, "QUICK_CELLS", few)
    rows, rewards, true_rows, true_rewards, row_radius, reward_radius = EDGES[name]
    known = np.array([[1.0], [1.0], [0.0], [0.0]])
    mdp = estimated(
        ends(0.5, np.array(rows), np.array(rewards, float)),
        reward_radius * known,
        row_radius * known,
    )
    truth = ends(0.5, np.array(true_rows), np.array(true_rewards, float))
    metric = Truth.of(truth, 0.5)
    for options in ({}, {"tau": 0.1}, {"partition": [0, 0, 1, 2]}, {"tol": 1e-9}):
        certificate = certify_named(mdp, 0.5, resources=Resources(threads=1), **options)
        check_truth(certificate, metric)
        check_proof(certificate, mdp)


# -- witnesses ---------------------------------------------------------------------------------


def noisy(seed: int) -> tuple[TabularMDP, Ints, float]:
    """Groups with noise in their rows, and a threshold that only a few pairs of blocks miss."""
    mdp, groups = noisy_groups(80, 8, 0.05, seed=seed)
    metric = Truth.of(mdp, 0.8)
    s, t = np.triu_indices(80, 1)
    same = groups[s] == groups[t]
    low, high = metric.upper[s, t][same].max(), metric.lower[s, t][~same].min()
    assert low < high
    return mdp, groups, float(low**0.2 * high**0.8)


@pytest.mark.usefixtures("thorough")
def test_runs_with_few_pairs_make_witnesses() -> None:
    with_witnesses = 0
    for seed in range(3):
        mdp, groups, tau = noisy(seed)
        found = certify(mdp, 0.8, tau=tau, method=Blocks(partition=groups, max_pairs=600))
        steps = [text for text in found.run["steps"] if "witness" in text]
        check_proof(found, mdp)
        check_truth(found, Truth.of(mdp, 0.8))
        assert len(steps) <= 1
        if not steps:
            continue
        with_witnesses += 1
        assert found.features is not None
        assert found.features.witnesses is not None
        count = found.features.witnesses.count
        assert steps == ["1 witness" if count == 1 else f"{count} witnesses"]
        assert found.features.witnesses.corrections.max() <= 0.02 * tau
    assert with_witnesses > 0


@pytest.mark.usefixtures("thorough")
def test_witnesses_are_never_replaced() -> None:
    """Covered pairs rest on them: with others in their place, bounds would not be proven."""
    rounds = 0
    for seed in range(3):
        mdp, groups, tau = noisy(seed)
        work = started(mdp, 0.8, tau=tau, partition=groups // 2, max_pairs=900)
        made: Any = None
        while work.step(go_on):
            features = work.table.ground.features
            if made is not None:
                assert features is not None
                assert features.witnesses is made
                rounds += 1
            made = None if features is None else features.witnesses
    assert rounds > 0


@pytest.mark.usefixtures("thorough")
def test_what_open_pairs_read_is_covered() -> None:
    """Behind pairs that stay open, and nothing inside a cluster of the upper arm."""
    mdp, groups, tau = noisy(0)
    tau *= 2.0  # in the midst of where blocks are apart
    work = started(mdp, 0.8, tau=tau, partition=groups, max_pairs=10**6)
    table, plan = work.table, [step.__name__ for step in work._plan]
    while plan[work.done] != "_witnesses":
        assert work.step(go_on)
    above = work.standing.forests[1].labels(tau)
    s, t = np.triu_indices(mdp.n_states, 1)
    apart = np.flatnonzero((above[s] != above[t]) & (table.bounds(s, t)[0] <= tau))[:3]
    assert apart.size > 0
    table.cover(s[apart], t[apart])
    before = set(table.keys.tolist())
    assert work._behind().endswith("behind open ones")
    fresh = np.array(sorted(set(table.keys.tolist()) - before))
    one, two = np.divmod(fresh, table.n)
    assert (above[one] != above[two]).all()
    read = {
        (min(x, y), max(x, y))
        for k in apart.tolist()
        for a in range(mdp.n_actions)
        for x in mdp.successors(int(s[k]), a)[0].tolist()
        for y in mdp.successors(int(t[k]), a)[0].tolist()
    }
    assert set(zip(one.tolist(), two.tolist(), strict=True)) <= read
    check_truth(work.certificate(stop="", run={}, is_final=False), Truth.of(mdp, 0.8))


def test_clusters_are_kept_apart_above_where_they_are_linked() -> None:
    """If the threshold is to be found, it must be above the links of the upper arm as well."""
    mdp = RoomsGridEnv(side=15, room_size=5).to_mdp()
    work = started(mdp, 0.99, tau=None, partition=None, max_pairs=0)
    plan = [step.__name__ for step in work._plan]
    while plan[work.done] != "_witnesses":
        assert work.step(go_on)
    aim, apart = work.standing.aim(), work.standing.aim_apart()
    assert aim is not None
    assert apart is not None
    lower, upper = work.standing.forests
    assert aim < apart
    assert upper.count(apart) <= lower.count(aim)
    given = started(mdp, 0.99, tau=3.0, partition=None, max_pairs=0)
    given.step(go_on)
    assert given.standing.aim_apart() == given.standing.aim() == 3.0


@pytest.mark.slow
def test_rooms_are_certified_at_gamma_099() -> None:
    """Pairs inside rooms are solved for, and witnesses keep rooms apart."""
    env = RoomsGridEnv()
    mdp = env.to_mdp()
    found = certify(mdp, 0.99)
    assert found.is_certified
    assert found.labels_upper.tolist() == first_appearance(env.rooms.tolist())
    assert any("witness" in step for step in found.run["steps"])
    assert verify(mdp, found).is_valid
