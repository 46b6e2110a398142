"""Certificates that lie, with digests that are right: only `verify` can tell."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from bisim_abstract import (
    Certificate,
    TabularMDP,
    bisimulation_metric,
    certify,
    evaluate_policy,
    value_iteration,
    verify,
)
from bisim_abstract.parts import grouped_mdp, single_build, sparse_mdp
from fuzzing.core import Case, Run
from fuzzing.files import REFUSALS, claim, sample_estimate, seal_certificate
from fuzzing.models import Floats, random_gamma, random_model
from fuzzing.mutate import Arrays, damaged_archive, members_of, pick, read_arrays, write_members
from fuzzing.truth import (
    Enclosure,
    exact_deterministic_metric,
    largest_share,
    linked,
    metric_enclosure,
    start_mean,
    values_enclosure,
)

Rng = np.random.Generator
Pair = tuple[int, int]
VALUES = ("optimal_upper", "optimal_lower", "policy_lower", "random_upper")
MOVED = (
    *("lower", "upper", "pair_lower", "pair_upper", "low", "high", "values", "potential"),
    *VALUES,
)
SHRUNK = ("correction", "corrections", "radius", "reward_radius")
HEADER = ("tau", "gamma", "scope", "lower_start", "upper_start", "alpha", "keep", "terminal_state")


class Truth:
    """What is known about the metric and the values of one model, for any discount."""

    def __init__(self, mdp: TabularMDP) -> None:
        self.mdp = mdp
        self._known: dict[float, tuple[Any, Any]] = {}
        self._values: dict[tuple[Any, ...], Enclosure] = {}

    def bounds(self, gamma: float) -> tuple[Any, Any]:
        """Tables [s][t] that enclose the metric; equal fractions where it is known exactly."""
        if gamma not in self._known:
            if self.mdp.is_deterministic:
                exact = exact_deterministic_metric(self.mdp, gamma)
                n = self.mdp.n_states
                table = [[exact[s, t] for t in range(n)] for s in range(n)]
                self._known[gamma] = table, table
            else:
                found = bisimulation_metric(self.mdp, gamma, threads=1)
                guess = found.lower / 2.0 + found.upper / 2.0  # a guess, proven by the oracle
                low, high = metric_enclosure(self.mdp, gamma, guess, sweeps=5000)
                # What is beyond all floats says nothing about bounds, which are floats.
                high = np.minimum(high, np.finfo(np.float64).max)
                self._known[gamma] = low.tolist(), high.tolist()
        return self._known[gamma]

    def values(self, gamma: float, policy: list[int] | str) -> Enclosure:
        """Values of actions by state, of "random" ones, or the "optimal" values."""
        key = gamma, *policy
        if key not in self._values:
            mdp, weights = self.mdp, None
            if policy == "random":
                weights = np.full(mdp.rewards.shape, 1.0 / mdp.n_actions)
            elif policy != "optimal":
                weights = np.eye(mdp.n_actions)[np.array(policy)]
            found = (
                value_iteration(mdp, gamma)
                if weights is None
                else evaluate_policy(mdp, gamma, weights)
            )
            guess = found.lower / 2.0 + found.upper / 2.0  # proven by the oracle
            self._values[key] = values_enclosure(mdp, gamma, weights, guess)
        return self._values[key]


def check_enclosure(certificate: Certificate, truth: Truth, widening: float) -> None:
    """All bounds, moved outward by the widening, enclose the metric."""
    n = certificate.n_states
    states = np.arange(n)
    lower, upper = certificate.bounds(states[:, None], states)
    low, high = truth.bounds(certificate.gamma)
    wide = Fraction(widening)
    for s in range(n):
        for t in range(s + 1, n):
            below, above = (Fraction(float(x[s, t])) for x in (lower, upper))
            claim(below <= above + 2 * wide, f"lower above upper at ({s}, {t})")
            claim(
                below - wide <= Fraction(high[s][t]),
                f"lower bound {float(below)!r} above the metric, {float(high[s][t])!r}, at "
                f"({s}, {t}), widening {widening!r}",
            )
            claim(
                above + wide >= Fraction(low[s][t]),
                f"upper bound {float(above)!r} below the metric, {float(low[s][t])!r}, at "
                f"({s}, {t}), widening {widening!r}",
            )


def check_clusters(certificate: Certificate, truth: Truth) -> None:
    """Clusters at the threshold are what they claim to be under the metric itself."""
    if certificate.tau is None:
        return
    n, tau = certificate.n_states, Fraction(certificate.tau)
    low, high = truth.bounds(certificate.gamma)
    pairs = [(s, t) for s in range(n) for t in range(s + 1, n)]
    if certificate.scope == "covered":
        pairs = [divmod(key, n) for key in certificate.keys.tolist()]
    labels = certificate.labels_lower.tolist()
    for s, t in pairs:
        if labels[s] != labels[t]:
            claim(Fraction(high[s][t]) > tau, f"({s}, {t}) within tau in different clusters")
    # Links that may exist, given how well the metric is known, must join every upper cluster.
    root = linked(n, [(s, t) for s, t in pairs if Fraction(low[s][t]) <= tau])
    labels = certificate.labels_upper.tolist()
    for s in range(n):
        first = labels.index(labels[s])
        claim(root[s] == root[first], f"{first} and {s} in one cluster without links")


def check_value(certificate: Certificate, truth: Truth) -> None:
    """All that is said about values is on the right side of what they are."""
    value = certificate.value
    if value is None:
        return
    gamma, labels = certificate.gamma, value.labels
    claim(np.array_equal(labels_apart(certificate), labels), "a value of other clusters")
    best, chance = (truth.values(gamma, name) for name in ("optimal", "random"))
    own = truth.values(gamma, value.policy[labels].tolist())
    robust = truth.values(gamma, value.bracket.policy[labels].tolist())
    for name, bound, (low, _) in (
        ("optimal_upper", value.optimal_upper, best),
        ("random_upper", value.random_upper, chance),
        ("bracket.upper", value.bracket.upper[labels], best),
    ):
        claim((bound >= low).all(), f"{name} is below the values")
    for name, bound, (_, high) in (
        ("optimal_lower", value.optimal_lower, best),
        ("policy_lower", value.policy_lower, own),
        ("bracket.lower", value.bracket.lower[labels], robust),
    ):
        claim((bound <= high).all(), f"{name} is above the values")
    lost = max(Fraction(a) - Fraction(b) for a, b in zip(best[0], own[1], strict=True))
    claim(lost <= Fraction(value.loss), f"a state loses {float(lost)!r}, not {value.loss!r}")
    optimal, reached, random = (start_mean(truth.mdp, x) for x in (best, own, chance))
    lost = optimal[0] - reached[1]
    claim(lost <= Fraction(value.start_loss), "the start loses more than it is said to")
    claim(value.kept <= 1.0, "more than everything is kept")
    span = Fraction(float(np.ptp(truth.mdp.rewards))) / (1 - Fraction(gamma))
    if value.kept > -math.inf:
        share = largest_share(optimal, reached, random, span)
        claim(
            Fraction(value.kept) <= share,
            f"{value.kept!r} kept by proof, but {float(share)!r} at most in truth",
        )


def labels_apart(certificate: Certificate) -> list[int]:
    """Certified clusters by first live state; the end, if there is one, is the last of all."""
    end, number = certificate.terminal_state, dict[int, int]()
    given = certificate.labels_upper.tolist()
    for s, label in enumerate(given):
        if s != end:
            number.setdefault(label, len(number))
    return [len(number) if s == end else number[label] for s, label in enumerate(given)]


def make_pool(shared: Path) -> list[tuple[Truth, Arrays]]:
    """Certificates of all kinds: blocks, features, witnesses, covered pairs, estimates."""
    rng = np.random.default_rng(4)
    models = [
        sparse_mdp(5, 2, support=1, seed=1),
        sparse_mdp(6, 2, support=1, seed=2),
        sparse_mdp(5, 2, support=3, seed=3),
        grouped_mdp(8, 3, 2, noise=0.02, seed=4)[0],
        grouped_mdp(6, 2, 1, noise=0.0, support=1, seed=5)[0],
        sample_estimate(rng),
    ]
    while len(models) < 9:
        mdp = random_model(rng)
        if mdp.is_deterministic and 1e-3 < float(np.ptp(mdp.rewards)) < 1e3:
            models.append(mdp)
    pool = []
    for k, mdp in enumerate(models):
        truth, gamma = Truth(mdp), (0.5, 0.9, 0.99)[k % 3]
        scale = float(np.ptp(mdp.rewards))
        made = [
            certify(mdp, gamma, threads=1),
            certify(mdp, gamma, tol=scale / 10.0, max_pairs=0, threads=1),
            certify(mdp, gamma, tau=scale / 2.0, propose=["features"], threads=1),
            certify(mdp, gamma, scope="covered", index="Flat", tau=scale, threads=1),
            single_build(mdp, gamma, neighbours=2, tau=scale / 3.0, sweeps=20, threads=1),
        ]
        for j, certificate in enumerate(made):
            path = shared / f"certificate{k}-{j}.npz"
            certificate.save(path)
            pool.append((truth, read_arrays(path)))
    return pool


def forged(rng: Rng, arrays: Arrays, truth: Truth) -> tuple[Arrays, str]:
    """Claims that are a little, or much, too good."""
    arrays, notes = dict(arrays), []
    header = json.loads(arrays["header"].tobytes())
    for _ in range(int(rng.integers(1, 4))):
        notes.append(_forge_once(rng, arrays, header, truth))
    arrays["header"] = np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8)
    return arrays, "; ".join(notes)


def _forge_once(rng: Rng, arrays: Arrays, header: dict[str, Any], truth: Truth) -> str:
    kind = int(rng.integers(17))
    names = sorted(set(arrays) - {"header", "digest"})
    by_last = [(name, name.rsplit(".", 1)[-1]) for name in names if arrays[name].size]
    if kind < 5:
        usable = [pair for pair in by_last if pair[1] in MOVED]
        if not usable:
            return "nothing to move"
        name, last = pick(rng, usable)
        arrays[name] = _moved(rng, arrays[name], last)
        return f"{name} moved"
    if kind == 5:
        usable = [pair for pair in by_last if pair[1] in SHRUNK]
        if not usable:
            return "nothing to shrink"
        name, _ = pick(rng, usable)
        arrays[name] = arrays[name] * float(pick(rng, (0.0, 0.5, 0.999, 1.0 - 1e-12)))
        return f"{name} shrunk"
    if kind == 6:
        name, _ = pick(rng, by_last)
        flat = arrays[name].copy().reshape(-1)
        i, j = rng.integers(flat.size, size=2)
        flat[i], flat[j] = flat[j], flat[i]
        arrays[name] = flat.reshape(arrays[name].shape)
        return f"two entries of {name} swapped"
    if kind == 7:
        whole = [name for name, _ in by_last if arrays[name].dtype.kind == "i"]
        if not whole:
            return "no whole numbers"
        name = pick(rng, whole)
        out = arrays[name].copy()
        out.reshape(-1)[int(rng.integers(out.size))] += int(rng.choice([-1, 1]))
        arrays[name] = out
        return f"{name} off by one"
    if kind == 8:
        n = int(header["n_states"])
        for name in ("labels_lower", "labels_upper"):
            if arrays[name].size:
                arrays[name] = rng.integers(int(rng.integers(1, n + 1)), size=n)
        return "labels drawn anew"
    if kind == 9:
        key = str(pick(rng, HEADER))
        choices: dict[str, Any] = {
            "tau": float(rng.random() * 2.0) if header["tau"] is not None else None,
            "gamma": random_gamma(rng) if rng.random() < 0.8 else float(header["gamma"]) * 0.999,
            "scope": pick(rng, ("all", "covered")),
            "lower_start": pick(rng, ("reward", "zero")),
            "upper_start": pick(rng, ("reward", "constant")),
            "alpha": pick(rng, (None, 0.01, 0.5)),
            "keep": float(rng.random()),
            "terminal_state": pick(rng, (None, int(rng.integers(header["n_states"])))),
        }
        header[key] = choices[key]
        return f"{key} set to {choices[key]}"
    if kind == 10:
        return _pair_to_truth(rng, arrays, header, truth)
    if 10 < kind < 16:
        return _forge_value(rng, arrays, header, truth)
    header["fingerprint"] = pick(rng, ("0" * 64, "", header["fingerprint"][::-1]))
    return "fingerprint changed"


def _forge_value(rng: Rng, arrays: Arrays, header: dict[str, Any], truth: Truth) -> str:
    """A policy, a bound or a number about values that is better than what is proven."""
    numbers = header["value"]
    if numbers is None or "value.policy" not in arrays:
        return "no value"
    kind = int(rng.integers(5))
    if kind == 0:
        name = str(pick(rng, ("loss", "start_loss")))
        numbers[name] *= float(pick(rng, (0.0, 0.5, 0.999, 1.0 - 1e-12)))
        return f"{name} made smaller"
    if kind == 1:
        kept = numbers["kept"]
        nearer = 1.0 if kept is None else kept + (1.0 - kept) * 10.0 ** float(rng.uniform(-16, 0))
        numbers["kept"] = pick(rng, (1.0, nearer))
        return "kept made larger"
    if kind == 2:
        name = str(pick(rng, ("value.policy", "bracket.policy")))
        arrays[name] = rng.integers(truth.mdp.n_actions, size=arrays[name].shape)
        return f"{name} drawn anew"
    if kind == 3:
        one, two = (f"value.{name}" for name in rng.choice(VALUES, size=2, replace=False))
        arrays[one] = arrays[two]
        return f"{two} in place of {one}"
    name = str(pick(rng, VALUES))
    gamma = float(header["gamma"])
    policy: Any = "random" if name == "random_upper" else "optimal"
    low, high = truth.values(gamma, policy)
    out = arrays[f"value.{name}"].copy()
    if out.shape != low.shape:
        return "a value of another shape"
    near = low / 2.0 + high / 2.0
    at: Any = int(rng.integers(out.size)) if rng.random() < 0.5 else slice(None)
    off = float(rng.choice([-1.0, 1.0])) * 10.0 ** float(rng.uniform(-17, -1))
    out[at] = near[at] + off * float(np.abs(near).max())
    arrays[f"value.{name}"] = out
    return f"{name} set next to the values"


def _moved(rng: Rng, array: Floats, last: str) -> Floats:
    """Entries moved by 1e-17 to 1 of their size, inward where there is an inside."""
    out = array.copy()
    flat = out.reshape(-1)
    at: Any = int(rng.integers(flat.size)) if rng.random() < 0.7 else slice(None)
    size = float(np.abs(flat).max()) or 1.0
    step = size * 10.0 ** float(rng.uniform(-17.0, 0.0))
    if last.endswith(("lower", "low")):
        flat[at] += step
    elif last.endswith(("upper", "high")):
        least = 0.0 if flat.min() >= 0.0 else -np.inf
        flat[at] = np.maximum(flat[at] - step, least)
    else:
        flat[at] += step * float(rng.choice([-1.0, 1.0]))
    return out


def _pair_to_truth(rng: Rng, arrays: Arrays, header: dict[str, Any], truth: Truth) -> str:
    """Bounds of one pair next to the metric, on the right side or on the wrong one."""
    if arrays["keys"].size == 0:
        return "no pairs"
    at = int(rng.integers(arrays["keys"].size))
    s, t = divmod(int(arrays["keys"][at]), int(header["n_states"]))
    n = truth.mdp.n_states
    if not (0 <= s < n and 0 <= t < n):
        return "no such pair"
    value = float(truth.bounds(float(header["gamma"]))[0][s][t])
    name = str(pick(rng, ("lower", "upper")))
    out = arrays[name].copy()
    off = float(rng.choice([-1.0, 1.0])) * abs(value) * 10.0 ** float(rng.uniform(-17, -1))
    out[at] = max(value + off, 0.0)
    arrays[name] = out
    return f"{name} of ({s}, {t}) set next to the metric"


def prepare_certificate(shared: Path) -> Run:
    """Damaged and forged certificates, read and verified."""
    pool = make_pool(shared)

    def run(case: Case) -> bool:
        rng, path = case.rng, case.folder / "input.npz"
        truth, arrays = pick(rng, pool)
        case.mdp = truth.mdp
        if rng.random() < 0.3:
            case.note = damaged_archive(rng, arrays, path, seal_certificate)
        else:
            arrays, case.note = forged(rng, arrays, truth)
            seal_certificate(arrays)
            write_members(path, members_of(arrays))
        try:
            certificate = Certificate.load(path)
        except REFUSALS:
            return False
        return judge(case, certificate, truth)

    return run


def judge(case: Case, certificate: Certificate, truth: Truth) -> bool:
    """Whether a certificate is accepted; if so, it must be true. Any may be looked at."""
    claim(certificate.summary(), "no summary")
    mode = "float" if case.rng.random() < 0.85 else "exact"
    found = verify(truth.mdp, certificate, mode=mode, threads=1)
    claim(found.is_valid == (not found.problem), "a problem without a rejection")
    if not found.is_valid:
        return False
    claim(certificate.fingerprint == truth.mdp.fingerprint, "a certificate of another model")
    check_enclosure(certificate, truth, found.widening)
    check_clusters(certificate, truth)
    check_value(certificate, truth)
    again = case.folder / "again.npz"
    certificate.save(again)
    other = verify(truth.mdp, Certificate.load(again), mode=mode, threads=1)
    claim(other == found, "another verdict after a round trip")
    return True
