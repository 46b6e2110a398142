"""The package as seen from outside: names, docstrings, errors, and what importing costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import bisim_abstract
from bisim_abstract import errors
from bisim_abstract._base.deadline import OutOfTimeError
from bisim_abstract._bounds.action_values import TooMuchWorkError
from bisim_abstract._prove.work import OverBudgetError
from tests.support import ROOT, house
from tests.support.examples import naming

PACKAGE = Path(bisim_abstract.__file__).parent
SURFACES = [
    "bisim_abstract",
    "bisim_abstract.parts",
    "bisim_abstract.wrappers",
    "bisim_abstract.encoders",
]

MODULES = house.find_modules()
CORE = sorted(name for name in MODULES if name.split(".")[0] not in ("wrappers", "encoders"))


def public_names(module: types.ModuleType) -> set[str]:
    """Names without underscore that are ours: neither modules nor borrowed from elsewhere."""
    names = set()
    for name in dir(module):  # the package itself has names that are imported at first use
        value = getattr(module, name)
        home = getattr(value, "__module__", "bisim_abstract")
        borrowed = not isinstance(home, str) or home.split(".")[0] != "bisim_abstract"
        hidden = name.startswith("_") or name == "TYPE_CHECKING"
        if not (hidden or borrowed or inspect.ismodule(value)):
            names.add(name)
    return names


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SURFACES)
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    listed = list(module.__all__)
    assert listed == sorted(set(listed))
    for entry in listed:
        assert getattr(module, entry) is not None
    assert public_names(module) == set(listed)


def test_type_checkers_and_python_see_the_same_names() -> None:
    """The names of the package are listed twice, as it imports them at first use."""
    [block] = [
        node
        for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.If)
    ]
    seen = {
        (alias.name, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = vars(bisim_abstract)["_HOMES"]
    assert {(name, f"bisim_abstract.{home}") for name, home in homes.items()} == seen
    assert set(homes) == set(bisim_abstract.__all__)


def test_modules_do_not_hide_functions_of_their_name() -> None:
    code = (
        "import bisim_abstract._abstract.aggregate, bisim_abstract._prove.certify\n"
        "import bisim_abstract._verify.verify\n"
        "from bisim_abstract import aggregate, certify, verify\n"
        "print(callable(aggregate), callable(certify), callable(bisim_abstract.verify))\n"
        "print(sorted(set(bisim_abstract.__all__) - set(dir(bisim_abstract))))\n"
        "print(hasattr(bisim_abstract, 'nothing_of_this_name'))\n"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["True True True", "[]", "False"]


def test_the_surface_has_what_it_is_for() -> None:
    assert {"TabularMDP", "bisimulation_metric", "BisimError"} <= set(bisim_abstract.__all__)
    assert "_base" not in bisim_abstract.__all__


def test_version_is_that_of_the_changelog() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert bisim_abstract.__version__ == newest.group(1)


def test_modules_keep_their_own_lists() -> None:
    for name in filter(None, CORE):
        module = importlib.import_module(f"bisim_abstract.{name}")
        assert module.__doc__, name
        listed = list(getattr(module, "__all__", []))
        assert listed == sorted(set(listed)), name
        for entry in listed:
            assert hasattr(module, entry), f"{name}.{entry}"


def test_what_is_public_in_a_module_reaches_the_surface() -> None:
    """Every name that the surface shows is on its own module's list, where there is one."""
    for surface in SURFACES[:2]:
        module = importlib.import_module(surface)
        for name in module.__all__:
            home = importlib.import_module(getattr(module, name).__module__)
            assert name in getattr(home, "__all__", [name]), name


def test_a_name_has_one_home() -> None:
    """The top is what a user needs; what researchers combine is in `parts` and nowhere else."""
    top, parts = set(bisim_abstract.__all__), set(importlib.import_module(SURFACES[1]).__all__)
    assert not top & parts
    assert len(top) <= 50


# -- docstrings --------------------------------------------------------------------------------


def public_objects() -> list[tuple[str, object]]:
    found = []
    for surface in SURFACES:
        module = importlib.import_module(surface)
        found += [(f"{surface}.{name}", getattr(module, name)) for name in module.__all__]
    return found


OBJECTS = public_objects()
FUNCTIONS = [(name, value) for name, value in OBJECTS if inspect.isfunction(value)]
CLASSES = [(name, value) for name, value in OBJECTS if inspect.isclass(value)]


def test_functions_describe_their_arguments() -> None:
    for name, function in FUNCTIONS:
        with naming(name=name):
            text = inspect.cleandoc(function.__doc__ or "")
            assert text, f"{name} has no docstring"
            parameters = [entry.lstrip("*") for entry in inspect.signature(function).parameters]
            if parameters:
                match = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
                assert match is not None, f"{name} has no section Args"
                described = re.findall(r"^    \**(\w+):", match[1], re.MULTILINE)
                assert described == parameters


def test_classes_and_their_methods_are_described() -> None:
    for name, cls in CLASSES:
        with naming(name=name):
            assert inspect.cleandoc(cls.__doc__ or ""), f"{name} has no docstring"
            assert not (cls.__doc__ or "").startswith(f"{cls.__name__}("), (
                f"{name} has a generated one"
            )
            for entry, value in vars(cls).items():
                if entry.startswith("_"):
                    continue
                plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                plain = getattr(plain, "func", plain)  # cached_property
                if inspect.isfunction(plain) or isinstance(plain, property):
                    assert inspect.getdoc(getattr(cls, entry)) or inspect.getdoc(plain), (
                        f"{name}.{entry}"
                    )


def test_packages_are_described_with_an_example() -> None:
    assert bisim_abstract.__doc__ is not None
    assert ">>> from bisim_abstract import" in bisim_abstract.__doc__
    for surface in SURFACES:
        assert importlib.import_module(surface).__doc__


# -- errors ------------------------------------------------------------------------------------


def test_every_error_is_in_the_tree() -> None:
    # What a run catches itself is a signal, not an error that a caller could meet.
    signals = {OutOfTimeError, OverBudgetError, TooMuchWorkError}
    found = {
        value
        for name in CORE
        for value in vars(importlib.import_module(f"bisim_abstract.{name}".rstrip("."))).values()
        if inspect.isclass(value) and issubclass(value, BaseException)
        if value.__module__.split(".")[0] == "bisim_abstract"
    } - signals
    assert found == {getattr(errors, name) for name in errors.__all__}
    for error in found:
        assert issubclass(error, bisim_abstract.BisimError)
        assert error.__module__ == "bisim_abstract.errors"


def test_errors_are_builtin_kinds_too() -> None:
    """Code that knows nothing of this package can still tell a bad value from a lack of memory."""
    builtin = (ValueError, TypeError, MemoryError, ImportError)
    for name in errors.__all__:
        if name != "BisimError":
            assert issubclass(getattr(errors, name), builtin), name


def test_the_tree_is_drawn_as_it_is() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"^    ([│ ]*(?:[├└]── )?)(\w+)(?: \((\w+)\))?", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        path[depth:] = [match[2]]
        drawn[match[2]] = path[depth - 1] if depth else ""
        if match[3]:
            bases = [base.__name__ for base in getattr(errors, match[2]).__bases__]
            assert bases == [drawn[match[2]], match[3]]
    actual = {name: getattr(errors, name).__bases__[0].__name__ for name in errors.__all__}
    assert drawn == actual | {"BisimError": ""}


# -- importing ---------------------------------------------------------------------------------

HEAVY = ["torch", "faiss", "numba", "scipy.optimize", "matplotlib"]


def test_import_is_light_and_quick() -> None:
    code = (
        "import sys, time\n"
        "begin = time.perf_counter()\n"
        "import bisim_abstract\n"
        "print(time.perf_counter() - begin)\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
        "import gymnasium\n"
        "print('bisim_abstract/RoomsGrid-v0' in gymnasium.registry)\n"
        "print('bisim_abstract.wrappers' in sys.modules)\n"
    )
    seconds = []
    for _ in range(2):  # the first may read a cold disk
        result = run(code)
        assert result.returncode == 0, result.stderr
        took, heavy, is_registered, has_wrappers = result.stdout.splitlines()
        seconds.append(float(took))
        assert heavy == "[]"
        assert is_registered == "True"
        assert has_wrappers == "False"
    assert min(seconds) < 2.0


def test_the_check_for_heavy_modules_can_fail() -> None:
    code = (
        "import sys, bisim_abstract.parts\n"
        "bisim_abstract.parts.random_mdp(2, seed=0).normalised_probs\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "['numba']"


def test_wrappers_load_no_learning_library() -> None:
    code = (
        "import sys, bisim_abstract.wrappers\n"
        "print([name for name in ('torch', 'faiss', 'minigrid') if name in sys.modules])\n"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["wrappers", "encoders"])
def test_bare_names_are_refused(name: str) -> None:
    result = run(f"import {name}")
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError")
    assert f"bisim_abstract.{name}" in last
    assert run(f"import bisim_abstract.{name}").returncode == 0
