"""Certificates: what they say against brute force, and files that cannot be changed unnoticed."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import FileFormatError, InvalidArgumentError, random_mdp, sparse_mdp
from bisim_abstract.arms import Arms
from bisim_abstract.certificate import Certificate
from tests.oracles import first_appearance

Floats = npt.NDArray[np.float64]

ARRAYS = ("keys", "lower", "upper", "rewards", "labels_lower", "labels_upper")
BOTH_STARTS = list(itertools.product(("reward", "zero"), ("reward", "constant")))


def made(
    n: int = 12,
    *,
    gamma: float = 0.8,
    share: float = 0.5,
    sweeps: int = 3,
    tau: float | None = None,
    seed: int = 0,
    lower_start: str = "reward",
    upper_start: str = "reward",
    eps_op: float = 0.0,
) -> Certificate:
    """The certificate of arms over a random share of the pairs of a random model."""
    mdp = sparse_mdp(n, 2, support=3, seed=seed)
    arms = Arms(mdp, gamma, lower_start=lower_start, upper_start=upper_start, threads=1)
    s, t = np.triu_indices(n, 1)
    chosen = np.random.default_rng([seed, 1]).permutation(s.size)[: round(share * s.size)]
    arms.cover(s[chosen], t[chosen])
    for _ in range(sweeps):
        arms.sweep()
    run = {"rounds": 1, "versions": {"x": "1.0"}, "note": "γ", "third": 1 / 3}
    plain = Certificate.of(arms, tau=tau, stop="enough", run=run)
    return plain if eps_op == 0.0 else changed(plain, eps_op=eps_op)


def fields(certificate: Certificate) -> dict[str, Any]:
    return {f.name: getattr(certificate, f.name) for f in dataclasses.fields(certificate)}


def changed(certificate: Certificate, **values: Any) -> Certificate:
    return Certificate(**(fields(certificate) | {"run": dict(certificate.run)} | values))


def same(one: Certificate, other: Certificate) -> bool:
    """Bit for bit."""
    for name, value in fields(one).items():
        found = getattr(other, name)
        if isinstance(value, np.ndarray):
            if value.dtype != found.dtype or value.shape != found.shape:
                return False
            if value.tobytes() != found.tobytes():
                return False
        elif type(value) is not type(found) or value != found:
            return False
    return True


def by_hand(**values: Any) -> Certificate:
    """Four states, three covered pairs: (0,1) and (2,3) near, (0,2) wide."""
    given: dict[str, Any] = {
        "fingerprint": "abc",
        "n_states": 4,
        "gamma": 0.5,
        "rewards": [[0.0, 1.0], [0.25, 1.0], [1.0, 0.0], [1.0, 0.5]],
        "keys": [1, 2, 11],
        "lower": [0.25, 1.0, 0.5],
        "upper": [0.5, 2.0, 0.75],
    }
    return Certificate(**(given | values))


# -- construction ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gamma", 1.0),
        ("gamma", -0.1),
        ("gamma", float("nan")),
        ("gamma", "a"),
        ("n_states", 0),
        ("n_states", 2.5),
        ("rewards", np.zeros((3, 1))),
        ("rewards", np.zeros(4)),
        ("rewards", np.full((4, 1), np.inf)),
        ("rewards", [["a"]] * 4),
        ("keys", [2, 1, 11]),
        ("keys", [1, 1, 11]),
        ("keys", [-3, 1, 11]),
        ("keys", [1, 2, 16]),
        ("keys", [1, 2, 5]),
        ("keys", [1, 2, 9]),
        ("keys", [1.0, 2.0, 11.0]),
        ("keys", [[1, 2, 11]]),
        ("lower", [0.25, 1.0]),
        ("lower", [-0.25, 1.0, 0.5]),
        ("lower", [0.75, 1.0, 0.5]),
        ("lower", [np.nan, 1.0, 0.5]),
        ("upper", [0.5, 2.0, 0.75, 1.0]),
        ("upper", [0.5, np.inf, 0.75]),
        ("upper", [0.5, 2.0, np.nan]),
        ("lower_start", "constant"),
        ("upper_start", "zero"),
        ("eps_op", -1e-9),
        ("eps_op", float("nan")),
        ("eps_op", "a"),
        ("tau", 0.5),
        ("scope", "everything"),
        ("labels_lower", [0, 0, 1, 1]),
        ("labels_upper", [0, 0, 1, 1]),
        ("run", {"x": object()}),
        ("run", {"x": float("nan")}),
    ],
)
def test_bad_fields_are_named(field: str, value: Any) -> None:
    expected = {"tau": "labels_lower"}.get(field, field)
    with pytest.raises(InvalidArgumentError) as caught:
        by_hand(**{field: value})
    assert expected in str(caught.value)


@pytest.mark.parametrize("tau", [float("nan"), float("inf"), "half"])
def test_bad_tau_is_named(tau: Any) -> None:
    labels = np.zeros(4, np.int64)
    with pytest.raises(InvalidArgumentError, match="tau"):
        by_hand(tau=tau, labels_lower=labels, labels_upper=labels)


def test_labels_must_cover_every_state() -> None:
    with pytest.raises(InvalidArgumentError, match="labels_upper"):
        by_hand(tau=0.5, labels_lower=[0, 0, 1, 1], labels_upper=[0, 0, 1])


def test_bad_bounds_are_reported_with_their_pair() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\(2, 3\)"):
        by_hand(lower=[0.25, 1.0, 0.76])


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_only_copies(name: str) -> None:
    given = np.array(getattr(made(tau=0.3), name))
    certificate = changed(made(tau=0.3), **{name: given})
    held = getattr(certificate, name)
    before = held.copy()
    with pytest.raises(ValueError, match="read-only"):
        held[...] = 0
    given[...] = 0
    np.testing.assert_array_equal(held, before)


def test_everything_else_is_frozen_too() -> None:
    certificate = made()
    with pytest.raises(dataclasses.FrozenInstanceError):
        certificate.gamma = 0.1  # type: ignore[misc]
    with pytest.raises(TypeError):
        certificate.run["rounds"] = 2  # type: ignore[index]


def test_numbers_are_held_as_plain_python_numbers(tmp_path: Path) -> None:
    certificate = by_hand(n_states=np.int64(4), gamma=np.float32(0.5), eps_op=np.float32(0.25))
    certificate.save(tmp_path / "c")
    assert same(Certificate.load(tmp_path / "c"), by_hand(eps_op=0.25))


# -- bounds ------------------------------------------------------------------------------------


def naive_start(
    rewards: Floats, gamma: float, s: int, t: int, lower: str, upper: str
) -> tuple[float, float]:
    """Start values as on paper, without any rounding."""
    gap = float(np.abs(rewards[s] - rewards[t]).max())
    D = float(np.ptp(rewards, axis=0).max()) / (1.0 - gamma)
    return (gap if lower == "reward" else 0.0), (gap + gamma * D if upper == "reward" else D)


@pytest.mark.parametrize("starts", BOTH_STARTS)
@pytest.mark.parametrize("eps_op", [0.0, 0.01, 0.3])
def test_bounds_of_every_pair(starts: tuple[str, str], eps_op: float) -> None:
    certificate = made(lower_start=starts[0], upper_start=starts[1], eps_op=eps_op)
    n, margin = certificate.n_states, eps_op / (1.0 - certificate.gamma)
    held = {int(key): k for k, key in enumerate(certificate.keys)}
    clipped = 0
    for s, t in itertools.product(range(n), repeat=2):
        low, high = (float(x) for x in certificate.bounds(s, t))
        if s == t:
            assert (low, high) == (0.0, 0.0)
            continue
        first, last = naive_start(certificate.rewards, certificate.gamma, s, t, *starts)
        k = held.get(min(s, t) * n + max(s, t))
        if k is not None:
            clipped += certificate.upper[k] + margin > last
            first = max(first, float(certificate.lower[k]) - margin)
            last = min(last, float(certificate.upper[k]) + margin)
        assert low == pytest.approx(first, rel=1e-12, abs=1e-15)
        assert high == pytest.approx(last, rel=1e-12)
        assert 0.0 <= low <= high
    assert clipped > 0 if eps_op == 0.3 else clipped < 2 * len(held)


def test_bounds_without_an_error_are_those_stored() -> None:
    certificate = made()
    s, t = np.divmod(certificate.keys, certificate.n_states)
    for first, second in ((s, t), (t, s)):
        lower, upper = certificate.bounds(first, second)
        assert lower.tobytes() == certificate.lower.tobytes()
        assert upper.tobytes() == certificate.upper.tobytes()


def test_stated_error_widens_without_losing_a_bit() -> None:
    """Rounding of the widened bound must not eat into the stated margin."""
    rng = np.random.default_rng(0)
    n = 12
    s, t = np.triu_indices(n, 1)
    lower = rng.uniform(40.0, 60.0, s.size)
    certificate = Certificate(
        fingerprint="abc",
        n_states=n,
        gamma=0.9,
        rewards=np.linspace(0.0, 100.0, n)[:, None],
        keys=s * n + t,
        lower=lower,
        upper=lower + rng.random(s.size),
        lower_start="zero",
        upper_start="constant",
        eps_op=1e-3,
    )
    margin = Fraction(certificate.eps_op) / (1 - Fraction(certificate.gamma))
    low, high = certificate.bounds(s, t)
    for k in range(s.size):
        assert Fraction(float(high[k])) >= Fraction(float(certificate.upper[k])) + margin
        assert Fraction(float(low[k])) <= Fraction(float(certificate.lower[k])) - margin


def test_bounds_broadcast() -> None:
    certificate = made()
    states = np.arange(certificate.n_states)
    table = certificate.bounds(states[:, None], states[None, :])
    assert table[0].shape == table[1].shape == (12, 12)
    for s, t in [(0, 5), (5, 0), (3, 3), (11, 2)]:
        single = certificate.bounds(s, t)
        assert single[0].shape == ()
        assert (single[0], single[1]) == (table[0][s, t], table[1][s, t])
    np.testing.assert_array_equal(table[0], table[0].T)
    np.testing.assert_array_equal(table[1], table[1].T)
    small = certificate.bounds(np.array([1, 2], np.uint8), 7)
    np.testing.assert_array_equal(small[1], table[1][[1, 2], 7])
    assert certificate.bounds([], [])[0].shape == (0,)


@pytest.mark.parametrize("bad", [-1, 12, 0.0, [0, 12], "0", True])
def test_bad_indices_are_refused(bad: Any) -> None:
    certificate = made()
    with pytest.raises(InvalidArgumentError, match="states must"):
        certificate.bounds(bad, 0)
    with pytest.raises(InvalidArgumentError, match="others must"):
        certificate.bounds(0, bad)


# -- coverage and widths -----------------------------------------------------------------------


@pytest.mark.parametrize("starts", BOTH_STARTS)
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("eps_op", [0.0, 0.05])
def test_widths_against_brute_force(starts: tuple[str, str], share: float, eps_op: float) -> None:
    certificate = made(share=share, lower_start=starts[0], upper_start=starts[1], eps_op=eps_op)
    n = certificate.n_states
    covered, everywhere, count = 0.0, 0.0, 0
    for s, t in itertools.combinations(range(n), 2):
        low, high = (float(x) for x in certificate.bounds(s, t))
        everywhere = max(everywhere, high - low)
        if s * n + t in certificate.keys:
            count += 1
            covered = max(covered, high - low)
    assert certificate.n_covered == count
    assert certificate.coverage == count / (n * (n - 1) / 2)
    assert certificate.width >= covered * (1.0 - 1e-12)
    assert certificate.global_width >= everywhere * (1.0 - 1e-12)
    assert certificate.global_width >= certificate.width
    if eps_op == 0.0:
        assert certificate.width == pytest.approx(covered, rel=1e-12)
    if eps_op == 0.0 and (starts == ("reward", "reward") or share == 1.0):
        assert certificate.global_width == pytest.approx(everywhere, rel=1e-12)


def test_a_single_state_is_covered() -> None:
    arms = Arms(random_mdp(1, seed=0), 0.9, threads=1)
    certificate = Certificate.of(arms, tau=0.1, stop="", run={})
    assert (certificate.coverage, certificate.width, certificate.global_width) == (1.0, 0.0, 0.0)
    assert certificate.is_certified


# -- clusterings -------------------------------------------------------------------------------


def linked(certificate: Certificate, values: Floats, tau: float) -> list[int]:
    """Components of the covered links at most tau, by union-find."""
    parent = list(range(certificate.n_states))

    def root(x: int) -> int:
        while parent[x] != x:
            x = parent[x]
        return x

    for key, value in zip(certificate.keys.tolist(), values.tolist(), strict=True):
        if value <= tau:
            s, t = divmod(key, certificate.n_states)
            parent[root(s)] = root(t)
    return first_appearance([root(x) for x in range(certificate.n_states)])


def thresholds(certificate: Certificate) -> list[float]:
    """Every value where something can change, just below each, and midpoints."""
    values = np.unique(np.concatenate([certificate.lower, certificate.upper, [0.0]]))
    middle = (values[1:] + values[:-1]) / 2.0
    below = np.nextafter(values, -np.inf)
    return [float(x) for x in (*values, *middle, *below, values[-1] + 1.0)]


@pytest.mark.parametrize("seed", range(4))
def test_partitions_against_union_find(seed: int) -> None:
    certificate = made(10, share=0.45, seed=seed, gamma=0.5, sweeps=2)
    for tau in thresholds(certificate):
        lower, upper = certificate.partitions(tau)
        assert lower.tolist() == linked(certificate, certificate.lower, tau)
        assert upper.tolist() == linked(certificate, certificate.upper, tau)


def test_partitions_with_a_stated_error_link_what_the_bounds_say() -> None:
    certificate = made(10, share=0.6, eps_op=0.05, gamma=0.5)
    s, t = np.divmod(certificate.keys, certificate.n_states)
    low, high = certificate.bounds(s, t)
    for tau in np.unique(np.concatenate([low, high])):
        for at in (float(tau + 1e-9), float(tau - 1e-9)):
            lower, upper = certificate.partitions(at)
            # The lower arm may link more, and the upper arm fewer, never the other way.
            fine, coarse = linked(certificate, high, at), linked(certificate, low, at)
            assert refines(upper.tolist(), fine)
            assert refines(coarse, lower.tolist())


def refines(fine: list[int], coarse: list[int]) -> bool:
    return len(set(zip(fine, coarse, strict=True))) == len(set(fine))


@pytest.mark.parametrize("eps_op", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(4))
def test_certified_thresholds_are_where_partitions_agree(seed: int, eps_op: float) -> None:
    certificate = made(10, share=0.6, seed=seed, gamma=0.5, sweeps=12, eps_op=eps_op)
    intervals = certificate.certified_thresholds()
    assert intervals
    assert intervals[-1].high == np.inf
    probes = [0.0]
    for interval in intervals:
        probes += [interval.low, float(np.nextafter(interval.low, -np.inf))]
        if interval.high < np.inf:
            probes += [interval.high, float(np.nextafter(interval.high, -np.inf))]
            probes.append((interval.low + interval.high) / 2.0)
    for one, other in itertools.pairwise(intervals):
        assert one.low < one.high <= other.low
        probes.append((one.high + other.low) / 2.0)
    probes += np.random.default_rng(seed).uniform(0.0, intervals[-1].low * 1.1, 50).tolist()
    verdicts = set()
    for tau in probes:
        if tau < 0.0:
            continue
        lower, upper = certificate.partitions(tau)
        holding = [i for i in intervals if i.low <= tau < i.high]
        assert np.array_equal(lower, upper) == bool(holding)
        verdicts.add(bool(holding))
        if holding:
            assert holding[0].n_clusters == len(set(upper.tolist()))
    assert verdicts == {True, False}


def test_is_certified_compares_the_clusterings() -> None:
    alike, other = [0, 0, 1, 1], [0, 0, 1, 2]
    assert by_hand(tau=0.8, labels_lower=alike, labels_upper=alike).is_certified
    assert not by_hand(tau=0.6, labels_lower=alike, labels_upper=other).is_certified
    assert not by_hand().is_certified


def test_certificate_of_arms_clusters_at_tau() -> None:
    verdicts = set()
    plain = made(10, gamma=0.5, sweeps=8)
    for tau in thresholds(plain):
        certificate = made(10, gamma=0.5, sweeps=8, tau=tau)
        assert certificate.tau == tau
        assert certificate.labels_lower.tolist() == linked(plain, plain.lower, tau)
        assert certificate.labels_upper.tolist() == linked(plain, plain.upper, tau)
        assert dict(certificate.run) == dict(plain.run)
        verdicts.add(certificate.is_certified)
    assert verdicts == {True, False}


# -- words -------------------------------------------------------------------------------------


def test_summary_and_repr_say_what_matters() -> None:
    alike, other = [0, 0, 1, 1], [0, 0, 1, 2]
    plain = by_hand(stop="budget: 3 rounds")
    good = by_hand(tau=0.8, labels_lower=alike, labels_upper=alike)
    bad = by_hand(tau=0.6, labels_lower=alike, labels_upper=other)
    for certificate in (plain, good, bad):
        text = certificate.summary()
        assert "covered pairs" in text.splitlines()[0]
        assert "0.5" in text.splitlines()[0]
        assert "3 of 6 pairs (50.0%)" in text
        assert max(map(len, text.splitlines())) < 100
        assert "50.0% of pairs covered" in repr(certificate)
        assert "\n" not in repr(certificate)
    assert "budget: 3 rounds" in plain.summary()
    assert "certified" not in plain.summary() + repr(plain)
    assert "2 clusters, certified" in good.summary()
    assert ", certified" in repr(good)
    assert "NOT certified: between 2 and 3 clusters" in bad.summary()
    assert "not certified" in repr(bad)


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c.npz", "c", "c.certificate", "a b.txt"])
@pytest.mark.parametrize("tau", [None, 0.3])
def test_round_trip_is_exact(tmp_path: Path, name: str, tau: float | None) -> None:
    certificate = made(tau=tau, gamma=1 / 3, eps_op=1 / 7)
    certificate.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    loaded = Certificate.load(str(tmp_path / name))
    assert same(certificate, loaded)
    assert not loaded.lower.flags.writeable


def test_round_trip_of_nothing_covered(tmp_path: Path) -> None:
    certificate = made(share=0.0)
    assert certificate.n_covered == 0
    certificate.save(tmp_path / "c")
    assert same(certificate, Certificate.load(tmp_path / "c"))


def test_same_tells_certificates_apart() -> None:
    certificate = made(tau=0.3)
    nudged = certificate.upper.copy()
    nudged[5] = np.nextafter(nudged[5], np.inf)
    assert not same(certificate, changed(certificate, upper=nudged))
    assert not same(certificate, changed(certificate, stop="other"))
    assert not same(certificate, changed(certificate, run={}))


def test_any_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    certificate = made(8, tau=0.3)
    path = tmp_path / "c"
    certificate.save(path)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.choice(len(good), 600, replace=False):
        data = bytearray(good)
        data[at] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            loaded = Certificate.load(path)
        except FileFormatError:
            refused += 1
        else:
            assert same(certificate, loaded), f"byte {at} was changed unnoticed"
    assert refused > 300


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    made(8).save(path)
    good = path.read_bytes()
    for size in {0, 1, 6, len(good) - 1, *range(0, len(good), 37)}:
        path.write_bytes(good[:size])
        with pytest.raises(FileFormatError):
            Certificate.load(path)


def _model(path: Path) -> None:
    sparse_mdp(5, seed=0).save(path)


def _array(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))


def _numbers(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, header=np.zeros(3))


def _objects(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, header=np.array([{"a": 1}, print], dtype=object))


@pytest.mark.parametrize(
    "write",
    [
        _model,
        _array,
        _objects,
        lambda path: path.write_text("bisimulation certificate"),
        lambda path: zipfile.ZipFile(path, "w").close(),
        _numbers,
    ],
    ids=["model", "npy", "pickle", "text", "empty zip", "npz"],
)
def test_foreign_files_are_refused(tmp_path: Path, write: Callable[[Path], object]) -> None:
    path = tmp_path / "c.npz"
    write(path)
    with pytest.raises(FileFormatError, match=r"c\.npz"):
        Certificate.load(path)


def test_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Certificate.load(tmp_path / "none")


def test_file_holds_no_pickle(tmp_path: Path) -> None:
    made(tau=0.3).save(tmp_path / "c")
    with np.load(tmp_path / "c", allow_pickle=False) as archive:
        assert {archive[name].dtype.kind for name in archive.files} == {"u", "i", "f"}
        header = json.loads(archive["header"].tobytes().decode())
    assert header["stop"] == "enough"


def forged(path: Path, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Edit header and arrays of a saved certificate, and write the digest that fits them."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays.pop("header").tobytes().decode())
    del arrays["digest"]
    edit(header, arrays)
    text = json.dumps(header, sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    arrays["header"] = np.frombuffer(text.encode(), np.uint8)
    arrays["digest"] = np.frombuffer(digest.hexdigest().encode(), np.uint8)
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def test_forging_nothing_changes_nothing(tmp_path: Path) -> None:
    """The forger itself is right: without an edit its files load."""
    certificate = made(tau=0.3)
    certificate.save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: None)
    assert same(certificate, Certificate.load(tmp_path / "c"))


@pytest.mark.parametrize(
    "entry",
    [
        {"format": "bisim_abstract.TabularMDP"},
        {"version": 2},
        {"version": None},
        {"gamma": 1.5},
        {"gamma": float("nan")},
        {"gamma": None},
        {"n_states": 11},
        {"n_states": 10**12},
        {"n_states": "12"},
        {"lower_start": "none"},
        {"upper_start": ["reward"]},
        {"eps_op": -1.0},
        {"eps_op": "0.5"},
        {"tau": None},
        {"tau": float("inf")},
        {"scope": "all"},
        {"run": [1, 2]},
        {"run": {"x": float("inf")}},
        {"fingerprint": 5},
        {"stop": ["no"]},
        {"surplus": 1},
    ],
    ids=str,
)
def test_inconsistent_headers_are_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    made(tau=0.3).save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: header.update(entry))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


@pytest.mark.parametrize("name", ["fingerprint", "gamma", "stop", "run", "format", "version"])
def test_missing_header_entries_are_refused(tmp_path: Path, name: str) -> None:
    made().save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: header.pop(name))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


@pytest.mark.parametrize(
    "edit",
    [
        lambda arrays: arrays.pop("upper"),
        lambda arrays: arrays.update(more=np.zeros(2)),
        lambda arrays: arrays.update(keys=arrays["keys"][::-1]),
        lambda arrays: arrays.update(keys=arrays["keys"].astype(np.float64)),
        lambda arrays: arrays.update(lower=arrays["upper"] + 1.0),
        lambda arrays: arrays.update(lower=arrays["lower"][:-1]),
        lambda arrays: arrays.update(upper=arrays["upper"] * np.nan),
        lambda arrays: arrays.update(rewards=arrays["rewards"][:-1]),
        lambda arrays: arrays.update(labels_lower=arrays["labels_lower"][:-1]),
    ],
)
def test_inconsistent_arrays_are_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    made(tau=0.3).save(tmp_path / "c")
    forged(tmp_path / "c", lambda header, arrays: edit(arrays))
    with pytest.raises(FileFormatError):
        Certificate.load(tmp_path / "c")


def test_edits_without_a_new_digest_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    made().save(path)
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    arrays["upper"] = arrays["upper"] + 1.0
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(FileFormatError, match="changed"):
        Certificate.load(path)
