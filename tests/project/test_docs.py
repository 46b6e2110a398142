"""The documentation: its code runs and prints what it says, its links and names are right."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import gymnasium as gym
import pytest

from tests.support import ROOT, house
from tests.support.examples import naming

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
EXPECTED = {
    "benchmarks.md",
    "certificate-format.md",
    "guarantee.md",
    "house.md",
    "how-to/cli.md",
    "how-to/environment.md",
    "how-to/index.md",
    "index.md",
    "mathematics.md",
    "paper.md",
    "reference/index.md",
    "tutorials/index.md",
    "words.md",
}
HOSTS = {"arxiv.org", "doi.org", "github.com", "gymnasium.farama.org"}
REFERENCE = {
    "surface": "bisim_abstract",
    "parts": "bisim_abstract.parts",
    "wrappers": "bisim_abstract.wrappers",
    "encoders": "bisim_abstract.encoders",
    "errors": "bisim_abstract.errors",
}

# Runs the blocks of a page one after another in one namespace; what each of them prints is
# written to a file of its own, so that nothing it prints can be taken for a mark of ours.
RUNNER = """
import contextlib, json, sys
page, blocks = json.load(open(sys.argv[1]))
space = {"__name__": "__main__"}
for k, (line, code) in enumerate(blocks):
    # Blank lines before it make tracebacks name the line of the page.
    compiled = compile("\\n" * line + code, page, "exec")
    with open(f"{sys.argv[1]}.{k}", "w") as out, contextlib.redirect_stdout(out):
        exec(compiled, space)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line before its first one."""

    language: str
    text: str
    line: int


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    language, begin, inside = "", 0, False
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if inside:
            code = "\n".join(lines[begin:number]) + "\n"
            found.append(Block(language, code, begin))
        else:
            language, begin = line[3:].strip(), number + 1
        inside = not inside
    assert not inside, "a fenced block has no end"
    return found


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def examples(text: str) -> Iterator[tuple[Block, str | None]]:
    """Python blocks, each with the output that is shown right after it, if there is any."""
    found = blocks(text)
    for block, following in zip_longest(found, found[1:]):
        if block.language == "python":
            is_shown = following is not None and following.language == "text"
            yield block, following.text if is_shown else None


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether lines are as shown, `...` standing for any number of them."""
    if not shown:
        return not printed
    if shown[0].strip() == "...":
        return any(matches(shown[1:], printed[k:]) for k in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and matches(shown[1:], printed[1:])


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def slugs(text: str) -> set[str]:
    """Anchors of a page, as GitHub makes them from headings."""
    found: dict[str, int] = {}
    anchors = set(re.findall(r'<a id="([^"]+)"', text))
    for title in re.findall(r"^#{1,6} +(.+?) *#*$", without_blocks(text), flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        anchors.add(f"{slug}-{count}" if count else slug)
    return anchors


def links(text: str) -> list[str]:
    return re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", without_blocks(text))


def pictures(text: str) -> list[str]:
    plain = without_blocks(text)
    tags = re.findall(r'<img[^>]*src="(.*?)"', plain)
    return [*re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", plain), *tags]


def test_every_page_is_there() -> None:
    assert set(PAGES) >= EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_code_runs_and_prints_what_is_shown(name: str, tmp_path: Path) -> None:
    assert "Taxi-v3" in gym.registry, "the pages are written for the pinned Gymnasium"
    pairs = list(examples(read(name)))
    if not pairs:
        return
    work, notes = tmp_path / "work", tmp_path / "blocks.json"
    work.mkdir()
    code = [(block.line, block.text) for block, _ in pairs]
    notes.write_text(json.dumps([str(DOCS / name), code]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(notes)],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for k, (block, shown) in enumerate(pairs):
        if shown is None:
            continue
        printed = Path(f"{notes}.{k}").read_text(encoding="utf-8")
        assert matches(lines_of(shown), lines_of(printed)), (
            f"the block at {name}:{block.line} prints\n\n{printed}\nbut the page shows\n\n{shown}"
        )


INSTALL = """\
pip install -c constraints.txt torch
pip install -c constraints.txt -e .
"""
SHELL = """
set -eu
bisim-abstract() { "$PYTHON" -m bisim_abstract "$@"; }
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", [*(DOCS / name for name in PAGES), ROOT / "README.md"], ids=str)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """All `sh` blocks of a page, one after another in one directory.

    What sets up an environment of its own is looked at and not done: targets of make must exist,
    and so must what pip is told to install.
    """
    script = ""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language != "sh":
            continue
        if block.text.startswith("make "):
            for line in block.text.splitlines():
                target = line.partition("#")[0].split()[1:]
                command = ["make", "--dry-run", *target]
                assert not subprocess.call(command, cwd=ROOT, stdout=subprocess.DEVNULL), line
        elif block.text.startswith("pip install "):
            assert block.text == INSTALL
        else:
            script += block.text
    if not script:
        return
    done = subprocess.run(
        ["bash", "-c", SHELL + script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_install_lines_name_constraints_and_extras_that_exist() -> None:
    """The package is on no index, and its name may be a stranger's there."""
    folders = ("bisim_abstract", "wrappers", "encoders", "scripts", "docs", "notebooks")
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in folders:
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in (".md", ".py", ".ipynb")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    lines = {
        (path.name, line)
        for path, text in texts.items()
        for line in re.findall(r"pip install\b.{0,20}", " ".join(re.split(r"[\s\\]+", text)))
    }
    assert len(lines) > 5
    assert not {x for x in lines if not x[1].startswith("pip install -c constraints.txt")}
    named = set(re.findall(r"""'\.\[(\w+)\]'|extra="(\w+)\"""", "".join(texts.values())))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"ray", "plots", "prism"} <= {a or b for a, b in named}
    assert {a or b for a, b in named} <= set(extras["optional-dependencies"])


def test_links_lead_somewhere() -> None:
    for name in PAGES:
        with naming(name=name):
            text = read(name)
            for target in links(text):
                if re.match(r"https?://", target):
                    continue
                path, _, anchor = target.partition("#")
                there = (DOCS / name).parent / path if path else DOCS / name
                assert there.exists(), f"{name} links to {target}"
                if anchor:
                    assert anchor in slugs(there.read_text(encoding="utf-8")), (
                        f"{name} links to {target}"
                    )


def test_pictures_exist() -> None:
    for name in PAGES:
        with naming(name=name):
            for target in pictures(read(name)):
                assert ((DOCS / name).parent / target).is_file(), f"{name} shows {target}"


@pytest.mark.slow
def test_drawings_are_made_by_a_script_and_follow_the_ground(tmp_path: Path) -> None:
    """Those of `scripts/drawings.py`: all are shown, and no colour is for one ground only."""
    done = subprocess.run(
        [sys.executable, "scripts/drawings.py", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = sorted(path.name for path in tmp_path.iterdir())
    assert len(made) > 5
    shown = {Path(target).name for name in PAGES for target in pictures(read(name))}
    assert shown >= set(made)
    kept = {path.name for path in (DOCS / "images").glob("*.svg")}
    assert kept == {*made, "house.svg"}
    for name in made:
        for text in ((tmp_path / name).read_text(), (DOCS / "images" / name).read_text()):
            root = ElementTree.fromstring(text)
            assert root.find("{http://www.w3.org/2000/svg}title") is not None
            assert "prefers-color-scheme: dark" in text
            assert not re.search(r"(?:fill|stroke): #(?!ffffff)", text)


def test_no_unknown_hosts() -> None:
    for name in PAGES:
        with naming(name=name):
            hosts = set(re.findall(r"https?://([\w.-]+)", read(name)))
            assert hosts <= HOSTS
            assert not re.search(r"index-url|(?<![\w.])/(tmp|home|work|root)/", read(name))


def test_index_names_every_page_and_lines_are_short() -> None:
    for name in PAGES:
        with naming(name=name):
            path = Path(name)
            if path.name != "index.md":
                index = path.parent / "index.md"
                assert f"({path.name}" in read(index.as_posix())
            elif path.parent != Path():
                assert f"({name}" in read("index.md")
            # Tables and formulas have no lines to break, and output is what it is.
            text = re.sub(
                r"^```(text|math)$.*?^```$", "", read(name), flags=re.DOTALL | re.MULTILINE
            )
            long = [line for line in text.splitlines() if len(line) > 100]
            assert not [line for line in long if not line.startswith("|")]


# -- the reference and the site ----------------------------------------------------------------


def directives(name: str) -> list[str]:
    """What a page asks `mkdocstrings` to describe."""
    return re.findall(r"^::: (\S+)$", read(f"reference/{name}.md"), flags=re.MULTILINE)


def test_reference_has_every_public_name_once_and_nothing_else() -> None:
    errors = importlib.import_module("bisim_abstract.errors").__all__
    for name, package in REFERENCE.items():
        public = set(importlib.import_module(package).__all__)
        if name != "errors":  # the few that stand at the top as well are described with the rest
            public -= set(errors)
        assert sorted(directives(name)) == sorted(f"{package}.{entry}" for entry in public)
    assert {f"reference/{name}.md" for name in (*REFERENCE, "index")} == {
        page for page in PAGES if page.startswith("reference/")
    }


def test_reference_draws_the_tree_of_errors() -> None:
    text = importlib.import_module("bisim_abstract.errors").__doc__ or ""
    drawn = dedent(text.partition("::\n\n")[2])
    names = re.sub(r" {2,}\w.*$", "", drawn, flags=re.M)  # what they mean is said one by one
    assert [block.text for block in blocks(read("reference/errors.md"))] == [names]


def test_site_has_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1].split("\ntheme:")[0]
    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert sorted(re.findall(r"([\w/-]+\.md)\b", nav)) == sorted(
        [*PAGES, *notebooks, "contributing.md"]
    )


# -- the house ---------------------------------------------------------------------------------


def test_house_names_files_that_exist() -> None:
    named = set(re.findall(r"`([\w.-]+/[\w./-]*|\w+\.(?:toml|yml))`", read("house.md")))
    assert len(named) > 50
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_house_has_every_room_and_its_rule() -> None:
    rows = [line for line in read("house.md").splitlines() if line.startswith("| `")]
    expected = []
    for room in house.read_plan().rooms[1:]:  # all but the ground
        word = "only" if room.name in house.ONLY else "not"
        names = house.ONLY.get(room.name, house.NOT.get(room.name, ()))
        named = ", ".join(f"`{name}`" for name in sorted(names, key=house.ROOMS.index))
        less = f"{word} {named}" if named else ""
        expected.append(f"| `{room.name or 'bisim_abstract'}` | {room.rule} | {less} |")
    assert rows == expected


def test_drawing_of_the_house_is_fresh() -> None:
    drawn = house.DRAWING.read_text(encoding="utf-8")
    assert house.is_fresh(drawn, house.read_plan()), "run: make house"


def test_other_plans_are_noticed() -> None:
    plan = house.read_plan()
    drawn = house.draw(plan)
    assert house.is_fresh(drawn, plan)
    assert not house.is_fresh(drawn, replace(plan, arrows=plan.arrows[1:]))
    *others, last = plan.rooms
    for changed in (replace(last, rule="Another."), replace(last, n_lines=last.n_lines + 2_000)):
        assert not house.is_fresh(drawn, replace(plan, rooms=(*others, changed)))
    nearly = replace(last, n_lines=last.n_lines + 50)
    assert house.is_fresh(drawn, replace(plan, rooms=(*others, nearly)))


def test_what_others_imply_is_not_drawn() -> None:
    assert house.reduced({("c", "b"), ("b", "a"), ("c", "a")}) == {("c", "b"), ("b", "a")}


def test_mathematics_names_modules_that_exist() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", read("mathematics.md")))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / "bisim_abstract" / name).exists()] == []


def test_certificate_format_has_the_arrays_that_are_read() -> None:
    from bisim_abstract._certificate.certificate import SHAPES

    text = (DOCS / "certificate-format.md").read_text(encoding="utf-8")
    part = text[text.index("### The arrays") : text.index("### The digest")]
    listed = re.findall(r"^\| `([\w.]+)` \|", part, re.MULTILINE)
    known = {name.replace("#", "0") for name in SHAPES} | {"header", "digest"}
    assert sorted(listed) == sorted(known)
    # A number in words is wrong as soon as there is one more.
    assert not re.findall(r"\b(two|three|four|five|six|seven|eight|nine|ten) arrays", part)


def test_certificate_format_names_every_part() -> None:
    from bisim_abstract._abstract.episodes import NAMES
    from bisim_abstract._abstract.value import NUMBERS
    from bisim_abstract._certificate import certificate
    from bisim_abstract._certificate.value_files import STARTS, VALUE_SHAPES
    from bisim_abstract._model import files

    text = read("certificate-format.md")
    parts = (*certificate.INTEGERS, *certificate.REALS, *certificate.SCALARS, *files.ARRAYS)
    for part in (*parts, "header", "digest", "levels", "run", "format", "version"):
        assert f"`{part}`" in text
    for part in certificate.MODEL_ARRAYS:
        assert f"`level0.{part}`" in text
    for part in certificate.LEVEL_ARRAYS:
        assert f"`level0.pair_{part}`" in text
    for part in certificate.FEATURE_ARRAYS:
        assert f"`features.{part}`" in text
    for part in VALUE_SHAPES:
        assert f"`{part}`" in text
    fields = (*STARTS, *NAMES, "horizon", "baseline_action", "margin", "margin_kept", "conditions")
    for part in (*NUMBERS, *fields, "value"):
        assert f"`{part}`" in text


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        (["a"], ["a"], True),
        (["a"], ["a", "b"], False),
        (["a", "..."], ["a", "b", "c"], True),
        (["...", "c"], ["a", "b", "c"], True),
        (["a", "...", "c"], ["a", "c"], True),
        (["a", "...", "c"], ["a", "b"], False),
        ([], ["a"], False),
    ],
)
def test_shown_lines_are_compared(shown: list[str], printed: list[str], is_same: bool) -> None:
    assert matches(shown, printed) is is_same
