"""The small model as a graph, against the aggregated model."""

from __future__ import annotations

import numpy as np
import pytest

import bisim_abstract._app.graph_figures as graph_figures
from bisim_abstract import certify, state_map
from bisim_abstract._app.graph_figures import GraphFigure, graph_figure
from bisim_abstract._app.state_figures import PlacesFigure, places_figure
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.parts import grouped_mdp
from bisim_abstract.wrappers import RoomsGridEnv, extract_mdp


def places_of(mdp: TabularMDP) -> PlacesFigure:
    return places_figure(state_map(mdp), mdp.terminal_state, most=20_000)


def check_apart(figure: GraphFigure) -> None:
    points = np.array([(node.x, node.y) for node in figure.nodes])
    assert ((points >= 0.0) & (points <= 1.0)).all()
    far = np.linalg.norm(points[:, None] - points[None], axis=2) + np.eye(len(points))
    assert far.min() > 0.03


def test_arrows_are_the_aggregated_model() -> None:
    mdp = extract_mdp("FrozenLake-v1")
    certificate = certify(mdp, 0.9)
    small = certificate.aggregate(mdp)
    value = certificate.value
    assert value is not None
    figure = graph_figure(certificate, mdp, places_of(mdp))
    assert figure is not None
    assert len(figure.nodes) == small.mdp.n_states
    assert [node.is_end for node in figure.nodes] == [False] * certificate.n_clusters + [True]
    assert len(figure.arrows) == figure.n_arrows
    sums = np.zeros((small.mdp.n_states, small.mdp.n_actions))
    for arrow in figure.arrows:
        targets, probs = small.mdp.successors(arrow.source, arrow.action)
        assert probs[targets.tolist().index(arrow.target)] == pytest.approx(
            arrow.probability, abs=1e-6
        )
        sums[arrow.source, arrow.action] += arrow.probability
    np.testing.assert_allclose(sums[:-1], 1.0, atol=1e-5)
    assert not sums[-1].any()  # nothing leaves the end
    for k, node in enumerate(figure.nodes[:-1]):
        assert node.size == small.members(k).size
        assert node.state == small.members(k)[0]
        assert node.plan == value.policy[k]
    assert figure.actions == ["left", "down", "right", "up"]
    check_apart(figure)


def test_clusters_of_a_grid_lie_where_their_states_do() -> None:
    mdp = RoomsGridEnv(side=9, room_size=3).to_mdp()
    certificate = certify(mdp, 0.9, tau="auto")
    figure = graph_figure(certificate, mdp, places_of(mdp))
    assert figure is not None
    places = [(round(2 * node.x), round(2 * node.y)) for node in figure.nodes]
    assert places == [(node.state % 9 // 3, node.state // 9 // 3) for node in figure.nodes]


def test_too_many_clusters_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp, _ = grouped_mdp(40, 8, seed=0)
    certificate = certify(mdp, 0.9)
    figure = graph_figure(certificate, mdp, places_of(mdp))
    assert figure is not None
    check_apart(figure)
    monkeypatch.setattr(graph_figures, "MAX_ARROWS", 5)
    thinned = graph_figure(certificate, mdp, places_of(mdp))
    assert thinned is not None
    assert (len(thinned.arrows), thinned.n_arrows) == (5, figure.n_arrows)
    monkeypatch.setattr(graph_figures, "MAX_NODES", 1)
    assert graph_figure(certificate, mdp, places_of(mdp)) is None


def test_no_arrow_is_sure_that_is_not() -> None:
    rows = np.array([[[1.0 - 1e-8, 1e-8]], [[0.5, 0.5]]])
    mdp = TabularMDP.from_dense(rows, np.array([[0.0], [1.0]]))
    figure = graph_figure(certify(mdp, 0.9, tau=0.0), mdp, places_of(mdp))
    assert figure is not None
    found = {(arrow.source, arrow.target): arrow.probability for arrow in figure.arrows}
    assert found == {(0, 0): 1.0 - 1e-6, (0, 1): 1e-6, (1, 0): 0.5, (1, 1): 0.5}
