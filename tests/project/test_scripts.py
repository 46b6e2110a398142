"""Scripts, and the README's example, run as a reader would run them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from tests.model.test_storm import WALK
from tests.support import ROOT, load_script


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_demo_goes_the_whole_way(tmp_path: Path) -> None:
    out = run("scripts/demo.py", "--quick", "--out", str(tmp_path / "demo"))
    assert re.search(r"^clusters +25 instead of 2,500 states$", out, flags=re.MULTILINE)
    assert re.search(
        r"^retained +at least 99\.\d% of the achievable return", out, flags=re.MULTILINE
    )
    assert re.search(r"^lost +0\.0\d+ at most, in any state$", out, flags=re.MULTILINE)
    for stage in ("extract", "train", "certify", "verify", "compare", "learn", "report"):
        assert re.search(rf"^{stage} ", out, flags=re.MULTILINE), stage
    *_, path, verdict = out.strip().splitlines()
    assert Path(path.removeprefix("report: ").rsplit(" (", 1)[0]).is_file()
    assert verdict.startswith("CERTIFIED: 25 clusters of 2,500 states; at gamma 0.9, any agent")
    assert verdict.endswith(" (verified)")


def test_demo_empties_no_directory_of_others(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "precious").write_text("mine")
    done = subprocess.run(
        [sys.executable, "scripts/demo.py", "--quick", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.nightly
def test_a_newcomer_is_timed_with_nothing_compiled() -> None:
    """Every figure is there; limits are for quiet machines, and missing one is no failure here."""
    done = subprocess.run(
        [sys.executable, "scripts/newcomer.py", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 10
    assert all(seconds > 0.0 for seconds in found.values())
    # Compiled it is quicker, and the notice has come.
    assert found["ten lines, compiled before"] < found["  certify, compiling included"]
    assert "compiling solvers, once, about " in done.stderr


@pytest.mark.nightly
def test_estimates_are_shown_at_small_sizes() -> None:
    out = run("scripts/estimates.py", "--quick")
    assert "rows summed by blocks: 10 of 10" in out
    assert "values: 10 of 10" in out
    assert "radii times 0.25 would have held in 0" in out
    assert out.count("gathered at gamma 0.5") == 2


@pytest.mark.nightly
def test_benchmarks_run_at_small_sizes() -> None:
    out = run("scripts/bench.py", "--quick")
    for title in (
        "Exact transport",
        "One full exact sweep",
        "Exact metric",
        "Bisimulation classes",
        "States nearly alike",
        "Batches of transport problems",
        "The metric of chains",
        "MICo's distance",
    ):
        assert title in out
    assert "Taxi" in out


def test_benchmarks_refuse_unknown_names() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/bench.py", "speed"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    names = done.stderr.rpartition("no benchmark ['speed']; there are ")[2].strip().split(", ")
    assert {"transport", "optimal", "steps", "enumeration", "peers"} <= set(names)


def test_readme_examples_print_what_they_say(tmp_path: Path) -> None:
    check = load_script("release_check")
    assert "Taxi-v3" in gym.registry, "the example is written for the pinned Gymnasium"
    for code, shown in check.read_examples((ROOT / "README.md").read_text()):
        out = run("-c", f"import os; os.chdir({str(tmp_path)!r})\n{code}")
        assert check.missing_lines(shown, out) == []


@pytest.mark.nightly
def test_all_pairs_at_small_sizes() -> None:
    out = run("scripts/all_pairs.py", "--quick")
    assert re.search(r"RoomsGrid 2,500, noise 0.02 +│ +2,500 │ +25 │ +yes │ +99.9%", out)
    assert re.search(r" 10,000 │ +100 │ +100 \(yes\)", out)
    assert " no " not in out
    assert "abstains" in out


@pytest.mark.nightly
def test_planted_groups_are_certified() -> None:
    out = run("scripts/completeness.py", "--quick", "deterministic", "unequal", "shared")
    assert re.search(r"true ratio at least 2: of 3, 3 are certified .*\n? ?.*3 at one", out)
    assert "bounds that do not enclose the metric: 0" in out


@pytest.mark.slow
def test_relations_side_by_side(tmp_path: Path) -> None:
    """The script fails if a certificate is rejected."""
    rows = tmp_path / "rows.json"
    options = ["--only", "Taxi", "--only", "MiniGrid DoorKey-5x5", "--gamma", "0.9"]
    run("scripts/relations.py", *options, "--guarantee", "learner", "--json", str(rows))
    found = {(x["environment"], x["relation"]): x for x in json.loads(rows.read_text())}
    assert len(found) == 6
    assert found["Taxi", "optimal"]["clusters"] <= 302
    assert found["MiniGrid DoorKey-5x5", "optimal"]["clusters"] <= 70
    for row in found.values():
        assert min(row["policy"], row["solver"], row["learner"]) >= 0.95


@pytest.mark.nightly
def test_mirror_images_are_merged_after_renaming() -> None:
    """The script fails if a certificate is rejected, or if a proof contradicts the truth."""
    out = run("scripts/symmetries.py", "--quick", "--markdown")
    rows = {line.split(" | ")[0]: line.split(" | ") for line in out.splitlines()}
    plain, lax = rows["| MiniGrid-Empty-5x5"][4:6]
    assert int(lax) < int(plain)


@pytest.mark.slow
def test_what_agents_get_is_proven_true_and_simulated(tmp_path: Path) -> None:
    """The script fails if a proof contradicts the truth, or simulated episodes."""
    rows = tmp_path / "rows.json"
    options = ["--only", "CliffWalking", "--gamma", "0.9", "--episodes", "50", "--json", str(rows)]
    out = run("scripts/guarantees.py", *options)
    (row,) = json.loads(rows.read_text())
    assert f"| CliffWalking | 0.9 | {row['clusters']} of 48 | useful | 100% |" in out
    assert (row["solver"], row["simulated"]["ended"], row["problem"]) == (1.0, 1.0, "")


@pytest.mark.nightly
def test_environments_as_people_write_them() -> None:
    """The script fails if too few work at once, or if what a refusal names does not work."""
    out = run("scripts/environments.py", "--quick", "--markdown")
    rows = {line.split(" | ")[0]: line.split(" | ") for line in out.splitlines()}
    assert rows["| own: queue"][1:4] == ["at once", "81", "2"]
    assert rows["| own: step counter"][1:3] == ["`Reading(freeze=['current_step'])`", "139"]
    assert rows["| own: tuple actions"][2] == "19"
    assert "13 of 15 work at once" in out


@pytest.mark.nightly
def test_encoders_at_small_budgets() -> None:
    out = run("scripts/encoders.py", "--quick")
    # Merges without support end the script; so does a certificate that is not verified.
    assert re.search(r"rewards +│ +- │ +100.0% │.* certified, 25 clusters", out)
    assert re.search(r"random +│ +- │.* abstains", out)
    assert out.count("abstains, 500 supported") == 15
    assert out.count("the on-policy metric") == out.count("MICo's distance") == 2
    assert "NO" not in out


@pytest.mark.nightly
def test_agents_learn_on_abstractions(tmp_path: Path) -> None:
    out = run("scripts/agents.py", "--quick", "--out", str(tmp_path))
    for name in ("PPO", "DQN", "A2C", "FrozenLake", "CliffWalking", "DoorKey"):
        assert name in out
    assert (tmp_path / "rooms.png").stat().st_size > 10_000
    assert (tmp_path / "taxi.png").stat().st_size > 10_000


@pytest.mark.nightly
def test_experiments_write_tables_and_a_page(tmp_path: Path) -> None:
    out = run(
        "scripts/reproduce.py",
        *("lower_bounds", "closure", "--quick"),
        *("--out", str(tmp_path / "results"), "--docs", str(tmp_path)),
    )
    assert "THEOREM VIOLATED" not in out
    assert "Claims of the abstract" in out
    page = (tmp_path / "paper.md").read_text(encoding="utf-8")
    assert "none failed" in page
    for name in re.findall(r"\]\((images/[^)]+)\)", page):
        assert (tmp_path / name).stat().st_size > 5_000
    assert (tmp_path / "results" / "summary_claims.csv").exists()
    assert (tmp_path / "results" / "closure_claims.csv").exists()


def test_unknown_experiments_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/reproduce.py", "alchemy"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no experiment 'alchemy'; there are audit, scaling" in done.stderr


@pytest.mark.nightly
def test_a_cluster_gives_the_same_bits() -> None:
    out = run("scripts/cluster.py", "--quick")
    assert out.count(" yes ") == 7
    assert "NO" not in out


@pytest.mark.parametrize("name", ["constraints.txt", "README.md"])
def test_nothing_names_a_package_host(name: str) -> None:
    assert not re.search(r"index-url|https?://(?!github)", (ROOT / name).read_text())


@pytest.mark.nightly
def test_models_of_others_are_compared_with_storm(tmp_path: Path) -> None:
    """Counts, values after a round trip, a certificate; what cannot be read is a row as well."""
    (tmp_path / "walk.nm").write_text(WALK)
    (tmp_path / "open.nm").write_text(WALK.replace("const int N;", "const int N; const int M;"))
    out = run("scripts/models.py", str(tmp_path), "--const", "N=4", "--markdown", "--seconds", "9")
    first, second = (part for part in out.split("\n\n") if "| model |" in part)
    (line,) = (line for line in first.splitlines() if line.startswith("| walk.nm N=4 |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == "10"
    assert cells[4] == cells[5]
    assert cells[8] == cells[9]
    assert float(cells[12]) <= 1e-6
    assert "leaves constants open: M" in first
    assert second.count("| walk.nm N=4 | -effort |") + second.count("| -steps |") == 2


@pytest.mark.nightly
def test_stopping() -> None:
    """Budgets and Ctrl-C are measured, each in a process of its own; how long is not asserted."""
    moments = ("--budgets", "0.2", "--moments", "0.2", "60", "--commands")
    lines = run("scripts/stopping.py", "small", *moments).splitlines()
    assert len(lines) == 4  # after a minute there is nothing left to interrupt
    assert "budget of 0.2" in lines[1]
    assert "; budget: " in lines[1]
    assert "Ctrl-C after 0.2" in lines[2]
    assert "interrupted " in lines[2]
    assert lines[3].startswith("Ctrl-C: 1 times, median ")
