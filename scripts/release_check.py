"""Is this commit fit to be released? Builds it, installs it elsewhere, and runs the README there.

    python scripts/release_check.py [--keep DIR] [--tag v1.2.3]

1. a clone of HEAD, so that nothing counts that is not committed;
2. source distribution and wheel, the latter built from the former, and their metadata;
3. the wheel in a fresh environment outside the tree, with the versions of `constraints.txt`: all
   commands and examples of the README, and what the examples print;
4. the source distribution in another fresh environment: it installs the same files as the wheel,
   byte by byte, and asks for the same packages, so that what was run for one holds for the other.
   These packages are not installed twice, which would take as long as all the rest.

The version must stand at the top of the changelog. `--keep` leaves the two files in a directory.
With `--tag v1.2.3` the tag must name that version, and the changelog may not call it unreleased.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What an outsider has: nothing that points into the checkout or to an environment in use.
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "NUMBA_CACHE_DIR")


class NotFitError(Exception):
    """What is wrong, in one sentence or with the output of what failed."""


def run(*words: str | Path, cwd: Path, path: Path | None = None) -> str:
    """What a command prints; NotFitError if it fails."""
    environment = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    environment["MPLBACKEND"] = "Agg"
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    command = [str(word) for word in words]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NotFitError(f"{' '.join(command)[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def read_blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of all fenced blocks of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def read_examples(text: str) -> list[tuple[str, str]]:
    """Python blocks of a page, each with the output that is shown after it."""
    found = [(kind, block) for kind, block in read_blocks(text) if kind in ("python", "text")]
    kinds = [kind for kind, _ in found]
    if kinds != ["python", "text"] * (len(found) // 2):
        raise NotFitError("a Python block of the page is not followed by what it prints")
    blocks = [block for _, block in found]
    return list(zip(blocks[::2], blocks[1::2], strict=True))


def missing_lines(shown: str, printed: str) -> list[str]:
    """Lines that a page shows and a program did not print; `...` stands for any."""
    return [line for line in shown.splitlines() if line.strip() != "..." and line not in printed]


def check_changelog(source: Path, tag: str | None = None) -> str:
    """The version, if the changelog begins with it, and the tag is its own."""
    text = (source / "bisim_abstract" / "_version.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)[0]
    log = (source / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (\S+)(.*)$", log, flags=re.MULTILINE)
    if first is None or first[1] != version:
        raise NotFitError(f"the changelog does not begin with version {version}")
    if tag and tag != f"v{version}":
        raise NotFitError(f"the tag {tag} is not that of version {version}")
    if tag and "unreleased" in first[2]:
        raise NotFitError(f"the changelog calls version {version} unreleased")
    return str(version)


def build(source: Path, out: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that was built from it."""
    run(sys.executable, "-m", "build", "--outdir", out, source, cwd=out.parent)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, cwd=out.parent)
    return sdist, wheel


def install(what: Path, where: Path, *options: str | Path) -> Path:
    """The directory of programs of a fresh environment with this."""
    venv.create(where, with_pip=True)
    words = ("install", "--quiet", "--progress-bar", "off", "--disable-pip-version-check")
    run(where / "bin" / "python", "-m", "pip", *words, *options, what, cwd=where)
    return where / "bin"


def installed_files(programs: Path) -> dict[str, str]:
    """Every file of the installed package, and its metadata, with its digest."""
    (site,) = (programs.parent / "lib").glob("python*/site-packages")
    (facts,) = site.glob("bisim_abstract-*.dist-info")
    paths = [path for path in (site / "bisim_abstract").rglob("*") if path.is_file()]
    paths += [facts / "METADATA", facts / "entry_points.txt"]
    return {
        str(path.relative_to(site)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
        if "__pycache__" not in path.parts
    }


def run_readme(source: Path, programs: Path, work: Path) -> int:
    """Run commands and examples of the README; how many there were."""
    text = (source / "README.md").read_text(encoding="utf-8")
    commands = [
        line.partition("#")[0].strip()
        for kind, block in read_blocks(text)
        if kind == "sh"
        for line in block.splitlines()
        if line.startswith("bisim-abstract ")
    ]
    for command in ("bisim-abstract --help", *commands):
        run("bash", "-c", command, cwd=work, path=programs)
    examples = read_examples(text)
    for code, shown in examples:
        printed = run(programs / "python", "-P", "-c", code, cwd=work)
        missing = missing_lines(shown, printed)
        if missing:
            raise NotFitError(f"the README shows {missing[0]!r}, but this was printed:\n{printed}")
    return len(commands) + len(examples)


def check(
    source: Path, work: Path, told: Callable[[str], None], tag: str | None = None
) -> tuple[Path, Path]:
    """All of it, in an empty directory; returns both files."""
    version = check_changelog(source, tag)
    out = work / "dist"
    out.mkdir()
    sdist, wheel = build(source, out)
    told(f"built {sdist.name} and {wheel.name}")
    if wheel.name.split("-")[1] != version:
        raise NotFitError(f"{wheel.name} is not of version {version}")
    others = install(sdist, work / "from-sdist", "--no-deps")
    programs = install(wheel, work / "from-wheel", "-c", source / "constraints.txt")
    run(programs / "python", "-m", "pip", "check", cwd=work)
    if installed_files(programs) != installed_files(others):
        raise NotFitError("the source distribution installs other files than the wheel")
    told("installed both in fresh environments: the same files")
    place = work / "elsewhere"
    place.mkdir()
    where = "import bisim_abstract; print(bisim_abstract.__file__, bisim_abstract.__version__)"
    path, found = run(programs / "python", "-P", "-c", where, cwd=place).split()
    if found != version or not Path(path).is_relative_to(programs.parent):
        raise NotFitError(f"{path} of version {found} is imported, not what was installed")
    count = run_readme(source, programs, place)
    told(f"ran {count} commands and examples of the README")
    return sdist, wheel


def main() -> int:
    """Check the commit that is checked out; 1 if it is not fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="a directory for the two files")
    parser.add_argument("--tag", help="of the release, if it is one")
    asked = parser.parse_args()
    begin = time.monotonic()

    def told(text: str) -> None:
        print(f"{time.monotonic() - begin:6.0f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="release-check-") as folder:
        work, source = Path(folder), Path(folder) / "source"
        try:
            if run("git", "status", "--porcelain", cwd=ROOT).strip():
                told("note: there are changes that are not committed; they are not looked at")
            run("git", "clone", "--quiet", ROOT, source, cwd=work)
            files = check(source, work, told, asked.tag)
        except NotFitError as error:
            print(f"not fit to be released: {error}", file=sys.stderr)
            return 1
        if asked.keep is not None:
            asked.keep.mkdir(parents=True, exist_ok=True)
            for path in files:
                shutil.copy2(path, asked.keep)
    told("fit to be released")
    return 0


if __name__ == "__main__":
    sys.exit(main())
