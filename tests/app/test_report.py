"""The report without a browser: what the file holds, and that nothing can break out of it."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import bisim_abstract._app.report as report
from bisim_abstract import (
    AbstractionLoss,
    Blocks,
    Certificate,
    Covering,
    Curve,
    InvalidArgumentError,
    StateMap,
    TabularMDP,
    ValueLoss,
    Verification,
    certify,
    compare_abstractions,
    estimate_mdp,
    state_map,
    verify,
    write_report,
)
from bisim_abstract._abstract.value import LEARNER_TERMS, amount_text, share_text
from bisim_abstract._app import figures
from bisim_abstract._app.page_parts import (
    bound_text,
    embed,
    number_text,
    percent_text,
)
from bisim_abstract._app.palette import LOWER, UPPER
from bisim_abstract._app.report import _inside, _kept, _short
from bisim_abstract._app.state_figures import places_figure, restrict
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.text import surely_text
from bisim_abstract._certificate.frontier import Frontier, FrontierPoint
from bisim_abstract._certificate.verdict import judge
from bisim_abstract._linkage.forests import spanning_forest
from bisim_abstract.parts import EmbeddingFit, EmbeddingQuality, grouped_mdp, random_mdp
from bisim_abstract.wrappers import RoomsGridEnv, extract_mdp
from tests.support import ROOT

HOSTILE = "</script><script>alert(1)</script><!-- & \" ' \u2028 \u2029 \x00 \ud800 ]]>"


class Reader(HTMLParser):
    """Tags with their attributes, and the text of scripts and of everything else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self._stack: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._stack.pop()

    def handle_data(self, data: str) -> None:
        if self._stack and self._stack[-1] == "script":
            self.scripts.append(data)
        elif not self._stack:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def ids(self) -> set[str]:
        return {str(attrs["id"]) for _, attrs in self.tags if "id" in attrs}


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def data_of(path: Path) -> Any:
    scripts = Reader(path.read_text(encoding="utf-8")).scripts
    return json.loads(scripts[0], parse_constant=no_constant)


def clusters_of(data: Any, arm: str, tau: float) -> list[int]:
    """The union-find of the page's script, in Python."""
    forest = data["forests"][arm]
    parent = list(range(len(data["map"]["x"])))

    def find(s: int) -> int:
        while parent[s] != s:
            parent[s] = s = parent[parent[s]]
        return s

    used = sum(n for w, n in zip(forest["tau"], forest["edges"], strict=True) if w <= tau)
    for k in range(used):
        a, b = find(forest["first"][k]), find(forest["second"][k])
        parent[max(a, b)] = min(a, b)
    return [find(s) for s in range(len(parent))]


def live_of(data: Any, arm: str, tau: float) -> int:
    """Number of clusters at a threshold, the end of episodes not counted."""
    profile = data["profile"]
    steps = zip(profile["tau"], profile[arm], strict=True)
    return int([n for at, n in steps if at <= tau][-1])


def agrees_at(data: Any, tau: float) -> bool:
    profile = data["profile"]
    steps = zip(profile["tau"], profile["agrees"], strict=True)
    return bool([agrees for at, agrees in steps if at <= tau][-1])


def live_count(certificate: Certificate, labels: npt.NDArray[np.int64]) -> int:
    end = certificate.terminal_state
    return len({int(label) for s, label in enumerate(labels) if s != end})


def thresholds(certificate: Certificate, most: int = 25) -> list[float]:
    """0, breaks of both arms, and the floats just below and above them."""
    weights = np.unique(np.concatenate([f.weights for f in certificate.forests]))
    at = np.unique(np.linspace(0, max(weights.size - 1, 0), most).astype(np.int64))
    some = weights[at] if weights.size else weights
    near = [some, np.nextafter(some, -np.inf), np.nextafter(some, np.inf), [0.0, 1e6]]
    return [float(t) for t in np.unique(np.concatenate(near)) if t >= 0.0]


def check_exact(certificate: Certificate, data: Any) -> None:
    """Forests, counts and intervals of the page against the certificate's own clusterings."""
    states = data["map"]["states"]
    states = np.arange(certificate.n_states) if states is None else np.array(states)
    for tau in thresholds(certificate):
        both = certificate.partitions(tau)
        for arm, labels in zip(("lower", "upper"), both, strict=True):
            drawn = numbered(labels[states])
            np.testing.assert_array_equal(numbered(clusters_of(data, arm, tau)), drawn)
            assert live_of(data, arm, tau) == live_count(certificate, labels)
        inside = [
            i["n_clusters"]
            for i in data["profile"]["intervals"]
            if i["low"] <= tau and (i["high"] is None or tau < i["high"])
        ]
        is_certified = np.array_equal(*both)
        assert bool(inside) == is_certified
        assert agrees_at(data, tau) == is_certified
        if is_certified:
            assert inside == [live_of(data, "upper", tau)]


@pytest.fixture(scope="module")
def rooms() -> tuple[TabularMDP, Certificate]:
    mdp = extract_mdp("bisim_abstract/RoomsGrid-v0", env_args={"side": 12, "room_size": 4})
    return mdp, certify(mdp, 0.9, tau="auto")


@pytest.fixture(scope="module")
def taxi() -> tuple[TabularMDP, Certificate]:
    mdp = extract_mdp("Taxi-v3")
    return mdp, certify(mdp, 0.9)


@pytest.fixture(scope="module")
def covered() -> tuple[TabularMDP, Certificate]:
    mdp = extract_mdp("FrozenLake-v1", env_args={"map_name": "8x8"})
    return mdp, certify(mdp, 0.9, method=Covering(), tau=0.3)


@pytest.fixture(scope="module")
def abstained() -> tuple[TabularMDP, Certificate]:
    mdp = random_mdp(40, seed=3)
    certificate = certify(mdp, 0.9, tau=0.2, method=Blocks(max_pairs=50))
    assert not certificate.is_certified
    return mdp, certificate


@pytest.fixture(scope="module")
def poor(taxi: tuple[TabularMDP, Certificate]) -> tuple[TabularMDP, Certificate]:
    """Certified, and agents that solve it may do worse than the baseline."""
    mdp, certificate = taxi
    found = certificate.at(85.0).with_value(mdp)
    assert found.value is not None
    assert -1.0 < found.value.solver.kept < 0.0
    return mdp, found


LOSS = ValueLoss(2.0, 1.0, 0.5, 1.9, 0.9, 0.4, 0.875)


def everything(mdp: TabularMDP, certificate: Certificate) -> dict[str, Any]:
    curve = Curve("on clusters", (10, 20, 30), np.array([[0.1, 0.5, 0.9], [0.2, 0.4, 0.8]]))
    return {
        "verification": verify(mdp, certificate),
        "comparison": compare_abstractions(mdp, certificate),
        "curves": [curve],
        "embedding": np.random.default_rng(0).normal(size=(mdp.n_states, 3)),
        "record": {"seed": 7, "config": {"noise": 0.02}},
        "commands": ["make demo", "make test"],
    }


# -- contents ----------------------------------------------------------------------------------


def test_everything_is_there(rooms: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = rooms
    target = tmp_path / "report.html"
    assert write_report(target, mdp, certificate, **everything(mdp, certificate)) == target
    assert os.listdir(tmp_path) == ["report.html"]
    text = target.read_text(encoding="utf-8")
    page = Reader(text)
    assert {
        "verdict", "verification", "explorer", "tau", "tau-slider", "previous", "next", "map",
        "profile", "frontier", "kept", "loss", "widths", "merges", "tree", "comparison", "curves",
        "embedding", "meaning", "reproduce", "copy", "commands", "data",
    } <= page.ids  # fmt: skip
    assert "CERTIFIED: 9 clusters of 144 states; at gamma 0.9, any agent that solves" in page.text
    assert "all pairs of states" in page.text
    assert "All claims verified by independent code" in page.text
    assert "bounds on values" in page.text
    assert "make demo make test" in page.text
    assert "config.noise 0.02" in page.text
    assert mdp.fingerprint in page.text
    assert certificate.stop in page.text
    assert "certificate.run.versions.numpy" in page.text
    assert "chance" in page.text
    assert "What to try" not in page.text
    assert "little" not in page.ids
    data = data_of(target)
    assert data["tau"] == certificate.tau
    assert data["curves"][0]["median"] == pytest.approx([0.15, 0.45, 0.85])
    assert len(data["embedding"]["x"]) == 144
    assert data["map"]["is_grid"]
    assert data["map"]["size"] == [12, 12]


def test_what_is_not_given_is_not_there(
    rooms: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = rooms
    page = Reader(write_report(tmp_path / "r.html", mdp, certificate).read_text(encoding="utf-8"))
    hidden = {"comparison", "curves", "learning", "embedding", "cloud", "copy", "commands"}
    assert not hidden & page.ids
    assert "Not checked independently" in page.text
    assert "certified bound" not in page.text


def test_the_page_asks_for_nothing(rooms: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = rooms
    target = write_report(tmp_path / "r.html", mdp, certificate, **everything(mdp, certificate))
    text = target.read_text(encoding="utf-8")
    assert re.findall(r"https?://[^\"']*", text) == ["http://www.w3.org/2000/svg"]
    for word in ("url(", "@import", "innerHTML", "outerHTML", "document.write", "eval(", "fetch("):
        assert word not in text, word
    page = Reader(text)
    policy = [a["content"] for tag, a in page.tags if a.get("http-equiv")]
    assert policy == [
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    ]
    links = [a for _, a in page.tags if {"src", "href", "action", "srcset"} & set(a)]
    assert links == [{"rel": "icon", "href": "data:,"}]
    assert not any(name.startswith("on") for _, a in page.tags for name in a)


def test_every_control_has_a_name(rooms: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = rooms
    page = Reader(write_report(tmp_path / "r.html", mdp, certificate).read_text(encoding="utf-8"))
    labelled = {a.get("for") for tag, a in page.tags if tag == "label"}
    for tag, attrs in page.tags:
        if tag in ("input", "select") and attrs.get("type") != "radio":
            assert "aria-label" in attrs or attrs["id"] in labelled
        if tag == "canvas":
            assert attrs["role"] == ("application" if attrs["id"] == "map" else "img")
            assert attrs["aria-label"]
    assert ("html", {"lang": "en"}) in page.tags


def test_hostile_strings_stay_strings(
    rooms: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = rooms
    clean = HOSTILE.replace("\ud800", "")
    mdp = mdp.with_metadata(env=clean, note=[clean])
    run = {**certificate.run, clean: {clean: clean}}
    forged = dataclasses.replace(certificate, stop=HOSTILE, run=run)
    places = dataclasses.replace(state_map(mdp), caption=HOSTILE)
    bad = Verification(False, "rejected", "float", HOSTILE, 0.0, 0)
    rows = [AbstractionLoss(HOSTILE, 3, LOSS), AbstractionLoss("certified", 3, LOSS, True, 1.0)]
    curve = Curve(HOSTILE, (1,), np.array([[0.5]]))
    options: dict[str, Any] = {
        "verification": bad, "places": places, "comparison": rows, "curves": [curve],
        "record": {HOSTILE: HOSTILE}, "commands": [HOSTILE],
    }  # fmt: skip
    plain = Reader(write_report(tmp_path / "plain.html", mdp, certificate).read_text("utf-8"))
    for title in (HOSTILE, None):
        target = write_report(tmp_path / "r.html", mdp, forged, title=title, **options)
        text = target.read_text(encoding="utf-8")
        assert "<script>alert" not in text
        page = Reader(text)
        assert [tag for tag, _ in page.tags].count("script") == 2
        assert len(page.scripts) == len(plain.scripts) == 2
        assert page.scripts[1] == plain.scripts[1]
        assert data_of(target)["curves"][0]["name"] == HOSTILE
        assert "alert(1)" in page.text


def test_embedded_json_says_the_same() -> None:
    data = {"a": HOSTILE, HOSTILE: [1.5, None, "é"], "tau": 0.1 + 0.2}
    text = embed(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)
    with pytest.raises(ValueError):
        embed({"x": math.nan})


# -- verdicts ----------------------------------------------------------------------------------


def page_of(tmp_path: Path, certificate: Certificate, mdp: TabularMDP, **options: Any) -> Reader:
    target = write_report(tmp_path / "page.html", mdp, certificate, **options)
    data_of(target)  # is JSON
    return Reader(target.read_text(encoding="utf-8"))


def level_of(page: Reader) -> str:
    (found,) = [str(a["class"]) for _, a in page.tags if a.get("id") == "verdict"]
    return found.removeprefix("badge ")


def sentence_of(tmp_path: Path) -> str:
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    (found,) = re.findall(r'<p class="sentence">(.*?)</p>', text)
    return html.unescape(found)


def tiles_of(tmp_path: Path) -> list[tuple[str, str]]:
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = re.findall(r'<div class="tile"><dt>(.*?)</dt><dd>(.*?)</dd></div>', text)
    return [(name, value.replace("\xa0", " ")) for name, value in found]


def test_the_banner_is_the_verdict_in_its_colour(
    rooms: tuple[TabularMDP, Certificate],
    poor: tuple[TabularMDP, Certificate],
    abstained: tuple[TabularMDP, Certificate],
    tmp_path: Path,
) -> None:
    random = random_mdp(40, seed=3)
    fine = random, certify(random, 0.9, method=Blocks(max_pairs=50))
    assert fine[1].n_clusters == 40
    unasked = rooms[0], rooms[1].at(rooms[1].tau or 0.0)
    for (mdp, certificate), level, begin in (
        (rooms, "useful", "CERTIFIED: 9 clusters of 144 states; at gamma 0.9, any agent that"),
        (poor, "poor", "CERTIFIED, BUT agents may do no better than the baseline: "),
        (fine, "poor", "CERTIFIED, BUT nothing was found that can be merged"),
        (
            unasked,
            "poor",
            "CERTIFIED: 9 clusters of 144 states; what agents retain on them was not",
        ),
        (abstained, "open", "NOT CERTIFIED at tau 0.2"),
    ):
        for check in (None, verify(mdp, certificate)):
            page = page_of(tmp_path, certificate, mdp, verification=check)
            assert level_of(page) == judge(certificate, check).level == level
            assert sentence_of(tmp_path) == judge(certificate, check).sentence
            assert sentence_of(tmp_path).startswith(begin)


def test_key_figures_lead_with_value(
    taxi: tuple[TabularMDP, Certificate],
    abstained: tuple[TabularMDP, Certificate],
    tmp_path: Path,
) -> None:
    mdp, certificate = taxi
    value = certificate.value
    assert value is not None
    page_of(tmp_path, certificate, mdp)
    kept, lost, clusters, *rest = tiles_of(tmp_path)
    share = value.solver
    percent = f"≥ {math.floor(1000 * share.kept) / 10:.1f}%"
    assert kept == ("achievable return retained by any solver, proven", percent)
    assert lost == ("loss of any solver in any state, proven", f"≤ {amount_text(share.loss)}")
    named = "clusters of 500 states (plus the terminal state)"
    assert clusters == (named, f"{certificate.n_clusters}")
    assert ("compression", f"{500 / certificate.n_clusters:.4g}×") in rest
    page_of(tmp_path, certificate.at(certificate.tau or 0.0), mdp)
    assert [text for _, text in tiles_of(tmp_path)[:2]] == ["not computed", "not computed"]
    page_of(tmp_path, abstained[1], abstained[0])
    tiles = tiles_of(tmp_path)
    assert [text for _, text in tiles[:2]] == ["not certified", "not certified"]
    low, high = (int(f.count(0.2)) for f in abstained[1].forests)
    assert tiles[2] == ("clusters of 40 states", f"{low} to {high}")


def test_a_rejected_certificate_is_never_green(
    rooms: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = rooms
    bad = Verification(False, "rejected", "float", "a bound is too low", 0.0, 3)
    page = page_of(tmp_path, certificate, mdp, verification=bad)
    assert level_of(page) == "open"
    assert sentence_of(tmp_path) == "REJECTED: a bound is too low"
    assert "Rejected by the independent check: a bound is too low" in page.text
    sampled = Verification(True, "sampled", "sampled", "", 0.0, 3)
    page = page_of(tmp_path, certificate, mdp, verification=sampled)
    assert level_of(page) == "useful"
    assert "All claims spot-checked" in page.text


def test_abstention_says_what_to_try(
    abstained: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = abstained
    page = page_of(tmp_path, certificate, mdp)
    assert level_of(page) == "open"
    assert "NOT CERTIFIED" in page.text
    assert "What to try" in page.text
    assert certificate.stop in page.text
    middle = float(certificate.forests[0].weights[20])
    both = certificate.partitions(middle)
    low, high = (int(x.max()) + 1 for x in both)
    assert low < high
    page = page_of(tmp_path, certificate.at(middle), mdp)
    assert level_of(page) == "open"
    assert f"between {low} and {high} clusters" in page.text


def test_labels_in_a_file_do_not_make_a_verdict(
    abstained: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = abstained
    middle = float(certificate.forests[0].weights[20])
    zeros = np.zeros(mdp.n_states, np.int64)
    made = certificate.at(middle)
    forged = dataclasses.replace(made, labels_lower=zeros, labels_upper=zeros)
    assert forged.is_certified
    page = page_of(tmp_path, forged, mdp)
    assert level_of(page) == "open"
    assert sentence_of(tmp_path).startswith("NOT CERTIFIED")


def test_covered_scope_claims_less(covered: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = covered
    open_ = [x for x in certificate.profile().tau.tolist() if not certificate.at(x).is_certified]
    tau = open_[len(open_) // 2]
    certificate = certificate.at(tau)
    page_of(tmp_path, certificate, mdp)
    low, high = (int(part.max()) + 1 for part in certificate.partitions(tau))
    assert low < high
    assert re.search(r"NOT CERTIFIED at tau \S+: between [\d,]+ and ", sentence_of(tmp_path))
    check_exact(certificate, data_of(tmp_path / "page.html"))
    few = [i for i in certificate.certified_thresholds() if 1 < i.n_clusters < 40]
    certificate = certificate.at(few[0].low).with_value(mdp)
    page = page_of(tmp_path, certificate, mdp)
    assert sentence_of(tmp_path).startswith("CERTIFIED over covered pairs only")
    assert "all pairs of states" not in page.text
    assert "others may still link clusters" in page.text
    assert "may still link two of its clusters" in page.text
    check_exact(certificate, data_of(tmp_path / "page.html"))


def estimated(truth: TabularMDP, alpha: float) -> TabularMDP:
    rng = np.random.default_rng(0)
    rows: list[tuple[int, int, float, int]] = []
    for s in range(truth.n_states):
        for a in range(truth.n_actions):
            after, probs = truth.successors(s, a)
            for t in rng.choice(after, size=50, p=probs / probs.sum()).tolist():
                rows.append((s, a, float(truth.rewards[s, a]), t))
    columns = list(zip(*rows, strict=True))
    return estimate_mdp(
        np.array(columns[0]), np.array(columns[1]), np.array(columns[2]), np.array(columns[3]),
        n_states=truth.n_states, n_actions=truth.n_actions, alpha=alpha,
        reward_range=(float(truth.rewards.min()), float(truth.rewards.max())),
    )  # fmt: skip


def test_an_estimate_says_its_probability(tmp_path: Path) -> None:
    mdp = estimated(grouped_mdp(6, 2, seed=0)[0], 0.05)
    certificate = certify(mdp, 0.9, tau=1e5)
    page = page_of(tmp_path, certificate, mdp)
    assert "with probability at least 0.95" in page.text
    assert "estimated from samples" in page.text


def test_merging_nothing_is_said(taxi: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = taxi
    fine = certificate.at(min(f.weights[0] for f in certificate.forests) / 2.0).with_value(mdp)
    assert fine.is_certified
    page = page_of(tmp_path, fine, mdp)
    assert "500 clusters of 500 states (plus the terminal state)" in page.text
    assert "nothing can be merged" in sentence_of(tmp_path)
    assert "No certified range" not in page.text
    assert "The end of episodes has no place on it." in page.text
    data = data_of(tmp_path / "page.html")
    assert data["map"]["x"][500] is None
    assert data["map"]["ids"][500] == -1


# -- exactness ---------------------------------------------------------------------------------


def test_forests_are_the_certificates(
    rooms: tuple[TabularMDP, Certificate],
    taxi: tuple[TabularMDP, Certificate],
    abstained: tuple[TabularMDP, Certificate],
    tmp_path: Path,
) -> None:
    for mdp, certificate in (rooms, taxi, abstained):
        check_exact(certificate, data_of(write_report(tmp_path / "r.html", mdp, certificate)))


def test_sampled_states_keep_their_clusters(
    rooms: tuple[TabularMDP, Certificate],
    taxi: tuple[TabularMDP, Certificate],
    abstained: tuple[TabularMDP, Certificate],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "MAX_DRAWN", 30)
    for mdp, certificate in (rooms, taxi, abstained):
        target = write_report(tmp_path / "r.html", mdp, certificate)
        data = data_of(target)
        states = data["map"]["states"]
        assert 9 <= len(states) <= 30
        assert states == sorted(set(states))
        assert all(x is not None for x in data["map"]["x"])
        check_exact(certificate, data)
        text = Reader(target.read_text(encoding="utf-8")).text
        assert f"{len(states)} of {mdp.n_states}" in text


def test_restriction_links_the_same() -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        n, m = int(rng.integers(2, 25)), int(rng.integers(0, 40))
        s, t = rng.integers(n, size=(2, m))
        s, t = s[s != t], t[s != t]
        forest = spanning_forest(n, s, t, rng.integers(4, size=s.size).astype(np.float64))
        some = np.sort(rng.choice(n, size=int(rng.integers(1, n + 1)), replace=False))
        small = restrict(forest, some)
        for tau in (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0):
            expected = numbered(forest.labels(tau)[some])
            np.testing.assert_array_equal(small.labels(tau), expected)


def test_thinned_steps_are_true_where_they_are(taxi: tuple[TabularMDP, Certificate]) -> None:
    certificate, every = taxi[1], taxi[1].profile()
    exact = figures.profile_figure(certificate, positions=every.tau.size)
    assert np.array_equal(exact.tau, every.tau)
    thin = figures.profile_figure(certificate, positions=8)
    assert thin.n_steps == every.tau.size > thin.tau.size
    assert thin.tau.size <= 16
    at = np.searchsorted(every.tau, thin.tau)
    for name in ("tau", "lower", "upper"):
        np.testing.assert_array_equal(getattr(thin, name), getattr(every, name)[at])
    assert thin.tau[0] == 0.0
    assert thin.tau[-1] == every.tau[-1]


def test_positions_and_values_of_a_scale_belong_together() -> None:
    for scale in (figures.Scale(0.03, 7.0), figures.Scale(0.03, 7.0, is_log=False)):
        values = np.array([0.0, 1e-4, 0.01, 0.02, 0.5, 7.0])
        along = scale.along(values)
        assert (along[0], along[-1]) == (0.0, 1.0)
        assert (np.diff(along) > 0.0).all()
        np.testing.assert_allclose(scale.at(along), values, rtol=1e-12)


def test_the_widest_intervals_are_listed(
    taxi: tuple[TabularMDP, Certificate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mdp, certificate = taxi
    monkeypatch.setattr(report, "MAX_INTERVALS", 5)
    target = write_report(tmp_path / "r.html", mdp, certificate)
    data = data_of(target)
    every = certificate.certified_thresholds()
    assert len(every) > 5
    assert data["profile"]["n_intervals"] == len(every)
    intervals = [tuple(entry.values()) for entry in data["profile"]["intervals"]]
    assert len(intervals) == 5
    assert set(intervals) <= {
        (i.low, None if math.isinf(i.high) else i.high, i.n_clusters) for i in every
    }
    tau = certificate.tau
    assert tau is not None
    assert any(low <= tau < (high or math.inf) for low, high, _ in intervals)
    assert "This page lists 5:" in Reader(target.read_text(encoding="utf-8")).text


def leaves_below(tree: figures.TreeFigure, node: int) -> set[int]:
    children = tree.nodes[node].children
    return set().union(*(leaves_below(tree, child) for child in children)) if children else {node}


def test_merges_are_those_of_both_arms(
    taxi: tuple[TabularMDP, Certificate],
    rooms: tuple[TabularMDP, Certificate],
    covered: tuple[TabularMDP, Certificate],
) -> None:
    for certificate in (taxi[1], rooms[1], covered[1]):
        tree = figures.tree_figure(certificate, max_leaves=report.MAX_LEAVES)
        k, low, clusters = len(tree.leaves), tree.interval.low, tree.interval.n_clusters
        assert 2 <= clusters <= report.MAX_LEAVES
        sizes = [leaf.size for leaf in tree.leaves]
        assert sum(sizes) == certificate.n_live  # the end is a member of none
        assert clusters == sum(size > 0 for size in sizes)
        assert k - clusters == sizes.count(0) <= 1
        assert sorted(node.row for node in tree.nodes[:k]) == list(range(k))
        first = [leaf.state for leaf in tree.leaves]
        assert first == [leaf.drawn for leaf in tree.leaves]  # all states are
        bounds = dict.fromkeys(range(k), low)
        for j, node in enumerate(tree.nodes[k:], k):
            assert len(node.children) >= 2
            rows = [tree.nodes[child].row for child in node.children]
            assert (node.first, node.last) == (min(rows), max(rows))
            # Children are complete before they have merged.
            assert all(bounds[child] < node.begin for child in node.children)
            assert node.start <= node.begin
            bounds[j] = node.begin
            before = float(np.nextafter(node.start, 0.0))
            lower, _ = certificate.partitions(before)
            parts = [{int(lower[first[x]]) for x in leaves_below(tree, c)} for c in node.children]
            assert len(set().union(*parts)) == sum(len(part) for part in parts)  # none has begun
            _, upper = certificate.partitions(node.begin)
            assert len({int(upper[first[x]]) for x in leaves_below(tree, j)}) == 1
        # At every certified threshold the tree's clusters are the certified ones.
        for interval in certificate.certified_thresholds():
            if interval.low < low:
                continue
            labels = certificate.partitions(interval.low)[1][first]
            own = np.arange(k)
            for j, node in enumerate(tree.nodes[k:], k):
                if node.begin <= interval.low:
                    own[sorted(leaves_below(tree, j))] = j
            np.testing.assert_array_equal(numbered(own), numbered(labels))


def test_leaves_have_the_colours_of_the_map(taxi: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = taxi
    states = places_figure(state_map(mdp), certificate.terminal_state, most=30).states
    tree = figures.tree_figure(certificate, max_leaves=60, states=states)
    labels = certificate.partitions(tree.interval.low)[1]
    on_map = labels[states].tolist()
    for leaf in tree.leaves:
        expected = on_map.index(leaf.label) if leaf.label in on_map else None
        assert leaf.drawn == expected


# -- value -------------------------------------------------------------------------------------


def test_values_are_those_of_the_frontier(
    rooms: tuple[TabularMDP, Certificate],
    taxi: tuple[TabularMDP, Certificate],
    poor: tuple[TabularMDP, Certificate],
    tmp_path: Path,
) -> None:
    for mdp, certificate in (rooms, taxi, poor):
        target = write_report(tmp_path / "r.html", mdp, certificate)
        drawn = data_of(target)["frontier"]
        expected = certificate.frontier(mdp)
        assert drawn["keep"] == 100.0 * certificate.keep
        assert len(drawn["marks"]) == len(expected.points)
        for got, point in zip(drawn["marks"], expected.points, strict=True):
            assert (got["low"], got["high"] or math.inf) == (point.low, point.high)
            assert got["n_clusters"] == point.n_clusters
            assert got["loss"] == point.loss
            assert got["loss_text"] == amount_text(point.loss)
            assert got["is_proven"] == (point.kept >= 0.0)
            if got["is_proven"]:
                assert got["percent"] == pytest.approx(100.0 * point.kept)
                assert got["kept_text"] == share_text(point.kept)
            else:
                assert (got["percent"], got["kept_text"]) == (0.0, share_text(point.kept))
            is_met = certificate.goal.is_met(point.numbers)
            assert got["is_worth"] == (is_met and point.n_clusters < certificate.n_live)
        (own,) = [got for got in drawn["marks"] if got["is_own"]]
        value = certificate.value
        assert value is not None
        assert (own["n_clusters"], own["loss"]) == (certificate.n_clusters, value.solver.loss)
        assert own["kept_text"] == share_text(value.solver.kept)
        text = Reader(target.read_text(encoding="utf-8")).text
        if expected.is_complete:
            assert "All certified ranges of tau were evaluated." in text
        else:
            assert f"{len(expected.points)} of {expected.n_thresholds} certified ranges" in text


def test_where_nothing_is_proven_nothing_is_drawn_above_the_bottom(
    rooms: tuple[TabularMDP, Certificate],
) -> None:
    points = [FrontierPoint(k, k + 1.0, 9 - k, 2.0, 1.0, kept) for k, kept in enumerate(ODD)]
    drawn = figures.frontier_figure(rooms[1].at(100.0), Frontier(tuple(points), 9))
    assert [mark.percent for mark in drawn.marks] == [0.0, 0.0, 0.0, pytest.approx(0.04), 100.0]
    assert [mark.is_proven for mark in drawn.marks] == [False, False, True, True, True]
    words = ["nothing proven", "below the baseline", *["at least 0.0%"] * 2, "100%"]
    assert [mark.kept_text for mark in drawn.marks] == words
    assert not any(mark.is_own for mark in drawn.marks)
    embed(figures.as_json(drawn))  # refuses what is no number
    shares = [_kept(share).replace("\xa0", " ") for share in (*ODD, math.nan, 0.9999)]
    assert shares == [
        "nothing proven", "below the baseline", "≥ 0.0%", "≥ 0.0%", "100%", "nothing proven",
        "≥ 99.9%",
    ]  # fmt: skip


ODD = (-math.inf, -0.243, -0.0, 0.0004, 1.0)


def test_the_comparison_says_what_is_kept(
    taxi: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = taxi
    rows = [
        AbstractionLoss(f"row {k}", 7, dataclasses.replace(LOSS, kept=kept))
        for k, kept in enumerate(ODD)
    ]
    page_of(tmp_path, certificate, mdp, comparison=rows)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = text[text.index('id="comparison"') :]
    cells = re.findall(r'<td data-head="retained">(.*?)</td>', text)
    assert cells == [
        "nothing proven", "below the baseline", *["≥\xa00.0%"] * 2, "100%",
    ]  # fmt: skip

    assert re.findall(r'<td data-head="clusters">(.*?)</td>', text) == ["7"] * 5
    page = page_of(tmp_path, certificate, mdp, comparison=compare_abstractions(mdp, certificate))
    for word in ("nan", "-0%", "-inf"):
        assert word not in page.text


def test_large_models_are_valued_at_their_own_threshold_only(
    rooms: tuple[TabularMDP, Certificate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mdp, certificate = rooms
    value = certificate.value
    assert value is not None

    def fails(*_: Any, **__: Any) -> Frontier:
        raise AssertionError("too much work")

    monkeypatch.setattr(report, "MAX_VALUED", mdp.n_states - 1)
    monkeypatch.setattr(Certificate, "frontier", fails)
    page = page_of(tmp_path, certificate, mdp)
    (own,) = data_of(tmp_path / "page.html")["frontier"]["marks"]
    assert own["is_own"]
    assert (own["n_clusters"], own["loss"]) == (9, value.solver.loss)
    assert own["kept_text"] == share_text(value.solver.kept)
    assert "only the certificate's own is" in page.text
    for bare in (certificate.at(certificate.tau or 0.0), certificate.at(1e-9)):
        page = page_of(tmp_path, bare, mdp)
        assert data_of(tmp_path / "page.html")["frontier"]["marks"] == []
        assert "No certified clustering was evaluated." in page.text
    monkeypatch.setattr(report, "MAX_VALUED", mdp.n_states)
    with pytest.raises(AssertionError, match="too much work"):
        page_of(tmp_path, certificate, mdp)


def test_why_little_is_merged(
    taxi: tuple[TabularMDP, Certificate],
    rooms: tuple[TabularMDP, Certificate],
    abstained: tuple[TabularMDP, Certificate],
    tmp_path: Path,
) -> None:
    lake = extract_mdp("FrozenLake-v1", env_args={"map_name": "8x8"})
    ends = 0
    for mdp, certificate in (taxi, abstained, (lake, certify(lake, 0.9)), rooms):
        page = page_of(tmp_path, certificate, mdp)
        assert ("little" in page.ids) == certificate.merges_little
        if not certificate.merges_little:
            continue
        text = (tmp_path / "page.html").read_text(encoding="utf-8")
        section = text[text.index('id="little"') : text.index('id="widths"')]
        rows = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", section)
        pairs = certificate.nearest(5, mdp)
        assert len(rows) == len(pairs) == 5
        for row, pair in zip(rows, pairs, strict=True):
            plain = re.sub(r"<span[^>]*>|</span>", "", row)
            both = " and ".join(
                mdp.state_text(x, most=figures.SHORT, with_id=True)
                for x in (pair.first, pair.second)
            )
            assert plain.startswith(f"{both}</th>")
            cells = re.findall(r"<td[^>]*>(.*?)</td>", plain)
            low, _, high = cells[0].partition(" to ")
            assert float(low) <= pair.lower <= pair.upper <= float(high or low)
            assert pair.action is not None
            assert cells[1] == mdp.action_text(pair.action)
            total = pair.reward + pair.future
            assert cells[2:4] == [f"{pair.reward / total:.0%}", f"{pair.future / total:.0%}"]
            s, t, share = pair.successors[0]
            names = (
                "the end"
                if x == mdp.terminal_state
                else mdp.state_text(x, most=figures.SHORT, with_id=True)
                for x in (s, t)
            )
            assert cells[4].startswith(f"{' and '.join(names)} ({share:.0%})")
            ends += "the end" in cells[4]
    assert ends > 0  # some successor was the end, and was called so
    assert not rooms[1].merges_little


def test_pairs_are_explained_as_far_as_that_is_quick(
    abstained: tuple[TabularMDP, Certificate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mdp, certificate = abstained
    one = mdp.n_actions * 40 * 40  # every state follows every other
    for limit, rows in ((one - 1, 0), (one, 1), (3 * one, 3), (9 * one, 5)):
        monkeypatch.setattr(report, "MAX_COSTS", limit)
        page = page_of(tmp_path, certificate, mdp)
        assert "little" in page.ids
        assert ("Too many successors" in page.text) == (rows == 0)
        text = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert text.count('<td data-head="by action">') == rows


def test_a_better_threshold_is_named(poor: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = poor
    page = page_of(tmp_path, certificate, mdp)
    best = certificate.frontier(mdp).coarsest()
    assert best is not None
    (said,) = re.findall(
        r"Take tau (\S+): (\d+) clusters \(plus the terminal state\), on which any", page.text
    )
    assert int(said[1]) == best.n_clusters == certificate.at(float(said[0])).n_clusters
    narrow = FrontierPoint(1.0, float(np.nextafter(1.0, 2.0)), 3, 0.0, 0.0, 1.0)
    assert float(_inside(narrow)) == 1.0
    narrow = FrontierPoint(1.0 + 4e-9, 1.0 + 6e-9, 3, 0.0, 0.0, 1.0)
    assert narrow.low <= float(_inside(narrow)) < narrow.high


# -- edges -------------------------------------------------------------------------------------


def tiny(n: int) -> TabularMDP:
    eye = np.eye(n)[:, None, :]
    return TabularMDP.from_dense(eye, np.arange(n, dtype=np.float64)[:, None])


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("tau", [None, 0.0, 5.0, 1e6])
def test_tiny_models(n: int, tau: float | None, tmp_path: Path) -> None:
    mdp = tiny(n)
    certificate = certify(mdp, 0.9, tau=0.5 if tau is None else tau)
    if tau is None:
        fields: dict[str, Any] = {
            "tau": None,
            "labels_lower": np.empty(0),
            "labels_upper": np.empty(0),
            "value": None,
        }
        certificate = dataclasses.replace(certificate, **fields)
    target = write_report(tmp_path / "r.html", mdp, certificate)
    data = data_of(target)
    check_exact(certificate, data)
    scale = data["profile"]["scale"]
    assert 0.0 < scale["low"] < scale["right"]
    assert data["tau"] >= 0.0


def test_a_model_of_one_reward_has_no_positive_threshold(tmp_path: Path) -> None:
    mdp = TabularMDP.from_dense(np.eye(4)[:, None, :], np.zeros((4, 1)))
    certificate = certify(mdp, 0.9, tau=0.0)
    page = page_of(tmp_path, certificate, mdp)
    assert "1 cluster of 4 states" in sentence_of(tmp_path)
    assert "Threshold tau 0;" in page.text
    check_exact(certificate, data_of(tmp_path / "page.html"))


def test_large_grids_are_drawn_by_samples(tmp_path: Path) -> None:
    mdp = RoomsGridEnv(side=150, room_size=50).to_mdp()
    certificate = certify(mdp, 0.9, tau="auto")
    target = write_report(tmp_path / "r.html", mdp, certificate)
    data = data_of(target)
    assert len(data["map"]["x"]) == 75 * 75
    assert data["map"]["size"] == [75, 75]
    assert data["profile"]["n_steps"] == len(data["profile"]["tau"])
    assert target.stat().st_size < 5_000_000
    text = Reader(target.read_text(encoding="utf-8")).text
    assert "One state stands for each 2 by 2 squares: 5,625 of 22,500 are drawn" in text
    tau = certificate.tau
    assert tau is not None
    assert live_of(data, "upper", tau) == 9
    states = np.array(data["map"]["states"])
    drawn = numbered(certificate.labels_upper[states])
    np.testing.assert_array_equal(numbered(clusters_of(data, "upper", tau)), drawn)


def test_places_may_be_missing(rooms: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = rooms
    nowhere = np.full(mdp.n_states, np.nan)
    for is_grid in (False, True):
        places = StateMap(nowhere, nowhere, is_grid, "Nothing.")
        data = data_of(write_report(tmp_path / "r.html", mdp, certificate, places=places))
        assert set(data["map"]["x"]) == {None}


def test_odd_numbers_are_left_out_of_the_json(
    rooms: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = rooms
    odd = ValueLoss(math.inf, math.nan, 0.0, 0.0, 0.0, 0.0, math.nan)
    rows = [AbstractionLoss("odd", 2, odd, True, math.inf), AbstractionLoss("even", 3, LOSS)]
    curve = Curve("odd", (1, 2, 3), np.array([[0.5, math.nan, math.inf]]))
    record = {"nan": math.nan, "array": np.arange(3), "object": object, "long": "x" * 9000}
    record |= {f"entry {k}": k for k in range(400)}
    options: dict[str, Any] = {"comparison": rows, "curves": [curve], "record": record}
    page = page_of(tmp_path, certificate, mdp, **options)
    assert data_of(tmp_path / "page.html")["curves"][0]["median"] == [0.5, None, None]
    assert "unbounded" in page.text
    assert "not known" in page.text
    assert "more entries" in page.text
    assert "x" * 2001 not in page.text


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ({"seconds": 0.41}, "0.4 s to certify"),
        (
            {"seconds": 0.41, "compile_seconds": 9.84},
            "0.4 s to certify; 9.8 s went into compiling the solvers, once",
        ),
        ({"seconds": 0.01, "compile_seconds": 0.0}, "under 0.1 s to certify"),
        ({"seconds": 1234.56, "compile_seconds": 0.04}, "1,234.6 s to certify"),
        ({"seconds": HOSTILE, "compile_seconds": [1]}, None),
        ({"seconds": True, "compile_seconds": -3}, None),
        ({}, None),
    ],
)
def test_times_are_given_without_that_of_compiling(
    run: dict[str, Any],
    text: str | None,
    rooms: tuple[TabularMDP, Certificate],
    tmp_path: Path,
) -> None:
    mdp, certificate = rooms
    page_of(tmp_path, dataclasses.replace(certificate, run=run), mdp)
    told = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = re.findall(r'<p class="times" id="times">(.*?)</p>', told)
    assert found == ([] if text is None else [text])
    assert "time to certify" not in told


def test_times_of_the_check_are_given_beside(
    rooms: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = rooms
    given = dataclasses.replace(certificate, run={"seconds": 0.4, "compile_seconds": 9.0})
    checked = Verification(True, "verified", "float", "", 0.0, 3, seconds=0.1, compile_seconds=0.8)
    page_of(tmp_path, given, mdp, verification=checked)
    assert (
        ">0.4 s to certify, 0.1 s to verify; 9.8 s went into compiling the solvers, once</p>"
    ) in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert verify(mdp, certificate).seconds > 0.0


def test_grammar_of_one(tmp_path: Path) -> None:
    mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [1.0, 0.0])
    page = page_of(tmp_path, certify(mdp, 0.5), mdp, record={f"k{k}": k for k in range(600)})
    assert "Covered, with bounds of their own: 1 of 1 pair (100%)." in page.text
    rows = len(re.findall(r'<th scope="row">', (tmp_path / "page.html").read_text()))
    extra = int(re.findall(r"(\d+) more entries", page.text)[0])
    again = page_of(
        tmp_path, certify(mdp, 0.5), mdp, record={f"k{k}": k for k in range(601 - extra)}
    )
    assert rows > 0
    assert "1 more entry" in again.text


def test_the_page_uses_the_shared_colours(
    rooms: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    page_of(tmp_path, rooms[1], rooms[0])
    style = re.findall(r"<style>(.*?)</style>", (tmp_path / "page.html").read_text(), re.DOTALL)[0]
    light, dark = (
        dict(re.findall(r"--(upper|lower): (#\w+)", part))
        for part in (
            style.partition("@media")[0],
            style.partition("@media (prefers-color-scheme: dark)")[2].partition("* {")[0],
        )
    )
    assert light == {"upper": UPPER.light, "lower": LOWER.light}
    assert dark == {"upper": UPPER.dark, "lower": LOWER.dark}


def test_long_curves_are_thinned() -> None:
    steps = tuple(range(5000))
    (line,) = figures.curve_lines([Curve("long", steps, np.zeros((2, 5000)))])
    assert line.steps.size == line.median.size == figures.MAX_POINTS
    assert (line.steps[0], line.steps[-1]) == (0, 4999)


def test_what_an_embedding_imitates_is_a_table(tmp_path: Path) -> None:
    mdp = grouped_mdp(12, 3, seed=0)[0]
    certificate = certify(mdp, 0.9)

    def cells(name: str, error: float) -> str:
        own = EmbeddingFit(name, 4.0, error, 0.75, 0.5)
        quality = EmbeddingQuality(3.0, 2.0, 1.0, 0.25, 0.5, 5, 66, 12, True, own)
        target = write_report(tmp_path / "r.html", mdp, certificate, quality=quality)
        return target.read_text(encoding="utf-8").partition('id="fit"')[2].partition("</table>")[0]

    both = cells("mico", 1.0)
    assert both.count("<tr>") == 3  # with the head
    assert "MICo" in both.partition("0.25")[2]
    assert both.count("trained for it") == 1
    same = cells("bisimulation", 2.0)
    assert same.count("<tr>") == 2
    assert "trained for it" in same
    plain = write_report(tmp_path / "r.html", mdp, certificate).read_text(encoding="utf-8")
    assert 'id="fit"' not in plain


def test_an_embedding_replaces_a_map_of_rewards(
    abstained: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = abstained
    points = np.random.default_rng(0).normal(size=(mdp.n_states, 4))
    target = write_report(tmp_path / "r.html", mdp, certificate, embedding=points)
    page = Reader(target.read_text(encoding="utf-8"))
    assert "directions of the embedding" in page.text
    assert "embedding" not in page.ids
    target = write_report(
        tmp_path / "r.html", mdp, certificate, embedding=points, places=state_map(mdp)
    )
    assert "embedding" in Reader(target.read_text(encoding="utf-8")).ids


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.5, "1.5"), (1234.5, "1,234"), (2e-5, "2.00e-5"), (1e-315, "almost 0"),
        (3e9, "3.00e9"), (math.inf, "unbounded"), (math.nan, "not known"), (-0.25, "-0.25"),
        (-0.0, "0"),
    ],
)  # fmt: skip
def test_numbers_for_people(value: float, text: str) -> None:
    assert number_text(value) == text


def test_shares_are_never_rounded_up() -> None:
    shares = [0.0, -0.0, 1e-9, 0.29, 0.95, 0.99999, 1.0, math.nan]
    expected = ["0%", "0%", "under 0.1%", "29.0%", "95.0%", "99.9%", "100%", "not known"]
    assert [percent_text(share) for share in shares] == expected
    counts = [999_999, 3_123_750, 499_999_500_000, 5 * 10**15]
    expected = ["999,999", "3.12 million", "500 billion", "5.00e+15"]
    assert [_short(count) for count in counts] == expected


def test_bounds_are_rounded_to_their_own_side() -> None:
    rng = np.random.default_rng(0)
    for value in (10.0 ** rng.uniform(-20.0, 12.0, 500)).tolist():
        low, high = (
            float(bound_text(value, is_upper=is_upper).replace(",", ""))
            for is_upper in (False, True)
        )
        assert low <= value <= high
        assert high - low <= 0.011 * value


@pytest.mark.parametrize(
    ("alpha", "text"),
    [
        (0.05, "0.95"), (1e-7, "0.9999999"), (1.0 / 30.0, "0.966666"), (1e-300, "0.999999999999"),
        (5e-324, "0.999999999999"), (2.5e-7, "0.9999997"), (0.999999999, "0"),
        (0.20000000000000004, "0.8"),
    ],
)  # fmt: skip
def test_probabilities_are_rounded_down(alpha: float, text: str) -> None:
    assert surely_text(alpha) == text


def test_nothing_is_said_to_be_sure_that_is_not(tmp_path: Path) -> None:
    truth, _ = grouped_mdp(6, 2, seed=0)
    certificate = certify(truth, 0.9)
    page = page_of(tmp_path, certificate, truth)
    assert "probability at least" not in page.text
    mdp = estimated(truth, 1e-7)
    page = page_of(tmp_path, certify(mdp, 0.9, tau=1e5), mdp)
    said = re.findall(r"[Ww]ith probability at least ([0-9.]*[0-9])", page.text)
    assert len(said) == 3
    assert set(said) == {"0.9999999"}


def test_where_there_is_nothing_to_lose(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(4), (4, 2))
    for rewards in (np.zeros((4, 2)), np.ones((4, 2))):
        mdp = TabularMDP.from_dense(rows, rewards)
        page = page_of(tmp_path, certify(mdp, 0.9), mdp)
        assert "is already optimal from the start, so there is nothing to decide" in page.text
        assert "On this scale" not in page.text
        assert tiles_of(tmp_path)[0][1] == "nothing to decide"
    # Here something can be gained, but not from where episodes begin.
    rows = np.zeros((3, 2, 3))
    rows[0, :, 0] = rows[1, 0, 1] = rows[1, 1, 2] = rows[2, :, 2] = 1.0
    rewards = np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    mdp = TabularMDP.from_dense(rows, rewards, start=np.array([1.0, 0.0, 0.0]))
    page = page_of(tmp_path, certify(mdp, 0.9, tau=0.0), mdp)
    assert "there is nothing to decide and no share to retain" in page.text
    # Here no single action is best everywhere.
    rewards = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    mdp = TabularMDP.from_dense(rows, rewards, start=np.array([0.5, 0.0, 0.5]))
    page = page_of(tmp_path, certify(mdp, 0.9, tau=0.0), mdp)
    assert "there is nothing to decide" not in page.text
    assert "of the achievable return, from the start" in page.text
    assert "On this scale 0% is the baseline" in page.text
    # Both actions are worth the same though they differ: that is known up to rounding only.
    rows = np.zeros((3, 2, 3))
    rows[0, 0, 1] = rows[0, 1, 2] = rows[1, :, 0] = rows[2, :, 0] = 1.0
    rewards = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    mdp = TabularMDP.from_dense(rows, rewards)
    page = page_of(tmp_path, certify(mdp, 0.9, tau=0.0), mdp)
    assert "there is nothing to decide and no share to retain" in page.text


def test_metadata_of_a_file_are_for_reading(
    rooms: tuple[TabularMDP, Certificate], tmp_path: Path
) -> None:
    mdp, certificate = rooms
    turned = "Rooms\u202egpj.exe\u2066"
    mdp = mdp.with_metadata(env=turned, note={turned: [turned]}, frozen=[turned])
    forged = dataclasses.replace(certificate, stop=turned, run={turned: turned})
    places = dataclasses.replace(state_map(mdp), caption=turned)
    page = page_of(tmp_path, forged, mdp, title="a title", places=places)
    assert "Rooms\ufffdgpj.exe\ufffd · " in page.text  # the line about the model
    assert not {"\u202e", "\u2066"} & set((tmp_path / "page.html").read_text("utf-8"))


# -- refusals and files ------------------------------------------------------------------------


def test_wrong_arguments_are_refused(
    rooms: tuple[TabularMDP, Certificate],
    abstained: tuple[TabularMDP, Certificate],
    tmp_path: Path,
) -> None:
    mdp, certificate = rooms
    target = tmp_path / "r.html"
    with pytest.raises(InvalidArgumentError, match="another model"):
        write_report(target, abstained[0], certificate)
    with pytest.raises(InvalidArgumentError, match="Certificate"):
        write_report(target, mdp, mdp)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="commands"):
        write_report(target, mdp, certificate, commands="make demo")
    with pytest.raises(InvalidArgumentError, match="places"):
        write_report(target, mdp, certificate, places=3)  # type: ignore[arg-type]
    short = StateMap(np.zeros(3), np.zeros(3), True, "")
    with pytest.raises(InvalidArgumentError, match=r"places\.x"):
        write_report(target, mdp, certificate, places=short)
    half = np.full(mdp.n_states, 0.5)
    with pytest.raises(InvalidArgumentError, match="whole numbers"):
        write_report(target, mdp, certificate, places=StateMap(half, half, True, ""))
    gone = np.where(np.arange(mdp.n_states) == 0, np.nan, 0.0)
    with pytest.raises(InvalidArgumentError, match="same states"):
        write_report(target, mdp, certificate, places=StateMap(gone, half * 0, True, ""))
    with pytest.raises(InvalidArgumentError):
        write_report(target, mdp, certificate, embedding=np.zeros((3, 2)))
    with pytest.raises(InvalidArgumentError, match="scores of 'c' must"):
        write_report(target, mdp, certificate, curves=[Curve("c", (1, 2), np.zeros((1, 3)))])
    assert not target.exists()


def test_writing_is_all_or_nothing(
    rooms: tuple[TabularMDP, Certificate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mdp, certificate = rooms
    with pytest.raises(FileNotFoundError, match=r"no such directory to write to: .*none"):
        write_report(tmp_path / "none" / "r.html", mdp, certificate)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_report(tmp_path / "folder", mdp, certificate)
    target = tmp_path / "r.html"
    target.write_text("old")

    def fails(*_: Any) -> None:
        raise OSError(28, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(OSError, match="disk full"):
            write_report(target, mdp, certificate)
    assert target.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["folder", "r.html"]
    write_report(str(target), mdp, certificate)
    once = target.read_bytes()
    write_report(target, mdp, certificate)
    assert target.read_bytes() == once  # nothing in it depends on the time or the run


def test_writing_loads_no_heavy_library(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from bisim_abstract import certify, write_report\n"
        "from bisim_abstract.parts import grouped_mdp\n"
        "mdp, _ = grouped_mdp(12, 4, seed=0)\n"
        f"write_report({str(tmp_path / 'r.html')!r}, mdp, certify(mdp, 0.9))\n"
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_each_kind_of_agent_has_a_row(taxi: tuple[TabularMDP, Certificate], tmp_path: Path) -> None:
    mdp, certificate = taxi
    value = certificate.value
    assert value is not None
    assert value.learner is not None
    assert value.learner.converged is not None
    page = page_of(tmp_path, certificate, mdp)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    table = text[text.index('<table class="losses agents">') :]
    table = table[: table.index("</table>")]
    shares = re.findall(r'<td data-head="retained">(.*?)</td>', table)
    own = (value, value.solver, value.learner, value.learner.converged)
    assert shares == [*(_kept(share.kept) for share in own), "100%"]
    losses = re.findall(r'<td data-head="loss in any state">≤\xa0(.*?)</td>', table)
    assert losses == [amount_text(share.loss) for share in own]
    assert "any agent that solves the small environment requested" in " ".join(page.text.split())
    assert LEARNER_TERMS in page.text
    rejected = dataclasses.replace(verify(mdp, certificate), is_valid=False, problem="a test")
    assert (
        "What an agent will get"
        not in page_of(tmp_path, certificate, mdp, verification=rejected).text
    )


def test_a_requested_loss_is_the_bar(rooms: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = rooms
    asked = dataclasses.replace(certificate, max_loss=0.5)
    drawn = figures.frontier_figure(asked, asked.frontier(mdp))
    assert (drawn.keep, drawn.max_loss, drawn.requested) == (None, 0.5, "requested: at most 0.5")
    for mark in drawn.marks:
        assert mark.is_worth == (mark.loss <= 0.5 and mark.n_clusters < certificate.n_live)
    assert {mark.is_worth for mark in drawn.marks} == {True, False}
