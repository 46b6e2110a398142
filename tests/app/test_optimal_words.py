"""The relation of optimal action values in words: nothing of pairs, blocks or another distance."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Blocks,
    Certificate,
    TabularMDP,
    Verification,
    abstract_env,
    certify,
    compare_abstractions,
    verify,
    write_report,
)
from bisim_abstract._app.config import Config, Training
from bisim_abstract._app.plots import plot_widths
from bisim_abstract._app.sources import Source
from bisim_abstract._model.policies import uniform_policy
from bisim_abstract._prove.options import Options
from bisim_abstract._relations.table import RELATIONS
from bisim_abstract.errors import InvalidArgumentError
from bisim_abstract.parts import EmbeddingFit, EmbeddingQuality, grouped_mdp, random_mdp, sparse_mdp
from tests.app.test_report import Reader
from tests.support.action_values import ARMS

GROUPED = grouped_mdp(30, 4, noise=0.01, seed=0)[0]


def optimal(mdp: TabularMDP, **given: Any) -> tuple[TabularMDP, Certificate]:
    return mdp, certify(mdp, 0.9, relation="optimal", **given)


def masked() -> TabularMDP:
    available = np.ones((8, 2), bool)
    available[::3, 1] = False
    return random_mdp(8, 2, seed=0).with_available(available)


def interrupt(told: Any) -> None:
    if "bounding" in told.stage:
        raise KeyboardInterrupt


MAKERS: dict[str, Callable[[], tuple[TabularMDP, Certificate]]] = {
    "useful": lambda: optimal(GROUPED),
    "poor": lambda: optimal(sparse_mdp(12, 2, seed=0), tau=1e-9),
    "masks": lambda: optimal(masked(), tau=0.1),
    "chain": lambda: optimal(GROUPED.under_policy(uniform_policy(GROUPED)), tau=0.1),
    "interrupted": lambda: optimal(GROUPED, callback=interrupt),
}


@cache
def made(name: str) -> tuple[TabularMDP, Certificate]:
    return MAKERS[name]()


def check_words(text: str) -> None:
    assert not ARMS.findall(text), text


@pytest.mark.parametrize("name", MAKERS)
def test_certificates_speak_of_action_values(name: str) -> None:
    mdp, certificate = made(name)
    assert (certificate.action_values is None) == (name == "interrupted")
    by = "by rewards alone" if name == "interrupted" else "by optimal action values within "
    for text in (certificate.summary(), repr(certificate), certificate._repr_html_()):
        check_words(text)
        assert by in text
    check_words(verify(mdp, certificate)._repr_html_())
    heads = [line.split()[0] for line in certificate.summary().splitlines()[1:]]
    assert ("apart" in heads) == (name == "masks")
    assert heads.count("relation") == 1


@pytest.mark.parametrize("name", MAKERS)
def test_reports_speak_of_action_values(name: str, tmp_path: Path) -> None:
    mdp, certificate = made(name)
    text = report_of(tmp_path, mdp, certificate, verification=verify(mdp, certificate))
    check_words(text)
    total = mdp.n_states * (mdp.n_states - 1) // 2
    assert f"{total:,} pairs, all bounded by " in text
    assert "that is the distance of optimal action values" in text
    assert ("as far apart as can be" in text) == (name == "masks")
    assert ("more time (max_seconds)" in text) == (name == "interrupted")
    assert "bounds on values)" in text or name == "interrupted"


def report_of(folder: Path, mdp: TabularMDP, certificate: Certificate, **parts: Any) -> str:
    rows = compare_abstractions(mdp, certificate) if certificate.tau is not None else []
    target = write_report(folder / "page.html", mdp, certificate, comparison=rows, **parts)
    return Reader(target.read_text(encoding="utf-8")).text


@pytest.mark.parametrize("name", ["useful", "chain"])
def test_embeddings_are_held_against_the_distance_of_action_values(
    name: str, tmp_path: Path
) -> None:
    mdp, certificate = made(name)
    own = EmbeddingFit("bisimulation", 3.0, 2.0, 0.75, 0.5)
    quality = EmbeddingQuality(3.0, 2.0, 1.0, 0.25, 1.0, 5, 66, 12, True, own)
    text = report_of(tmp_path, mdp, certificate, quality=quality)
    rows = text.partition("outside the bounds")[2]
    assert rows.lstrip().startswith("the distance of optimal action values")
    # The other one is another distance, though its figures happen to be the same.
    assert "the bisimulation metric trained for it 0.75" in rows
    assert rows.count("trained for it") == 1


def test_widths_are_those_of_all_pairs() -> None:
    ax = plot_widths(made("useful")[1], sample=50)
    legend = ax.get_legend()
    assert legend is not None
    (label,) = (text.get_text() for text in legend.get_texts())
    assert label.startswith("all pairs (50 of 435): ")
    check_words(ax.get_title())


@pytest.mark.parametrize("relation", RELATIONS)
def test_distances_are_called_what_they_are(relation: str, tmp_path: Path) -> None:
    text = report_of(tmp_path, GROUPED, certify(GROUPED, 0.9, relation=relation))
    assert f"that is {RELATIONS[relation].metric}. At a threshold tau" in text


def test_samples_of_no_pairs_are_checks_of_everything() -> None:
    for name in ("useful", "masks"):
        found = verify(*made(name), mode="sampled", sample=1)
        assert found == verify(*made(name))
        assert (found.verdict, found.mode) == ("verified", "float")
    assert isinstance(found, Verification)
    assert verify(*made("useful"), mode="exact").mode == "exact"


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"relation": "optimal", "method": Blocks()},
            r"by the method action-values, got Blocks\(.*; leave method out",
        ),
        ({"relation": "best"}, "must be one of 'plain', 'lax', 'optimal', 'auto', got 'best'"),
        ({"relation": 3}, "must be one of 'plain', 'lax', 'optimal', 'auto', got 3"),
        ({"relation": "auto", "method": Blocks()}, "default methods: give no method"),
    ],
)
def test_relations_and_methods_that_do_not_go_together(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        certify(GROUPED, 0.9, **given)


def test_names_of_relations_are_the_same_everywhere() -> None:
    words = "must be one of 'plain', 'lax', 'optimal', 'auto', got 'best'"
    for ask in (
        lambda: Options.named({"relation": "best"}),
        lambda: abstract_env(GROUPED, gamma=0.9, relation="best"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            ask()
    for name in ("max_pairs", "propose"):
        with pytest.raises(InvalidArgumentError, match="give no method, no option of one"):
            Options.named({"relation": "auto", name: 3})


@pytest.mark.parametrize(
    ("relation", "why"), [("optimal", "compares values"), ("auto", "uses default methods")]
)
def test_encoders_are_refused_before_any_work(relation: str, why: str) -> None:
    words = f"relation='{relation}' {why} and takes no embedding: leave out the encoder"
    source = Source(name="no such environment")
    with pytest.raises(InvalidArgumentError, match=words):
        Config(source=source, training=Training(), certify={"relation": relation})
    Config(source=source, training=Training(when="needed"), certify={"relation": relation})
    options = Options(relation=relation)
    assert options.with_embedding(None) is options
    with pytest.raises(InvalidArgumentError, match=words):
        options.with_embedding(np.zeros((30, 2)))
