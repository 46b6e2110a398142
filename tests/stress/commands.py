"""The command line: random words, good and bad, on tiny files."""

from __future__ import annotations

import io
import os
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from bisim_abstract import BisimError
from bisim_abstract._app.cli import main
from bisim_abstract._app.config import Config
from bisim_abstract._app.runs import Run as WholeRun
from bisim_abstract._app.sources import Source
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from tests.stress.certifying import ONE, make_certificate
from tests.stress.files import make_bridges, make_encoders
from tests.stress.running import Case, Run
from tests.stress.strategies import is_drawn, pick, words

ALLOWED = (0, 2, 3, 4, 5)
SILENT = (0, 3, 4, 5)  # codes that say it all
COMMANDS = words("extract train certify verify solve report export run")
GOOD_SOURCES = ("model.npz", "model.npz", "bridge0.npz", "FrozenLake-v1")
SOURCES = [
    *["model.npz"] * 8,
    *words("other.npz bridge0.npz certificate.npz broken.npz missing.npz note.txt folder"),
    *words("FrozenLake-v1 FrozenLake-v1 NoSuchEnv-v0 os:FrozenLake-v1 a/b/c:d CartPole-v1"),
    *("../model.npz", "", "\0", "x" * 300, "\udcff.npz", "日本-v0", "-v"),
]
NUMBERS = [
    *words("0 1 2 3 -1 0.5 0.9 0.99 1.0 1.5 nan inf -inf 1e-300 1e308 1e400 abc 0x10 1_000 ٣ -0"),
    *("99999999999999999999999999", "", " 1"),
]
TEXTS = ("", "x", "<b>&", "日本", "\udcff", "a\nb", "[bold]", "--", "x" * 3000)
FILES = [
    *words("out.npz out.html new folder missing/out.npz /proc/x ."),
    *("", "\udcff.npz", "a\0b", "x" * 300),
]
PATHS = ("certificate.npz", "certificate.npz", "encoder.npz", "model.npz", "broken.npz", "nope")
RUNS = ("done", "done", "edited", "lost", "folder", "done/mdp.npz", "nope")
# Words are drawn per option; numbers are mostly sane, so that commands get past the parser.
SANE = {
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
# Work that is asked for and would be done, for hours, is no hang.
WORK = words("--steps --transitions --learn --learn-seeds --sample")
COMMON = words("--seed --threads --max-states --backgrounds")
GOAL = words("--keep --max-loss --tau --clusters --tol --max-pairs --max-seconds --max-rounds")
GOAL += ["--max-backups", "--gamma"]
OWN = {
    "extract": COMMON,
    "train": [*COMMON, "--gamma", "--dim"],
    "certify": [*COMMON, *GOAL],
    "verify": ["--seed", "--threads", "--sample"],
    "solve": ["--threads", "--gamma"],
    "report": ["--seed", "--threads"],
    "export": ["--seed", "--threads"],
    "run": [*COMMON, *GOAL, "--dim", "--learn-seeds"],
}
NUMERIC = [*COMMON, *GOAL, *WORK, "--dim"]
FIXED = words("--json --quiet --train=never --reachable-only --same-action --help --debug")
CHOICES: dict[str, tuple[str, ...]] = {
    "--method": ("blocks", "covering", "none"),
    "--propose": ("classes", "classes,features", "", ",", "x"),
    "--mode": ("float", "exact", "sampled", "x"),
    "--terminal": ("absorb", "table", "x"),
    "--experience": ("model", "steps", "x"),
    "--title": TEXTS,
    "--const": ("N=3", "p=0.5,fast=true", "N", "=", ",", "", "N=1e999", "\udcff=1"),
    "--reward": ("time", "-cost", "", "\udcff"),
    "--goal": ("done", "", "\udcff"),
    "--actions": ("names", "positions", "x"),
    "--import": ("json", "no_such_module", "", "..x", "a b", "\udcff"),
}
ENV_KEYS = ("map_name", "is_slippery", "id", "desc", "1x", "", "render_mode")
ENV_VALUES = ("4x4", '"8x8"', "1", "null", "[", "{}", "true", "[" * 5000, "NaN")


def make_files(shared: Path) -> None:
    """Tiny files of every kind."""
    mdp = grouped_mdp(8, 2, 2, noise=0.01, seed=0)[0]
    mdp.save(shared / "model.npz")
    sparse_mdp(5, 2, support=2, seed=1).save(shared / "other.npz")
    make_certificate(mdp, 0.9).save(shared / "certificate.npz")
    make_bridges(shared)
    shutil.copy(make_encoders(shared)[0], shared / "encoder.npz")
    (shared / "broken.npz").write_bytes((shared / "model.npz").read_bytes()[:-30])
    (shared / "note.txt").write_text("not an archive")
    (shared / "folder").mkdir(exist_ok=True)
    config = Config(source=Source(name=str(shared / "model.npz")), learn=0)
    done = WholeRun(shared / "done", config, resources=ONE)().folder
    shutil.copytree(done, shared / "edited")
    path = shared / "edited" / "config.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    shutil.copytree(done, shared / "lost")
    (shared / "lost" / "certificate.npz").unlink()


@st.composite
def lines(draw: st.DrawFn) -> Case:
    """One line of words; in half of the cases all are sane, so that most of the work is done."""
    command = pick(draw, (*TEXTS, "go")) if is_drawn(draw, 0.03) else pick(draw, COMMANDS)
    line, is_bad = [command], draw(st.booleans())
    if command == "export":
        line += [pick(draw, (*PATHS, *RUNS)) if is_bad else "certificate.npz", "--model"]
    if not is_bad or is_drawn(draw, 0.97):
        line.append(pick(draw, SOURCES if is_bad else GOOD_SOURCES))
    if command in ("verify", "report", "run") and is_drawn(draw, 0.3):
        where = pick(draw, RUNS) if is_bad else "done"
        line = [command, "--resume", where] if command == "run" else [command, where]
        return {"line": line if command == "verify" or is_drawn(draw, 0.5) else [*line, "--quiet"]}
    if command in ("verify", "report"):
        line.append(pick(draw, PATHS) if is_bad else "certificate.npz")
    elif command == "solve" and is_bad and draw(st.booleans()):
        line.append(pick(draw, PATHS))
    if command in ("train", "run"):
        line += ["--steps", "2", "--transitions", "20"]
    if command in ("run", "report"):
        line += ["--learn", pick(draw, ("0", "0", "10"))]
    for _ in range(draw(st.integers(0, 4 if is_bad else 2))):
        line += bad_option(draw, command) if is_bad else good_option(draw, command)
    if command == "run" or is_drawn(draw, 0.8):
        line += ["-o", pick(draw, FILES) if is_bad else "out.npz"]
    if draw(st.booleans()):
        line += ["--threads", "1"]
    if is_bad and is_drawn(draw, 0.1):
        line.insert(draw(st.integers(0, len(line))), pick(draw, TEXTS))
    return {"line": line}


def good_option(draw: st.DrawFn, command: str) -> list[str]:
    """An option of the command with a sane number."""
    if is_drawn(draw, 0.17):
        return [pick(draw, FIXED[:2])]
    name = pick(draw, OWN.get(command, NUMERIC))
    return [name, pick(draw, SANE.get(name, ("1", "5")))]


def bad_option(draw: st.DrawFn, command: str) -> list[str]:
    """Any option with any value."""
    kind = pick(draw, [*["number"] * 5, "fixed", "env", "choice", "choice", "path"])
    if kind == "number":
        name = pick(draw, NUMERIC)
        value = pick(draw, NUMBERS if is_drawn(draw, 0.4) else SANE.get(name, ("1", "5")))
        return [name, "3" if name in WORK and value in ("1_000", NUMBERS[-3]) else value]
    if kind == "fixed":
        return [pick(draw, FIXED)]
    if kind == "env":
        value = pick(draw, ENV_VALUES)
        return ["--env-arg", value if is_drawn(draw, 0.1) else f"{pick(draw, ENV_KEYS)}={value}"]
    if kind == "choice":
        name = pick(draw, list(CHOICES))
        return [name, pick(draw, CHOICES[name])]
    if command in ("train", "run"):
        return ["--encoder", pick(draw, ("action-max", "dbc", "mico", "x"))]
    return [pick(draw, ("--encoder", "--checkpoint", "--resume")), pick(draw, PATHS)]


def call(line: list[str]) -> tuple[Any, str, str]:
    """Exit code, output and errors of one command, run in this process."""
    # Strict, as standard output is in a UTF-8 locale: what cannot be encoded is a fault.
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)
        for errors in ("strict", "backslashreplace")
    )
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code: Any = main(line)
        except SystemExit as stop:  # --help and --version
            code = stop.code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return code, texts[0], texts[1]


def prepare_cli(shared: Path) -> tuple[st.SearchStrategy[Case], Run]:
    """Random words against `main`, in a directory of their own."""
    make_files(shared)

    def run(folder: Path, line: list[str]) -> bool:
        for path in shared.iterdir():
            target = folder / path.name
            if path.is_dir():
                shutil.copytree(path, target)
            else:
                target.symlink_to(path)
        before, hook = Path.cwd(), sys.unraisablehook
        os.chdir(folder)
        try:
            code, out, err = call(line)
        except (BisimError, OSError, MemoryError):
            assert "--debug" in line, "an error got out"
            return False
        finally:
            os.chdir(before)
            sys.unraisablehook = hook
        assert code in ALLOWED, f"exit code {code}: {err.strip()[-300:]}"
        assert "Traceback" not in err + out, "a traceback"
        assert code in SILENT or err.strip(), "a failure without a word"
        return bool(code == 0)

    return lines(), run
