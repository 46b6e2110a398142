"""Write docs/api.md from the docstrings of the public surface.

    python scripts/api.py           writes the file
    python scripts/api.py --check   exits with 1 if the file is not what would be written

Names come from `__all__` of the public packages; they are grouped by the module that defines them,
in reading order, and inside a module they keep the order of the source.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "docs" / "api.md"
PARTS = "bisim_abstract.parts"
PACKAGES = (
    "bisim_abstract",
    PARTS,
    "bisim_abstract.errors",
    "bisim_abstract.wrappers",
    "bisim_abstract.encoders",
)
# Modules in reading order. One that is missing here follows, by name, before the next package.
ORDER = (
    "mdp",
    "files",
    "estimation",
    "generators",
    "bisimulation",
    "metric",
    "certify",
    "certificate",
    "partition",
    "linking",
    "verify",
    "proposals",
    "blocks",
    "features",
    "embedding",
    "retrieval",
    "evaluation",
    "aggregate",
    "clustering",
    "comparison",
    "learning",
    "statemap",
    "planning",
    "transport",
    "plots",
    "report",
    "errors",
    "wrappers.tabular",
    "wrappers.enumerate",
    "wrappers._make",
    "wrappers.rooms",
    "wrappers.distractor",
    "wrappers.abstracted",
    "encoders.transitions",
    "encoders.base",
    "encoders.action_max",
    "encoders.dbc",
    "encoders.mico",
    "encoders.baselines",
)
WIDTH = 88  # of a signature that stays on one line
SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields", "Example", "Examples")
LISTS = ("Args", "Attributes", "Raises")
TITLES = {"Args": "Arguments", "Raises": "Raises", "Attributes": "Attributes"}

HEAD = """\
<!-- fmt: off -->

# Reference

Every public name, with its docstring. This page is made by `python scripts/api.py`; edit the
docstrings, not the page. Import names from the package they are listed under here; the modules in
the headings only say where the source is.
"""


def main() -> int:
    """Write or check the page; the exit code."""
    parser = argparse.ArgumentParser(description="Write docs/api.md from the docstrings.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    is_check = parser.parse_args().check
    text = page()
    if not is_check:
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.name} is out of date; run: python scripts/api.py", file=sys.stderr)
    return 1


def page() -> str:
    """The whole page."""
    groups = grouped()
    names = {name for _, _, members in groups for name, _ in members}
    lines = [HEAD]
    for package in PACKAGES:
        lines += [f"From `{package}`:", ""]
        for where, module, members in groups:
            if where == package:
                listed = [f"[`{name}`](#{name.lower()})" for name, _ in members]
                short = module.split(".")[-1].lstrip("_")
                lines.append(f"- {short}: {', '.join(listed)}")
        lines.append("")
    lines.pop()
    for package, module, members in groups:
        lines += ["", f"## `{module}`" + (" (parts)" if package == PARTS else ""), ""]
        lines.append(linked(summary_of(importlib.import_module(module)), names, ""))
        for name, value in members:
            lines += ["", *section(name, value, names)]
    return "\n".join(lines) + "\n"


def grouped() -> list[tuple[str, str, list[tuple[str, Any]]]]:
    """Packages to import from, modules and their public names and values, in reading order."""
    found: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    seen: set[str] = set()
    for package in PACKAGES:
        space = importlib.import_module(package)
        for name in space.__all__:
            if name not in seen:  # some errors stand at the top as well
                value = getattr(space, name)
                found.setdefault((package, value.__module__), []).append((name, value))
                seen.add(name)
    for members in found.values():
        members.sort(key=lambda member: inspect.getsourcelines(member[1])[1])

    def place(group: tuple[str, str]) -> tuple[int, int, str]:
        package, module = group
        short = module.removeprefix("bisim_abstract.")
        rank = ORDER.index(short) if short in ORDER else len(ORDER)
        return PACKAGES.index(package), rank, module

    return [(*group, found[group]) for group in sorted(found, key=place)]


def section(name: str, value: Any, names: set[str]) -> list[str]:
    """The Markdown of one public name."""
    lines = [f"### `{name}`", ""]
    if not isinstance(value, type):
        return [*lines, *fenced(signature(name, value)), "", *body(doc_of(value), names, name)]
    if not issubclass(value, BaseException):
        lines += [*fenced("class " + signature(name, value)), ""]
    lines += body(doc_of(value), names, name)
    parents = [base.__name__ for base in value.__mro__[1:] if base.__name__ in names]
    if parents:
        lines += ["", f"Builds on {', '.join(f'[`{p}`](#{p.lower()})' for p in parents)}."]
    fields, methods = own_members(value)
    if fields:
        lines += ["", "Properties:", ""]
        for key, text in fields:
            first, *more = paragraphs(text)
            rest = "".join(f" {' '.join(part.split())}" for part in more)
            lines.append(f"- `{key}`: {linked(' '.join(first.split()) + rest, names, name)}")
    for key, method in methods:
        lines += ["", f"#### `{name}.{key}`", "", *fenced(signature(key, method)), ""]
        lines += body(doc_of(method), names, name)
    return lines


def own_members(cls: type) -> tuple[list[tuple[str, str]], list[tuple[str, Any]]]:
    """Documented public properties and methods that the class itself defines."""
    fields: list[tuple[str, str]] = []
    methods: list[tuple[str, Any]] = []
    for key, raw in vars(cls).items():
        if key.startswith("_"):
            continue
        if isinstance(raw, property | functools.cached_property):
            text = inspect.getdoc(raw)
            if text:
                fields.append((key, text))
        elif isinstance(raw, classmethod | staticmethod) or inspect.isfunction(raw):
            method = getattr(cls, key)
            if method.__doc__:
                methods.append((key, method))
    return fields, methods


def doc_of(value: Any) -> str:
    """The docstring, cleaned; every public name must have one."""
    text = inspect.getdoc(value) if value.__doc__ else None
    if not text:
        raise ValueError(f"{value!r} has no docstring")
    return text


def summary_of(module: Any) -> str:
    """The first paragraph of a module's docstring."""
    return " ".join(paragraphs(doc_of(module))[0].split())


def paragraphs(text: str) -> list[str]:
    """Parts of a text between blank lines."""
    return [part for part in re.split(r"\n\s*\n", text.strip()) if part]


# -- signatures --------------------------------------------------------------------------------


def signature(name: str, value: Callable[..., Any]) -> str:
    """A call as it is written, without `self`; on several lines where it is long."""
    found = inspect.signature(value)
    parts: list[str] = []
    is_keyword_only = False
    kinds = inspect.Parameter
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    for index, parameter in enumerate(parameters):
        if parameter.kind is kinds.VAR_POSITIONAL:
            is_keyword_only = True
        elif parameter.kind is kinds.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            parts.append("*")
        parts.append(shown(parameter))
        is_last = index + 1 == len(parameters)
        following = None if is_last else parameters[index + 1].kind
        if parameter.kind is kinds.POSITIONAL_ONLY and following is not kinds.POSITIONAL_ONLY:
            parts.append("/")
    after = ""
    if not isinstance(value, type) and found.return_annotation is not found.empty:
        after = f" -> {annotation(found.return_annotation)}"
    line = f"{name}({', '.join(parts)}){after}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{name}(\n{inner}){after}"


def shown(parameter: inspect.Parameter) -> str:
    """One parameter with its annotation and default."""
    stars = ""
    if parameter.kind is parameter.VAR_POSITIONAL:
        stars = "*"
    elif parameter.kind is parameter.VAR_KEYWORD:
        stars = "**"
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {default(parameter.default)}"
    return text


def annotation(value: Any) -> str:
    """An annotation as in the source."""
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    return text.strip("'\"")


def default(value: Any) -> str:
    """A default in a form that is the same in every run."""
    if repr(value) == "<factory>" or isinstance(value, type(dataclasses.MISSING)):
        return "..."
    text = repr(value).replace("'", '"')
    return "..." if " at 0x" in text else text


def fenced(code: str) -> list[str]:
    """Code that is shown, not run."""
    return ["```py", *code.splitlines(), "```"]


# -- docstrings --------------------------------------------------------------------------------


def body(text: str, names: set[str], own: str) -> list[str]:
    """A Google docstring as Markdown."""
    lines: list[str] = []
    for title, content in split_sections(text):
        if lines:
            lines.append("")
        if title in LISTS:
            lines += [f"{TITLES[title]}:", ""]
            for key, value in entries(content):
                lines.append(f"- `{key}`: {linked(value, names, own)}")
        elif title in ("Returns", "Yields"):
            lines.append(f"{title}: {linked(' '.join(' '.join(content).split()), names, own)}")
        elif title:
            lines += ["Example:", "", *example(content, names, own)]
        else:
            lines += prose(content, names, own)
    return lines


def split_sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Titles (empty for plain text) and lines, in the order of the docstring."""
    title, lines = "", list[str]()
    for line in text.splitlines():
        word = line.removesuffix(":")
        if line.endswith(":") and word in SECTIONS:
            if any(lines):
                yield title, trimmed(lines)
            title, lines = word, []
        elif title and line and not line.startswith(" "):
            yield title, trimmed(lines)
            title, lines = "", [line]
        else:
            lines.append(line)
    if any(lines):
        yield title, trimmed(lines)


def trimmed(lines: list[str]) -> list[str]:
    """Lines without common indentation and blank ends."""
    return inspect.cleandoc("\n" + "\n".join(lines)).splitlines()


def entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Names and texts of an Args, Attributes or Raises section."""
    key, words = "", list[str]()
    for line in lines:
        start = re.match(r"(\*{0,2}[\w.]+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:(?: |$)(.*)", line)
        if start and not line.startswith(" "):
            if key:
                yield key, " ".join(words)
            key, words = start[1], [start[2]]
        else:
            words.append(line.strip())
    if key:
        yield key, " ".join(" ".join(words).split())


def prose(lines: list[str], names: set[str], own: str) -> list[str]:
    """Paragraphs and bullets; what is indented is shown as it is."""
    out: list[str] = []
    is_block = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        is_deep = line.startswith("    ") and (is_block or not out or not out[-1])
        if is_deep and not is_block:
            out.append("```text")
            is_block = True
        if is_block and line and not line.startswith("    "):
            is_block = False
            while not out[-1]:
                out.pop()
            out += ["```", ""]
        out.append(line[4:] if is_block else linked(line, names, own))
        if is_block and not line and not following:
            is_block = False
    if is_block:
        out.append("```")
    return out


def example(lines: list[str], names: set[str], own: str) -> list[str]:
    """Doctest parts as code, other lines as text."""
    out: list[str] = []
    for part in "\n".join(lines).split("\n\n"):
        if out:
            out.append("")
        if part.startswith(">>>"):
            out += ["```pycon", *part.splitlines(), "```"]
        else:
            out.append(linked(part, names, own))
    return out


def linked(text: str, names: set[str], own: str) -> str:
    """Public names in backticks as links, except the one that is being described."""

    def link(match: re.Match[str]) -> str:
        name = match[1].removeprefix("bisim_abstract.")
        name = name.removeprefix("wrappers.").removeprefix("encoders.")
        top = name.split(".")[0].split("(")[0]
        if top not in names or top == own:
            return match[0]
        return f"[{match[0]}](#{top.lower()})"

    return re.sub(r"`([\w.]+)`", link, text)


if __name__ == "__main__":
    sys.exit(main())
