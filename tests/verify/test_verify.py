"""`verify` against honest certificates, altered ones, and exact arithmetic."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bisim_abstract import (
    Covering,
    InvalidArgumentError,
    Resources,
    TabularMDP,
    certify,
    compare_abstractions,
    write_report,
)
from bisim_abstract._base.parallel import LocalBackend
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._model.generators import grouped_mdp, random_mdp, sparse_mdp
from bisim_abstract._verify.exact import exact_transport
from bisim_abstract._verify.kernels import (
    dual_bound,
    plan_bound,
    row_masses,
    spread_bound,
    transport_bounds,
)
from bisim_abstract._verify.verify import VerificationError, verify
from tests.support.altered import put
from tests.support.examples import cases, grid
from tests.support.oracles import backup_pair_exact, transport_exact

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STARTS = [("reward", "reward"), ("zero", "constant"), ("zero", "reward"), ("reward", "constant")]

# -- certificates ------------------------------------------------------------------------------


def labels_of(n: int, keys: Ints, is_link: npt.NDArray[np.bool_]) -> Ints:
    """Clusters by merging, numbered by first appearance; slow and plain."""
    label = list(range(n))
    for key in keys[is_link].tolist():
        s, t = divmod(key, n)
        old, new = label[t], label[s]
        label = [new if x == old else x for x in label]
    seen: dict[int, int] = {}
    return np.array([seen.setdefault(x, len(seen)) for x in label], np.int64)


def fields(
    mdp: TabularMDP,
    gamma: float,
    keys: Ints,
    lower: Floats,
    upper: Floats,
    *,
    starts: tuple[str, str] = ("reward", "reward"),
    tau: float | None = None,
) -> dict[str, Any]:
    empty = np.empty(0, np.int64)
    below = above = empty
    if tau is not None:
        below = labels_of(mdp.n_states, keys, lower <= tau)
        above = labels_of(mdp.n_states, keys, upper <= tau)
    return {
        "fingerprint": mdp.fingerprint,
        "n_states": mdp.n_states,
        "gamma": gamma,
        "rewards": mdp.rewards,
        "available": mdp.available,
        "relation": "plain",
        "apart": None,
        "keys": keys,
        "lower": lower,
        "upper": upper,
        "lower_start": starts[0],
        "upper_start": starts[1],
        "reward_radius": np.empty((0, 0)),
        "alpha": None,
        "reward_range": None,
        "levels": (),
        "features": None,
        "action_values": None,
        "tau": tau,
        "scope": "covered",
        "labels_lower": below,
        "labels_upper": above,
        "terminal_state": mdp.terminal_state,
        "value": None,
        "stop": "",
        "run": {},
    }


def made(content: dict[str, Any]) -> Any:
    return SimpleNamespace(**content)


def some_pairs(n: int, share: float, rng: np.random.Generator) -> Ints:
    s, t = np.triu_indices(n, 1)
    keys = (s * n + t).astype(np.int64)
    kept = rng.random(keys.size) < share
    kept[rng.integers(keys.size)] = True
    return keys[kept]


def by_arms(
    mdp: TabularMDP,
    gamma: float,
    *,
    share: float = 1.0,
    sweeps: int = 30,
    starts: tuple[str, str] = ("reward", "reward"),
    seed: int = 0,
    tau: float | None = None,
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    arms = Arms(mdp, gamma, lower_start=starts[0], upper_start=starts[1])
    # In two rounds, as pairs are retrieved in practice.
    for _ in range(2):
        keys = some_pairs(mdp.n_states, share, rng)
        arms.cover(keys // mdp.n_states, keys % mdp.n_states)
        for _ in range(sweeps):
            arms.sweep()
    return fields(mdp, gamma, arms.keys, arms.lower, arms.upper, starts=starts, tau=tau)


def by_fractions(
    mdp: TabularMDP, gamma: float, keys: Ints, *, sweeps: int, starts: tuple[str, str], delta: float
) -> dict[str, Any]:
    """Value iteration from the starts in exact arithmetic, then moved outward by delta."""
    n, g = mdp.n_states, Fraction(gamma)
    rewards = [[Fraction(x) for x in row] for row in mdp.rewards.tolist()]
    columns = list(zip(*rewards, strict=True))
    diameter = max(max(column) - min(column) for column in columns) / (1 - g)
    below = [[Fraction(0)] * n for _ in range(n)]
    above = [[Fraction(0)] * n for _ in range(n)]
    for s in range(n):
        for t in range(n):
            gap = max(abs(x - y) for x, y in zip(rewards[s], rewards[t], strict=True))
            if s != t:
                below[s][t] = gap if starts[0] == "reward" else Fraction(0)
                above[s][t] = gap + g * diameter if starts[1] == "reward" else diameter
    pairs = [divmod(key, n) for key in keys.tolist()]
    for _ in range(sweeps):
        for table in (below, above):
            new = [backup_pair_exact(mdp, gamma, table, s, t) for s, t in pairs]
            for (s, t), value in zip(pairs, new, strict=True):
                table[s][t] = table[t][s] = value
    move = Fraction(delta)
    lower = [np.nextafter(float(max(below[s][t] - move, Fraction(0))), -1.0) for s, t in pairs]
    upper = [np.nextafter(float(above[s][t] + move), np.inf) for s, t in pairs]
    return fields(
        mdp, gamma, keys, np.maximum(np.array(lower), 0.0), np.array(upper), starts=starts
    )


def accepted(content: dict[str, Any], mdp: TabularMDP) -> float:
    """All modes accept, and leave nothing open but float mode's rounding; its widening."""
    exact = verify(mdp, made(content), mode="exact")
    assert exact.is_valid, exact.problem
    assert exact.verdict == "verified"
    assert exact.pairs_checked == content["keys"].size
    assert exact.widening == 0.0
    sampled = verify(mdp, made(content), mode="sampled", sample=5, seed=1)
    assert (sampled.is_valid, sampled.verdict) == (True, "sampled")
    assert sampled.pairs_checked == min(5, content["keys"].size)
    plain = verify(mdp, made(content))
    assert plain.is_valid, plain.problem
    assert plain.verdict == "verified"
    assert plain.problem == ""
    plain.raise_if_rejected()
    scale = float(np.ptp(mdp.rewards, axis=0).max())
    assert 0.0 <= plain.widening <= 1e-13 * scale / (1.0 - content["gamma"]) ** 2
    return plain.widening


# -- honest certificates -----------------------------------------------------------------------


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.9])
def test_accepts_exact_value_iteration(starts: tuple[str, str], gamma: float) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        for mdp in (random_mdp(4, 2, seed=seed), sparse_mdp(5, 2, support=2, seed=seed)):
            keys = some_pairs(mdp.n_states, 0.7, rng)
            content = by_fractions(mdp, gamma, keys, sweeps=3, starts=starts, delta=1e-9)
            # Moved outward by far more than rounding: float mode has nothing left open.
            assert accepted(content, mdp) == 0.0


MODELS: list[tuple[str, Callable[[int], TabularMDP]]] = [
    ("dense", lambda seed: random_mdp(5, 2, seed=seed)),
    ("deterministic", lambda seed: sparse_mdp(9, 2, support=1, seed=seed)),
    ("pairs", lambda seed: sparse_mdp(8, 3, support=2, seed=seed)),
    ("triples", lambda seed: sparse_mdp(8, 2, support=3, seed=seed)),
    ("quads", lambda seed: sparse_mdp(7, 2, support=4, seed=seed)),
    ("grouped", lambda seed: grouped_mdp(9, 3, 2, noise=0.01, support=2, seed=seed)[0]),
    ("bisimilar", lambda seed: grouped_mdp(9, 3, 2, noise=0.0, support=2, seed=seed)[0]),
]


@grid(build=[model[1] for model in MODELS], gamma=[0.0, 0.5, 0.95, 0.999])
def test_accepts_the_arms(build: Callable[[int], TabularMDP], gamma: float) -> None:
    for seed, starts in enumerate(STARTS):
        mdp = build(seed)
        for share, sweeps in ((0.4, 2), (1.0, 40)):
            content = by_arms(mdp, gamma, share=share, sweeps=sweeps, starts=starts, seed=seed)
            # Away from every bound, so that rounding cannot move a link.
            ends = np.sort(np.concatenate([content["lower"], content["upper"]]))
            wide = int(np.argmax(np.diff(ends)))
            tau = float(ends[wide] + ends[wide + 1]) / 2.0
            accepted(
                fields(
                    mdp,
                    gamma,
                    content["keys"],
                    content["lower"],
                    content["upper"],
                    starts=starts,
                    tau=tau,
                ),
                mdp,
            )


def test_accepts_scaled_and_shifted_rewards() -> None:
    base = sparse_mdp(8, 2, support=3, seed=3)
    for scale, shift in ((1e-200, 0.0), (1e200, 0.0), (1.0, -1e6), (0.0, 7.0)):
        mdp = TabularMDP.from_rows(
            base.indptr, base.indices, base.probs, base.rewards * scale + shift
        )
        assert verify(mdp, made(by_arms(mdp, 0.9))).is_valid
        assert verify(mdp, made(by_arms(mdp, 0.9)), mode="sampled", sample=6).is_valid


def test_accepts_an_empty_cover_and_a_single_state() -> None:
    none = np.empty(0, np.int64)
    for mdp in (sparse_mdp(5, 2, support=2, seed=0), random_mdp(1, 2, seed=0)):
        for tau in (None, 0.5):
            content = fields(mdp, 0.9, none, np.empty(0), np.empty(0), tau=tau)
            assert accepted(content, mdp) == 0.0


def test_threads_do_not_matter() -> None:
    mdp = sparse_mdp(90, 2, support=3, seed=0)
    content = by_arms(mdp, 0.9, sweeps=5)
    one, two = (
        verify(mdp, made(content), resources=Resources(threads=threads)) for threads in (1, 2)
    )
    assert one == two
    assert one.pairs_checked == 90 * 89 // 2


# -- alterations -------------------------------------------------------------------------------

ALTER_MDP = sparse_mdp(10, 2, support=3, seed=5)
ALTER_GAMMA = 0.9


@pytest.fixture(scope="module")
def honest() -> dict[str, Any]:
    """Converged but not fully covered, so that the arms are apart; both have clusters."""
    content = by_arms(ALTER_MDP, ALTER_GAMMA, share=0.75, sweeps=400, seed=2)
    keys, lower, upper = content["keys"], content["lower"], content["upper"]
    # Between two bounds, just above the least upper one: a few links in either arm.
    ends = np.sort(np.concatenate([lower, upper]))
    after = int(np.searchsorted(ends, upper.min()))
    tau = float(ends[after] + ends[after + 1]) / 2.0
    content = fields(ALTER_MDP, ALTER_GAMMA, keys, lower, upper, tau=tau)
    assert 1 < content["labels_lower"].max() <= content["labels_upper"].max() < N - 1
    assert (content["upper"] > 1.001 * content["lower"]).all()
    accepted(content, ALTER_MDP)
    return content


def at(name: str, index: int, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        content[name] = content[name].copy()
        content[name][index] = change(content[name][index])

    return alter


def of(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update({name: change(content[name])})


def swap(content: dict[str, Any]) -> None:
    for name in ("keys", "lower", "upper"):
        order = np.arange(content["keys"].size)
        order[[4, 5]] = order[[5, 4]]
        content[name] = content[name][order]


def misplace(content: dict[str, Any]) -> None:
    """Say of an uncovered pair, different by far, what is known of a covered one."""
    keys = content["keys"]
    k = int(np.argmin(content["upper"][:-1]))
    free = np.setdiff1d(some_pairs(10, 1.0, np.random.default_rng(0)), keys)
    content["keys"] = np.append(np.delete(keys, k), free[-1])
    for name in ("lower", "upper"):
        content[name] = np.append(np.delete(content[name], k), content[name][k])
    order = np.argsort(content["keys"])
    for name in ("keys", "lower", "upper"):
        content[name] = content[name][order]


def merge_labels(content: dict[str, Any]) -> None:
    label = content["labels_upper"]
    content["labels_upper"] = np.maximum(label - 1, 0)


def split_labels(content: dict[str, Any]) -> None:
    label = content["labels_lower"].copy()
    label[-1] = label.max() + 1
    content["labels_lower"] = label


def lose_field(content: dict[str, Any]) -> None:
    del content["upper"]


N = 10
ALTERATIONS: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("lower raised a little", at("lower", 7, lambda x: x * (1 + 1e-6)), "lower bound of pair {7}"),
    ("lower raised", at("lower", 3, lambda x: x * 1.0005), "lower bound of pair {3}"),
    ("lower far too high", at("lower", 3, lambda x: x * 50), "lower bound of pair {3}"),
    ("upper lowered a little", at("upper", 7, lambda x: x * (1 - 1e-6)), "upper bound of pair {7}"),
    ("upper lowered", at("upper", 9, lambda x: x * 0.9995), "upper bound of pair {9}"),
    ("upper far too low", at("upper", 9, lambda x: x / 50), "bound of pair {9}"),
    ("lower all raised", of("lower", lambda x: x * (1 + 1e-6)), "lower bound of pair"),
    ("upper all lowered", of("upper", lambda x: x * (1 - 1e-6)), "upper bound of pair"),
    ("values at another pair", misplace, "bound of pair"),
    ("keys unsorted", swap, "keys must be strictly increasing"),
    ("key doubled", lambda c: at("keys", 5, lambda _: c["keys"][4])(c), "strictly increasing"),
    ("key too large", at("keys", -1, lambda _: N * N + 3), "not a pair of states"),
    ("key of equal states", at("keys", 5, lambda _: 2 * N + 2), "it reads (2, 2)"),
    ("key of swapped states", at("keys", 5, lambda _: 4 * N + 1), "it reads (4, 1)"),
    ("key negative", at("keys", 0, lambda _: -1), "not a pair of states"),
    ("keys short", of("keys", lambda x: x[:-1]), "keys"),
    ("lower NaN", at("lower", 2, lambda _: np.nan), "lower bound of pair {2} must be finite"),
    ("upper NaN", at("upper", 2, lambda _: np.nan), "upper bound of pair {2} must be finite"),
    ("upper infinite", at("upper", 2, lambda _: np.inf), "upper bound of pair {2} must be finite"),
    ("lower negative", at("lower", 2, lambda _: -1e-9), "lower bound of pair {2} must be finite"),
    ("arms crossed", lambda c: c.update(lower=c["upper"], upper=c["lower"]), "above its upper"),
    ("lower short", of("lower", lambda x: x[:-1]), "lower has"),
    ("upper long", of("upper", lambda x: np.append(x, 1.0)), "upper has"),
    ("lower of objects", of("lower", lambda x: x.astype(object)), "lower must be"),
    ("lower single", of("lower", lambda x: x.astype(np.float32)), "lower must be"),
    ("upper a column", of("upper", lambda x: x[:, None]), "upper must be"),
    ("upper a list", of("upper", lambda x: x.tolist()), "upper must be an array"),
    ("keys of floats", of("keys", lambda x: x.astype(float)), "keys must be"),
    ("keys narrow", of("keys", lambda x: x.astype(np.int32)), "keys must be"),
    ("keys missing", put(keys=None), "keys must be"),
    ("upper missing", lose_field, "no upper"),
    ("gamma less", put(gamma=0.89), "lower bound of pair"),
    ("gamma more", put(gamma=0.91), "upper bound of pair"),
    ("gamma one", put(gamma=1.0), "gamma must lie in"),
    ("gamma negative", put(gamma=-0.1), "gamma must lie in"),
    ("gamma NaN", put(gamma=float("nan")), "gamma must be a finite"),
    ("gamma text", put(gamma="0.9"), "gamma must be a real number"),
    ("gamma no float", put(gamma=Fraction(9, 10)), "gamma must be a finite float"),
    ("gamma enormous", put(gamma=10**400), "gamma must be a finite float"),
    ("lower start", put(lower_start="zero"), "lower bound of pair"),
    ("upper start", put(upper_start="constant"), "upper bound of pair"),
    ("lower start unknown", put(lower_start="constant"), "lower_start must be"),
    ("upper start unknown", put(upper_start=["reward"]), "upper_start must be"),
    ("scope unknown", put(scope="some"), "scope must be 'covered' or 'all'"),
    ("scope of all pairs", put(scope="all"), "labels_lower keeps states"),
    ("alpha of no estimate", put(alpha=0.05), "the model is no estimate"),
    ("radius of no estimate", put(reward_radius=np.zeros((10, 2))), "reward_radius must be empty"),
    ("levels a list", put(levels=[]), "levels must be a tuple"),
    ("a level of nothing", put(levels=(None,)), "level 0: the certificate has no model"),
    ("features of nothing", put(features=3), "features: the certificate has no values"),
    ("labels merged", merge_labels, "labels_upper gives state"),
    ("labels split", split_labels, "labels_lower gives state 9"),
    ("labels renumbered", of("labels_lower", lambda x: x.max() - x), "labels_lower gives state 0"),
    ("labels short", of("labels_lower", lambda x: x[:-1]), "labels_lower must have 10"),
    ("labels absent", put(labels_upper=np.empty(0, np.int64)), "labels_upper must have 10"),
    ("labels of floats", of("labels_upper", lambda x: x.astype(float)), "labels_upper must be"),
    ("tau less", of("tau", lambda x: x * 0.7), "labels_"),
    ("tau more", of("tau", lambda x: x * 1.3), "labels_"),
    ("tau dropped", put(tau=None), "labels_lower must have 0"),
    ("tau NaN", put(tau=float("nan")), "tau must be a finite"),
    ("n_states", put(n_states=11), "n_states is 11"),
    ("n_states text", put(n_states="10"), "n_states must be a whole number"),
    ("fingerprint", put(fingerprint="0" * 64), "another model"),
    ("fingerprint lost", put(fingerprint=None), "another model"),
]


@pytest.mark.parametrize(
    ("alter", "words"), [item[1:] for item in ALTERATIONS], ids=[item[0] for item in ALTERATIONS]
)
def test_rejects_alterations(
    honest: dict[str, Any], alter: Callable[[dict[str, Any]], None], words: str
) -> None:
    content = dict(honest)
    alter(content)
    for index in (2, 3, 7, 9):
        pair = divmod(int(honest["keys"][index]), N)
        words = words.replace("{" + str(index) + "}", str(pair))
    for mode in ("float", "exact"):
        found = verify(ALTER_MDP, made(content), mode=mode)
        assert (found.is_valid, found.verdict, found.mode) == (False, "rejected", mode)
        assert words in found.problem
        with pytest.raises(VerificationError, match=r"[a-z]"):
            found.raise_if_rejected()


def test_names_the_value_and_the_bound(honest: dict[str, Any]) -> None:
    content = dict(honest)
    at("upper", 7, lambda x: x * 0.9999)(content)
    s, t = divmod(int(content["keys"][7]), N)
    value = float(content["upper"][7])
    problem = verify(ALTER_MDP, made(content)).problem
    assert problem.startswith(f"upper bound of pair ({s}, {t}) is {value!r}, below its backup")
    assert value < float(problem.split()[-1]) <= honest["upper"][7]


def test_rejects_another_model_before_anything_else(honest: dict[str, Any]) -> None:
    other = sparse_mdp(12, 2, support=3, seed=6)
    content = {"fingerprint": honest["fingerprint"]}  # nothing else is even looked at
    found = verify(other, made(content))
    assert "another model" in found.problem
    assert found.pairs_checked == 0


@pytest.mark.parametrize("empty", [None, 3, object(), {}])
def test_rejects_what_is_no_certificate(empty: Any) -> None:
    assert verify(ALTER_MDP, empty).verdict == "rejected"


def test_swapped_arguments_are_told_the_order(honest: dict[str, Any]) -> None:
    real: Any = certify(ALTER_MDP, ALTER_GAMMA, tau=0.1)
    swapped: list[tuple[Any, Any]] = [
        (real, ALTER_MDP),
        (made(honest), ALTER_MDP),
        (ALTER_MDP, ALTER_MDP),
    ]
    for first, second in swapped:
        with pytest.raises(InvalidArgumentError, match=r"the order is verify\(mdp, certificate\)"):
            verify(first, second)
    for call, order in (
        (lambda: write_report("r.html", real, ALTER_MDP), r"write_report\(path, mdp, certificate"),  # type: ignore[arg-type]
        (lambda: compare_abstractions(real, ALTER_MDP), r"compare_abstractions\(mdp, certificate"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError, match=f"got Certificate; the order is {order}"):
            call()
    for path in ("certificate.npz", Path("certificate.npz")):
        with pytest.raises(InvalidArgumentError, match=r"Certificate\.load\(path\)"):
            verify(ALTER_MDP, path)  # type: ignore[arg-type]


class Evasive:
    """Pretends to be of a class that it is not, and breaks when it is asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


def test_hostile_objects_are_not_asked_what_they_are() -> None:
    assert verify(ALTER_MDP, Evasive()).verdict == "rejected"  # type: ignore[arg-type]


def test_garbage_never_crashes(honest: dict[str, Any]) -> None:
    junk: list[Any] = [
        None,
        True,
        -3,
        1e308,
        float("inf"),
        1j,
        "x",
        b"x",
        [],
        {},
        np.zeros(0),
        np.zeros((2, 2)),
        np.full(33, 1.7e308),
        np.array(5),
        np.array(["a"]),
        np.datetime64("nat"),
        np.float32(0.1),
        object(),
    ]
    for name in honest:
        for value in junk:
            content = dict(honest)
            content[name] = value
            for mode in ("float", "sampled"):
                found = verify(ALTER_MDP, made(content), mode=mode, sample=3)
                # Only what no claim rests on may be anything; and absent is absent.
                absent = {"alpha", "apart", "features", "reward_range", "terminal_state", "value"}
                absent.add("action_values")
                is_absent = name in absent and value is None
                is_absent |= (
                    name == "reward_radius" and isinstance(value, np.ndarray) and value.size == 0
                )
                is_fine = name in ("stop", "run") or is_absent
                assert found.is_valid == is_fine, (name, value, found)


def test_enormous_values_are_decided(honest: dict[str, Any]) -> None:
    bare = {**honest, "tau": None, "labels_lower": np.empty(0, np.int64)}
    bare["labels_upper"] = bare["labels_lower"]
    # An upper bound above its start value says nothing, and what it says is true.
    high = {**bare, "upper": np.full_like(honest["upper"], 1.7e308)}
    assert verify(ALTER_MDP, made(high)).is_valid
    both = {**high, "lower": high["upper"]}
    assert "lower bound of pair" in verify(ALTER_MDP, made(both)).problem


def test_arguments_are_checked(honest: dict[str, Any]) -> None:
    wrong: list[dict[str, Any]] = [{"mode": "fast"}, {"sample": 0}, {"seed": -1}]
    for options in wrong:
        with pytest.raises(InvalidArgumentError):
            verify(ALTER_MDP, made(honest), **options)
    with pytest.raises(InvalidArgumentError):
        verify(ALTER_MDP, made(honest), resources=Resources(threads=0))


# -- alterations that leave every claim true ---------------------------------------------------


def test_accepts_weaker_claims(honest: dict[str, Any]) -> None:
    keys, lower, upper = honest["keys"], honest["lower"], honest["upper"]

    def bare(**changes: Any) -> dict[str, Any]:
        content = fields(ALTER_MDP, ALTER_GAMMA, keys, lower, upper)
        return {**content, **changes}

    # T(f/2) >= Tf/2, so half a sub-solution is one.
    accepted(bare(lower=lower / 2.0), ALTER_MDP)
    # Moving all entries outward by one amount gains slack.
    accepted(bare(upper=upper + 0.25), ALTER_MDP)
    # Sharper starts only help: h⁻ rises and h⁺ falls, and the stored values stay as they are.
    for starts in STARTS:
        content = by_arms(ALTER_MDP, ALTER_GAMMA, share=0.5, starts=starts, seed=4)
        sharp = {**content, "lower_start": "reward", "upper_start": "reward"}
        accepted(sharp, ALTER_MDP)


def test_a_single_lower_bound_may_not_just_be_dropped(honest: dict[str, Any]) -> None:
    """Its own claim stays true, but others rested on it."""
    content = dict(honest)
    used = int(np.argmax(honest["lower"]))
    at("lower", used, lambda _: 0.0)(content)
    found = verify(ALTER_MDP, made(content))
    assert not found.is_valid
    assert "lower bound of pair" in found.problem


# -- rounding -----------------------------------------------------------------------------------


def test_rounding_widens_and_partitions_must_survive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is true but too tight for floats: tau at a bound which rounding touches."""
    mdp, gamma = sparse_mdp(8, 2, support=3, seed=1), 0.9
    content = by_arms(mdp, gamma, sweeps=600)
    keys, lower, upper = content["keys"], content["lower"], content["upper"]
    wide = verify(mdp, made(content)).widening
    assert 0.0 < wide < 1e-12
    edge = fields(mdp, gamma, keys, lower, upper, tau=float(np.sort(upper)[1]))
    exact = verify(mdp, made(edge), mode="exact")
    assert exact.is_valid
    # Fractions decide, unless that would take too long.
    assert verify(mdp, made(edge)) == exact
    monkeypatch.setattr(importlib.import_module("bisim_abstract._verify.verify"), "SMALL", 0)
    found = verify(mdp, made(edge))
    assert not found.is_valid
    assert "rounding asks for" in found.problem
    assert found.problem.endswith('; mode "exact" would decide, slowly')
    # Moved outward first, the same table is proved in float mode without widening.
    moved = fields(mdp, gamma, keys, np.maximum(lower - 1e-11, 0.0), upper + 1e-11)
    assert accepted(moved, mdp) == 0.0


def test_float_and_exact_agree_on_random_changes() -> None:
    rng = np.random.default_rng(7)
    counts = {True: 0, False: 0}
    for seed in range(40):
        mdp = sparse_mdp(6, 2, support=1 + seed % 4, seed=seed)
        gamma = float(rng.choice([0.2, 0.9, 0.99]))
        content = by_arms(mdp, gamma, share=0.6, sweeps=3, seed=seed)
        for name in ("lower", "upper"):
            size = 10.0 ** -rng.integers(1, 9)
            noise = size * rng.standard_normal(content[name].size) * (rng.random() < 0.5)
            content[name] = content[name] * np.exp(noise)
        content["lower"] = np.minimum(content["lower"], content["upper"])
        exact = verify(mdp, made(content), mode="exact")
        plain = verify(mdp, made(content))
        assert exact.is_valid == plain.is_valid, (seed, exact, plain)
        counts[exact.is_valid] += 1
    assert min(counts.values()) >= 5


# -- transport ---------------------------------------------------------------------------------


def draw(rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """A transport problem of one of many kinds: costs, and two rows that sum to about 1."""
    n, m = rng.integers(1, 7, size=2)
    cost = rng.random((n, m))
    kind = rng.integers(7)
    if kind == 0:
        cost = np.floor(3 * cost)
    elif kind == 1:
        cost = np.where(rng.random((n, m)) < 0.5, 0.0, cost)
    elif kind == 2:
        cost = 10.0 ** rng.uniform(-14, 3, (n, m))
    elif kind == 3:
        cost *= 10.0 ** rng.integers(-250, 250)
    elif kind == 4:
        cost[:] = cost[0, 0]
    rows = []
    for size in (n, m):
        row = rng.dirichlet(np.ones(size) * rng.choice([0.2, 1.0, 50.0]))
        if rng.random() < 0.3:
            row = np.full(size, 1.0 / size)
        if rng.random() < 0.2:
            row = row + 10.0 ** rng.uniform(-300, -12)
        row[row == 0.0] = 1e-300
        rows.append(row * (1.0 + 1e-10 * rng.standard_normal()))
    return cost, rows[0], rows[1]


def masses(row: Floats) -> Floats:
    out = np.empty(row.size)
    assert row_masses(0, row.size, row, out) == row.size
    return out


def bounds(cost: Floats, a: Floats, b: Floats) -> tuple[float, float]:
    n, m = cost.shape
    k = max(n, m) + 1
    scratch = np.empty((k, k)), np.empty((7, k)), np.empty((4, k), np.int64)
    return transport_bounds(n, m, masses(a), masses(b), cost, 0.0, *scratch)


def test_transport_bounds_enclose_and_are_tight() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1500):
        cost, a, b = draw(rng)
        truth = transport_exact(cost.tolist(), a.tolist(), b.tolist())
        low, high = bounds(cost, a, b)
        assert Fraction(low) <= truth <= Fraction(high)
        assert high - low <= 64.0 * (sum(cost.shape) + 4) * 2.0**-53 * cost.max() + 1e-289
        spread = spread_bound(a.size, b.size, masses(a), masses(b), cost)
        assert Fraction(spread) >= truth


def test_larger_problems() -> None:
    rng = np.random.default_rng(1)
    for n, m in ((2, 40), (25, 25), (40, 3)):
        cost = rng.random((n, m))
        a, b = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m))
        truth = transport_exact(cost.tolist(), a.tolist(), b.tolist())
        low, high = bounds(cost, a, b)
        assert Fraction(low) <= truth <= Fraction(high)
        assert high - low < 1e-13


@pytest.mark.drawn
def test_bounds_hold_for_any_potentials_and_plan() -> None:
    rng = np.random.default_rng(2)
    odd = np.array([0.0, -0.0, 1.0, -1.0, 1e300, -1e300, 1e-320, np.inf, -np.inf, np.nan])
    for _ in range(cases(1500)):
        cost, a, b = draw(rng)
        n, m = cost.shape
        truth = transport_exact(cost.tolist(), a.tolist(), b.tolist())
        top = float(cost.max())
        p, q = masses(a), masses(b)
        y = np.asarray(top * rng.standard_normal(n), np.float64)
        if rng.random() < 0.5:
            y[:] = rng.choice(odd, n)
        x = np.outer(p, q) * (1.0 + rng.choice([0.0, 1e-15, 0.3]) * rng.standard_normal((n, m)))
        if rng.random() < 0.5:
            x[rng.integers(n), rng.integers(m)] = rng.choice(odd)
        assert Fraction(dual_bound(n, m, p, q, cost, top, y, np.empty(m))) <= truth
        assert Fraction(plan_bound(n, m, p, q, cost, top, x)) >= truth


def test_exact_transport() -> None:
    rng = np.random.default_rng(3)
    for _ in range(600):
        cost, a, b = draw(rng)
        found = exact_transport(
            [[Fraction(v) for v in line] for line in cost.tolist()],
            [Fraction(v) for v in a.tolist()],
            [Fraction(v) for v in b.tolist()],
        )
        assert found == transport_exact(cost.tolist(), a.tolist(), b.tolist())


# -- independence ------------------------------------------------------------------------------


class Silent:
    """Workers that answer for fewer groups of pairs than they were asked about."""

    def __init__(self, lose: Callable[[list[Any]], list[Any]]) -> None:
        self._lose = lose

    def prepare(self, job: Any) -> Any:
        ready = LocalBackend(1).prepare(job)
        return lambda fresh, out: self._lose(ready(fresh, out))


@pytest.mark.parametrize(
    "lose",
    [
        lambda found: [],
        lambda found: [[] for _ in found],
        lambda found: [[(low[:0], high[:0]) for low, high in groups] for groups in found],
        lambda found: [[(low[0], high[0]) for low, high in groups] for groups in found],
    ],
)
def test_workers_that_do_not_answer_confirm_nothing(
    lose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("bisim_abstract._verify.verify")
    monkeypatch.setattr(module, "SMALL", -1)  # else fractions decide, without them
    mdp = sparse_mdp(30, 2, seed=0)
    found = certify(mdp, 0.9, method=Covering(), max_rounds=1, tau=0.5)
    assert verify(mdp, found, resources=Resources(backend=Silent(lambda x: x))).is_valid
    result = verify(mdp, found, resources=Resources(backend=Silent(lose)))
    assert not result.is_valid
    assert "workers answered for" in str(result.problem)
