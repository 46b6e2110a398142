"""What the page tells of a chosen cluster, against the certificate."""

from __future__ import annotations

import dataclasses
import decimal
import re

import numpy as np
import pytest

import bisim_abstract._app.cluster_figures as cluster_figures
from bisim_abstract import Certificate, TabularMDP, certify
from bisim_abstract._app.cluster_figures import (
    rounded,
    separation_text,
    separations_figure,
    states_figure,
)
from bisim_abstract.parts import random_mdp
from bisim_abstract.wrappers import extract_mdp


@pytest.fixture(scope="module")
def lake() -> tuple[TabularMDP, Certificate]:
    mdp = extract_mdp("FrozenLake-v1")
    return mdp, certify(mdp, 0.9)


def test_values_are_those_of_the_certificate_and_hold_as_written(
    lake: tuple[TabularMDP, Certificate],
) -> None:
    mdp, certificate = lake
    value = certificate.value
    assert value is not None
    states = np.arange(0, mdp.n_states, 2)
    figure = states_figure(certificate, mdp, states)
    assert figure is not None
    assert (figure.optimal_lower <= value.optimal_lower[states]).all()
    assert (figure.optimal_upper >= value.optimal_upper[states]).all()
    assert (figure.policy_lower <= value.policy_lower[states]).all()
    np.testing.assert_allclose(figure.optimal_upper, value.optimal_upper[states], rtol=1e-5)
    np.testing.assert_array_equal(figure.action, value.lifted_policy[states])
    assert figure.actions == ["left", "down", "right", "up"]
    assert figure.tau == certificate.tau
    assert certificate.tau is not None
    assert states_figure(certificate.at(certificate.tau), mdp, states) is None  # no value proven


def test_rounding_goes_outwards() -> None:
    values = np.random.default_rng(0).normal(size=200) * 10.0 ** np.linspace(-90, 5, 200)
    low = rounded(values, decimal.ROUND_FLOOR)
    high = rounded(values, decimal.ROUND_CEILING)
    assert (low <= values).all()
    assert (values <= high).all()
    assert max(len(f"{v!r}") for v in [*low.tolist(), *high.tolist()]) < 16


def test_all_pairs_of_a_few_clusters_are_explained(lake: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = lake
    states = np.arange(mdp.n_states)
    figure = separations_figure(certificate, mdp, states)
    assert figure is not None
    count = certificate.n_clusters
    assert len(figure.pairs) == count * (count - 1) // 2
    told = {frozenset(certificate.labels[[p.first, p.second]].tolist()) for p in figure.pairs}
    assert len(told) == len(figure.pairs)
    near = certificate.nearest(1, mdp)[0]
    (text,) = [
        p.text
        for p in figure.pairs
        if set(certificate.labels[[p.first, p.second]].tolist())
        == set(certificate.labels[[near.first, near.second]].tolist())
    ]
    assert text.startswith(f"States {mdp.state_text(near.first)} and {mdp.state_text(near.second)}")
    assert f"under {near.action_text()}" in text


def test_no_more_pairs_than_are_quick(
    lake: tuple[TabularMDP, Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    mdp, certificate = lake
    states = np.arange(mdp.n_states)
    monkeypatch.setattr(cluster_figures, "MAX_PAIRS", 3)
    figure = separations_figure(certificate, mdp, states)
    assert figure is not None
    assert len(figure.pairs) == 3
    monkeypatch.setattr(cluster_figures, "MAX_STATES", 3)
    assert separations_figure(certificate, mdp, states) is None


def test_nothing_is_explained_that_is_not_certified() -> None:
    mdp = random_mdp(30, seed=1)
    certificate = certify(mdp, 0.9, tau=0.15, max_rounds=1)
    if certificate.is_certified:
        pytest.skip("certified at once")
    assert separations_figure(certificate, mdp, np.arange(30)) is None


@pytest.mark.parametrize(
    ("lower", "upper", "text"),
    [
        (0.333333, 0.333367, "0.3333 to 0.3334"),
        (12_345.3455, 12_345.3456, "12,345 to 12,346"),
        (1e-5 / 3.0, 1e-5 / 3.0, "3.33e-6 to 3.34e-6"),
        (0.25, 0.25, "0.25"),
        (0.0, 1e-310, "0 to almost 0"),
        (999.96, 9_999_999.5, "999.9 to 1.00e7"),
    ],
)
def test_distances_hold_as_written(
    lake: tuple[TabularMDP, Certificate], lower: float, upper: float, text: str
) -> None:
    mdp, certificate = lake
    pair = dataclasses.replace(certificate.nearest(1, mdp)[0], lower=lower, upper=upper)
    found = re.search(r"are (.*?) apart\.", separation_text(pair, mdp, certificate))
    assert found is not None
    assert found[1] == text
