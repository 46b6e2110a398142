"""The command line: random words, good and bad, on tiny files."""

from __future__ import annotations

import io
import os
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from bisim_abstract import BisimError, certify
from bisim_abstract._app.cli import main
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from fuzzing.core import Case, Run
from fuzzing.files import claim, make_bridges, make_encoders
from fuzzing.mutate import pick

ALLOWED = (0, 2, 3, 4, 5)
COMMANDS = ("extract", "train", "certify", "verify", "solve", "report", "run")
SOURCES = (
    "model.npz",
    "model.npz",
    "model.npz",
    "other.npz",
    "bridge0.npz",
    "certificate.npz",
    "broken.npz",
    "missing.npz",
    "note.txt",
    "folder",
    "",
    "FrozenLake-v1",
    "FrozenLake-v1",
    "NoSuchEnv-v0",
    "os:FrozenLake-v1",
    "a/b/c:d",
    "CartPole-v1",
    "../model.npz",
    "\0",
    "x" * 300,
    "\udcff.npz",
    "日本-v0",
    "-v",
)
NUMBERS = [
    "0",
    "1",
    "2",
    "3",
    "-1",
    "0.5",
    "0.9",
    "0.99",
    "1.0",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e-300",
    "1e308",
    "1e400",
    "abc",
    "0x10",
    "1_000",
    "٣",
    "-0",
    "99999999999999999999999999",
    "",
    " 1",
]
TEXTS = ("", "x", "<b>&", "日本", "\udcff", "a\nb", "[bold]", "--", "x" * 3000)
FILES = (
    "out.npz",
    "out.html",
    "new",
    "folder",
    "missing/out.npz",
    "/proc/x",
    "",
    ".",
    "\udcff.npz",
    "a\0b",
    "x" * 300,
)
PATHS = ("certificate.npz", "certificate.npz", "encoder.npz", "model.npz", "broken.npz", "nope")
# Words are drawn per option; numbers are mostly sane, so that commands get past the parser.
NUMERIC = [
    "--gamma",
    "--keep",
    "--max-loss",
    "--tau",
    "--clusters",
    "--tol",
    "--max-pairs",
    "--max-seconds",
    "--max-rounds",
    "--max-backups",
    "--seed",
    "--threads",
    "--max-states",
    "--backgrounds",
    "--sample",
    "--learn-seeds",
    "--dim",
    "--steps",
    "--transitions",
    "--learn",
]
SANE: dict[str, tuple[str, ...]] = {
    "--gamma": ("0.5", "0.9", "0"),
    "--keep": ("0", "0.5", "0.99", "1"),
    "--max-loss": ("0", "0.1", "10"),
    "--tau": ("0.3", "auto", "2", "0"),
    "--clusters": ("1", "2", "3"),
    "--tol": ("0.1", "1"),
    "--threads": ("1", "2"),
    "--backgrounds": ("2", "3"),
    "--learn": ("0", "20"),
    "--steps": ("1", "2"),
    "--transitions": ("10", "50"),
}
COMMON = ["--seed", "--threads", "--max-states", "--backgrounds"]
GOAL = [
    "--keep",
    "--max-loss",
    "--tau",
    "--clusters",
    "--tol",
    "--max-pairs",
    "--max-seconds",
    "--max-rounds",
    "--max-backups",
]
OWN: dict[str, list[str]] = {
    "extract": COMMON,
    "train": [*COMMON, "--gamma", "--dim"],
    "certify": [*COMMON, "--gamma", *GOAL],
    "verify": ["--seed", "--threads", "--sample"],
    "solve": ["--threads", "--gamma"],
    "report": ["--seed", "--threads"],
    "run": [*COMMON, "--gamma", *GOAL, "--dim", "--learn-seeds"],
}
FIXED = (
    "--train=never",
    "--reachable-only",
    "--same-action",
    "--json",
    "--quiet",
    "--help",
    "--debug",
)


def make_files(shared: Path) -> None:
    """Tiny files of every kind."""
    mdp = grouped_mdp(8, 2, 2, noise=0.01, seed=0)[0]
    mdp.save(shared / "model.npz")
    sparse_mdp(5, 2, support=2, seed=1).save(shared / "other.npz")
    certify(mdp, 0.9, threads=1).save(shared / "certificate.npz")
    make_bridges(shared)
    shutil.copy(make_encoders(shared)[0], shared / "encoder.npz")
    (shared / "broken.npz").write_bytes((shared / "model.npz").read_bytes()[:-30])
    (shared / "note.txt").write_text("not an archive")
    (shared / "folder").mkdir(exist_ok=True)


def random_words(rng: np.random.Generator) -> list[str]:
    """One line of words."""
    command = str(pick(rng, COMMANDS)) if rng.random() < 0.97 else str(pick(rng, (*TEXTS, "go")))
    words = [command]
    if rng.random() < 0.97:
        words.append(str(pick(rng, SOURCES)) if rng.random() < 0.7 else "model.npz")
    if command in ("verify", "report") or (command == "solve" and rng.random() < 0.5):
        words.append(str(pick(rng, PATHS)))
    # Else all options are of the command and sane, so that most of the work is done.
    is_bad = rng.random() < 0.5
    if not is_bad:
        words = [command]
        words.append(str(pick(rng, ("model.npz", "model.npz", "bridge0.npz", "FrozenLake-v1"))))
        words += ["certificate.npz"] if command in ("verify", "report") else []
    if command in ("train", "run"):
        words += ["--steps", "2", "--transitions", "20"]
    if command in ("run", "report"):
        words += ["--learn", str(pick(rng, ("0", "0", "10")))]
    for _ in range(int(rng.integers(0, 5 if is_bad else 3))):
        words += _option(rng, command, is_bad)
    if command == "run" or rng.random() < 0.8:
        words += ["-o", str(pick(rng, FILES)) if is_bad else "out.npz"]
    if rng.random() < 0.5:
        words += ["--threads", "1"]
    if is_bad and rng.random() < 0.1:
        words.insert(int(rng.integers(len(words) + 1)), str(pick(rng, TEXTS)))
    return words


def _option(rng: np.random.Generator, command: str, is_bad: bool) -> list[str]:
    kind = int(rng.integers(10)) if is_bad else int(rng.integers(6))
    if kind < 5:
        name = str(pick(rng, NUMERIC if is_bad else OWN.get(command, NUMERIC)))
        if is_bad and rng.random() < 0.4:
            return [name, _bounded(name, str(pick(rng, NUMBERS)))]
        return [name, str(pick(rng, SANE.get(name, ("1", "5"))))]
    if kind == 5:
        return [str(pick(rng, FIXED if is_bad else FIXED[3:5]))]
    if kind == 6:
        value = str(pick(rng, ("4x4", '"8x8"', "1", "null", "[", "{}", "true", "[" * 5000, "NaN")))
        key = str(pick(rng, ("map_name", "is_slippery", "id", "desc", "1x", "", "render_mode")))
        return ["--env-arg", f"{key}={value}" if rng.random() < 0.9 else value]
    if kind == 7:
        return ["--import", str(pick(rng, ("json", "no_such_module", "", "..x", "a b", "\udcff")))]
    if kind == 8:
        if command in ("train", "run"):
            return ["--encoder", str(pick(rng, ("action-max", "dbc", "mico", "x")))]
        name = str(pick(rng, ("--encoder", "--checkpoint", "--resume")))
        return [name, str(pick(rng, PATHS))]
    choices: dict[str, tuple[str, ...]] = {
        "--scope": ("all", "covered", "none"),
        "--propose": ("classes", "classes,features", "", ",", "x"),
        "--mode": ("float", "exact", "sampled", "x"),
        "--terminal": ("absorb", "table", "x"),
        "--experience": ("model", "steps", "x"),
        "--title": TEXTS,
    }
    name = str(pick(rng, sorted(choices)))
    return [name, str(pick(rng, choices[name]))]


def _bounded(name: str, value: str) -> str:
    """Work that is asked for and would be done, for hours, is no hang."""
    is_work = name in ("--steps", "--transitions", "--learn", "--learn-seeds", "--sample")
    return "3" if is_work and value in ("1_000", "99999999999999999999999999") else value


def call(words: list[str]) -> tuple[Any, str, str]:
    """Exit code, output and errors of one command, run in this process."""
    # Strict, as standard output is in a UTF-8 locale: what cannot be encoded is a fault.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(
        io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code: Any = main(words)
        except SystemExit as stop:  # --help and --version
            code = stop.code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return code, texts[0], texts[1]


def prepare_cli(shared: Path) -> Run:
    """Random words against `main`, in a directory of their own."""
    make_files(shared)

    def run(case: Case) -> bool:
        words = random_words(case.rng)
        case.note = f"words {words!r}"
        for path in shared.iterdir():
            target = case.folder / path.name
            if path.is_dir():
                target.mkdir()
            else:
                target.symlink_to(path)
        before = Path.cwd()
        hook = sys.unraisablehook
        os.chdir(case.folder)
        try:
            code, out, err = call(words)
        except (BisimError, OSError, MemoryError):
            claim("--debug" in words, "an error got out")
            return False
        finally:
            os.chdir(before)
            sys.unraisablehook = hook
        claim(code in ALLOWED, f"exit code {code}: {err.strip()[-300:]}")
        claim("Traceback" not in err + out, "a traceback")
        claim(code == 0 or err.strip() or code in (3, 4, 5), "a failure without a word")
        return bool(code == 0)

    return run
