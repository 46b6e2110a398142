"""Tables for notebooks: what they say, and that nothing in them can do more than be read."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    TabularMDP,
    Verification,
    aggregate,
    certify,
    estimate_mdp,
    evaluate_policy,
    value_iteration,
    verify,
)
from bisim_abstract._base.html import table_html
from bisim_abstract._certificate.frontier import Frontier, FrontierPoint
from bisim_abstract.parts import grouped_mdp
from bisim_abstract.wrappers import extract_mdp

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)> & \" ' \x00 \ud800"


class Reader(HTMLParser):
    """Rows of a table as texts, and everything that is not a plain cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("table", "tr", "td"), tag
        assert {name for name, _ in attrs} <= {"style", "colspan"}
        for name, value in attrs:
            assert name != "style" or "url" not in (value or "")
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.rows[-1][-1] += data


def read(result: Any) -> tuple[str, dict[str, str]]:
    """Title and rows of what a notebook shows."""
    text = result._repr_html_()
    text.encode()  # no page holds halves of characters
    (title,), *rows = Reader(text).rows
    assert len(rows) <= 17
    return title, {row[0]: row[1] for row in rows}


def test_all_text_is_escaped() -> None:
    text = table_html(HOSTILE, [(HOSTILE, HOSTILE)])
    assert "<script" not in text
    assert "<img" not in text
    (title,), (name, value) = Reader(text).rows
    assert title == name == value == HOSTILE.replace("\ud800", "\\ud800")


def test_colours_are_those_of_the_page() -> None:
    """Black on white and white on black both read: nothing but grey is set."""
    text = table_html("title", [("name", "text")])
    assert "background" not in text
    assert "color:" not in text.replace("border-color:", "")


def test_models() -> None:
    mdp = extract_mdp("FrozenLake-v1")
    title, rows = read(mdp)
    assert title == f"Model of {mdp.n_states} states, 4 actions"
    assert rows["environment"] == "FrozenLake-v1"
    assert rows["end of episodes"] == f"state {mdp.terminal_state}"
    assert rows["rewards"].startswith("from 0 to 0.333")
    assert rows["fingerprint"] == mdp.fingerprint[:12]
    assert read(mdp.with_metadata(env=HOSTILE))[1]["environment"].startswith("</td><script>")
    assert "environment" not in read(TabularMDP.from_dense([[[1.0]]], [[0.0]]))[1]
    cost = TabularMDP.from_dense([[[1.0]]], [[-0.0]])  # what a file calls a cost, with a minus
    assert read(cost)[1]["rewards"] == "from 0 to 0"
    steps = estimate_mdp([0], [0], [0.5], [0], n_states=1, n_actions=1, reward_range=(0, 1))
    title, rows = read(steps)
    assert title == "Model of 1 state, 1 action"
    assert rows["estimated"] == "holds with probability 0.95"


def test_certificates_and_what_they_hand_out() -> None:
    mdp = extract_mdp("FrozenLake-v1")
    certificate = certify(mdp, 0.9)
    title, rows = read(certificate)
    assert title == certificate.verdict.sentence
    assert rows["threshold"] == f"{certificate.tau:.6g}"
    assert rows["stopped"] == certificate.stop
    none = np.empty(0, np.int64)
    plain = dataclasses.replace(
        certificate, tau=None, labels_lower=none, labels_upper=none, value=None, stop=HOSTILE
    )
    assert read(plain)[1]["threshold"] == "none"
    value = certificate.value
    assert value is not None
    title, rows = read(value)
    assert rows["loss in any state"].startswith("at most ")
    assert rows["kept by a solver"].partition(";")[0] in certificate.verdict.sentence
    assert read(value.bracket)[0].endswith(f"for {value.policy.size} clusters")
    assert len(repr(value.bracket)) < 100
    small = aggregate(mdp, certificate.labels)
    title, rows = read(small)
    assert title == f"{mdp.n_states} states, aggregated"
    assert rows["clusters"] == f"{certificate.n_clusters} clusters (plus the terminal state)"
    sizes = [members.size for members in certificate.clusters]
    assert rows["of each"] == f"{min(sizes)} to {max(sizes)} states"


def test_frontiers_are_cut_short() -> None:
    points = tuple(FrontierPoint(float(k), k + 1.0, 40 - k, 0.5, 0.1, 0.99) for k in range(40))
    title, rows = read(Frontier(points, 41))
    assert title == "Clusters against proven value"
    assert len(rows) == 17
    assert rows["40 clusters"] == "at least 99.0% kept, loss at most 0.5, from tau 0 on"
    assert "1 cluster" in rows
    assert rows["and"] == "25 more certified thresholds"
    assert repr(Frontier(points, 41)) == "Frontier(40 of 41 certified thresholds: 1 to 40 clusters)"
    one = Frontier(points[-1:], 2)
    assert repr(one) == "Frontier(1 of 2 certified thresholds)"
    assert read(one)[1]["and"] == "1 more certified threshold"
    assert str(one).endswith("and 1 more threshold")


def test_values_and_verifications() -> None:
    mdp, _ = grouped_mdp(8, 2, seed=0)
    values = value_iteration(mdp, 0.9)
    title, rows = read(values)
    assert title == "Values of 8 states, bounded"
    assert rows["policy"] == "one action per state"
    uniform = np.full(mdp.rewards.shape, 1.0 / mdp.n_actions)
    found = evaluate_policy(mdp, 0.9, uniform)
    assert read(found)[1]["policy"] == "probabilities of actions per state"
    title, rows = read(verify(mdp, certify(mdp, 0.9)))
    assert title == "Certificate verified"
    assert "problem" not in rows
    bad = Verification(False, "rejected", "float", HOSTILE, 0.0, 1)
    title, rows = read(bad)
    assert title == "Certificate rejected"
    assert rows["problem"].startswith("</td>")
    assert rows["checked"] == "1 pair"


@pytest.mark.parametrize("count", [1, 2])
def test_one_and_many(count: int) -> None:
    mdp = TabularMDP.from_dense(np.eye(count)[:, None, :], np.arange(count))
    word = "state" if count == 1 else "states"
    assert read(mdp)[0] == f"Model of {count} {word}, 1 action"
    assert read(value_iteration(mdp, 0.5))[0] == f"Values of {count} {word}, bounded"
    assert repr(value_iteration(mdp, 0.5)).startswith(f"Values({count} {word},")
    assert read(aggregate(mdp, [0] * count))[1]["of each"] == f"{count} {word}"
