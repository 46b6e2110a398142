"""Work for other threads and processes: everything that is compiled, threaded or shared."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import gymnasium as gym
import numpy as np

from bisim_abstract import (
    Certificate,
    Covering,
    Resources,
    TabularMDP,
    bisimulation_metric,
    certify,
    verify,
)
from bisim_abstract._propose.retrieval import k_means
from bisim_abstract.parts import grouped_mdp, landmark_mds, retrieve_pairs, sparse_mdp
from bisim_abstract.wrappers import AbstractedEnv

ROOMS = "bisim_abstract/RoomsGrid-v0"
PARTS = ("all", "covered", "metric", "retrieval")
STEPS = 20


def digest(*parts: Any) -> str:
    """Of arrays, tables of dataclasses and plain values, bit by bit."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        elif isinstance(part, tuple | list):
            found.update(digest(*part).encode())
        elif dataclasses.is_dataclass(part):
            held = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
            held["run"] = None  # holds times
            found.update(digest(*held.values()).encode())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()


def part_of_job(name: str, threads: int = 2) -> str:
    """The digest of one part of the work; models are large enough to use the threads."""
    if name == "metric":
        metric = bisimulation_metric(
            sparse_mdp(100, 2, seed=1), 0.9, resources=Resources(threads=threads)
        )
        return digest(metric.class_lower, metric.class_upper)
    if name == "retrieval":
        return _retrieval()
    if name == "all":
        mdp, _ = grouped_mdp(120, 4, noise=0.1, seed=2)
        found = certify(mdp, 0.9, seed=3, resources=Resources(threads=threads))
    else:
        mdp = sparse_mdp(150, 2, seed=4)
        found = certify(
            mdp, 0.9, method=Covering(), max_rounds=2, tau=1.0, resources=Resources(threads=threads)
        )
    return digest(found, verified(found, mdp, threads=threads))


def job(threads: int = 2) -> str:
    """The digest of all of it."""
    return digest(*(part_of_job(name, threads) for name in PARTS))


def verified(certificate: Certificate, mdp: TabularMDP, threads: int = 2) -> str:
    """The verdict on a certificate, with its clusterings at all thresholds."""
    intervals = [(x.low, x.high, x.n_clusters) for x in certificate.certified_thresholds()]
    return digest(verify(mdp, certificate, resources=Resources(threads=threads)).verdict, intervals)


def _retrieval() -> str:
    rng = np.random.default_rng(5)
    points = rng.normal(size=(300, 3)) + 1e-4 * rng.normal(size=(300, 3))

    def distance(s: Any, t: Any) -> Any:
        return np.abs(points[s] - points[t]).max(axis=-1)

    found: list[Any] = [landmark_mds(distance, 300, dim=3, seed=6), k_means(points, 7, 0)]
    for index in ("Flat", "LSH16", "HNSW16", "IVF8,Flat"):
        found += retrieve_pairs(points, k=5, index=index, seed=7)
    return digest(*found)


def small_env(path: str, dynamics: str = "aggregated") -> gym.Env[Any, Any]:
    """An abstraction from a saved certificate."""
    return AbstractedEnv(gym.make(ROOMS, side=6, room_size=3, slip=0.4), path, dynamics=dynamics)


def small_certificate() -> Certificate:
    """The certificate for it."""
    ground: Any = gym.make(ROOMS, side=6, room_size=3, slip=0.4).unwrapped
    return certify(ground.to_mdp(), 0.9)


def walk(path: str, dynamics: str = "aggregated") -> list[int]:
    """Observations of some steps, alone."""
    env = small_env(path, dynamics)
    seen = [int(env.reset(seed=3)[0])]
    seen += [int(env.step(k % 4)[0]) for k in range(STEPS)]
    env.close()
    return seen
