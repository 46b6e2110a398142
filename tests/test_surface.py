"""The package as seen from outside: names, docstrings, errors, import cost, and layers."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import bisim_abstract
from bisim_abstract import errors

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(bisim_abstract.__file__).parent
SURFACES = [
    "bisim_abstract",
    "bisim_abstract.parts",
    "bisim_abstract.wrappers",
    "bisim_abstract.encoders",
]

# Imports point from higher or equal to lower layers. A new module needs a place here.
LAYERS: dict[str, int] = {
    "errors": 0,
    "_typing": 0,
    "_validation": 0,
    "_atomic": 0,
    "_cached": 0,
    "_html": 0,
    "_linear": 0,
    "_memory": 0,
    "_palette": 0,
    "_text": 0,
    "_parallel": 0,
    "_progress": 1,  # kernels tell it when they are compiled
    "_register": 0,
    "_version": 0,
    "_mdp_checks": 1,
    "_npz": 1,
    "_verify_kernels": 1,
    "mdp": 1,
    "_frames": 1,
    "_observations": 1,
    "_policy_table": 1,
    "_table": 1,
    "estimation": 1,
    "files": 1,
    "generators": 1,
    "_kernels": 1,
    "value": 2,
    "planning": 2,
    "bisimulation": 2,
    "transport": 2,
    "blocks": 2,
    "features": 2,
    "_verify_read": 2,
    "_verify_float": 2,
    "_verify_exact": 2,
    "_verify_scope": 2,
    "_verify_value": 2,
    "embedding": 2,
    "retrieval": 2,
    "statemap": 2,
    "ray_backend": 2,
    "_pairs": 3,
    "ground": 3,
    "arms": 3,
    "approximate": 4,
    "metric": 4,
    "partition": 4,
    "linking": 4,
    "_linkage": 4,
    "proposals": 4,
    "aggregate": 4,
    "brackets": 4,
    "value_proof": 4,
    "plots": 5,
    "certificate": 5,
    "_verified": 5,
    "verify": 5,
    "deploy": 5,
    "verdict": 5,
    "frontier": 5,
    "nearest": 5,
    "_run": 5,
    "covering": 5,
    "refinement": 6,
    "certify": 6,
    "evaluation": 6,
    "clustering": 6,
    "comparison": 6,
    "learning": 6,
    "_report_data": 7,
    "report": 7,
    "sources": 7,
    "_env_args": 7,
    "runs": 7,
    "abstract": 7,
    "cli": 7,
    "__main__": 7,
    "parts": 7,
    "_compile": 7,
    "": 7,  # the package itself, which gathers the surface
}
KNOWS_EVERYTHING = {"__main__", "_env_args", "abstract", "cli", "report", "runs", "sources"}
HIGHEST = {"wrappers": 6, "encoders": 1}  # of the core that these may import
FOREIGN_IN_KERNELS = {"__future__", "math", "numpy"}
FOREIGN_IN_JIT = {
    *(
        "__future__",
        "collections",
        "contextlib",
        "contextvars",
        "dataclasses",
        "gc",
        "numba",
        "os",
        "threading",
    ),
    *("time", "typing"),
}


def find_modules() -> dict[str, Path]:
    """Dotted name below the package ("" for the package itself) and file of every module."""
    found = {}
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        for file in files:
            path = Path(folder) / file
            if path.suffix == ".py":
                parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
                if parts[-1] == "__init__":
                    parts.pop()
                found[".".join(parts)] = path
    return found


MODULES = find_modules()
CORE = sorted(name for name in MODULES if name.split(".")[0] not in HIGHEST)


def imports_of(module: str, source: str, *, is_package: bool) -> tuple[set[str], set[str]]:
    """Modules of this package (names as in MODULES) and foreign top-level names imported.

    Imports inside functions and for type checkers count like any others.
    """
    own, foreign = set(), set()
    here = ["bisim_abstract", *(module.split(".") if module else [])]

    def add(name: str) -> None:
        top, _, rest = name.partition(".")
        if top == "bisim_abstract":
            own.add(rest)
        else:
            foreign.add(top)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = node.level - 1 if is_package else node.level
                base = ".".join(here[: len(here) - above] + ([base] if base else []))
            for alias in node.names:
                # `from package import module` means the module, not the package.
                deeper = f"{base}.{alias.name}".removeprefix("bisim_abstract.")
                add(f"bisim_abstract.{deeper}" if deeper in MODULES else base)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else ""
            called = function.id if isinstance(function, ast.Name) else called
            value = node.args[0].value
            if called in ("import_module", "__import__", "require") and isinstance(value, str):
                add(value)
    return own, foreign


def violations(module: str, own: set[str], foreign: set[str]) -> list[str]:
    """What is wrong with these imports, in words."""
    wrong = []
    top = module.split(".")[0]
    if top not in HIGHEST and top not in LAYERS:
        return [f"{module} has no layer"]
    for name in sorted(own):
        target = name.split(".")[0]
        if target in HIGHEST:
            if top != target and top not in KNOWS_EVERYTHING:
                wrong.append(f"{module} must not import {name}")
        elif target not in LAYERS:
            wrong.append(f"{name} has no layer")
        elif LAYERS[target] > HIGHEST.get(top, LAYERS.get(top, 0)):
            wrong.append(f"{module} must not import {name or 'the package itself'}, a layer above")
    if top == "_kernels":
        is_jit = module == "_kernels._jit"
        wrong += [
            f"{module} must not import {name}: kernels know _jit and _typing only"
            for name in sorted(own)
            if is_jit or name not in ("_kernels._jit", "_typing")
        ]
        allowed = FOREIGN_IN_JIT if is_jit else FOREIGN_IN_KERNELS
        wrong += [f"{module} must not import {name}" for name in sorted(foreign - allowed)]
    return wrong


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
        "import bisim_abstract.aggregate, bisim_abstract.certify, bisim_abstract.verify\n"
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
    assert "_validation" not in bisim_abstract.__all__


def test_version_is_that_of_the_changelog() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert bisim_abstract.__version__ == newest.group(1)


@pytest.mark.parametrize("name", [name for name in CORE if name])
def test_modules_keep_their_own_lists(name: str) -> None:
    module = importlib.import_module(f"bisim_abstract.{name}")
    assert module.__doc__
    listed = list(getattr(module, "__all__", []))
    assert listed == sorted(set(listed))
    for entry in listed:
        assert hasattr(module, entry), entry


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
    assert len(top) <= 45


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


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_functions_describe_their_arguments(name: str, function: types.FunctionType) -> None:
    text = inspect.cleandoc(function.__doc__ or "")
    assert text, f"{name} has no docstring"
    parameters = [entry.lstrip("*") for entry in inspect.signature(function).parameters]
    if parameters:
        match = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
        assert match is not None, f"{name} has no section Args"
        described = re.findall(r"^    \**(\w+):", match[1], re.MULTILINE)
        assert described == parameters


@pytest.mark.parametrize(("name", "cls"), CLASSES, ids=[name for name, _ in CLASSES])
def test_classes_and_their_methods_are_described(name: str, cls: type) -> None:
    assert inspect.cleandoc(cls.__doc__ or ""), f"{name} has no docstring"
    assert not (cls.__doc__ or "").startswith(f"{cls.__name__}("), f"{name} has a generated one"
    for entry, value in vars(cls).items():
        if entry.startswith("_"):
            continue
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        plain = getattr(plain, "func", plain)  # cached_property
        if inspect.isfunction(plain) or isinstance(plain, property):
            assert inspect.getdoc(getattr(cls, entry)) or inspect.getdoc(plain), f"{name}.{entry}"


def test_packages_are_described_with_an_example() -> None:
    assert bisim_abstract.__doc__ is not None
    assert ">>> from bisim_abstract import" in bisim_abstract.__doc__
    for surface in SURFACES:
        assert importlib.import_module(surface).__doc__


# -- errors ------------------------------------------------------------------------------------


def test_every_error_is_in_the_tree() -> None:
    found = [
        value
        for name in CORE
        for value in vars(importlib.import_module(f"bisim_abstract.{name}".rstrip("."))).values()
        if inspect.isclass(value) and issubclass(value, BaseException)
        if value.__module__.split(".")[0] == "bisim_abstract"
    ]
    assert set(found) == {getattr(errors, name) for name in errors.__all__}
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


# -- layers ------------------------------------------------------------------------------------


def test_all_modules_are_found() -> None:
    assert {"", "mdp", "_kernels", "_kernels._jit", "wrappers", "encoders"} <= set(MODULES)


@pytest.mark.parametrize("module", sorted(MODULES), ids=lambda name: name or "bisim_abstract")
def test_imports_point_down(module: str) -> None:
    path = MODULES[module]
    is_package = path.name == "__init__.py"
    own, foreign = imports_of(module, path.read_text(encoding="utf-8"), is_package=is_package)
    assert violations(module, own, foreign) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors", "from bisim_abstract.mdp import TabularMDP"),
        ("mdp", "def late():\n    from bisim_abstract.metric import bisimulation_metric"),
        ("mdp", "import bisim_abstract.wrappers.rooms"),
        ("mdp", "from bisim_abstract import wrappers"),
        ("mdp", "from . import metric"),
        ("mdp", "from .encoders import base"),
        ("mdp", "import importlib\nimportlib.import_module('bisim_abstract.metric')"),
        ("metric", "from bisim_abstract import TabularMDP"),
        ("metric", "if TYPE_CHECKING:\n    from bisim_abstract.certificate import Certificate"),
        ("_kernels.refine", "from bisim_abstract._kernels.transport import spread_kernel"),
        ("_kernels.refine", "from bisim_abstract.errors import BisimError"),
        ("_kernels.refine", "import scipy"),
        ("_kernels._jit", "from bisim_abstract._typing import IntArray"),
        ("wrappers.rooms", "from bisim_abstract.encoders import base"),
        ("wrappers.rooms", "from bisim_abstract import TabularMDP"),
        ("encoders.base", "from bisim_abstract.wrappers.rooms import RoomsGridEnv"),
        ("encoders.base", "from bisim_abstract.planning import value_iteration"),
        ("unheard_of", ""),
        ("mdp", "from bisim_abstract.unheard_of import name"),
    ],
)
def test_wrong_imports_are_noticed(module: str, source: str) -> None:
    own, foreign = imports_of(module, source, is_package=False)
    assert violations(module, own, foreign) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("metric", "from bisim_abstract.mdp import TabularMDP\nimport scipy"),
        ("mdp", "from bisim_abstract import errors"),
        ("mdp", "from .errors import BisimError"),
        ("wrappers.rooms", "from bisim_abstract.certify import certify"),
        ("wrappers.rooms", "from bisim_abstract.wrappers.tabular import extract_mdp"),
        ("encoders.base", "import torch\nfrom bisim_abstract.mdp import TabularMDP"),
        ("cli", "from bisim_abstract.encoders import base\nimport bisim_abstract.wrappers"),
        ("_kernels.refine", "import numpy\nfrom bisim_abstract._kernels._jit import kernel"),
    ],
)
def test_right_imports_are_left_alone(module: str, source: str) -> None:
    own, foreign = imports_of(module, source, is_package=False)
    assert violations(module, own, foreign) == []
