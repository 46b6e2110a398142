"""Constraints for the oldest versions that `pyproject.toml` allows, for `make test-oldest`.

    python scripts/oldest.py > constraints-oldest.txt

Needs nothing but Python: it is run before anything is installed.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9][0-9a-z.]*)")


def read_bounds(path: Path = ROOT / "pyproject.toml") -> dict[str, str]:
    """Lower bound of every dependency, optional ones too."""
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        asked += extra
    bounds: dict[str, str] = {}
    for requirement in asked:
        if requirement.startswith(project["name"]):
            continue
        found = BOUND.match(requirement)
        if found is None:
            raise SystemExit(f"{requirement!r} has no lower bound")
        name, bound = found[1], found[2]
        if bounds.setdefault(name, bound) != bound:
            raise SystemExit(f"{name} has two lower bounds, {bounds[name]} and {bound}")
    return bounds


if __name__ == "__main__":
    for name, bound in sorted(read_bounds().items(), key=lambda pair: pair[0].lower()):
        print(f"{name}=={bound}")
