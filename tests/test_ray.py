"""Sweeps on a Ray cluster: the bits of a local run, whatever happens to workers."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    MemoryLimitError,
    MissingDependency,
    RayBackend,
    TabularMDP,
    certify,
    estimate_mdp,
    grouped_mdp,
    random_mdp,
    sparse_mdp,
    value_features,
    verify,
)
from bisim_abstract._parallel import Array, Data, Job, LocalBackend, Sweep, Work
from bisim_abstract.arms import Arms
from bisim_abstract.encoders import sample_transitions
from bisim_abstract.wrappers import RoomsGridEnv

ROOT = Path(__file__).parent.parent


def parts(certificate: Certificate) -> dict[str, Any]:
    """Everything that is claimed, as bytes."""
    found: dict[str, Any] = {
        name: getattr(certificate, name).tobytes()
        for name in ("keys", "lower", "upper", "labels_lower", "labels_upper")
    }
    found |= {"tau": certificate.tau, "stop": certificate.stop}
    for k, level in enumerate(certificate.levels):
        for name in ("keys", "lower", "upper"):
            found[f"level {k} {name}"] = getattr(level, name).tobytes()
        found[f"level {k} labels"] = level.model.labels.tobytes()
    if certificate.features is not None:
        found["features"] = certificate.features.values.tobytes()
        found["corrections"] = certificate.features.corrections.tobytes()
    return found


def estimated() -> TabularMDP:
    mdp, _ = grouped_mdp(12, 3, noise=0.0, seed=0)
    data = sample_transitions(mdp, 40_000, seed=0)
    return estimate_mdp(
        data.states,
        data.actions,
        data.rewards,
        data.next_states,
        n_states=12,
        n_actions=mdp.n_actions,
        alpha=0.1,
        reward_range=(float(mdp.rewards.min()), float(mdp.rewards.max())),
    )


# -- without a cluster -------------------------------------------------------------------------


def test_ray_is_not_imported_by_default() -> None:
    code = (
        "import sys\n"
        "from bisim_abstract import certify, random_mdp\n"
        "certify(random_mdp(5, seed=0), 0.9)\n"
        "print('ray' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_bad_backends() -> None:
    mdp = random_mdp(3, seed=0)
    with pytest.raises(InvalidArgumentError, match="backend must be one of 'local', 'ray'"):
        certify(mdp, 0.9, backend="spark")
    with pytest.raises(InvalidArgumentError, match="address goes with backend 'ray'"):
        certify(mdp, 0.9, address="auto")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=r"bisim-abstract\[ray\]"):
        certify(random_mdp(3, seed=0), 0.9, backend="ray")


# -- with one ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayBackend]:
    with RayBackend(num_cpus=2) as backend:
        yield backend


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rooms": (lambda: RoomsGridEnv().to_mdp(), {}),
    "noisy rooms": (lambda: RoomsGridEnv(side=15, room_size=5, noise=0.1).to_mdp(), {}),
    "groups": (lambda: grouped_mdp(60, 5, noise=0.05, seed=1)[0], {"max_pairs": 500}),
    "covered": (
        lambda: sparse_mdp(300, seed=2),
        {"scope": "covered", "tau": 0.5, "max_rounds": 4, "neighbours": 30},
    ),
    "estimate": (estimated, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_certificates_are_the_same(name: str, cluster: RayBackend) -> None:
    make, options = MODELS[name]
    mdp = make()
    local = certify(mdp, 0.9, **options)
    remote = certify(mdp, 0.9, backend=cluster, **options)
    assert parts(local) == parts(remote)
    assert verify(remote, mdp).is_valid


@pytest.mark.slow
@pytest.mark.parametrize("lookup_bytes", [0, 2**30])
def test_many_shards_give_the_bits_of_one_thread(cluster: RayBackend, lookup_bytes: int) -> None:
    mdp = sparse_mdp(200, seed=3)
    small = RayBackend(shard_bytes=1)  # joins the cluster that runs; a chunk is a shard
    tables = []
    for backend in (LocalBackend(1), cluster, small):
        arms = Arms(mdp, 0.9, backend=backend, lookup_bytes=lookup_bytes)
        arms.cover_all()
        for _ in range(3):
            arms.sweep()
        tables.append((arms.lower.tobytes(), arms.upper.tobytes(), arms.backups))
    assert tables[0] == tables[1] == tables[2]
    small.close()  # leaves the cluster alone
    assert cluster.cpus == 2


@pytest.mark.slow
def test_features_are_the_same(cluster: RayBackend) -> None:
    mdp = sparse_mdp(10_000, seed=4)
    local, remote = value_features(mdp, 0.9), value_features(mdp, 0.9, backend=cluster)
    assert local.values.tobytes() == remote.values.tobytes()
    assert local.corrections.tobytes() == remote.corrections.tobytes()


def dies(marks: str, work: Work, *args: Any) -> Any:
    """Work whose worker is killed in the middle, as often as there are marks to take."""
    begin, end, out = args[-3:]
    if begin > 0:
        for path in sorted(Path(marks).iterdir()):
            path.unlink(missing_ok=True)
            out[begin:end] = 7.0  # half done, and wrong
            os.kill(os.getpid(), signal.SIGKILL)
    return work(*args)


class Deadly(RayBackend):
    """A cluster whose workers die."""

    marks = ""

    def prepare(self, job: Job) -> Sweep:
        return super().prepare(
            dataclasses.replace(job, work=functools.partial(dies, self.marks, job.work))
        )


@pytest.mark.slow
def test_killed_workers_change_nothing(cluster: RayBackend, tmp_path: Path) -> None:
    mdp = sparse_mdp(300, seed=2)
    options: dict[str, Any] = {"scope": "covered", "tau": 0.5, "max_rounds": 3, "neighbours": 60}
    for k in range(3):
        (tmp_path / str(k)).touch()
    backend = Deadly()
    backend.marks = str(tmp_path)
    remote = certify(mdp, 0.9, backend=backend, **options)
    assert list(tmp_path.iterdir()) == []  # all three deaths took place
    assert parts(remote) == parts(certify(mdp, 0.9, **options))
    assert verify(remote, mdp).is_valid


def fails(common: Data, part: Any, fresh: Data, begin: int, end: int, out: Array) -> None:
    raise InvalidArgumentError(f"no good at {begin}")


@pytest.mark.slow
def test_errors_of_workers_are_raised_here(cluster: RayBackend) -> None:
    sweep = cluster.prepare(Job(fails, {}, 10, 5))
    with pytest.raises(InvalidArgumentError, match="no good at"):
        sweep({}, np.empty(10))


@pytest.mark.slow
def test_what_does_not_fit_is_refused_with_its_size(cluster: RayBackend) -> None:
    # A view of one zero that claims a terabyte: nothing is allocated to ask.
    huge = np.broadcast_to(np.zeros(1), (2**37,))
    with pytest.raises(MemoryLimitError, match=r"1\.1 TB of the object store.*max_pairs"):
        cluster.prepare(Job(fails, {"huge": huge}, 10, 5))


@pytest.mark.slow
def test_progress_of_shards_is_told(cluster: RayBackend) -> None:
    seen: list[tuple[int, int]] = []
    cluster.listener = lambda done, total: seen.append((done, total))
    arms = Arms(sparse_mdp(200, seed=3), 0.9, backend=cluster)
    arms.cover_all()
    arms.sweep(upper=False)
    cluster.listener = None
    total = seen[0][1]
    assert [done for done, _ in seen] == list(range(1, total + 1))


@pytest.mark.slow
def test_a_cluster_of_its_own_by_name(tmp_path: Path) -> None:
    """`backend="ray"` and the command line start a cluster, use it, and end it."""
    code = (
        "import json, sys, ray\n"
        "from bisim_abstract import certify, grouped_mdp\n"
        "mdp, _ = grouped_mdp(60, 5, noise=0.05, seed=1)\n"
        "mdp.save('m.npz')\n"
        "stages = []\n"
        "found = certify(mdp, 0.9, backend='ray', threads=2, callback=lambda p: "
        "stages.append(p.stage))\n"
        "found.save('api.npz')\n"
        "print(json.dumps([ray.is_initialized(), 'shards' in stages]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = functools.partial(
        subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [False, True]
    words = ["certify", "m.npz", "-o", "cli.npz", "--backend", "ray", "--threads", "2", "--json"]
    done = run([sys.executable, "-m", "bisim_abstract", *words])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["is_certified"]
    api, cli = (Certificate.load(tmp_path / name) for name in ("api.npz", "cli.npz"))
    local = certify(grouped_mdp(60, 5, noise=0.05, seed=1)[0], 0.9)
    assert parts(api) == parts(cli) == parts(local)


@pytest.mark.slow
def test_an_address_where_nobody_is(tmp_path: Path) -> None:
    random_mdp(4, seed=0).save(tmp_path / "m.npz")
    words = ["certify", "m.npz", "--backend", "ray", "--address", "127.0.0.1:1"]
    done = subprocess.run(
        [sys.executable, "-m", "bisim_abstract", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("bisim-abstract: ")]
    assert len(lines) == 1
    assert "127.0.0.1:1" in lines[0]
