"""The house: which room of the package imports which, read from the code.

    python scripts/house.py            # prints the rooms, and writes docs/images/house.svg
    python scripts/house.py --check    # prints what breaks the rules, if anything does

`tests/project/test_house.py` holds the code against the rules stated here. A module needs no entry
anywhere: it is in the room whose folder it lies in.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import textwrap
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape, unescape

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bisim_abstract"

# A room may use those before it. What lies in no folder (errors, versions) is below all of them,
# the surface ("") above.
ROOMS = (
    "_base",
    "_kernels",
    "_model",
    "_relations",
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
KERNEL_IMPORTS = frozenset({"__future__", "math", "numpy", "typing"})
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


# -- the plan, and a drawing of it -------------------------------------------------------------

DRAWING = ROOT / "docs" / "images" / "house.svg"
Arrow = tuple[str, str]


@dataclass(frozen=True)
class Room:
    """A room as it is drawn: the first line of its rule, and its size."""

    name: str
    rule: str
    n_modules: int
    n_lines: int


@dataclass(frozen=True)
class Plan:
    """All rooms in order, and who uses whom (nothing that others imply)."""

    rooms: tuple[Room, ...]
    arrows: tuple[Arrow, ...]


def read_plan() -> Plan:
    """The rooms as the code has them. The ground, which all stand on, has no arrows."""
    modules = find_modules()
    rooms = []
    for name in ("ground", *ROOMS):
        paths = [path for module, path in modules.items() if room_of(module) == name]
        texts = [path.read_text(encoding="utf-8") for path in paths]
        if name == "ground":
            rule = " and ".join(sorted(GROUND, key=lambda module: module.lstrip("_")))
        else:
            source = modules[name].read_text(encoding="utf-8")
            rule = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        rooms.append(Room(name, rule, len(paths), sum(text.count("\n") for text in texts)))
    used = {
        (room_of(module), room_of(name))
        for module, found in read_all().items()
        for name in found.own
    }
    arrows = {(user, room) for user, room in used if user != room and "ground" not in (user, room)}
    return Plan(tuple(rooms), tuple(sorted(reduced(arrows), key=_in_order)))


def _in_order(arrow: Arrow) -> tuple[int, int]:
    return ROOMS.index(arrow[0]), ROOMS.index(arrow[1])


def reduced(arrows: set[Arrow]) -> set[Arrow]:
    """Arrows that no chain of others implies; they all point down."""

    def reachable(room: str) -> set[str]:
        below = {target for user, target in arrows if user == room}
        return below.union(*(reachable(target) for target in below))

    return {
        (user, room)
        for user, room in arrows
        if not any(room in reachable(other) for via, other in arrows if via == user)
    }


# Pixels. A room that is passed on the way is passed through a shaft, drawn as a line.
WIDTH, HEIGHT, FLOOR, SHAFT, GAP, MARGIN, ROOF = 336, 116, 62, 14, 30, 34, 44
LETTERS = 43  # of a rule, to a line
STYLE = """
  text { font-family: "DejaVu Sans", Verdana, sans-serif; font-size: 13px; fill: #334; }
  .name { font-size: 16px; font-weight: bold; fill: #0b3c5d; }
  .small { font-size: 12px; fill: #667; }
  .less { font-size: 11.5px; fill: #b04a00; }
  .paper { fill: #fff; }
  .room { fill: #f3f7fb; stroke: #7d9bb5; stroke-width: 1.2; }
  .few { stroke: #d9762b; stroke-width: 1.8; }
  .roof { fill: #dcebf7; }
  .ground { fill: #e9e6df; stroke: #b9b2a3; }
  .bar { fill: #0072b2; }
  .rail { fill: #d5e0ea; }
  .arrow { fill: none; stroke: #54708a; stroke-width: 1.6; }
  .head { fill: #54708a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #cfd6e0; } .name { fill: #9fd0f5; } .small { fill: #98a4b3; }
    .less { fill: #f5955a; } .paper { fill: #14181f; } .room { fill: #1d2530; stroke: #4c647c; }
    .few { stroke: #c8702f; } .roof { fill: #22384c; } .ground { fill: #2b2a27; stroke: #57534a; }
    .bar { fill: #5cb3ea; } .rail { fill: #2d3a48; } .arrow { stroke: #86a3bd; }
    .head { fill: #86a3bd; }
  }"""
CAPTION = """\
Arrows lead from a room to those that it imports when it runs; what other arrows imply is left out
(transitive reduction). Rooms framed in orange use less than their place would allow. Bars show
lines of code. Drawn by scripts/house.py, from the code."""
HEAD = """\
<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker>"""
Item = tuple[str, str]  # a room and "", or the arrow whose shaft it is


def draw(plan: Plan) -> str:
    """The house as SVG, the same text for the same plan."""
    rooms = {room.name: room for room in plan.rooms}
    storeys, links = _storeys(plan)
    places = _places(storeys, links)
    left = min(places[item] - _width(item) / 2 for row in storeys for item in row) - MARGIN
    right = max(places[item] + _width(item) / 2 for row in storeys for item in row) + MARGIN
    width = round(right - left)
    tops = {
        item: MARGIN + ROOF + (len(storeys) - 1 - k) * (HEIGHT + FLOOR)
        for k, row in enumerate(storeys)
        for item in row
    }
    centres = {item: x - left for item, x in places.items()}
    largest = max(room.n_lines for room in plan.rooms)
    foot = max(tops.values()) + HEIGHT + 24
    caption = CAPTION.splitlines()
    height = foot + 46 + 26 + 20 * len(caption)
    inside = [
        "<title>The rooms of bisim_abstract, and which of them use which</title>",
        f"<metadata>{escape(_recorded(plan))}</metadata>",
        f"<style>{STYLE}\n</style>",
        f"<defs>{HEAD}</defs>",
        _tag("rect", kind="paper", width=width, height=height, rx=10),
        *_draw_arrows(links, centres, tops),
    ]
    for item in (item for row in storeys for item in row if not item[1]):
        inside += _draw_room(rooms[item[0]], centres[item] - WIDTH / 2, tops[item], largest)
    below = f"{rooms['ground'].rule}: every room may use them, and they use none."
    inside += [
        _tag("rect", kind="ground", x=MARGIN, y=foot, width=width - 2 * MARGIN, height=46, rx=6),
        _tag("text", "ground", kind="name", x=MARGIN + 14, y=foot + 29),
        _tag("text", below, x=MARGIN + 98, y=foot + 28),
    ]
    for k, text in enumerate(caption):
        inside.append(_tag("text", text, kind="small", x=MARGIN, y=foot + 72 + 20 * k))
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([begin, *inside, "</svg>", ""])


def _tag(name: str, text: str = "", *, kind: str = "", **attributes: float | str) -> str:
    """An element of a class; `text_anchor` stands for `text-anchor`."""
    parts = [name, f'class="{kind}"'] if kind else [name]
    for key, value in attributes.items():
        shown = value if isinstance(value, str) else f"{value:g}"
        parts.append(f'{key.replace("_", "-")}="{shown}"')
    return f"<{' '.join(parts)}>{escape(text)}</{name}>"


def _storeys(plan: Plan) -> tuple[list[list[Item]], list[tuple[Item, Item]]]:
    """Rooms and shafts of every storey from below, in a good order, and links between storeys."""
    level: dict[str, int] = {}
    for room in ROOMS:
        level[room] = max((level[low] + 1 for user, low in plan.arrows if user == room), default=0)
    storeys: list[list[Item]] = [[] for _ in range(max(level.values()) + 1)]
    for room in ROOMS:
        storeys[level[room]].append((room, ""))
    links: list[tuple[Item, Item]] = []
    for user, room in plan.arrows:
        here: Item = (user, "")
        for k in range(level[user] - 1, level[room], -1):
            shaft = (f"{user} to {room}", str(k))
            storeys[k].append(shaft)
            links.append((here, shaft))
            here = shaft
        links.append((here, (room, "")))
    best = [list(row) for row in storeys]
    for sweep in range(24):
        upward = sweep % 2 == 0
        order = range(1, len(storeys)) if upward else range(len(storeys) - 2, -1, -1)
        for k in order:
            fixed = {item: n for n, item in enumerate(storeys[k - 1 if upward else k + 1])}
            row = {item: n for n, item in enumerate(storeys[k])}
            means = {}
            for item, n in row.items():
                near = [fixed[other] for other in _others(item, links) if other in fixed]
                means[item] = sum(near) / len(near) if near else n
            storeys[k] = sorted(row, key=lambda item: (means[item], row[item]))
        if _crossings(storeys, links) < _crossings(best, links):
            best = [list(row) for row in storeys]
    return best, links


def _others(item: Item, links: list[tuple[Item, Item]]) -> list[Item]:
    return [b if a == item else a for a, b in links if item in (a, b)]


def _crossings(storeys: list[list[Item]], links: list[tuple[Item, Item]]) -> int:
    """How often links cross, and how often they would."""
    spot = {item: (k, n) for k, row in enumerate(storeys) for n, item in enumerate(row)}
    count = 0
    for n, (a, b) in enumerate(links):
        for c, d in links[:n]:
            if spot[a][0] == spot[c][0]:
                count += (spot[a][1] - spot[c][1]) * (spot[b][1] - spot[d][1]) < 0
    return count


def _width(item: Item) -> int:
    return SHAFT if item[1] else WIDTH


def _places(storeys: list[list[Item]], links: list[tuple[Item, Item]]) -> dict[Item, float]:
    """Where each item has its middle: near those it is linked to, and apart from its neighbours."""
    places = {item: 0.0 for row in storeys for item in row}
    for sweep in range(300):
        for row in storeys if sweep % 2 else storeys[::-1]:
            wanted = []
            for item in row:
                near = [places[other] for other in _others(item, links)]
                if item[1]:  # a shaft is straight where it can be
                    near += 9 * [places[other] for other in places if other[0] == item[0]]
                # What hangs between several keeps a little to the middle.
                count = len(near) + (0.3 if len(near) > 1 else 0.0)
                wanted.append(sum(near) / count if near else places[item])
            offsets = [0.0]
            for a, b in pairwise(row):
                offsets.append(offsets[-1] + (_width(a) + _width(b)) / 2 + GAP)
            moved = _rising([x - gap for x, gap in zip(wanted, offsets, strict=True)])
            for item, x, gap in zip(row, moved, offsets, strict=True):
                places[item] = x + gap
    return {item: float(round(x)) for item, x in places.items()}


def _rising(values: list[float]) -> list[float]:
    """The nearest sequence, by squares, that does not fall."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            more, size = pools.pop()
            total, count = total + more, count + size
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]


def _draw_arrows(
    links: list[tuple[Item, Item]], centres: dict[Item, float], tops: dict[Item, int]
) -> list[str]:
    """One path for each arrow, through its shafts; arrows share the edge of a room evenly."""

    def port(item: Item, other: Item, is_below: bool) -> float:
        mine = [a if is_below else b for a, b in links if item == (b if is_below else a)]
        mine.sort(key=lambda end: centres[end])
        step = min(64.0, WIDTH * 0.8 / len(mine))
        return centres[item] + (mine.index(other) - (len(mine) - 1) / 2) * step

    paths = []
    for first in (link for link in links if not link[0][1]):
        user, here = first
        x, y = port(user, here, False), tops[user] + HEIGHT
        path = f"M{x:g} {y:g}"
        while True:
            x_next = centres[here] if here[1] else port(here, user, True)
            path += f" C{x:g} {y + FLOOR / 2:g} {x_next:g} {tops[here] - FLOOR / 2:g}"
            path += f" {x_next:g} {tops[here] - (0 if here[1] else 1):g}"
            if not here[1]:
                break
            x, y = x_next, tops[here] + HEIGHT
            path += f" L{x:g} {y:g}"
            user, here = here, next(b for a, b in links if a == here)
        paths.append(_tag("path", kind="arrow", d=path, marker_end="url(#head)"))
    return paths


def _draw_room(room: Room, x: float, y: float, largest: int) -> list[str]:
    """A box with name, size, rule, and what the room does without."""
    less = ""
    if room.name in ONLY:
        less = f"only {', '.join(sorted(ONLY[room.name], key=ROOMS.index))}"
    elif room.name in NOT:
        less = f"without {', '.join(sorted(NOT[room.name], key=ROOMS.index))}"
    size = f"{room.n_lines:,} lines, {room.n_modules} files"
    drawn = []
    if not room.name:  # the surface is the roof
        eaves, ridge = f"{x - 18:g} {y + 1:g} L{x + WIDTH + 18:g} {y + 1:g}", f"{x + WIDTH / 2:g}"
        drawn.append(_tag("path", kind="room roof", d=f"M{eaves} L{ridge} {y - ROOF:g} z"))
    kind = "room" + (" few" if less else "") + ("" if room.name else " roof")
    inner, rail = x + 14, WIDTH - 28
    drawn += [
        _tag("rect", kind=kind, x=x, y=y, width=WIDTH, height=HEIGHT, rx=6),
        _tag("text", room.name or "bisim_abstract", kind="name", x=inner, y=y + 25),
        _tag("text", size, kind="small", x=inner + rail, y=y + 25, text_anchor="end"),
    ]
    for k, line in enumerate(textwrap.wrap(room.rule.replace("`", ""), LETTERS)):
        drawn.append(_tag("text", line, x=inner, y=y + 47 + 17 * k))
    if less:
        drawn.append(_tag("text", less, kind="less", x=inner, y=y + HEIGHT - 21))
    length = max(3, round(rail * room.n_lines / largest))
    for kind, long in (("rail", rail), ("bar", length)):
        drawn.append(
            _tag("rect", kind=kind, x=inner, y=y + HEIGHT - 12, width=long, height=3, rx=1.5)
        )
    return drawn


def _recorded(plan: Plan) -> str:
    return json.dumps({"sizes": {r.name: [r.n_modules, r.n_lines] for r in plan.rooms}})


def is_fresh(text: str, plan: Plan) -> bool:
    """Whether a drawing shows this plan; sizes may be off by a fifth, as they change every day."""
    match = re.search(r"<metadata>(.*?)</metadata>", text)
    sizes = json.loads(unescape(match[1]))["sizes"] if match else {}
    then = []
    for room in plan.rooms:
        n_modules, n_lines = sizes.get(room.name, (0, 0))
        if abs(n_lines - room.n_lines) > max(100, room.n_lines / 5):
            return False
        then.append(replace(room, n_modules=n_modules, n_lines=n_lines))
    return draw(Plan(tuple(then), plan.arrows)) == text


def main() -> int:
    """Print the rooms and draw them, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only print what breaks the rules")
    options = parser.parse_args()
    graph = read_all()
    wrong = [line for name, found in sorted(graph.items()) for line in violations(name, found)]
    if not options.check:
        plan = read_plan()
        for room in reversed(plan.rooms):
            name = room.name or "bisim_abstract"
            print(f"{name:15}{room.n_lines:7,} lines  {room.rule}")
        DRAWING.write_text(draw(plan), encoding="utf-8")
    print("\n".join(wrong) if wrong else "every import points down")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
