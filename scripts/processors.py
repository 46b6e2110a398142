"""Do certificates depend on the processor? Digests of seventy of them under several settings.

OpenBLAS, FAISS, PyTorch and numba choose their code by the processor. Environment variables make
them choose that of another one, so that one machine shows what others would compute:

    python scripts/processors.py                   # every setting, and what differs
    python scripts/processors.py --settings plain Sandybridge
    python scripts/processors.py --tests           # `make test-processors`

A digest is taken over everything that a certificate holds, times apart.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SETTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "one thread": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
    "Haswell": {
        "OPENBLAS_CORETYPE": "Haswell",
        "FAISS_OPT_LEVEL": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
    "SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "Zen": {"OPENBLAS_CORETYPE": "Zen", "FAISS_OPT_LEVEL": "avx2"},
    "Sandybridge": {
        "OPENBLAS_CORETYPE": "Sandybridge",
        "FAISS_OPT_LEVEL": "generic",
        "ATEN_CPU_CAPABILITY": "default",
    },
    "generic": {
        "OPENBLAS_CORETYPE": "Prescott",
        "FAISS_OPT_LEVEL": "generic",
        "ATEN_CPU_CAPABILITY": "default",
        "NUMBA_CPU_NAME": "generic",
    },
}

TESTED = ["plain", "Haswell", "Sandybridge", "generic"]
TESTS = [
    "tests/abstract/test_value.py",
    "tests/exact/test_planning.py",
    "tests/exact/test_solving.py",
    "tests/propose",
    "tests/prove/test_certify.py",
    "tests/project/test_docs.py",
]


def models() -> Iterator[tuple[str, Any, float, dict[str, Any]]]:
    """Seventy questions, fifty of the default method: name, model, discount and options."""
    import gymnasium as gym

    from bisim_abstract import Covering
    from bisim_abstract.parts import grouped_mdp, random_mdp, sparse_mdp
    from bisim_abstract.wrappers import extract_mdp

    environments: list[tuple[str, dict[str, Any]]] = [
        ("Taxi-v3", {}),
        ("FrozenLake-v1", {}),
        ("FrozenLake-v1", {"map_name": "8x8"}),
        ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}),
        ("CliffWalking-v1", {}),
        ("CliffWalkingSlippery-v1", {}),
        ("Blackjack-v1", {}),
        ("bisim_abstract/RoomsGrid-v0", {"side": 20, "room_size": 5, "slip": 0.1}),
        ("bisim_abstract/RoomsGrid-v0", {"side": 12, "room_size": 4, "noise": 0.1}),
    ]
    for id_, arguments in environments:
        mdp = extract_mdp(gym.make(id_, **arguments))
        text = " ".join([id_, *(f"{key}={value}" for key, value in arguments.items())])
        for gamma in (0.9, 0.95, 0.99):
            yield text, mdp, gamma, {}
        yield text, mdp, 0.95, {"relation": "optimal", "guarantee": "learner"}
        if mdp.n_states < 200:
            yield text, mdp, 0.9, {"relation": "lax"}
            yield text, mdp, 0.9, {"method": Covering(), "tau": 0.3, "max_rounds": 5}
    for seed in range(5):
        yield f"random_mdp seed {seed}", random_mdp(30 + 10 * seed, 3, seed=seed), 0.8, {}
        mdp = sparse_mdp(40 + 10 * seed, 3, seed=seed)
        yield f"sparse_mdp seed {seed}", mdp, 0.9, {}
        yield f"sparse_mdp seed {seed}", mdp, 0.9, {"method": Covering(), "tau": 1.0}
    for seed in range(6):
        mdp, _ = grouped_mdp(200 + 100 * seed, 6 + seed, noise=0.02 * (1 + seed), seed=seed)
        yield f"grouped_mdp seed {seed}", mdp, 0.9, {}
    mdp, _ = grouped_mdp(12_000, 40, noise=0.02, seed=9)
    yield "grouped_mdp of 12,000 states", mdp, 0.9, {}


def digest(certificate: Any) -> str:
    """Of everything that a certificate's file holds, times apart."""
    import dataclasses

    import numpy as np

    found = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, np.ndarray):
            found.update(
                f"{part.dtype}{part.shape}".encode() + np.ascontiguousarray(part).tobytes()
            )
        elif isinstance(part, tuple | list):
            found.update(f"[{len(part)}".encode())
            for one in part:
                add(one)
        elif dataclasses.is_dataclass(part):
            for field in dataclasses.fields(part):
                if field.name not in ("run", "model"):
                    found.update(field.name.encode())
                    add(getattr(part, field.name))
        else:
            found.update(repr(part).encode())

    add(certificate)
    return found.hexdigest()


def _digests() -> dict[str, list[str]]:
    """What is compared: a digest, and the sentence that people quote."""
    from bisim_abstract import certify

    found = {}
    for name, mdp, gamma, options in models():
        certificate = certify(mdp, gamma, **options)
        key = ", ".join([name, f"gamma {gamma:g}", *(str(value) for value in options.values())])
        found[key] = [digest(certificate), certificate.verdict.sentence]
    return found


def _run(name: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | SETTINGS[name],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def compare_digests(settings: list[str]) -> bool:
    """Make all certificates under every setting, two settings at a time; list what differs."""
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda name: _run(name, [__file__, "--child"]), settings))
    results = []
    for name, ran in zip(settings, runs, strict=True):
        if ran.returncode != 0:
            raise SystemExit(f"certifying failed under the setting {name}")
        results.append(json.loads(ran.stdout))
    first = results[0]
    for name, found in zip(settings, results, strict=True):
        different = [key for key in first if first[key] != found[key]]
        print(f"{name:12} {len(first) - len(different)} of {len(first)} certificates equal")
        for key in different:
            print(f"    {key}: {found[key][1]}")
    return all(found == first for found in results)


def run_tests(settings: list[str]) -> bool:
    """Run a part of the tests under every setting."""
    passed = True
    for name in settings:
        ran = _run(name, ["-m", "pytest", "-q", "-n", "2", "-m", "not slow", *TESTS])
        lines = ran.stdout.strip().splitlines()
        print(f"{name:12} {lines[-1] if lines else 'pytest printed nothing'}")
        if ran.returncode != 0:
            print(ran.stdout)
            passed = False
    return passed


def main() -> int:
    """Compare certificates, and run tests if asked to; 1 if anything differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument(
        "--tests", action="store_true", help="fewer settings, and a part of the tests under each"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        json.dump(_digests(), sys.stdout)
        return 0
    settings = TESTED if options.tests else options.settings
    same = compare_digests(settings)
    passed = not options.tests or run_tests(settings[1:])
    return int(not (same and passed))


if __name__ == "__main__":
    sys.exit(main())
