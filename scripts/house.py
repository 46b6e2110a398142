"""The house: which room of the package imports which, read from the code.

    python scripts/house.py            # prints the rooms, and writes docs/images/house.svg
    python scripts/house.py --check    # prints what breaks the rules, if anything does

`tests/project/test_house.py` holds the code against the rules stated here. A module needs no entry
anywhere: it is in the room whose folder it lies in.
"""

from __future__ import annotations

import argparse
import ast
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bisim_abstract"

# A room may use those before it. What lies in no folder (errors, versions) is below all of them,
# the surface ("") above.
ROOMS = (
    "_base",
    "_kernels",
    "_model",
    "_exact",
    "_linkage",
    "_propose",
    "_bounds",
    "_abstract",
    "_certificate",
    "_prove",
    "_verify",
    "_compare",
    "encoders",
    "wrappers",
    "_app",
    "",
)
GROUND = frozenset({"errors", "_version"})
SURFACE = frozenset({"", "__main__", "parts", "_register"})
# Rooms that use less than their place would allow.
ONLY = {
    "_kernels": {"_base"},
    "_verify": {"_base", "_model"},
    "encoders": {"_base", "_model"},
}
NOT = {"wrappers": {"_prove", "_propose", "_compare", "encoders"}}
# Kernels are compiled: they know numbers, and the decorators.
KERNEL_IMPORTS = frozenset({"__future__", "math", "numpy"})
KERNELS_MAY_USE = frozenset({"_base.jit", "_base.rounding", "_base.types"})


@dataclass(frozen=True)
class Imports:
    """What a module imports.

    Attributes:
        own: Modules of this package, as dotted names below it, that are imported when it runs.
        typed: The same, for type checkers only.
        foreign: First parts of the names of all others.
    """

    own: frozenset[str]
    typed: frozenset[str]
    foreign: frozenset[str]


def find_modules() -> dict[str, Path]:
    """Dotted name below the package ("" for the package itself) and file of every module."""
    found = {}
    for path in sorted([*PACKAGE.rglob("*.py"), *_outside()]):
        inside = path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT)
        parts = inside.with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _outside() -> list[Path]:
    """Rooms that lie at the top of the checkout."""
    return [path for name in ("encoders", "wrappers") for path in (ROOT / name).glob("*.py")]


def room_of(module: str) -> str:
    """The room of a module; "" for the surface, and "ground" for what all may use."""
    top = module.partition(".")[0]
    if top in GROUND:
        return "ground"
    return "" if top in SURFACE else top


def read_imports(module: str, source: str, modules: dict[str, Path]) -> Imports:
    """What a module imports, at any depth: also in functions, by name, and for type checkers."""
    own: set[str] = set()
    typed: set[str] = set()
    foreign: set[str] = set()
    is_package = module == "" or any(name.startswith(f"{module}.") for name in modules)
    here = ["bisim_abstract", *(module.split(".") if module else [])]

    def add(name: str, into: set[str]) -> None:
        top, _, rest = name.partition(".")
        if top == "bisim_abstract":
            into.add(rest)
        else:
            foreign.add(top)

    def visit(node: ast.AST, into: set[str]) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name, into)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = node.level - 1 if is_package else node.level
                base = ".".join(here[: len(here) - above] + ([base] if base else []))
            for alias in node.names:
                # `from package import module` means the module, not the package.
                deeper = f"{base}.{alias.name}".removeprefix("bisim_abstract.")
                add(f"bisim_abstract.{deeper}" if deeper in modules else base, into)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            value = node.args[0].value
            if called in ("import_module", "__import__", "require") and isinstance(value, str):
                add(value, into)
        is_typed = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            in_body = isinstance(node, ast.If) and child in node.body
            visit(child, typed if is_typed and in_body else into)

    visit(ast.parse(source), own)
    return Imports(frozenset(own), frozenset(typed - own), frozenset(foreign))


def violations(module: str, found: Imports) -> list[str]:
    """What is wrong with these imports, in words."""
    room = room_of(module)
    if room not in (*ROOMS, "ground"):
        return [f"{module} lies in no room"]
    wrong = []
    for name in sorted(found.own | found.typed):
        target = room_of(name)
        if target in ("ground", room):
            continue
        if target not in ROOMS:
            wrong.append(f"{module} imports {name}, which lies in no room")
        elif room == "ground" or ROOMS.index(target) > ROOMS.index(room):
            wrong.append(f"{module} must not import {name or 'the package itself'}: it is above")
        elif name in found.own and target not in ONLY.get(room, {target}):
            wrong.append(f"{module} must not import {name}: {room} may use {sorted(ONLY[room])}")
        elif target in NOT.get(room, ()):
            wrong.append(f"{module} must not import {name}: {room} does without {target}")
    if room == "_kernels":
        mine = {name for name in found.own if room_of(name) != "ground"} - KERNELS_MAY_USE
        mine -= {"_kernels"}
        mine |= {name for name in found.own if room_of(name) == "ground"}
        mine |= found.foreign - KERNEL_IMPORTS
        wrong += [f"{module} must not import {name}: kernels know numbers" for name in sorted(mine)]
    return wrong


def read_all() -> dict[str, Imports]:
    """The imports of every module."""
    modules = find_modules()
    return {
        name: read_imports(name, path.read_text(encoding="utf-8"), modules)
        for name, path in modules.items()
    }


def main() -> int:
    """Print the rooms and draw them, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only print what breaks the rules")
    options = parser.parse_args()
    graph = read_all()
    wrong = [line for name, found in sorted(graph.items()) for line in violations(name, found)]
    print("\n".join(wrong) if wrong else "every import points down")
    return 1 if wrong else 0 if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
