"""What GitHub, pip and people who contribute read: it agrees with the code, and with itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisim_abstract import __version__
from tests.project.test_docs import links, slugs
from tests.support import ROOT, load_script

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = ["CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CHANGELOG.md", "README.md"]
# Takes too long for every change, and is run once a day instead.
NIGHTLY = {"test-many", "test-nightly", "test-oldest"}
REPOSITORY = "https://github.com/bisim-abstract/bisim_abstract"

licences = load_script("licences")
oldest = load_script("oldest")
release_check = load_script("release_check")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands(workflow: Path) -> list[str]:
    """Everything a workflow runs, once for each value of its matrix."""
    found = []
    for job in yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            lines = [step["run"]] if "run" in step else []
            for key, values in matrix.items():
                mark = f"${{{{ matrix.{key} }}}}"
                lines = [line.replace(mark, v) for line in lines for v in values]
            found += list(dict.fromkeys(lines))
    return found


def prerequisites() -> dict[str, set[str]]:
    """What each target of make asks for."""
    found: dict[str, set[str]] = {}
    for target, needs in re.findall(r"^([\w-]+):(?!=)([^\n]*)$", read("Makefile"), re.MULTILINE):
        found.setdefault(target, set()).update(needs.split())
    return found


def reached_by_ci() -> set[str]:
    needs = prerequisites()
    todo = re.findall(r"^make (\S+)$", read(".ci/run"), re.MULTILINE)
    reached: set[str] = set()
    while todo:
        target = todo.pop()
        if target not in reached:
            reached.add(target)
            todo += needs.get(target, ())
    return reached


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_only_call_what_ci_runs(workflow: Path) -> None:
    reached, targets = reached_by_ci(), prerequisites()
    if workflow.name == "nightly.yml":
        reached |= NIGHTLY
    asked = commands(workflow)
    assert asked
    for command in asked:
        words = re.fullmatch(r"make ([\w-]+)(?: OTHERS=3\.\d+)?", command)
        assert words is not None, command
        assert words[1] in targets
        assert words[1] in reached, f"{command} is run by no one here"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_do_little(workflow: Path) -> None:
    found: dict[Any, Any] = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert found["permissions"] == {"contents": "read"}
    assert "concurrency" in found
    for name, job in found["jobs"].items():
        more = {"id-token": "write"} if name == "publish" else {}
        assert job.get("permissions", {}) == more
        for step in job["steps"]:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", step.get("uses", "a/b@v1"))


def test_declared_versions_of_python_are_tested() -> None:
    declared = set(re.findall(r"Python :: (3\.\d+)", read("pyproject.toml")))
    matrix = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]["core"]["strategy"]
    assert set(matrix["matrix"]["python"]) == declared


def test_pre_commit_checks_what_make_does() -> None:
    (local,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert local["repo"] == "local"
    hooks = {hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"]}
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", read("Makefile"), re.MULTILINE)
    assert recipe is not None
    made = {line.strip().removeprefix("$(BIN)/") for line in recipe[1].splitlines()}
    assert {line.removesuffix(" .") for line in made} | {"make check-forge"} == hooks


def test_dry_runs_know_every_target() -> None:
    """Each target that help names exists, and make can say what it would do."""
    named = re.findall(r'@echo "make ([\w-]+)', read("Makefile"))
    assert len(named) == len(set(named)) > 10
    for target in named:
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


# -- pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for target in links(read(name)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = ROOT / path if path else ROOT / name
        assert there.exists(), f"{name} links to {target}"
        assert not anchor or anchor in slugs(there.read_text(encoding="utf-8")), target


def test_contributing_names_what_exists() -> None:
    text = read("CONTRIBUTING.md")
    targets = prerequisites()
    for target in re.findall(r"^make ([\w-]+)|`make ([\w-]+)", text, re.MULTILINE):
        assert "".join(target) in targets
    for name in re.findall(r"`([\w.]+(?:/[\w.]+)+\.\w+|[\w.-]+\.(?:toml|txt|md|cff))`", text):
        assert (ROOT / name).exists(), name
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module


def test_one_address_and_one_version() -> None:
    for name in ("pyproject.toml", "CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml"):
        assert REPOSITORY in read(name)
    assert yaml.safe_load(read("CITATION.cff"))["version"] == __version__
    assert release_check.check_changelog(ROOT) == __version__


def test_citation_is_the_readme_s() -> None:
    (paper,) = yaml.safe_load(read("CITATION.cff"))["references"]
    readme = " ".join(read("README.md").split())
    assert paper["title"] in readme
    for author in paper["authors"]:
        assert f"{author['family-names']}, {author['given-names']}" in readme  # as BibTeX has it


# -- dependencies ------------------------------------------------------------------------------


def test_every_direct_dependency_is_pinned_and_its_licence_listed() -> None:
    direct = {name for names in licences.read_project().values() for name in names}
    listed = set(re.findall(r"^\| ([\w.-]+) \| (?:everything|`)", read("docs/licences.md"), re.M))
    assert listed == direct, "run: make licences"
    assert "not installed" not in read("docs/licences.md")
    pinned = {
        licences.normal(n) for n in re.findall(r"^([\w.-]+)==", read("constraints.txt"), re.M)
    }
    assert {licences.normal(name) for name in direct} <= pinned | {"mkdocstrings"}


def test_only_optional_dependencies_are_copyleft() -> None:
    rows = [line for line in read("docs/licences.md").splitlines() if "GPL-" in line]
    assert len(rows) == 1
    assert rows[0].startswith("| stormpy | `prism` | GPL-3.0 |")


def test_lower_bounds_are_read_from_the_project(tmp_path: Path) -> None:
    bounds = oldest.read_bounds()
    assert bounds["numpy"] == "2.0.1"
    direct = {name for names in licences.read_project().values() for name in names}
    assert set(bounds) == direct
    path = tmp_path / "pyproject.toml"
    path.write_text(
        '[project]\nname = "x"\ndependencies = ["numpy"]\n[project.optional-dependencies]\n'
    )
    with pytest.raises(SystemExit, match="'numpy' has no lower bound"):
        oldest.read_bounds(path)


# -- releases ----------------------------------------------------------------------------------


def make_source(folder: Path, version: str, heading: str) -> Path:
    (folder / "bisim_abstract").mkdir()
    (folder / "bisim_abstract" / "_version.py").write_text(f'__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n")
    return folder


@pytest.mark.parametrize(
    ("heading", "tag", "message"),
    [
        ("1.1.0", None, "does not begin with version 1.2.0"),
        ("1.2.0 (unreleased)", "v1.2.0", "calls version 1.2.0 unreleased"),
        ("1.2.0 (2030-01-01)", "v1.2.1", "the tag v1.2.1 is not that of version 1.2.0"),
        ("1.2.0 (2030-01-01)", "v1.2.0", None),
        ("1.2.0 (unreleased)", None, None),
    ],
)
def test_versions_tags_and_the_changelog_agree(
    tmp_path: Path, heading: str, tag: str | None, message: str | None
) -> None:
    source = make_source(tmp_path, "1.2.0", heading)
    if message is None:
        assert release_check.check_changelog(source, tag) == "1.2.0"
    else:
        with pytest.raises(release_check.NotFitError, match=message):
            release_check.check_changelog(source, tag)


def test_examples_of_a_page_and_what_they_print() -> None:
    page = "```python\nprint(1)\n```\n\n```text\n1\n...\n2\n```\n\n```sh\nls\n```\n"
    assert release_check.read_examples(page) == [("print(1)\n", "1\n...\n2\n")]
    assert release_check.missing_lines("1\n...\n2\n", "1\n") == ["2"]
    with pytest.raises(release_check.NotFitError, match="not followed"):
        release_check.read_examples("```python\nprint(1)\n```\n")
