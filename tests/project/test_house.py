"""The rooms: every import points down, read from the code itself."""

from __future__ import annotations

import ast
import importlib
import subprocess

import pytest

from tests.support import ROOT, house

GRAPH = house.read_all()
MODULES = house.find_modules()
FOLDERS = sorted(path.name for path in (ROOT / "bisim_abstract").iterdir() if path.is_dir())


def test_all_modules_are_found() -> None:
    some = {"", "_model.mdp", "_kernels.transport", "wrappers.rooms", "encoders.base"}
    assert some <= set(MODULES)


def test_imports_point_down() -> None:
    found = {name: house.violations(name, GRAPH[name]) for name in MODULES}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("room", [name for name in FOLDERS if not name.startswith("__")])
def test_every_folder_is_a_room_with_a_rule(room: str) -> None:
    assert room in house.ROOMS
    text = importlib.import_module(f"bisim_abstract.{room}").__doc__
    assert text is not None
    summary, blank, *rule = text.splitlines()
    assert summary.endswith(".")
    assert blank == ""
    assert rule


def test_git_knows_every_test() -> None:
    """A pattern that ignores results of runs must not ignore the tests of runs."""
    listed = subprocess.run(
        [
            "git",
            *("-c", f"safe.directory={ROOT}"),  # also in a checkout of another user
            "ls-files",
            "--others",
            "--ignored",
            "--exclude-standard",
            "--",
            "tests",
            "scripts",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [name for name in listed.stdout.splitlines() if name.endswith(".py")] == []


def test_only_arms_replace_tables_of_bounds() -> None:
    """Whoever else has something to say hands it over by `tighten`, proven where it is made."""
    for name, path in MODULES.items():
        if name in ("_bounds.arms", "_bounds.pair_table"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = getattr(getattr(node, "func", None), "attr", "")
            assert called not in ("with_bounds", "with_pairs"), (name, node)
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            assert not (stored and node.attr == "covered"), (name, node)  # type: ignore[attr-defined]


def test_late_makers_are_the_only_arrow_up() -> None:
    late = importlib.import_module("bisim_abstract._base.late")
    assert set(late.MAKERS.values()) <= {f"bisim_abstract.{name}" for name in MODULES}
    users = [name for name, found in GRAPH.items() if "_base.late" in found.own]
    assert users == ["_certificate.certificate"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors", "from bisim_abstract._model.mdp import TabularMDP"),
        ("_model.mdp", "def f():\n    from bisim_abstract._exact.metric import MetricBounds"),
        ("_model.mdp", "import bisim_abstract.wrappers.rooms"),
        ("_model.mdp", "from bisim_abstract import wrappers"),
        ("_model.mdp", "from .._exact import metric"),
        ("_model.mdp", "from ..encoders import base"),
        ("_model.mdp", "import importlib\nimportlib.import_module('bisim_abstract._exact.metric')"),
        ("_exact.metric", "from bisim_abstract import TabularMDP"),
        ("_exact.metric", "if TYPE_CHECKING:\n    from bisim_abstract._bounds.arms import Arms"),
        ("_kernels.transport", "from bisim_abstract.errors import BisimError"),
        ("_kernels.transport", "from bisim_abstract._base.memory import check_memory"),
        ("_kernels.transport", "import scipy"),
        ("_verify.floats", "from bisim_abstract._bounds.arms import Arms"),
        ("_verify.floats", "from bisim_abstract._kernels.transport import spread_kernel"),
        ("wrappers.rooms", "from bisim_abstract.encoders import base"),
        ("wrappers.rooms", "from bisim_abstract import TabularMDP"),
        ("wrappers.rooms", "from bisim_abstract._prove.certify import certify"),
        ("encoders.base", "from bisim_abstract.wrappers.rooms import RoomsGridEnv"),
        ("encoders.base", "from bisim_abstract._exact.planning import value_iteration"),
        ("_unheard.of", ""),
        ("_model.mdp", "from bisim_abstract._unheard.of import name"),
    ],
)
def test_wrong_imports_are_noticed(module: str, source: str) -> None:
    assert house.violations(module, house.read_imports(module, source, MODULES)) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("_exact.metric", "from bisim_abstract._model.mdp import TabularMDP\nimport scipy"),
        ("_model.mdp", "from bisim_abstract import errors"),
        ("_model.mdp", "from ..errors import BisimError"),
        ("_verify.floats", "if TYPE_CHECKING:\n    from bisim_abstract._bounds.arms import Arms"),
        ("wrappers.rooms", "from bisim_abstract._verify.verify import verify"),
        ("wrappers.rooms", "from bisim_abstract.wrappers.tabular import extract_mdp"),
        ("encoders.base", "import torch\nfrom bisim_abstract._model.mdp import TabularMDP"),
        ("_app.cli", "from bisim_abstract.encoders import base\nimport bisim_abstract.wrappers"),
        ("_kernels.refine", "import numpy\nfrom bisim_abstract._base.jit import kernel"),
    ],
)
def test_right_imports_are_not(module: str, source: str) -> None:
    assert house.violations(module, house.read_imports(module, source, MODULES)) == []
