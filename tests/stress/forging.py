"""Certificates that lie, with digests that are right: only `verify` can tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bisim_abstract import Certificate, verify
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from tests.stress.certifying import ONE, make_certificate
from tests.stress.damage import (
    Arrays,
    Damaged,
    archive_of,
    damaged_archives,
    members_of,
    read_arrays,
)
from tests.stress.files import REFUSALS, sample_estimate, seal_certificate
from tests.stress.running import Case, Run
from tests.stress.strategies import Floats, gammas, is_drawn, pick, powers, whole, words
from tests.stress.truth import Truth, check_certificate
from tests.support import worlds
from tests.support.certificates import layered

Header = dict[str, Any]
VALUES = ("optimal_upper", "optimal_lower", "policy_lower", "random_upper")
AGENTS = {*words("q_lower q_upper constant_upper baseline_lower margin_lower excess")}
MOVED = {*words("lower upper pair_lower pair_upper low high values potential"), *VALUES, *AGENTS}
SHRUNK = {"corrections", "radius", "reward_radius"}
FACTORS = (0.0, 0.5, 0.999, 1.0 - 1e-12)
SIGNS = st.sampled_from((1.0, -1.0))


def make_pool(shared: Path) -> list[tuple[Truth, Arrays]]:
    """Certificates of all kinds: blocks, features, witnesses, covered pairs, estimates."""
    models = [
        sparse_mdp(5, 2, support=1, seed=1),
        sparse_mdp(6, 2, support=1, seed=2),
        sparse_mdp(5, 2, support=3, seed=3),
        grouped_mdp(8, 3, 2, noise=0.02, seed=4)[0],
        grouped_mdp(6, 2, 1, noise=0.0, support=1, seed=5)[0],
        sample_estimate(),
        *(make(0.5).mdp for make in (worlds.countdown, worlds.best_action, worlds.wheel)),
    ]
    pool = []
    for k, mdp in enumerate(models):
        truth, gamma, scale = Truth(mdp), (0.5, 0.9, 0.99)[k % 3], float(np.ptp(mdp.rewards))
        kinds: list[dict[str, Any]] = [
            {},
            {"tol": scale / 10.0, "max_pairs": 0},
            {"tau": scale / 2.0, "propose": ["features"]},
            {"method": "covering", "index": "Flat", "tau": scale},
            {"is_single": True, "neighbours": 2, "tau": scale / 3.0, "sweeps": 20},
        ]
        for j, options in enumerate(kinds):
            path = shared / f"certificate{k}-{j}.npz"
            make_certificate(mdp, gamma, **options).save(path)
            arrays = read_arrays(path)
            header = json.loads(arrays["header"].tobytes())
            # Times apart, the same in every run.
            header["run"] |= {name: 0.0 for name in header["run"] if name.endswith("seconds")}
            write_header(arrays, header)
            pool.append((truth, arrays))
    mdp, certificate = layered()  # small models are solved before witnesses are asked for
    certificate.save(shared / "layered.npz")
    pool += [(Truth(mdp), read_arrays(shared / "layered.npz"))] * 3
    return pool


def write_header(arrays: Arrays, header: Header) -> None:
    """Put a header in its place, and the digest right."""
    arrays["header"] = np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8)
    seal_certificate(arrays)


def forged(draw: st.DrawFn, arrays: Arrays, truth: Truth) -> Damaged:
    """Claims that are a little, or much, too good."""
    arrays, header = dict(arrays), json.loads(arrays["header"].tobytes())
    kinds = [*["moved"] * 5, *["value"] * 5, "shrunk", "swapped", "off by one", "labels"]
    kinds += ["header", *["metric"] * 4, "fingerprint"]
    notes = [
        forge_once(draw, pick(draw, kinds), arrays, header, truth)
        for _ in range(draw(st.integers(1, 3)))
    ]
    write_header(arrays, header)
    return Damaged("; ".join(notes), archive_of(members_of(arrays)))


def forge_once(draw: st.DrawFn, kind: str, arrays: Arrays, header: Header, truth: Truth) -> str:
    """One change of arrays or header, in place; what was done."""
    if kind == "metric":
        return forge_pair(draw, arrays, header, truth)
    if kind == "value":
        return forge_value(draw, arrays, header, truth)
    if kind == "labels":
        n = int(header["n_states"])
        for name in ("labels_lower", "labels_upper"):
            if arrays[name].size:
                arrays[name] = draw(whole(n, draw(st.integers(1, n))))
        return "labels drawn anew"
    if kind == "header":
        return forge_header(draw, header)
    if kind == "fingerprint":
        header["fingerprint"] = pick(draw, ("0" * 64, "", header["fingerprint"][::-1]))
        return "fingerprint changed"
    names = [name for name in sorted(set(arrays) - {"header", "digest"}) if arrays[name].size]
    if kind in ("moved", "shrunk"):
        wanted = MOVED if kind == "moved" else SHRUNK
        names = [name for name in names if name.rsplit(".", 1)[-1] in wanted]
    elif kind == "off by one":
        names = [name for name in names if arrays[name].dtype.kind == "i"]
    if not names:
        return f"nothing {kind}"
    name = pick(draw, names)
    out = arrays[name].copy()
    arrays[name], flat = out, out.reshape(-1)
    places = st.integers(0, flat.size - 1)
    if kind == "moved":
        move(draw, flat, name)
    elif kind == "shrunk":
        flat *= pick(draw, FACTORS)
    elif kind == "swapped":
        i, j = draw(places), draw(places)
        flat[i], flat[j] = flat[j], flat[i]
    else:
        flat[draw(places)] += draw(st.sampled_from((1, -1)))
    return f"{name} {kind}"


def move(draw: st.DrawFn, flat: Floats, name: str) -> None:
    """Entries moved by 1e-17 to 1 of their size, inward where there is an inside."""
    at: Any = draw(st.integers(0, flat.size - 1)) if is_drawn(draw, 0.7) else slice(None)
    step = (float(np.abs(flat).max()) or 1.0) * draw(powers(-17.0, 0.0))
    if name.endswith(("lower", "low")):
        flat[at] += step
    elif name.endswith(("upper", "high")):
        least = 0.0 if flat.min() >= 0.0 else -np.inf
        flat[at] = np.maximum(flat[at] - step, least)
    else:
        flat[at] += step * draw(SIGNS)


def forge_header(draw: st.DrawFn, header: Header) -> str:
    """Another number or name in the header."""
    gamma, n = float(header["gamma"]), int(header["n_states"])
    choices: dict[str, st.SearchStrategy[Any]] = {
        "tau": st.floats(0.0, 2.0) if header["tau"] is not None else st.none(),
        "gamma": gammas() if is_drawn(draw, 0.8) else st.just(gamma * 0.999),
        "scope": st.sampled_from(("all", "covered")),
        "lower_start": st.sampled_from(("reward", "zero")),
        "upper_start": st.sampled_from(("reward", "constant")),
        "alpha": st.sampled_from((None, 0.01, 0.5)),
        "keep": st.floats(0.0, 1.0),
        "terminal_state": st.none() | st.integers(0, n - 1),
    }
    key = pick(draw, list(choices))
    header[key] = draw(choices[key])
    return f"{key} set to {header[key]}"


def forge_value(draw: st.DrawFn, arrays: Arrays, header: Header, truth: Truth) -> str:
    """A policy, a bound or a number about values that is better than what is proven."""
    numbers = header["value"]
    if numbers is None or "value.policy" not in arrays:
        return "no value"
    kind = pick(draw, ("loss", "kept", "policy", "in place of", "near", "agents", "start"))
    if kind == "start":
        name, side = pick(draw, ("optimal_start", "baseline_start")), pick(draw, (0, 1))
        numbers[name][side] *= pick(draw, (0.0, 0.5, 0.999, 1.0 - 1e-12, 1.001, 2.0))
        numbers[name].sort()
        return f"{name} moved"
    if kind == "agents":
        who = pick(draw, ("solver", "learner"))
        share, name = numbers[who], pick(draw, ("kept", "loss", "start_loss", "margin"))
        if share is None or share.get(name) is None:
            return f"no {name} of the {who}"
        old = share[name]
        share[name] = (
            old + (1.0 - old) * draw(powers(-16, 0))
            if name == "kept"
            else ((old + 1e-3) * 2.0 if name == "margin" else old * pick(draw, FACTORS))
        )
        return f"{name} of the {who} made better"
    if kind == "loss":
        name = pick(draw, ("loss", "start_loss"))
        numbers[name] *= pick(draw, FACTORS)
        return f"{name} made smaller"
    if kind == "kept":
        kept = numbers["kept"]
        nearer = 1.0 if kept is None else kept + (1.0 - kept) * draw(powers(-16, 0))
        numbers["kept"] = pick(draw, (1.0, nearer))
        return "kept made larger"
    if kind == "policy":
        name = pick(draw, ("value.policy", "bracket.policy"))
        arrays[name] = draw(whole(arrays[name].size, truth.mdp.n_actions))
        return f"{name} drawn anew"
    one, two = draw(st.permutations(VALUES))[:2]
    if kind == "in place of":
        arrays[f"value.{one}"] = arrays[f"value.{two}"]
        return f"{two} in place of {one}"
    low, high = truth.values(
        float(header["gamma"]), "random" if one == "random_upper" else "optimal"
    )
    out = arrays[f"value.{one}"].copy()
    if out.shape != low.shape:
        return "a value of another shape"
    near = low / 2.0 + high / 2.0
    at: Any = draw(st.integers(0, out.size - 1)) if draw(st.booleans()) else slice(None)
    out[at] = near[at] + draw(SIGNS) * draw(powers(-17, -1)) * float(np.abs(near).max())
    arrays[f"value.{one}"] = out
    return f"{one} set next to the values"


def forge_pair(draw: st.DrawFn, arrays: Arrays, header: Header, truth: Truth) -> str:
    """Bounds of one pair next to the metric, on the right side or on the wrong one."""
    if arrays["keys"].size == 0:
        return "no pairs"
    at = draw(st.integers(0, arrays["keys"].size - 1))
    s, t = divmod(int(arrays["keys"][at]), int(header["n_states"]))
    n = truth.mdp.n_states
    if not (0 <= s < n and 0 <= t < n):
        return "no such pair"
    value = float(truth.bounds(float(header["gamma"]))[0][s][t])
    name = pick(draw, ("lower", "upper"))
    out = arrays[name].copy()
    out[at] = max(value + draw(SIGNS) * abs(value) * draw(powers(-17, -1)), 0.0)
    arrays[name] = out
    return f"{name} of ({s}, {t}) set next to the metric"


def prepare_certificate(shared: Path) -> tuple[st.SearchStrategy[Case], Run]:
    """Damaged and forged certificates, read and verified."""
    pool = make_pool(shared)

    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        truth, arrays = pool[draw(st.integers(0, len(pool) - 1))]
        if is_drawn(draw, 0.3):
            file = draw(damaged_archives([arrays], seal_certificate))
        else:
            file = forged(draw, arrays, truth)
        mode = "exact" if is_drawn(draw, 0.15) else "float"
        return {"truth": truth, "mdp": truth.mdp, "file": file, "mode": mode}

    def run(folder: Path, truth: Truth, file: Damaged, mode: Any, **_: Any) -> bool:
        file.write(folder / "input.npz")
        try:
            certificate = Certificate.load(folder / "input.npz")
        except REFUSALS:
            return False
        return judge(folder, certificate, truth, mode)

    return cases(), run


def judge(folder: Path, certificate: Certificate, truth: Truth, mode: Any) -> bool:
    """Whether a certificate is accepted; if so, it must be true. Any may be looked at."""
    assert certificate.summary(), "no summary"
    found = verify(truth.mdp, certificate, mode=mode, resources=ONE)
    assert found.is_valid == (not found.problem), "a problem without a rejection"
    if not found.is_valid:
        return False
    assert certificate.fingerprint == truth.mdp.fingerprint, "a certificate of another model"
    check_certificate(certificate, truth, found.widening)
    certificate.save(folder / "again.npz")
    other = verify(truth.mdp, Certificate.load(folder / "again.npz"), mode=mode, resources=ONE)
    assert other == found, "another verdict after a round trip"
    return True
