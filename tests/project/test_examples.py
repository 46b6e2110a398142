"""Examples that Hypothesis draws depend on the test alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import settings

from tests.support import ROOT

DRAWING = """
import hashlib, importlib, sys
import tests.conftest
from hypothesis import given, strategies as st

seen = hashlib.sha256()

@given(st.floats(-10.0, 10.0), st.integers(0, 2**32), st.text())
def draw(x, k, text):
    seen.update(repr((x, k, text)).encode())

for name in sys.argv[1:]:
    importlib.import_module(name)
draw()
print(seen.hexdigest())
"""


def drawn(*modules: str) -> str:
    command = [sys.executable, "-c", DRAWING, *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_do_not_depend_on_what_else_is_loaded() -> None:
    """Hypothesis would draw literals from the source of whatever modules are loaded."""
    assert drawn() == drawn("bisim_abstract._app.cli", "tests.support.worlds")


@pytest.mark.parametrize("name", ["few", "many"])
def test_profiles_leave_nothing_to_chance(name: str) -> None:
    profile = settings.get_profile(name)
    assert (profile.derandomize, profile.database, profile.deadline) == (True, None, None)
    assert profile.max_examples == {"few": 75, "many": 200}[name]


def test_no_test_has_a_profile_of_its_own() -> None:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.name != "test_examples.py":
            text = path.read_text()
            for name in ("derandomize", "deadline", "database", "max_examples", "register_profile"):
                assert f"{name}=" not in text, f"{path} sets {name}"
