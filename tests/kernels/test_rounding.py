"""The unit roundoff: what it is, and that nobody writes it down a second time."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np

import bisim_abstract
from bisim_abstract._base.rounding import EPS


def test_eps_is_the_unit_roundoff() -> None:
    assert np.finfo(np.float64).eps / 2.0 == EPS
    assert 1.0 + EPS == 1.0  # a tie, which goes to the even one
    assert 1.0 + EPS * (1.0 + 2.0 * EPS) > 1.0


def test_it_is_written_down_once() -> None:
    home = Path(bisim_abstract.__file__).parent
    written = [
        path.relative_to(home).as_posix()
        for path in sorted(home.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.BinOp) and ast.unparse(node) in ("2.0 ** (-53)", "2.0 ** -53")
    ]
    assert written == ["_base/rounding.py"]
