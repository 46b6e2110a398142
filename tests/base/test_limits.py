"""Where there is no room: full disks, folders without access, read-only installs, memory.

Disks are really full and folders really not writable: a small file system is mounted, or a
process gives up the right to pass over permissions. Where that is not allowed, the test says so
and is skipped; the tests that replace the system's calls run everywhere.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bisim_abstract import Certificate, Resources, TabularMDP
from bisim_abstract._app.config import Config
from bisim_abstract._app.runs import Run
from bisim_abstract._app.sources import Source
from bisim_abstract._base import memory
from bisim_abstract._base.atomic import remove_unfinished, replacing, write_json
from bisim_abstract._base.types import Progress
from bisim_abstract._certificate.certificate import TIMES
from bisim_abstract.errors import FileFormatError
from bisim_abstract.wrappers import RoomsGridEnv
from tests.support import ROOT
from tests.support.asking import certify_named
from tests.support.jobs import digest

pytestmark = pytest.mark.slow

ROOMS = Source(
    name="bisim_abstract/RoomsGrid-v0", env_args={"side": 8, "room_size": 4, "noise": 0.1}
)
METHODS: dict[str, dict[str, Any]] = {
    "all": {"tau": 0.5, "max_pairs": 500},  # five steps, four of them with a checkpoint
    "covered": {"method": "covering", "tau": 0.5, "max_rounds": 5, "neighbours": 4},
}


def model() -> TabularMDP:
    return RoomsGridEnv(side=8, room_size=4, noise=0.1).to_mdp()


def python(
    code: str,
    *arguments: object,
    before: str = "",
    prefix: Sequence[str] = (),
    timeout: float = 120.0,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """A program; with `before`, as root of its own mounts, after these shell commands."""
    command = [*prefix, sys.executable, "-c", code, *map(str, arguments)]
    if before:
        command = ["unshare", "-m", "sh", "-ec", f"{before}\n{shlex.join(command)}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout, env=env, **options
    )


def ended(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def mounts() -> None:
    """Whether this machine lets tests mount file systems."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = python("0", before=f"mount -t tmpfs -o size=64k none {folder}")
        except FileNotFoundError:
            pytest.skip("there is no unshare")
    if done.returncode:
        pytest.skip(f"mounting is not allowed: {done.stderr.strip()}")


def bound() -> list[str]:
    """What makes the rights of files hold for a process even if it is root's."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write anywhere, and there is no setpriv to change that")
    given_up = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={given_up}", f"--inh-caps={given_up}"]


# -- full disks --------------------------------------------------------------------------------

FULL = """
import errno, json, os, sys
from pathlib import Path
import pytest
from tests.support.asking import certify_named
from tests.support.jobs import digest
from tests.base.test_limits import METHODS, content, fill, model

folder, method = Path(sys.argv[1]), sys.argv[2]
path, mdp = folder / "checkpoint", model()
saved = []

def filling(progress):
    if path.exists() and path.read_bytes() not in saved:
        saved.append(path.read_bytes())
        if len(saved) == 2:
            fill(folder / "filler")

with pytest.raises(OSError) as caught:
    certify_named(mdp, 0.9, checkpoint=path, threads=1, callback=filling, **METHODS[method])
assert caught.value.errno == errno.ENOSPC, caught.value
assert caught.value.filename == str(path), caught.value
assert sorted(os.listdir(folder)) == ["checkpoint", "filler"], os.listdir(folder)
assert path.read_bytes() == saved[-1]
(folder / "filler").unlink()
found = certify_named(mdp, 0.9, checkpoint=path, threads=1, **METHODS[method])
print(json.dumps([str(caught.value), content(found), len(saved)]))
"""

FULL_RUN = """
import errno, json, os, sys
from pathlib import Path
import pytest
from bisim_abstract import Resources
from bisim_abstract._app.config import Config
from bisim_abstract._app.runs import Run
from tests.base.test_limits import ROOMS, content, fill

folder, stage = Path(sys.argv[1]), sys.argv[2]

def filling(done):
    if done.stage == stage:
        fill(folder / "filler")

with pytest.raises(OSError) as caught:
    Run(folder / "run", Config(source=ROOMS), resources=Resources(threads=1), after=filling)()
assert caught.value.errno == errno.ENOSPC, caught.value
kept = {x.name: (x.stat().st_ino, x.read_bytes()) for x in (folder / "run").iterdir()}
assert not [name for name in kept if name.endswith(".part")], kept
(folder / "filler").unlink()
found = Run.resume(folder / "run", resources=Resources(threads=1))()
files = {"mdp.npz", "config.json", "certificate.npz", "comparison.json"}
for name in files & kept.keys():
    now = folder / "run" / name
    assert (now.stat().st_ino, now.read_bytes()) == kept[name], name
said = found.verdict.sentence
print(json.dumps([str(caught.value), content(found.certificate), sorted(kept), said]))
"""


def content(certificate: Certificate) -> str:
    held = {name: x for name, x in certificate.run.items() if name not in TIMES}
    return digest(certificate, json.dumps(held, sort_keys=True))


def fill(path: Path) -> None:
    """Leave no room on a small disk."""
    done = subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=512"], capture_output=True)
    assert b"No space left" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize("method", METHODS)
def test_full_disk_while_certifying(method: str, tmp_path: Path) -> None:
    small = f"mount -t tmpfs -o size=2m none {tmp_path}"
    message, found, saved = ended(python(FULL, tmp_path, method, before=small))
    assert message == f"[Errno 28] No space left on device: '{tmp_path / 'checkpoint'}'"
    assert saved == 2
    assert found == content(
        certify_named(model(), 0.9, resources=Resources(threads=1), **METHODS[method])
    )


@pytest.mark.slow
@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    ("stage", "named"),
    [("extract", "checkpoint.npz"), ("certify", "verification.json"), ("compare", "report.html")],
)
def test_full_disk_in_a_run(stage: str, named: str, tmp_path: Path) -> None:
    small = f"mount -t tmpfs -o size=4m none {tmp_path}"
    message, found, kept, verdict = ended(python(FULL_RUN, tmp_path, stage, before=small))
    assert message.startswith("[Errno 28] No space left on device")
    assert named in message
    assert {"config.json", "mdp.npz"} <= set(kept)
    assert verdict.endswith("(verified)")
    whole = Run(tmp_path / "whole", Config(source=ROOMS), resources=Resources(threads=1))()
    assert found == content(whole.certificate)


@pytest.mark.slow
@pytest.mark.usefixtures("mounts")
def test_the_command_says_that_the_disk_is_full(tmp_path: Path) -> None:
    model().save(tmp_path / "mdp.npz")
    (tmp_path / "small").mkdir()
    small = (
        f"mount -t tmpfs -o size=8k none {tmp_path}/small\n"
        f"head -c 8k /dev/zero > {tmp_path}/small/filler || true"
    )
    code = "import sys; from bisim_abstract._app.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["certify", tmp_path / "mdp.npz", "-o", tmp_path / "small/c.npz", "--quiet"]
    done = python(code, *words, before=small)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "c.npz" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_folders_that_cannot_be_synced(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems do not know how; a disk that fails is told of, by the file's name."""
    sync, path = os.fsync, tmp_path / "m.npz"

    def failing(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        sync(file)

    monkeypatch.setattr(os, "fsync", failing)
    if number == errno.EINVAL:
        model().save(path)
    else:
        with pytest.raises(OSError) as caught:
            model().save(path)
        assert (caught.value.errno, caught.value.filename) == (number, str(path))
    assert TabularMDP.load(path) == model()  # it is there, whole
    assert [each.name for each in tmp_path.iterdir()] == ["m.npz"]


def test_a_folder_that_may_be_written_but_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is in place: that its name cannot be synced is no error."""
    opened, refused = os.open, []

    def failing(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_DIRECTORY:
            refused.append(path)
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", failing)
    write_json(tmp_path / "x.json", [1])
    assert refused == [tmp_path]
    assert json.loads((tmp_path / "x.json").read_bytes()) == [1]


@pytest.mark.parametrize(
    ("method", "number"),
    [("all", errno.ENOSPC), ("covered", errno.ENOSPC), ("covered", errno.EIO)],
)
def test_a_failing_write_leaves_the_last_checkpoint(
    method: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mdp = tmp_path / "checkpoint", model()
    sync, calls = os.fsync, 0

    def failing(file: int) -> None:
        nonlocal calls
        calls += stat.S_ISREG(os.fstat(file).st_mode)  # folders are synced too
        if calls == 2:  # while it works on the step after the first
            raise OSError(number, os.strerror(number))
        sync(file)

    monkeypatch.setattr(os, "fsync", failing)
    held: list[bytes] = []

    def hear(_: Progress) -> None:
        if path.exists():
            held.append(path.read_bytes())

    with pytest.raises(OSError) as caught:
        certify_named(
            mdp,
            0.9,
            checkpoint=path,
            resources=Resources(threads=1),
            callback=hear,
            **METHODS[method],
        )
    assert (caught.value.errno, caught.value.filename) == (number, str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]
    assert path.read_bytes() == held[-1]
    monkeypatch.undo()
    resumed = certify_named(
        mdp, 0.9, checkpoint=path, resources=Resources(threads=1), **METHODS[method]
    )
    whole = certify_named(mdp, 0.9, resources=Resources(threads=1), **METHODS[method])
    assert content(resumed) == content(whole)


# -- folders without access --------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_that_cannot_be_kept_is_refused_before_any_work(
    method: str, tmp_path: Path
) -> None:
    def worked(_: Progress) -> None:
        raise AssertionError("work that cannot be kept")

    path = tmp_path / "missing" / "checkpoint"
    with pytest.raises(FileNotFoundError, match="missing"):
        certify_named(model(), 0.9, checkpoint=path, callback=worked, **METHODS[method])


CLOSED = """
import json, sys
from pathlib import Path
from bisim_abstract import Covering, certify, write_report
from bisim_abstract.parts import sparse_mdp
from bisim_abstract._app.config import Config
from bisim_abstract._app.runs import Run
from bisim_abstract._app.sources import Source

folder = Path(sys.argv[1])
mdp = sparse_mdp(20, 2, seed=0)
source = Source(name="FrozenLake-v1")
found = []

def worked(progress):
    raise AssertionError("work that cannot be kept")

certificate = certify(mdp, 0.9)
for attempt in (
    lambda: certify(mdp, 0.9, checkpoint=folder / "c", callback=worked),
    lambda: certify(mdp, 0.9, method=Covering(), checkpoint=folder / "c", callback=worked),
    lambda: certificate.save(folder / "c"),
    lambda: mdp.save(folder / "m"),
    lambda: write_report(folder / "r.html", mdp, certificate),
    lambda: Run(folder / "run", Config(source=source)),
):
    try:
        attempt()
        found.append("nothing was raised")
    except PermissionError as error:
        found.append(str(error))
print(json.dumps(found))
"""


def test_folders_without_access(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    held = closed / "c"
    held.write_bytes(b"what was there")
    closed.chmod(0o555)
    found = ended(python(CLOSED, closed, prefix=bound()))
    assert len(found) == 6
    for message in found:
        assert "closed" in message
        assert "ermission denied" in message, message
    assert held.read_bytes() == b"what was there"
    assert [each.name for each in closed.iterdir()] == ["c"]


# -- half-written files, and what killed writers leave -----------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_half_a_checkpoint_is_never_loaded(method: str, tmp_path: Path) -> None:
    path, mdp = tmp_path / "checkpoint", model()
    held: list[bytes] = []

    def hear(_: Progress) -> None:
        if path.exists() and not held:
            held.append(path.read_bytes())

    certify_named(
        mdp, 0.9, checkpoint=path, resources=Resources(threads=1), callback=hear, **METHODS[method]
    )
    whole = held[0]
    for size in (0, 1, 30, len(whole) // 2, len(whole) - 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match="checkpoint"):
            certify_named(
                mdp, 0.9, checkpoint=path, resources=Resources(threads=1), **METHODS[method]
            )
        assert path.read_bytes() == whole[:size]


@pytest.mark.parametrize("name", ["mdp.npz", "certificate.npz", "comparison.json", "config.json"])
def test_half_a_file_of_a_run_is_named(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = Config(source=Source(name="FrozenLake-v1"), certify={"max_pairs": 100})
    Run(folder, config, resources=Resources(threads=1))()
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=name):
        Run.resume(folder, resources=Resources(threads=1))()
    (folder / name).unlink()
    if name != "config.json":
        assert Run.resume(folder, resources=Resources(threads=1))().verification.is_valid


KILLED = """
import os, sys
from bisim_abstract._base.atomic import replacing

with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), 9)
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for other in (path, tmp_path / "y.json"):
        assert python(KILLED, other, "killed").returncode == -9
    alike = tmp_path / ".mine.part"
    alike.write_bytes(b"a file of somebody else")
    assert len(list(tmp_path.glob(".*.part"))) == 3
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), "alive"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as alive:
        assert alive.stdout is not None
        assert alive.stdout.readline() == b"writing\n"  # it has removed the one at its own path
        assert len(list(tmp_path.glob(".*.part"))) == 3
        write_json(path, 1)
        assert json.loads(path.read_bytes()) == 1
        remove_unfinished(tmp_path)
        left = {each.name for each in tmp_path.glob(".*.part")}
        assert len(left) == 2
        assert any(f".{alive.pid}." in name for name in left)
        alive.communicate(b"")
        assert alive.returncode == 0
    assert path.read_bytes() == b"half"  # all that the living one had to say
    assert {each.name for each in tmp_path.iterdir()} == {"x.json", ".mine.part"}


def test_a_run_clears_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = Config(source=Source(name="FrozenLake-v1"), certify={"max_pairs": 100})
    Run(folder, config, resources=Resources(threads=1))()
    assert python(KILLED, folder / "curves.json", "killed").returncode == -9
    assert list(folder.glob(".*.part")) != []
    Run.resume(folder, resources=Resources(threads=1))()
    assert list(folder.glob(".*.part")) == []


def test_a_run_that_was_killed_at_its_first_file_can_begin_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    assert python(KILLED, folder / "config.json", "killed").returncode == -9
    config = Config(source=Source(name="FrozenLake-v1"), certify={"max_pairs": 100})
    assert Run(folder, config, resources=Resources(threads=1))().verification.is_valid


def test_file_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    path = tmp_path / "x"
    assert python(KILLED, path, "killed").returncode == -9
    monkeypatch.setattr(fcntl, "flock", refuse)
    with replacing(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    assert len(list(tmp_path.glob(".*.part"))) == 1  # nobody can tell whether it is in use


# -- read-only installs ------------------------------------------------------------------------

USE = """
import json, sys, warnings
warnings.simplefilter("error")
import bisim_abstract as b
from bisim_abstract._app.cli import main
from bisim_abstract.parts import grouped_mdp
mdp, _ = grouped_mdp(30, 3, seed=0)
certificate = b.certify(mdp, 0.9)
mdp.save("modèle 1.npz")
certificate.save("certificat é.npz")
assert main(["verify", "modèle 1.npz", "certificat é.npz"]) == 0
print(json.dumps([b.__file__, b.verify(mdp, certificate).verdict]))
"""
# The same for one solver, which is compiled like all others, but in seconds.
USE_ONE = """
import json, warnings
warnings.simplefilter("error")
import bisim_abstract as b
from bisim_abstract.parts import solve_transport
found = solve_transport([[1.0, 2.0]], [1.0], [0.5, 0.5])
print(json.dumps([b.__file__, "verified" if found.value == 1.5 else found.value]))
"""


@pytest.fixture(scope="module")
def install() -> Iterator[Path]:
    """The package as it is installed, without anything compiled, in a path with odd letters."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        ignored, place = shutil.ignore_patterns("__pycache__"), Path(name) / "café à côté"
        shutil.copytree(ROOT / "bisim_abstract", place / "bisim_abstract", ignore=ignored)
        yield place


def says_only_that_it_compiles(done: subprocess.CompletedProcess[str]) -> bool:
    lines = [line.removeprefix("note: ") for line in done.stderr.splitlines()]
    return all(line.startswith("compiling solvers, ") for line in lines)


def check_use(done: subprocess.CompletedProcess[str], install: Path) -> None:
    where, verdict = ended(done)
    assert Path(where).is_relative_to(install)
    assert verdict == "verified"
    assert says_only_that_it_compiles(done)
    assert list(install.rglob("__pycache__")) == []


@pytest.mark.nightly
@pytest.mark.parametrize("cache", ["no home", "HOME unset", "NUMBA_CACHE_DIR"])
def test_install_that_its_user_cannot_write_to(cache: str, install: Path, tmp_path: Path) -> None:
    closed = install.parent / f"{install.name}-closed"
    shutil.copytree(install, closed)
    for path in [closed, *closed.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        env = {"PYTHONPATH": str(closed), "HOME": "/nonexistent", "XDG_CACHE_HOME": ""}
        if cache == "NUMBA_CACHE_DIR":
            env["NUMBA_CACHE_DIR"] = str(closed / "bisim_abstract")
        prefix = bound() + (["env", "-u", "HOME"] if cache == "HOME unset" else [])
        use = USE if cache in ("no home", "HOME unset") else USE_ONE
        done = python(use, env=env, cwd=tmp_path, prefix=prefix, timeout=400.0)
        check_use(done, closed)
    finally:
        for path in [closed, *closed.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(closed)


@pytest.mark.slow
@pytest.mark.usefixtures("mounts")
def test_read_only_file_system(install: Path, tmp_path: Path) -> None:
    place = shlex.quote(str(install))
    before = f"mount --bind {place} {place}\nmount -o remount,ro,bind {place}"
    before += f"\n! touch {place}/x 2>/dev/null"
    env = {"PYTHONPATH": str(install), "HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    code = f"import os; os.environ.pop('NUMBA_CACHE_DIR', None)\n{USE_ONE}"
    mount_home = "mount -t tmpfs -o ro none /mnt\n"  # a home that exists and cannot be written
    done = python(
        code, before=mount_home + before, env=env | {"HOME": "/mnt"}, cwd=tmp_path, timeout=400.0
    )
    check_use(done, install)


@pytest.mark.slow
@pytest.mark.usefixtures("mounts")
def test_full_cache_of_compiled_code(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    small = (
        f"mount -t tmpfs -o size=64k none {cache}\nhead -c 64k /dev/zero > {cache}/filler || true"
    )
    done = python(
        USE_ONE, before=small, env={"NUMBA_CACHE_DIR": str(cache)}, cwd=tmp_path, timeout=400.0
    )
    assert ended(done)[1] == "verified"
    assert says_only_that_it_compiles(done)


@pytest.mark.slow
def test_compiled_code_that_cannot_be_saved(tmp_path: Path) -> None:
    code = (
        "import numba.core.caching as c\n"
        "def refuse(*_): raise OSError(28, 'No space left on device')\n"
        "c.IndexDataCacheFile.save = refuse\n"
        "import json, bisim_abstract.parts as b\n"
        "print(json.dumps(float(b.solve_transport([[1.0, 2.0]], [1.0], [0.5, 0.5]).value)))"
    )
    assert ended(python(code, env={"NUMBA_CACHE_DIR": str(tmp_path)})) == 1.5


def test_python_m_works() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "bisim_abstract", "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.returncode == 0
    assert "certify" in done.stdout
    assert done.stderr == ""


# -- memory ------------------------------------------------------------------------------------

# Every call asks for more than the process may have. It must be refused by name, with a size and
# a remedy, before anything large is set aside.
TOO_LARGE = {
    "metric": "bisimulation_metric(sparse, 0.5)",
    "metric of a ring": "bisimulation_metric(ring, 0.5)",
    "all states of a metric": "metric.lower",
    "all pairs of blocks": "build_arms(sparse).cover_all()",
    "covered, neighbours": (
        "certify(sparse, 0.5, method=Covering(neighbours=20_000), max_rounds=1)"
    ),
    "covered, partners": (
        "certify(sparse, 0.5, method=Covering(neighbours=0, partners=100_000), max_rounds=1)"
    ),
    "single build": "single_build(sparse, 0.5, neighbours=20_000)",
    "single build, dimensions": "single_build(sparse, 0.5, dim=10**6)",
    "landmarks": "landmark_mds(gap, 200_000, n_landmarks=200_000)",
    "neighbours": "retrieve_neighbours(points, k=40_000)",
    "pairs of equal points": "retrieve_pairs(0 * points, k=40_000)",
    "sampled pairs": "evaluate_embedding(metric, np.zeros((200_000, 1)), sample=10**9)",
}

MEMORY = """
import json, resource, sys
import numpy as np
from bisim_abstract import *
from bisim_abstract.parts import *
from bisim_abstract._bounds.arms import Arms

n = 60_000
sparse = sparse_mdp(n, 1, seed=0)
ring = TabularMDP(
    indptr=np.arange(n + 1), indices=np.roll(np.arange(n), -1), probs=np.ones(n),
    rewards=np.arange(float(n))[:, None] / n,
)
many = 200_000
alike = TabularMDP(
    indptr=np.arange(many + 1), indices=np.arange(many), probs=np.ones(many),
    rewards=(np.arange(many) % 2.0)[:, None],
)
metric = bisimulation_metric(alike, 0.5)
points = np.random.default_rng(0).normal(size=(n, 2))
gap = lambda s, t: np.abs(s - t).astype(float)
build_arms = lambda mdp: Arms(mdp, 0.5)
retrieve_pairs(points[:100], k=2)  # everything is loaded
bisimulation_classes(sparse)
most = 6 * 10**9
resource.setrlimit(resource.RLIMIT_AS, (most, most))
top = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
found = {}
for name, call in json.loads(sys.argv[1]).items():
    before = top()
    try:
        eval(call)
        found[name] = ["nothing", "", 0]
    except Exception as error:
        found[name] = [type(error).__name__, str(error), top() - before]
print(json.dumps(found))
"""


def test_what_cannot_fit_is_refused_before_it_is_tried() -> None:
    found = ended(python(MEMORY, json.dumps(TOO_LARGE)))
    assert found.keys() == TOO_LARGE.keys()
    wrong = {
        name: row
        for name, row in found.items()
        if row[0] != "MemoryLimitError"
        or "B, but" not in row[1]
        or not row[1].split(";")[-1].strip()
        or row[2] > 200  # megabytes
    }
    assert wrong == {}


# What is linear in the states must work where their pairs could never fit.
LINEAR = {
    "blocks": "build_blocks(sparse, np.arange(n))",
    "aggregate": "aggregate(sparse, np.arange(n) // 20)",
    "aggregate nothing": "aggregate(sparse, np.arange(n))",
    "features": "value_features(sparse, 0.5, count=10**6)",
    "rewards": "cluster_by_rewards(ring, 0.01 / n)",
    "metric, linked": "cluster_by_metric(metric, 0.1)",
    "covered": (
        "certify(sparse, 0.5, method=Covering(neighbours=2, index='IVF64,Flat'), max_rounds=1)"
    ),
    "quality": "evaluate_embedding(metric, points[:1].repeat(200_000, axis=0), sample=100)",
    "map": "state_map(sparse)",
    "report": "write_report(sys.argv[2], alike, certify(alike, 0.5))",
    "value": "prove_value(alike, np.zeros(many, int), 0.5)",
}


@pytest.mark.nightly
def test_what_needs_no_pairs_works_for_many_states(tmp_path: Path) -> None:
    found = ended(python(MEMORY, json.dumps(LINEAR), tmp_path / "report.html"))
    assert {name: row for name, row in found.items() if row[0] != "nothing"} == {}


ABSTAIN = """
import json, sys
import numpy as np
from bisim_abstract import certify
from bisim_abstract.parts import sparse_mdp
from bisim_abstract._base import resources

resources.available_bytes = lambda: 10**6
found = certify(sparse_mdp(700, 1, seed=0), 0.5, tau=1e-3)
print(json.dumps([found.stop, found.n_covered]))
"""


@pytest.mark.slow
def test_certify_abstains_where_all_pairs_would_not_fit() -> None:
    stop, covered = ended(python(ABSTAIN))
    assert "all 244,650 pairs need 52.9 MB, 1.0 MB are available; merge states" in stop
    assert covered < 244_650


def test_available_memory_knows_the_limit_of_the_process() -> None:
    code = (
        "import json, resource\n"
        "from bisim_abstract._base.memory import available_bytes\n"
        "before = available_bytes()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "print(json.dumps([before, available_bytes()]))"
    )
    before, after = ended(python(code))
    assert 0 < after < 2**30
    assert after < before
    assert memory.available_bytes() > 0


@pytest.mark.slow
def test_the_metric_fits_into_what_it_asks_for() -> None:
    """The estimate is one: the metric takes hardly more than it."""
    code = """
import json, resource, sys
import bisim_abstract as b
from bisim_abstract.parts import sparse_mdp
mdp = sparse_mdp(500, 1, seed=0)
one = b.Resources(threads=1, memory_limit=int(sys.argv[1]))
b.bisimulation_metric(sparse_mdp(95, 1, seed=0), 0.5, resources=one)
top = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = top()
b.bisimulation_metric(mdp, 0.5, resources=one)
print(json.dumps(top() - before))
"""
    n = 500
    plain = 24 * n * n + 48 * (n * (n - 1) // 2)  # of one action, without couplings
    assert ended(python(code, plain)) <= 1.2 * plain + 20e6
