"""Colours that have a meaning, the same in pictures and on the page of a report.

Each is a pair: on a light ground, and on a dark one.
"""

from __future__ import annotations

from typing import NamedTuple


class Shades(NamedTuple):
    """One colour on both grounds."""

    light: str
    dark: str


# Blue and orange are told apart by all eyes, and both can be read as text on their grounds.
UPPER = Shades("#0072B2", "#5CB3EA")  # the upper arm
LOWER = Shades("#C65102", "#F5955A")  # the lower arm
KEPT, LOST = UPPER, LOWER  # of the start value, and in the worst state
MERGE = Shades("#A8437C", "#E58FBE")  # between the bounds of both arms, and neither's

NAMED = {"upper": UPPER, "lower": LOWER, "kept": KEPT, "lost": LOST, "merge": MERGE}


def style_sheet() -> str:
    """The colours as variables of a page, by name: `--upper` and so on."""
    light, dark = (
        " ".join(f"--{name}: {shades[ground]};" for name, shades in NAMED.items())
        for ground in (0, 1)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
