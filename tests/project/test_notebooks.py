"""The notebooks: stored as they were executed, and they show the same when executed anew."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.support import ROOT, load_script

notebooks = load_script("notebooks")
FOLDER = ROOT / "notebooks"
MOST_BYTES = 400_000


def read(name: str) -> dict[str, Any]:
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def joined(text: str | list[str]) -> str:
    """Files hold texts of several lines as lists."""
    return text if isinstance(text, str) else "".join(text)


def code_cells(name: str) -> list[dict[str, Any]]:
    return [cell for cell in read(name)["cells"] if cell["cell_type"] == "code"]


def words(name: str) -> str:
    """All that is written in a notebook, without pictures."""
    parts: list[str] = []
    for cell in read(name)["cells"]:
        parts.append(joined(cell["source"]))
        for output in cell.get("outputs", ()):
            parts.append(joined(output.get("text", "")))
            data = output.get("data", {})
            parts += [joined(data[kind]) for kind in data if kind.startswith("text/")]
    return "\n".join(parts)


def test_all_of_them_are_known() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(notebooks.NAMES)


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_all_cells_were_executed_in_order(name: str) -> None:
    cells = code_cells(name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {
        "display_data",
        "execute_result",
        "stream",
    }
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_nothing_of_the_machine_is_stored(name: str) -> None:
    found = read(name)
    assert found["metadata"] == notebooks.METADATA
    for cell in found["cells"]:
        assert set(cell["metadata"]) <= {"tags"}
        assert set(cell["metadata"].get("tags", ())) <= notebooks.TAGS
        assert not [output for output in cell.get("outputs", ()) if output.get("metadata")]
    text = words(name)
    assert not re.search(r"(?<![\w.*])/(home|root|tmp|usr|work|Users|var|opt)\b", text)
    assert not re.search(r"\b0x[0-9a-f]{6,}\b", text)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < MOST_BYTES


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_each_begins_with_a_question_and_explains_its_words(name: str) -> None:
    first, *others = (
        joined(cell["source"]) for cell in read(name)["cells"] if cell["cell_type"] == "markdown"
    )
    assert first.startswith("# ")
    assert "?" in first
    said = "\n".join(others).lower()
    for word in ("arms", "threshold", "certificate"):
        assert f"**{word}" in said, word
    assert re.search(r"\*\*(retain(s|ed)?)\*\*", said)
    assert "**proven**" in others[-1].lower()
    assert "**not proven**" in others[-1].lower()


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_links_lead_somewhere(name: str) -> None:
    text = "\n".join(
        joined(cell["source"]) for cell in read(name)["cells"] if cell["cell_type"] == "markdown"
    )
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    assert targets
    assert [target for target in targets if not (FOLDER / target).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_they_show_what_is_stored(name: str) -> None:
    command = [sys.executable, "scripts/notebooks.py", "--check", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_unknown_names_are_refused() -> None:
    command = [sys.executable, "scripts/notebooks.py", "alchemy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no notebook ['alchemy']; there are quick_start, " in done.stderr


@pytest.mark.parametrize(
    ("stored", "fresh", "computed", "learned"),
    [
        ("12 clusters", "12   clusters", True, True),
        ("12 clusters", "13 clusters", False, True),
        ("12 clusters", "24 clusters", False, False),
        ("12 clusters", "12 states", False, False),
        ("loses 3.7e-11", "loses 3.9e-11", True, True),
        ("2,500 states", "2500 states", True, True),
        ("kept 0.02", "kept 0.09", False, True),
        ("CERTIFIED: 9", "NOT CERTIFIED: 9", False, False),
        ("1 and 2", "1 and 2 and 3", False, False),
        ("one line", "one line\nand another", False, False),
        ("[image/png]", "", False, False),
    ],
)
def test_texts_are_compared(stored: str, fresh: str, computed: bool, learned: bool) -> None:
    assert (notebooks.difference(stored, fresh, notebooks.COMPUTED) == "") is computed
    assert (notebooks.difference(stored, fresh, notebooks.LEARNED) == "") is learned


def test_differences_name_the_cell() -> None:
    def notebook(text: str) -> dict[str, Any]:
        output = {"output_type": "stream", "name": "stdout", "text": text}
        code = {"cell_type": "code", "metadata": {}, "outputs": [output]}
        return {"cells": [{"cell_type": "markdown", "metadata": {}}, code]}

    assert list(notebooks.differences(notebook("a 1\n"), notebook("a 1\n"))) == []
    (problem,) = notebooks.differences(notebook("a 1\n"), notebook("a 2\n"))
    assert problem.startswith("cell 1: stored is\n    a 1\nand now it is\n    a 2")


def test_what_editors_add_is_removed() -> None:
    outputs = [{"output_type": "display_data", "data": {}, "metadata": {"isolated": True}}]
    metadata = {"tags": ["learned", "mine"], "collapsed": True}
    found = notebooks.cleaned(
        {"metadata": {"author": "me"}, "cells": [{"metadata": metadata, "outputs": outputs}]},
        "quick_start",
    )
    (cell,) = found["cells"]
    assert found["metadata"] == notebooks.METADATA
    assert cell["metadata"] == {"tags": ["learned"]}
    assert cell["outputs"][0]["metadata"] == {}
    outputs[0] = {"output_type": "stream", "name": "stderr", "text": "a warning"}
    with pytest.raises(RuntimeError, match="quick_start, cell 0, writes to the error stream"):
        notebooks.cleaned(
            {"metadata": {}, "cells": [{"metadata": {}, "outputs": outputs}]}, "quick_start"
        )
