"""`single_build` and `certify`: always sound, reproducible, and resumed without a trace."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import (
    Blocks,
    Covering,
    InvalidArgumentError,
    Resources,
    TabularMDP,
    bisimulation_metric,
)
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.types import Progress
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._certificate.certificate import TIMES, Certificate
from bisim_abstract._prove import covering as covering_module
from bisim_abstract._prove import refinement
from bisim_abstract._prove.certify import certify
from bisim_abstract._prove.cost import copied_bytes
from bisim_abstract._prove.making import make_certificate
from bisim_abstract._verify.verify import verify
from bisim_abstract.errors import FileFormatError, MemoryLimitError
from bisim_abstract.parts import grouped_mdp, random_mdp, repair_labels, sparse_mdp
from tests.support.asking import certify_named, single_named
from tests.support.examples import cases, grid
from tests.support.worlds import BY_HAND, Known

Floats = npt.NDArray[np.float64]
Build = Callable[..., Certificate]

GENERATORS: dict[str, Callable[[int], TabularMDP]] = {
    "random": lambda seed: random_mdp(14, 3, seed=seed),
    "sparse": lambda seed: sparse_mdp(24, 2, support=3, seed=seed),
    "deterministic": lambda seed: sparse_mdp(20, 2, support=1, seed=seed),
    "grouped": lambda seed: grouped_mdp(24, 4, 2, noise=0.02, support=3, seed=seed)[0],
    "matched": lambda seed: grouped_mdp(
        18, 3, 2, noise=0.0, support=3, matched_rewards=True, seed=seed
    )[0],
}
GAMMAS = (0.0, 0.3, 0.7, 0.9, 0.99)
ROUNDING = 1e-9


@pytest.fixture(autouse=True)
def _every_certificate_is_verified(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever certificate a test of this module produces must pass the exact checker."""
    made: list[tuple[Certificate, TabularMDP]] = []
    build = make_certificate

    def recorded(arms: Arms, **options: Any) -> Certificate:
        certificate = build(arms, **options)
        made.append((certificate, arms.mdp))
        return certificate

    for module in (refinement, covering_module):
        monkeypatch.setattr(module, "make_certificate", recorded)
    yield
    for certificate, mdp in made:
        mode = "exact" if certificate.n_covered <= 60 else "sampled"
        found = verify(mdp, certificate, mode=mode, sample=40)
        assert found.is_valid, found.problem
        assert found.widening == 0.0


def table(certificate: Certificate) -> tuple[Floats, Floats]:
    states = np.arange(certificate.n_states)
    return certificate.bounds(states[:, None], states)


def assert_encloses(certificate: Certificate, mdp: TabularMDP) -> None:
    """The proven interval of every pair meets the one of the exact metric."""
    exact = bisimulation_metric(mdp, certificate.gamma, resources=Resources(threads=1))
    lower, upper = table(certificate)
    assert (lower <= exact.upper).all()
    assert (upper >= exact.lower).all()


def content(certificate: Certificate) -> dict[str, Any]:
    """All that a certificate says, time and reason of the end apart; arrays as bytes."""
    held = {f.name: getattr(certificate, f.name) for f in dataclasses.fields(certificate)}
    held["run"] = {name: x for name, x in certificate.run.items() if name not in TIMES}
    del held["model"]
    parts = {"value": held.pop("value")}
    while parts:  # a value holds shares and a bracket, and a share may hold another one
        part, value = parts.popitem()
        if dataclasses.is_dataclass(value):
            fields = {f"{part}.{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}
            parts |= fields
        else:
            held[part] = value
    return {
        name: (x.dtype.str, x.shape, x.tobytes()) if isinstance(x, np.ndarray) else x
        for name, x in held.items()
    }


def keys(certificate: Certificate) -> set[int]:
    return set(certificate.keys.tolist())


def covering(mdp: TabularMDP, gamma: float, **options: Any) -> Certificate:
    """`certify` by the paper's rounds over covered pairs, which most of this module is about."""
    return certify_named(mdp, gamma, method="covering", **options)


# -- soundness ---------------------------------------------------------------------------------


@grid(kind=GENERATORS, gamma=GAMMAS)
def test_both_enclose_the_exact_metric(kind: str, gamma: float) -> None:
    mdp = GENERATORS[kind](3)
    for index, upper_start in (("Flat", "constant"), ("LSH6", "reward")):
        single = single_named(
            mdp,
            gamma,
            neighbours=4,
            sweeps=30,
            index=index,
            upper_start=upper_start,
            resources=Resources(threads=1),
        )
        assert 0.0 < single.coverage < 1.0
        assert_encloses(single, mdp)
    for rounds in (1, 6):
        some = covering(mdp, gamma, neighbours=2, index="LSH6", max_rounds=rounds, threads=1)
        assert some.n_covered > 0
        assert_encloses(some, mdp)


@pytest.mark.parametrize("known", BY_HAND, ids=lambda k: f"{k.name}-{k.gamma}")
def test_both_enclose_truth_by_hand(known: Known) -> None:
    n = known.mdp.n_states
    for build in (single_named, covering):
        few: dict[str, Any] = {"max_rounds": 8} if build is covering else {"sweeps": 20}
        made = build(known.mdp, known.gamma, index="Flat", neighbours=3, threads=1, **few)
        lower, upper = table(made)
        for s, t in itertools.product(range(n), repeat=2):
            assert (
                Fraction(float(lower[s, t])) <= known.metric[s][t] <= Fraction(float(upper[s, t]))
            )


@pytest.mark.parametrize("arms", ["lower", "upper"])
def test_one_arm_alone_leaves_the_other_at_its_start(arms: str) -> None:
    mdp = sparse_mdp(20, 2, seed=0)
    none = single_named(mdp, 0.9, sweeps=0, neighbours=4, resources=Resources(threads=1))
    one = single_named(mdp, 0.9, sweeps=40, neighbours=4, arms=arms, resources=Resources(threads=1))
    both = single_named(mdp, 0.9, sweeps=40, neighbours=4, resources=Resources(threads=1))
    other = "upper" if arms == "lower" else "lower"
    assert getattr(one, other).tobytes() == getattr(none, other).tobytes()
    assert getattr(one, arms).tobytes() == getattr(both, arms).tobytes()
    assert getattr(one, arms).tobytes() != getattr(none, arms).tobytes()
    assert_encloses(one, mdp)


def test_single_build_makes_the_sweeps_asked_for() -> None:
    mdp = sparse_mdp(20, 2, seed=0)
    for sweeps in (0, 1, 7):
        made = single_named(mdp, 0.9, sweeps=sweeps, neighbours=4, resources=Resources(threads=1))
        assert made.run["sweeps"] == sweeps
        assert made.run["backups"] == 2 * sweeps * made.n_covered
    still = single_named(mdp, 0.0, sweeps=50, neighbours=4, resources=Resources(threads=1))
    assert still.run["sweeps"] < 5


# -- randomness --------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["LSH8", "Flat", "HNSW8"])
def test_same_seed_same_certificate_for_any_number_of_threads(index: str) -> None:
    mdp = sparse_mdp(130, 2, support=3, seed=1)

    def built(threads: int) -> list[dict[str, Any]]:
        rounds = covering(
            mdp, 0.9, tau=0.4, index=index, neighbours=30, max_rounds=3, seed=5, threads=threads
        )
        single = single_named(
            mdp,
            0.9,
            tau=0.4,
            index=index,
            neighbours=70,
            sweeps=5,
            seed=5,
            resources=Resources(threads=threads),
        )
        # More pairs than one unit of work, so that there is something to share out.
        assert single.n_covered > 4096 or index == "HNSW8"
        return [content(rounds), content(single)]

    first = built(1)
    assert built(2) == first
    assert built(1) == first


def test_different_seeds_cover_different_pairs() -> None:
    mdp = sparse_mdp(40, 2, seed=0)
    for build in (single_named, covering):
        options: dict[str, Any] = {"index": "LSH6", "neighbours": 4, "threads": 1}
        if build is covering:
            options |= {"partners": 0, "max_rounds": 1}
        sets = [keys(build(mdp, 0.9, seed=seed, **options)) for seed in range(4)]
        assert all(a != b for a, b in itertools.combinations(sets, 2))


def test_every_round_draws_anew() -> None:
    mdp = sparse_mdp(40, 2, seed=0)
    sizes = [
        covering(
            mdp, 0.9, partners=0, neighbours=3, index="LSH4", max_rounds=rounds, threads=1
        ).n_covered
        for rounds in (1, 2, 3, 4)
    ]
    assert all(a < b for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize(("seed", "tol"), [(0, None), (2, 1e-12)])
def test_uniform_partners_cover_everything(seed: int, tol: float | None) -> None:
    made = covering(
        random_mdp(18, 3, seed=seed),
        0.7,
        tol=tol,
        neighbours=3,
        dim=6,
        index="LSH6",
        partners=1,
        max_rounds=60,
        seed=seed,
        threads=1,
    )
    assert made.coverage == 1.0


def test_a_frozen_embedding_without_partners_saturates() -> None:
    rng = np.random.default_rng(0)
    mdp = random_mdp(18, 3, seed=0)
    # Two far groups: nobody's neighbour is in the other one.
    side = np.repeat([-50.0, 50.0], 9)
    points = rng.normal(size=(18, 3))
    points[:, 0] += side
    options: dict[str, Any] = {"partners": 0, "neighbours": 3, "embedding": points, "threads": 1}
    flat = [covering(mdp, 0.7, index="Flat", max_rounds=k, **options) for k in (1, 30)]
    assert keys(flat[0]) == keys(flat[1])
    assert flat[1].coverage < 0.5
    hashed = covering(mdp, 0.7, index="LSH6", max_rounds=60, **options)
    s, t = np.divmod(hashed.keys, 18)
    assert (side[s] == side[t]).all()
    assert hashed.coverage < 0.5


# -- when it ends ------------------------------------------------------------------------------


def test_ends_within_tol() -> None:
    mdp = sparse_mdp(16, 2, seed=0)
    made = covering(mdp, 0.7, tol=1e-3, threads=1)
    assert made.global_width <= 1e-3
    assert made.coverage == 1.0
    assert "within 0.001" in made.stop
    lower, upper = table(made)
    exact = bisimulation_metric(mdp, 0.7)
    assert np.abs(upper - exact.upper).max() <= 1e-3 + ROUNDING
    assert np.abs(lower - exact.lower).max() <= 1e-3 + ROUNDING
    before = covering(mdp, 0.7, max_rounds=int(made.run["rounds"]) - 1, threads=1)
    assert before.global_width > 1e-3


def test_ends_when_clusterings_agree() -> None:
    mdp, _ = grouped_mdp(24, 3, 2, noise=0.001, support=3, seed=0)
    made = covering(mdp, 0.5, tau=0.1, threads=1)
    assert "agree at 0.1" in made.stop
    assert made.is_certified
    assert made.tau == 0.1
    lower, upper = made.partitions(0.1)
    np.testing.assert_array_equal(lower, upper)
    rounds = int(made.run["rounds"])
    assert 1 < rounds < 100
    for fewer in range(1, rounds):
        assert not covering(mdp, 0.5, tau=0.1, max_rounds=fewer, threads=1).is_certified


GROUPED = grouped_mdp(24, 3, 2, noise=0.001, support=3, seed=0)


def test_a_threshold_is_found_over_covered_pairs() -> None:
    mdp, groups = GROUPED
    made = covering(mdp, 0.5, tau="auto", max_rounds=12, threads=1)
    plain = covering(mdp, 0.5, max_rounds=12, threads=1)
    assert plain.tau is None
    assert made.lower.tobytes() == plain.lower.tobytes()
    assert made.scope == "covered"
    assert made.is_certified
    assert made.tau is not None
    # It lies in the interval whose ends have the largest ratio.
    useful = [i for i in plain.certified_thresholds() if 1 < i.n_clusters < 24]
    best = max(useful, key=lambda i: i.high / max(i.low, 1e-12))
    assert best.low <= made.tau < best.high
    assert len(set(made.labels_upper.tolist())) == best.n_clusters == 3
    assert len(set(zip(groups.tolist(), made.labels_upper.tolist(), strict=True))) == 3
    assert verify(mdp, made, mode="exact").is_valid


@pytest.mark.parametrize("count", [1, 3, 24])
def test_a_number_of_clusters_is_found_over_covered_pairs(count: int) -> None:
    mdp, _ = GROUPED
    made = covering(mdp, 0.5, n_clusters=count, max_rounds=12, threads=1)
    assert made.is_certified
    assert len(set(made.labels_upper.tolist())) == count
    assert verify(mdp, made, mode="exact").is_valid


@pytest.mark.parametrize("goal", [{"tau": "auto"}, {"n_clusters": 2}], ids=str)
def test_no_threshold_is_claimed_where_none_is_found(goal: dict[str, Any]) -> None:
    """The arms are far apart after one round at a high discount."""
    made = covering(random_mdp(14, 3, seed=0), 0.99, max_rounds=1, threads=1, **goal)
    assert made.tau is None
    assert made.labels_lower.size == made.labels_upper.size == 0


def test_ends_with_the_rounds() -> None:
    made = covering(sparse_mdp(30, 2, seed=0), 0.9, tol=1e-9, max_rounds=3, threads=1)
    assert made.stop == "budget: 3 rounds"
    assert (made.run["rounds"], made.run["sweeps"]) == (3, 9)
    assert made.global_width > 1e-9


def test_ends_with_the_seconds() -> None:
    begin = time.monotonic()
    made = covering(
        sparse_mdp(60, 2, seed=0), 0.9, max_seconds=0.3, max_rounds=10**9, threads=1
    )  # fmt: skip
    assert "seconds" in made.stop
    assert made.stop.startswith("budget")
    assert made.run["seconds"] >= 0.3
    assert time.monotonic() - begin < 10.0


def test_ends_with_the_backups() -> None:
    mdp = sparse_mdp(30, 2, seed=0)
    free = [covering(mdp, 0.9, max_rounds=k, threads=1).run["backups"] for k in (1, 2, 3)]
    made = covering(mdp, 0.9, max_backups=free[0] + 1, threads=1)
    assert made.run["rounds"] == 2
    assert made.run["backups"] == free[1]
    assert "backups" in made.stop
    assert made.stop.startswith("budget")


def test_more_rounds_only_tighten() -> None:
    mdp = sparse_mdp(40, 2, seed=2)
    last: Certificate | None = None
    moved = 0
    for rounds in range(1, 9):
        made = covering(mdp, 0.8, neighbours=3, max_rounds=rounds, seed=4, threads=1)
        if last is not None:
            assert keys(last) <= keys(made)
            old, new = table(last), table(made)
            assert (new[0] >= old[0]).all()
            assert (new[1] <= old[1]).all()
            moved += int((new[0] > old[0]).any()) + int((new[1] < old[1]).any())
        last = made
    assert moved == 14


# -- checkpoints -------------------------------------------------------------------------------

MODEL = sparse_mdp(40, 2, seed=0)
OPTIONS: dict[str, Any] = {"neighbours": 4, "index": "LSH8", "seed": 3, "threads": 1}


@pytest.mark.parametrize("tau", [None, 3.0])
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path, tau: float | None) -> None:
    path = tmp_path / "run"
    whole = covering(MODEL, 0.9, max_rounds=6, tau=tau, **OPTIONS)
    part = covering(MODEL, 0.9, max_rounds=3, tau=tau, checkpoint=path, **OPTIONS)
    assert content(part) != content(whole)
    seen: list[int] = []
    resumed = covering(
        MODEL,
        0.9,
        max_rounds=6,
        tau=tau,
        checkpoint=str(path),
        callback=lambda told: seen.append(told.done) if "round" in told.stage else None,
        **OPTIONS,
    )
    assert seen == [4, 5, 6]
    assert content(resumed) == content(whole)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_resuming_a_run_that_reached_its_goal_adds_nothing(tmp_path: Path) -> None:
    mdp = sparse_mdp(16, 2, seed=0)
    whole = covering(mdp, 0.7, tol=1e-3, checkpoint=tmp_path / "run", threads=1)
    again = covering(mdp, 0.7, tol=1e-3, checkpoint=tmp_path / "run", threads=1)
    assert content(again) == content(whole)


@pytest.mark.parametrize("budget", [{"max_rounds": 3}, {"max_backups": 2_000}], ids=str)
def test_resuming_a_run_whose_budget_has_ended_adds_nothing(
    tmp_path: Path, budget: dict[str, Any]
) -> None:
    """An interruption between the last checkpoint and the return must leave no trace."""
    whole = covering(MODEL, 0.9, checkpoint=tmp_path / "run", **budget, **OPTIONS)
    again = covering(MODEL, 0.9, checkpoint=tmp_path / "run", **budget, **OPTIONS)
    assert whole.stop.startswith("budget")
    assert content(again) == content(whole)


@pytest.mark.parametrize(
    ("gamma", "change"),
    [
        (0.8, {}),
        (0.9, {"neighbours": 5}),
        (0.9, {"partners": 2}),
        (0.9, {"sweeps": 4}),
        (0.9, {"dim": 7}),
        (0.9, {"index": "LSH9"}),
        (0.9, {"lower_start": "zero"}),
        (0.9, {"upper_start": "constant"}),
        (0.9, {"seed": 4}),
        (0.9, {"embedding": np.random.default_rng(0).normal(size=(40, 3))}),
    ],
)
def test_checkpoints_of_other_settings_are_refused(
    tmp_path: Path, gamma: float, change: dict[str, Any]
) -> None:
    path = tmp_path / "run"
    covering(MODEL, 0.9, max_rounds=1, checkpoint=path, **OPTIONS)
    held = path.read_bytes()
    with pytest.raises(InvalidArgumentError, match=r"run belongs to .*other settings"):
        covering(MODEL, gamma, max_rounds=2, checkpoint=path, **(OPTIONS | change))
    assert path.read_bytes() == held


def test_checkpoints_of_other_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    covering(MODEL, 0.9, max_rounds=1, checkpoint=path, **OPTIONS)
    other = sparse_mdp(40, 2, seed=1)
    with pytest.raises(InvalidArgumentError, match="other settings"):
        covering(other, 0.9, max_rounds=2, checkpoint=path, **OPTIONS)


@pytest.mark.drawn
def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    covering(MODEL, 0.9, max_rounds=1, checkpoint=path, **OPTIONS)
    good = path.read_bytes()
    whole = content(covering(MODEL, 0.9, max_rounds=2, **OPTIONS))
    rng = np.random.default_rng(0)
    refused, count = 0, cases(150)
    for at in rng.choice(len(good), count, replace=False):
        data = bytearray(good)
        data[at] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            resumed = covering(MODEL, 0.9, max_rounds=2, checkpoint=path, **OPTIONS)
        except FileFormatError:
            refused += 1
        else:
            assert content(resumed) == whole, f"byte {at} was changed unnoticed"
    assert refused > 2 * count // 3
    for size in (0, 1, 100, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(FileFormatError):
            covering(MODEL, 0.9, max_rounds=2, checkpoint=path, **OPTIONS)


@pytest.mark.parametrize(
    "edit",
    [
        lambda arrays: arrays.pop("lower"),
        lambda arrays: arrays.pop("header"),
        lambda arrays: arrays.update(header=np.frombuffer(b"[]", np.uint8)),
        lambda arrays: arrays.update(header=np.frombuffer(b"\xff", np.uint8)),
        lambda arrays: arrays.update(lower=arrays["lower"][:-1]),
        lambda arrays: arrays.update(keys=arrays["keys"].astype(np.float64)),
        lambda arrays: arrays.update(keys=arrays["keys"][::-1]),
        lambda arrays: arrays.update(keys=arrays["keys"] + 40**2),
        lambda arrays: arrays.update(upper=arrays["upper"] * np.nan),
    ],
    ids=[
        "no lower",
        "no header",
        "list",
        "no text",
        "short",
        "float keys",
        "falling keys",
        "keys of no pair",
        "nan",
    ],
)
def test_inconsistent_checkpoints_are_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    covering(MODEL, 0.9, max_rounds=1, checkpoint=path, **OPTIONS)
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    edit(arrays)
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    # Nothing may be computed from such a table: indices out of range would be read.
    monkeypatch.setattr(Arms, "sweep", lambda *args, **kwargs: pytest.fail("was swept"))
    with pytest.raises(FileFormatError):
        covering(MODEL, 0.9, max_rounds=2, checkpoint=path, **OPTIONS)


def test_foreign_files_are_no_checkpoints(tmp_path: Path) -> None:
    model, text, certificate = tmp_path / "model", tmp_path / "text", tmp_path / "certificate"
    MODEL.save(model)
    text.write_text("nothing")
    covering(MODEL, 0.9, max_rounds=1, **OPTIONS).save(certificate)
    for path in (model, text, certificate):
        held = path.read_bytes()
        with pytest.raises(FileFormatError, match=path.name):
            covering(MODEL, 0.9, max_rounds=2, checkpoint=path, **OPTIONS)
        assert path.read_bytes() == held


# -- processes that are ended ------------------------------------------------------------------

RUN = """
import signal
import sys
from bisim_abstract.parts import sparse_mdp
from bisim_abstract import Covering, certify

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs inherit none
n, rounds, checkpoint, target = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
mdp = sparse_mdp(n, 3, support=4, seed=0)
print("begin", flush=True)
certificate = certify(
    mdp, 0.9, method=Covering(neighbours=8), max_rounds=rounds, seed=1,
    checkpoint=checkpoint or None,
    callback=lambda progress: "round" in progress.stage and print(progress.done, flush=True),
)
certificate.save(target)
print(certificate.stop, flush=True)
"""


def started(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    checkpoint, target = tmp_path / "run", tmp_path / "certificate"
    rng = np.random.default_rng(0)
    killed = 0
    for _ in range(3):
        with started(400, 8, checkpoint, target) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begin\n"
            for _ in range(int(rng.integers(1, 3))):
                process.stdout.readline()
            time.sleep(float(rng.uniform(0.0, 0.3)))
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
    assert killed > 0  # a fast machine may be done before the last one
    with started(400, 8, checkpoint, target) as process:
        assert process.stdout is not None
        lines = process.stdout.read().split("\n")
        assert process.wait() == 0
    assert lines[1] != "1"  # it did not begin at the beginning
    whole = covering(
        sparse_mdp(400, 3, support=4, seed=0), 0.9, neighbours=8, max_rounds=8, seed=1
    )  # fmt: skip
    assert content(Certificate.load(target)) == content(whole)


def test_ctrl_c_returns_what_was_reached(tmp_path: Path) -> None:
    target = tmp_path / "certificate"
    with started(60, 10**9, "", target) as process:
        assert process.stdout is not None
        for expected in ("begin\n", "1\n", "2\n", "3\n"):
            assert process.stdout.readline() == expected
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        last = process.stdout.read().split("\n")[-2]
        assert process.wait() == 0
    made = Certificate.load(target)
    assert made.stop == last
    assert made.stop.startswith("interrupted")
    assert made.run["rounds"] >= 3
    assert_encloses(made, sparse_mdp(60, 3, support=4, seed=0))


def test_an_interrupt_in_a_callback_ends_the_run() -> None:
    def stop(progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    made = covering(MODEL, 0.9, max_rounds=9, callback=stop, **OPTIONS)
    assert made.stop.startswith("interrupted")
    assert made.run["rounds"] == 2
    two = covering(MODEL, 0.9, max_rounds=2, **OPTIONS)
    assert made.lower.tobytes() == two.lower.tobytes()
    assert made.upper.tobytes() == two.upper.tobytes()


@pytest.mark.parametrize("method", ["cover", "sweep"])
def test_an_interrupt_on_any_line_of_the_arms_leaves_them_whole(method: str) -> None:
    """Ctrl-C can arrive between any two lines; the certificate must hold whatever it is."""
    mdp = sparse_mdp(12, 2, seed=0)
    code = getattr(Arms, method).__code__
    exact = bisimulation_metric(mdp, 0.8, resources=Resources(threads=1))
    at = 0
    while True:
        at += 1
        passed = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal passed
            if frame.f_code is not code:
                return None
            if event == "line":
                passed += 1
                if passed == at:  # noqa: B023 - used within this turn only
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            made = covering(mdp, 0.8, neighbours=2, index="Flat", max_rounds=2, threads=1)
        finally:
            sys.settrace(before)
        lower, upper = table(made)
        assert (lower <= exact.upper).all()
        assert (upper >= exact.lower).all()
        if passed < at:
            break
        assert made.stop.startswith("interrupted")
    assert at > 10


# -- callbacks, embeddings, options ------------------------------------------------------------


def test_callbacks_are_told_of_every_round_and_sweep() -> None:
    seen: list[Progress] = []
    covering(MODEL, 0.9, max_rounds=3, tau=3.0, sweeps=2, callback=seen.append, **OPTIONS)
    assert all(isinstance(progress, Progress) for progress in seen)
    rounds = [progress for progress in seen if "round" in progress.stage]
    assert [(progress.done, progress.total) for progress in rounds] == [(1, 3), (2, 3), (3, 3)]
    assert all("covered" in progress.detail for progress in rounds)
    assert all("clusters" in progress.detail for progress in rounds)
    sweeps = [progress.done for progress in seen if progress.stage == "sweeping"]
    assert sweeps == [0, 0, 1, 1, 2, 2]


def test_backups_off_an_index_are_counted_and_their_error_is_kept(tmp_path: Path) -> None:
    by_index = Covering(backup="index", neighbours=4)
    mdp = sparse_mdp(20, 2, seed=0)
    made = certify(mdp, 0.9, method=by_index, max_rounds=3, max_backups=10)
    assert made.run["rounds"] == 1
    assert made.run["backups"] > 10
    assert made.stop.startswith("budget: ")
    first, again = (
        certify(mdp, 0.9, method=by_index, max_rounds=2, checkpoint=tmp_path / "run")
        for _ in range(2)
    )
    assert again.run["eps_op"] == first.run["eps_op"]
    assert again.run["backups"] == first.run["backups"]
    with pytest.raises(InvalidArgumentError, match="arms must be 'both'"):
        Covering(backup="index", arms="lower")


def test_time_outs_of_others_are_no_budget() -> None:
    def fail(progress: Progress) -> None:
        raise TimeoutError("the disk")

    for build in (covering, certify_named):
        with pytest.raises(TimeoutError, match="the disk"):
            build(MODEL, 0.9, callback=fail, threads=1)


def test_errors_of_callbacks_come_through() -> None:
    def fail(progress: Progress) -> None:
        raise RuntimeError(f"seen {progress.done}")

    with pytest.raises(RuntimeError, match="seen 0"):
        covering(MODEL, 0.9, max_rounds=3, callback=fail, **OPTIONS)
    with pytest.raises(RuntimeError, match="seen 0"):
        single_named(MODEL, 0.9, callback=fail, resources=Resources(threads=1))


class Line:
    """States on a line, in their order."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, states: npt.NDArray[np.int64], /) -> Floats:
        self.calls += 1
        return states[:, None].astype(np.float64)


def test_embeddings_decide_which_pairs_are_covered() -> None:
    line = Line()
    points = np.arange(40.0)[:, None]
    # The two ends have both neighbours on one side.
    expected = {s * 40 + s + 1 for s in range(39)} | {0 * 40 + 2, 37 * 40 + 39}
    options: dict[str, Any] = {"neighbours": 2, "index": "Flat", "threads": 1}
    single = [single_named(MODEL, 0.9, embedding=e, **options) for e in (line, points)]
    rounds = [
        covering(MODEL, 0.9, embedding=e, partners=0, max_rounds=2, **options)
        for e in (line, points)
    ]
    for made in (*single, *rounds):
        assert keys(made) == expected
        assert_encloses(made, MODEL)
    assert content(single[0]) == content(single[1])
    assert content(rounds[0]) == content(rounds[1])
    assert line.calls >= 2


@pytest.mark.parametrize("points", [np.zeros((39, 2)), np.zeros(40), np.full((40, 2), np.nan)])
def test_bad_embeddings_are_named(points: Floats) -> None:
    for build in (single_named, covering):
        with pytest.raises(InvalidArgumentError, match="embedding"):
            build(MODEL, 0.9, embedding=points)


@pytest.mark.parametrize(
    ("build", "option", "value"),
    [
        *(
            (build, option, value)
            for build in (single_named, covering, certify_named)
            for option, value in (
                ("gamma", 1.0),
                ("gamma", "much"),
                ("gamma", None),
                ("neighbours", -1),
                ("neighbours", 2.5),
                ("dim", 0),
                ("tau", float("nan")),
                ("tau", "x"),
                ("lower_start", "none"),
                ("upper_start", "zero"),
                ("seed", -1),
                ("seed", 0.5),
                ("threads", 0),
            )
        ),
        *(
            (build, "index", index)
            for build in (single_named, covering)
            for index in ("Nonsense", "LSH0")
        ),
        (single_named, "arms", "none"),
        (single_named, "omit", 0.1),
        (single_named, "sweeps", -1),
        (certify_named, "max_pairs", -1),
        (certify_named, "tau", "often"),
        (certify_named, "n_clusters", 0),
        (certify_named, "n_clusters", 11),
        (certify_named, "n_clusters", 2.5),
        (certify_named, "method", "some"),
        (certify_named, "method", None),
        (certify_named, "partition", np.zeros(9, np.int64)),
        (certify_named, "partition", np.zeros((10, 1), np.int64)),
        (certify_named, "partition", np.zeros(10)),
        (covering, "partition", np.zeros(10, np.int64)),
        (covering, "tau", "often"),
        (covering, "n_clusters", 0),
        (covering, "tol", 0.0),
        (covering, "tol", float("nan")),
        (covering, "partners", -1),
        (covering, "sweeps", -1),
        (covering, "max_rounds", 0),
        (covering, "max_seconds", float("nan")),
        (covering, "max_seconds", -1.0),
        (covering, "max_backups", -1),
        (covering, "max_backups", "many"),
    ],
)
def test_bad_options_are_named(build: Build, option: str, value: Any) -> None:
    given = {"gamma": 0.5, "threads": 1}
    if build is not single_named:
        given["max_rounds"] = 2
    with pytest.raises(InvalidArgumentError) as caught:
        build(sparse_mdp(10, seed=0), **(given | {option: value}))
    assert option in str(caught.value)


@pytest.mark.parametrize("method", ["blocks", "covering"])
def test_a_threshold_and_a_number_of_clusters_exclude_each_other(method: str) -> None:
    with pytest.raises(InvalidArgumentError, match="tau or n_clusters, not both"):
        certify_named(MODEL, 0.9, tau=0.5, n_clusters=3, method=method)


def test_only_models_are_taken() -> None:
    for build in (single_named, certify_named):
        with pytest.raises((InvalidArgumentError, TypeError), match="TabularMDP"):
            build("model", 0.9)  # type: ignore[arg-type]


def test_the_run_is_recorded() -> None:
    made = covering(MODEL, 0.9, max_rounds=2, tau=0.3, **OPTIONS)
    assert made.fingerprint == MODEL.fingerprint
    assert made.gamma == 0.9
    assert made.run["function"] == "certify"
    assert made.run["seed"] == 3
    assert made.run["settings"]["index"] == "LSH8"
    assert set(made.run["versions"]) >= {"bisim_abstract", "numpy", "python"}
    np.testing.assert_array_equal(made.rewards, MODEL.rewards)


@pytest.mark.parametrize("method", ["blocks", "covering"])
def test_thresholds_below_0_are_refused(method: str) -> None:
    with pytest.raises(InvalidArgumentError, match="tau must be at least 0"):
        certify_named(sparse_mdp(4, seed=0), 0.5, tau=-1e-9, method=method)


def test_proposals_are_a_list_of_names() -> None:
    with pytest.raises(InvalidArgumentError, match="list of names, got 'rewards'"):
        certify(sparse_mdp(4, seed=0), 0.5, method=Blocks(propose="rewards"))


# -- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["blocks", "covering"])
def test_what_would_not_fit_is_refused_with_size_and_remedy(method: str) -> None:
    mdp = sparse_mdp(300, seed=0)
    with pytest.raises(MemoryLimitError) as caught:
        certify_named(mdp, 0.9, tau=0.5, method=method, memory_limit=50_000)
    text = str(caught.value)
    assert "allowed by memory_limit" in text
    assert "50.0 kB" in text
    assert "needs" in text
    roomy = certify_named(mdp, 0.9, tau=0.5, method=method, max_rounds=2, memory_limit=10**9)
    plain = certify_named(mdp, 0.9, tau=0.5, method=method, max_rounds=2)
    np.testing.assert_array_equal(roomy.upper, plain.upper)


def test_copies_are_counted_by_how_fine_clusters_may_be() -> None:
    """Long rows of few states count in full; 237 MB were taken where 117 had been counted."""
    few = sparse_mdp(2_000, 4, support=20, seed=0)
    assert copied_bytes(few) == 300 * few.nnz
    many = grouped_mdp(20_001, 50, seed=0)[0]
    plain = 72 * many.nnz + 100 * many.n_states
    assert copied_bytes(many) == max(plain, min(300 * many.nnz, 80_000_000))


def test_copies_of_a_large_model_count_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs of value copy rows: a limit below that is refused at once, whatever tables take."""
    mdp = grouped_mdp(200, 4, noise=0.01, seed=0)[0]
    copies = 300 * mdp.nnz  # as if hardly two states were alike
    little = Resources(memory_limit=copies)
    assert certify(mdp, 0.9, resources=little).is_certified  # so few are not counted
    monkeypatch.setattr("bisim_abstract._prove.cost.UNCOUNTED", copies - 1)
    told: list[object] = []
    with pytest.raises(MemoryLimitError, match=r"working on 200 states .* needs 796\.8 kB"):
        certify(mdp, 0.9, resources=little, callback=told.append)
    assert told == []
    seen: list[int] = []
    monkeypatch.setattr(
        "bisim_abstract._prove.driver.Arms",
        lambda *args, resources, **options: (
            seen.append(resources.memory_limit) or Arms(*args, resources=resources, **options)  # type: ignore[func-returns-value]
        ),
    )
    assert certify(mdp, 0.9, resources=Resources(memory_limit=10**7)).is_certified
    assert seen == [10**7 - copies]  # what is left for tables


@pytest.mark.parametrize("limit", [0, -1, 1.5, "4GB"])
def test_limits_are_whole_numbers_of_bytes(limit: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="memory_limit"):
        certify(sparse_mdp(4, seed=0), 0.9, resources=Resources(memory_limit=limit))


# -- found by fuzzing --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["blocks", "covering"])
@pytest.mark.parametrize("size", [1e40, 1e150, 1e200])
def test_rewards_beyond_single_precision(method: str, size: float) -> None:
    """Proposals and retrieval are in single precision, rewards are not."""
    plain = sparse_mdp(12, 2, support=2, seed=3)
    mdp = TabularMDP(
        indptr=plain.indptr,
        indices=plain.indices,
        probs=plain.probs,
        rewards=plain.rewards * size,
    )
    index = {"index": "Flat"} if method == "covering" else {}
    certificate = certify_named(mdp, 0.9, method=method, max_rounds=3, **index)
    assert verify(mdp, certificate).is_valid
    if method == "covering":
        assert certificate.n_covered > 0


@pytest.mark.parametrize("power", [-900, 530, 660, 1000])
def test_blocks_of_models_with_extreme_rewards_are_repaired_alike(power: int) -> None:
    """Squares of distances overflowed, and a kernel then read outside its arrays: a crash."""
    for seed in range(20):
        plain = sparse_mdp(12, 2, support=2, seed=seed)
        mdp = TabularMDP(
            indptr=plain.indptr,
            indices=plain.indices,
            probs=plain.probs,
            rewards=np.ldexp(plain.rewards, power),
        )
        labels = np.random.default_rng(seed).integers(3, size=12)
        assert np.array_equal(repair_labels(mdp, labels, 0.9), repair_labels(plain, labels, 0.9))


@pytest.mark.parametrize("method", ["covering", "single"])
def test_no_neighbours_are_none(method: str) -> None:
    mdp = sparse_mdp(6, 2, support=2, seed=0)
    if method == "single":
        assert single_named(mdp, 0.9, neighbours=0).n_covered == 0
    else:
        found = certify(mdp, 0.9, method=Covering(neighbours=0, partners=1), max_rounds=1)
        assert found.n_covered > 0


def test_a_threshold_below_all_distances_does_not_sweep_for_ever() -> None:
    P = np.array([[[0.5, 0.25, 0.25]], [[0.125, 0.75, 0.125]], [[0.25, 0.5, 0.25]]])
    mdp = TabularMDP.from_dense(P, [1e-310, 0.0, 2e-310])
    found = certify(mdp, 0.999, tau=5e-324, method=Blocks(partition=[0, 0, 1]))
    assert found.run["backups"] < 20_000


def test_rewards_of_all_sizes() -> None:
    """Found by fuzzing: 0 and 1e-242 are far below the resolution of rewards of up to 1e90."""
    P = np.zeros((5, 1, 5))
    for state, row in enumerate(
        ({0: 0.0625, 1: 0.75, 4: 0.1875}, {0: 0.125, 1: 0.0625, 2: 0.5, 3: 0.3125}, {2: 1.0})
    ):
        P[state, 0, list(row)] = list(row.values())
    P[3, 0, 3] = 1.0
    P[4, 0, [1, 2, 3]] = 0.3125, 0.0625, 0.625
    mdp = TabularMDP.from_dense(P, np.array([[1e-74], [1e-242], [0.0], [0.0], [1e90]]))
    found = certify(mdp, 0.9, tau=0.0, method=Blocks(max_pairs=0, partition=[2, 1, 0, 4, 4]))
    assert verify(mdp, found).is_valid


def test_diameters_of_blocks_where_products_underflow() -> None:
    """Found by fuzzing: a radius of 2e-15 times a cost of 5e-324 is not 0."""
    P = np.zeros((4, 2, 4))
    P[0, 0, 2] = P[1, :, 1] = 1.0
    P[0, 1, [2, 3]] = 1.0, 1e-10
    P[2:, 0] = 0.6482817769890343, 0.05093761840828353, 0.19723928231716206, 0.10354132228552008
    P[2:, 1, [0, 2]] = 0.1919146288640807, 0.8080853711359193
    tiny = -5e-324
    rewards = np.array([[tiny, 0.0], [0.0, 0.0], [0.0, tiny], [0.0, tiny]])
    mdp = TabularMDP.from_dense(P, rewards)
    found = certify(mdp, 0.9, seed=69, tau="auto", method=Blocks(max_pairs=1), max_rounds=3)
    (level,) = found.levels
    assert level.model.radius.max() > 0.0
    result = verify(mdp, found, mode="exact")
    assert result.is_valid, result.problem


def test_numbers_of_clusters_that_there_are_not() -> None:
    """Of two pairs of equal states, no threshold tells only one apart."""
    rewards = [[0.0], [0.0], [1.0], [1.0], [5.0]]
    mdp = TabularMDP.from_dense(np.eye(5)[:, None], rewards)
    assert {x.n_clusters for x in certify(mdp, 0.9).certified_thresholds()} == {1, 2, 3}
    found = certify(mdp, 0.9, n_clusters=4)
    assert not found.is_certified
    assert "no certified threshold gives 4 clusters; ask for 3" in found.stop
    rewards = [[0.0], [1.0], [2.0], [9.0]]
    mdp = TabularMDP.from_dense(np.eye(4)[:, None], rewards)
    assert "gives 3 clusters; ask for 2 or 4" in certify(mdp, 0.9, n_clusters=3).stop


def test_reasons_name_what_was_tried_and_no_budget_that_nobody_gave() -> None:
    """Where all pairs are bounded, thresholds next to the one asked for are offered."""
    mdp = TabularMDP.from_dense(np.eye(3)[:, None], [[0.0], [0.1], [1.0]])
    found = certify(mdp, 0.5, tau=0.2)  # a distance, but for rounding
    assert not found.is_certified
    assert "which leaves open whether some are within 0.2; it is certified just below" in found.stop
    wide = certify(mdp, 0.5, tol=1e-300)
    assert "all pairs are bounded as tightly as rounding allows: the width is" in wide.stop
    alone = TabularMDP.from_dense(np.eye(2)[:, None], [[0.0], [1.0]])
    assert "separates states into several clusters" in certify(alone, 0.5, tau="auto").stop
    for reason in (found.stop, wide.stop):
        assert "max_seconds" not in reason


def test_a_number_of_clusters_is_swept_for_no_longer_than_it_takes() -> None:
    mdp, groups = grouped_mdp(400, 20, noise=1e-9, seed=0)
    found = certify(mdp, 0.9, n_clusters=20)
    assert numbered(found.labels_upper).tolist() == numbered(groups).tolist()
    widest = certify(mdp, 0.9, tau="auto")
    assert found.run["steps"] == widest.run["steps"] == ["20 blocks by rewards"]
    assert found.run["backups"] < widest.run["backups"]  # which sweeps until it grows no more
