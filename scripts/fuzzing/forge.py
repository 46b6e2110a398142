"""Certificates that lie, with digests that are right: only `verify` can tell."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from bisim_abstract import (
    Certificate,
    TabularMDP,
    bisimulation_metric,
    certify,
    grouped_mdp,
    single_build,
    sparse_mdp,
    verify,
)
from fuzzing.core import Case, Run
from fuzzing.files import REFUSALS, claim, sample_estimate, seal_certificate
from fuzzing.models import Floats, random_gamma, random_model
from fuzzing.mutate import Arrays, damaged_archive, members_of, pick, read_arrays, write_members
from fuzzing.truth import exact_deterministic_metric, linked, metric_enclosure

Rng = np.random.Generator
Pair = tuple[int, int]
MOVED = ("lower", "upper", "pair_lower", "pair_upper", "low", "high", "values", "potential")
SHRUNK = ("correction", "corrections", "radius", "reward_radius")


class Truth:
    """What is known about the metric of one model, for any discount."""

    def __init__(self, mdp: TabularMDP) -> None:
        self.mdp = mdp
        self._known: dict[float, tuple[Any, Any]] = {}

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
    kind = int(rng.integers(12))
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
        key = str(pick(rng, ("tau", "gamma", "scope", "lower_start", "upper_start", "alpha")))
        choices: dict[str, Any] = {
            "tau": float(rng.random() * 2.0) if header["tau"] is not None else None,
            "gamma": random_gamma(rng) if rng.random() < 0.8 else float(header["gamma"]) * 0.999,
            "scope": pick(rng, ("all", "covered")),
            "lower_start": pick(rng, ("reward", "zero")),
            "upper_start": pick(rng, ("reward", "constant")),
            "alpha": pick(rng, (None, 0.01, 0.5)),
        }
        header[key] = choices[key]
        return f"{key} set to {choices[key]}"
    if kind == 10:
        return _pair_to_truth(rng, arrays, header, truth)
    header["fingerprint"] = pick(rng, ("0" * 64, "", header["fingerprint"][::-1]))
    return "fingerprint changed"


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
        flat[at] = np.maximum(flat[at] - step, 0.0)
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
    found = verify(certificate, truth.mdp, mode=mode, threads=1)
    claim(found.is_valid == (not found.problem), "a problem without a rejection")
    if not found.is_valid:
        return False
    claim(certificate.fingerprint == truth.mdp.fingerprint, "a certificate of another model")
    check_enclosure(certificate, truth, found.widening)
    check_clusters(certificate, truth)
    again = case.folder / "again.npz"
    certificate.save(again)
    other = verify(Certificate.load(again), truth.mdp, mode=mode, threads=1)
    claim(other == found, "another verdict after a round trip")
    return True
