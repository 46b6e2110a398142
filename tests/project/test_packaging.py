"""What is built and installed: its files, and that it works outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    run("git", "clone", "--quiet", ROOT, source / "clone", cwd=source)
    return source / "clone"


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built by way of the source distribution, as a release is."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, clone, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_each_module_once_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    code = {name for name in names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in code} == {"bisim_abstract"}
    expected = {
        f"bisim_abstract/{path.relative_to(ROOT / 'bisim_abstract')}"
        for path in (ROOT / "bisim_abstract").rglob("*.py")
    }
    for package in ("wrappers", "encoders"):
        expected |= {f"bisim_abstract/{package}/{p.name}" for p in (ROOT / package).glob("*.py")}
    page = (ROOT / "bisim_abstract" / "_app" / "page").iterdir()
    assets = {f"bisim_abstract/_app/page/{path.name}" for path in page}
    assert "bisim_abstract/_app/page/page.html" in assets
    assert code == expected | assets | {"bisim_abstract/py.typed"}


def test_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Everything can be imported; `make release-check` runs the README with it."""
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
        tmp_path / "site", wheel, cwd=tmp_path)  # fmt: skip
    assert not (tmp_path / "site" / "wrappers").exists()
    assert not (tmp_path / "site" / "encoders").exists()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r});"
        "import bisim_abstract, bisim_abstract.encoders, gymnasium;"
        "from bisim_abstract.wrappers import extract_mdp, RoomsGridEnv;"
        "env = gymnasium.make('bisim_abstract/RoomsGrid-v0', side=4, room_size=2);"
        "assert isinstance(env.unwrapped, RoomsGridEnv);"
        "print(bisim_abstract.__file__, extract_mdp(env).n_states)"
    )
    where, count = run(sys.executable, "-P", "-c", code, cwd=tmp_path).split()
    assert Path(where).is_relative_to(tmp_path)
    assert count == "16"


def test_editable_install_is_found_by_type_checkers(clone: Path, tmp_path: Path) -> None:
    """It is a path that static tools follow, and nothing but the package is on it."""
    venv.create(tmp_path / "env")
    python, empty = tmp_path / "env" / "bin" / "python", tmp_path / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
        "-e", clone, cwd=empty)  # fmt: skip
    code = "from bisim_abstract import certify, wrappers\nreveal_type(certify)\n"
    (empty / "user.py").write_text(code + "reveal_type(wrappers.extract_mdp)\n")
    told = run(sys.executable, "-m", "mypy", "--python-executable", python, "--follow-imports",
               "silent", "user.py", cwd=empty)  # fmt: skip
    assert "-> bisim_abstract._certificate.certificate.Certificate" in told
    assert "-> bisim_abstract._model.mdp.TabularMDP" in told
    code = "import importlib.util as u; print(*[u.find_spec(x) is not None for x in {!r}])"
    names = ["bisim_abstract", "wrappers", "encoders", "tests", "scripts"]
    assert run(python, "-c", code.format(names), cwd=empty).split() == ["True"] + 4 * ["False"]
