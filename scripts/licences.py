"""Licences of everything that the package needs, or can use, as their own metadata state them.

    python scripts/licences.py            print the page
    python scripts/licences.py --write    write docs/licences.md

Direct dependencies by extra, then what these bring along. All extras should be installed; what is
not is said to be so. Versions are left out: they change, and licences rarely do.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
NAME = re.compile(r"[A-Za-z0-9._-]+")
# What metadata only say by a long text, or in words of their own; read from their licence files.
READ = {
    "cloudpickle": "BSD-3-Clause",
    "contourpy": "BSD-3-Clause",
    "cycler": "BSD-3-Clause",
    "jinja2": "BSD-3-Clause",
    "kiwisolver": "BSD-3-Clause",
    "mpmath": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "ray": "Apache-2.0",
    "scipy": "BSD-3-Clause",
    "stormpy": "GPL-3.0",
    "sympy": "BSD-3-Clause",
    "gymnasium": "MIT",
    "minigrid": "Apache-2.0",
    "networkx": "BSD-3-Clause",
    "numba": "BSD-2-Clause",
    "llvmlite": "BSD-2-Clause AND Apache-2.0 WITH LLVM-exception",
}
SHORT = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
    "GNU Library or Lesser General Public License (LGPL)": "LGPL",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "ISC License (ISCL)": "ISC",
    "The Unlicense (Unlicense)": "Unlicense",
}
REMARKS = {
    "stormpy": "copyleft, and optional: only for PRISM, JANI and DRN files, and to compare with",
    "pygame": "copyleft, dynamically linked; brought by MiniGrid",
    "pygame-ce": "copyleft, dynamically linked; brought by MiniGrid",
}
TOOLS = ("dev", "docs")
HEAD = """\
# Licences

This package is under the MIT licence. What it needs is permissive; what it can use beyond that is
not always. **Storm (`stormpy`) is under the GPL.** It is optional: nothing imports it unless a
PRISM, JANI or DRN file is read, and no code of it is part of this package. Whoever passes on a
program *together with* Storm has the GPL to keep.

Licences are those that the packages state themselves; `python scripts/licences.py --write` makes
this page anew. It is no legal advice.
"""
TAIL = """\
PyTorch's builds with CUDA bring NVIDIA's libraries, which have licences of their own; the CPU build
that this page was made with brings none of them. Tools for developing (`dev`, `docs`) are listed
without what they bring along, as no user needs that.
"""


def normal(name: str) -> str:
    """A name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_project() -> dict[str, list[str]]:
    """Names of direct dependencies: "" the required ones, then by extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    found = {}
    for group, asked in groups.items():
        names = [match[0] for entry in asked if (match := NAME.match(entry))]
        found[group] = [name for name in names if name != project["name"]]
    return found


def licence_of(name: str) -> str | None:
    """What the metadata of an installed package say; None if it is not installed."""
    try:
        found = metadata.metadata(name).json
    except metadata.PackageNotFoundError:
        return None
    if normal(name) in READ:
        return READ[normal(name)]
    if found.get("license_expression"):
        return str(found["license_expression"])
    classes = [
        entry.rpartition(" :: ")[2]
        for entry in found.get("classifier", [])
        if entry.startswith("License :: ") and not entry.endswith("OSI Approved")
    ]
    if classes:
        return " AND ".join(SHORT.get(entry, entry) for entry in classes)
    said = str(found.get("license", "")).strip().splitlines()
    return said[0] if said and len(said[0]) <= 60 else "not stated in its metadata"


def brought_by(names: list[str]) -> set[str]:
    """What these need in turn, as far as it is installed, without themselves."""
    seen: set[str] = set()
    todo = [normal(name) for name in names]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for entry in needs:
            match = NAME.match(entry)
            if match and "extra ==" not in entry and "sys_platform ==" not in entry:
                todo.append(normal(match[0]))
    return {name for name in seen if licence_of(name) is not None} - {normal(n) for n in names}


def make_page() -> str:
    """The page, in Markdown."""
    groups = read_project()
    lines = [HEAD, "| package | for | licence | |", "|---|---|---|---|"]
    extras: dict[str, list[str]] = {}
    for group, names in groups.items():
        for name in names:
            extras.setdefault(name, []).append(group)
    order = sorted(extras, key=lambda name: ("" not in extras[name], extras[name][0], name.lower()))
    for name in order:
        used = "everything" if "" in extras[name] else ", ".join(f"`{e}`" for e in extras[name])
        licence = licence_of(name) or "not installed"
        lines.append(f"| {name} | {used} | {licence} | {REMARKS.get(normal(name), '')} |")
    required = groups.pop("")
    users = [name for group, names in groups.items() if group not in TOOLS for name in names]
    for title, names in (
        ("Brought along by what is required", sorted(brought_by(required))),
        ("Brought along by extras for users", sorted(brought_by(users) - brought_by(required))),
    ):
        lines += ["", f"## {title}", "", "| package | licence | |", "|---|---|---|"]
        direct = {normal(name) for name in (*required, *users)}
        for name in names:
            if name not in direct:
                lines.append(f"| {name} | {licence_of(name)} | {REMARKS.get(name, '')} |")
    lines += ["", TAIL]
    return "\n".join(lines)


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/licences.md")
    if parser.parse_args().write:
        PAGE.write_text(make_page(), encoding="utf-8")
    else:
        print(make_page(), end="")


if __name__ == "__main__":
    main()
