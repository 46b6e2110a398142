"""Names of states and actions in reports and pictures."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import TabularMDP, certify, write_report
from bisim_abstract._app import figures, report
from bisim_abstract._model.names import Names
from bisim_abstract.parts import grouped_mdp, random_mdp
from tests.support.models import env_mdp
from tests.support.worlds import mirrored

HOSTILE = "</script><script>alert(1)</script>"


def written(mdp: TabularMDP, folder: Path, **options: Any) -> tuple[str, dict[str, Any]]:
    """The page, and the data that its script reads."""
    certificate = certify(mdp, 0.9, **options)
    text = write_report(folder / "report.html", mdp, certificate).read_text(encoding="utf-8")
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return text, json.loads(found[1])


def test_pages_name_states_and_actions(tmp_path: Path) -> None:
    mdp = random_mdp(6, 2, seed=0)
    plain, _ = written(mdp, tmp_path, tau=0.0)
    long = [f"a quite long name of the state that has the number {s}" for s in range(6)]
    named = mdp.with_names(states={"row": np.arange(6), "note": long}, actions=["up", "down"])
    text, data = written(named, tmp_path, tau=0.0)
    assert data["map"]["names"] == [named.state_name(s) for s in range(6)]
    [section] = re.findall(r'<section class="card" id="little">.*?</section>', text, re.DOTALL)
    titles = [html.unescape(title) for title in re.findall(r'title="([^"]*)"', section)]
    pairs = certify(named, 0.9, tau=0.0).nearest(report.NEAREST)
    heads = [
        f"{named.state_text(p.first, most=None)} and {named.state_text(p.second, most=None)}"
        for p in pairs
    ]
    assert set(heads) <= set(titles)
    for pair in pairs:
        assert f"{pair.first} (row={pair.first}, …) and {pair.second} (row={pair.second}, …)" in (
            html.unescape(section)
        )
        assert pair.action is not None
        assert f">{('up', 'down')[pair.action]}</td>" in section
    [before] = re.findall(r'<section class="card" id="little">.*?</section>', plain, re.DOTALL)
    assert "title=" not in before
    assert "row=" not in before


def test_names_cannot_break_out_of_a_page(tmp_path: Path) -> None:
    mdp = random_mdp(5, 2, seed=1)
    plain, _ = written(mdp, tmp_path, tau=0.0)
    names = [f'{HOSTILE}" onmouseover="alert(2)" {s}' for s in range(5)]
    named = mdp.with_names(states=names, actions=[HOSTILE, '"><img src=x>'])
    text, data = written(named, tmp_path, tau=0.0)
    assert data["map"]["names"] == names
    for tag in ("<script", "<img", "</script"):
        assert text.count(tag) == plain.count(tag), tag
    assert 'onmouseover="' not in text


def test_states_of_environments_keep_their_ids(tmp_path: Path) -> None:
    """What is told of a state besides its name stays."""
    mdp = env_mdp("lake4").restrict(env_mdp("lake4").reachable())
    page = page_of(mdp)
    moved = next(s for s in range(mdp.n_states) if mdp.state_ids[s] not in (s, -1))
    ident = int(mdp.state_ids[moved])
    assert page.state(moved) == f"{moved} (id {ident})"
    named = page_of(mdp.with_names(states={"x": np.arange(mdp.n_states)}))
    assert named.state(moved) == f"{moved} (id {ident}, x={moved})"
    assert named.state(0) == "0 (x=0)"
    assert mdp.terminal_state is not None
    assert page.state(mdp.terminal_state) == named.state(mdp.terminal_state) == "the end"


def page_of(mdp: TabularMDP) -> report._Page:
    """Enough of a page to ask it for states."""
    page = object.__new__(report._Page)
    page.mdp = mdp
    return page


def test_which_action_is_which_by_name(tmp_path: Path) -> None:
    mdp = mirrored(6, noise=0.1)
    options: dict[str, Any] = {"relation": "lax", "keep": 0.99}
    plain, _ = written(mdp, tmp_path, **options)
    assert ">0 as 1, 1 as 0</td>" in plain
    named = mdp.with_names(actions=["left", "right"], states="abcdef")
    text, _ = written(named, tmp_path, **options)
    assert '<span title="0 as 1, 1 as 0">left as right, right as left</span>' in text
    assert re.search(r">\d \([a-f]\)</th>|>\d \([a-f]\)<", text)


def test_leaves_have_the_name_of_their_first_state() -> None:
    mdp = grouped_mdp(20, 4, seed=0)[0]
    certificate = certify(mdp, 0.9)
    plain = figures.tree_figure(certificate, max_leaves=60)
    assert {(leaf.name, leaf.short) for leaf in plain.leaves} == {("", "")}
    states = {f"variable{k}": np.arange(20) for k in range(5)}
    names = mdp.with_names(states=states).names
    tree = figures.tree_figure(certificate, max_leaves=60, names=names)
    for leaf, other in zip(tree.leaves, plain.leaves, strict=True):
        assert (leaf.label, leaf.state, leaf.size) == (other.label, other.state, other.size)
        assert leaf.name == names.state(leaf.state)
        assert len(leaf.short) <= figures.SHORT


def test_pictures_name_leaves() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    mdp = grouped_mdp(12, 3, seed=0)[0]
    ticks = {}
    for key, model in (("plain", mdp), ("named", mdp.with_names(states=["$x$"] * 12))):
        ax = certify(model, 0.9).plot_dendrogram()
        ticks[key] = [label.get_text() for label in ax.get_yticklabels()]
        ax.figure.canvas.draw()  # a formula that is none would fail
        pyplot.close(ax.figure)  # type: ignore[arg-type]
    assert all(re.fullmatch(r"\d+: \d+ states?", text) for text in ticks["plain"])
    pattern = r"\d+: (\d+ states like|1 state,) \d+ \(\\\$x\\\$\)"
    assert all(re.fullmatch(pattern, text) for text in ticks["named"])


def test_only_drawn_states_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million states, no million of texts is made."""
    monkeypatch.setattr(report, "MAX_DRAWN", 7)
    asked: list[int] = []
    own = Names.state

    def watched(self: Names, state: int) -> str:
        asked.append(state)
        return own(self, state)

    mdp = grouped_mdp(400, 4, seed=0)[0].with_names(states={"x": np.arange(400)})
    monkeypatch.setattr(Names, "state", watched)
    _, data = written(mdp, tmp_path)
    assert len(data["map"]["names"]) == len(data["map"]["states"]) == 7
    assert len(set(asked)) < 100
