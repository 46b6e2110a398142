"""Losses worked out by hand, and what a comparison says of certificates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    Certificate,
    InvalidArgumentError,
    TabularMDP,
    certify,
    compare_abstractions,
    value_iteration,
    value_loss,
)
from bisim_abstract._propose.retrieval import k_means
from bisim_abstract.parts import (
    cluster_by_embedding,
    cluster_by_rewards,
    compare_clusterings,
    grouped_mdp,
    random_mdp,
    single_build,
)

OTHERS = ["rewards, same threshold", "rewards, k-means", "chance"]
EMBEDDED = [
    "rewards, same threshold",
    "rewards, k-means",
    "embedding, same threshold",
    "embedding, k-means",
    "chance",
]


def tiny() -> TabularMDP:
    """Two states that end at once: action 0 pays 1 and 0 in them, action 1 pays 0 and 0.8."""
    P = np.zeros((3, 2, 3))
    P[:, :, 2] = 1.0
    return TabularMDP.from_dense(
        P, [[1.0, 0.0], [0.0, 0.8], [0.0, 0.0]], start=[0.25, 0.75, 0.0], terminal_state=2
    )


@pytest.fixture(scope="module")
def grouped() -> tuple[TabularMDP, Certificate]:
    mdp, _ = grouped_mdp(60, 5, noise=0.01, seed=0)
    certificate = certify(mdp, 0.9, tau="auto")
    assert certificate.is_certified
    return mdp, certificate


@pytest.fixture(scope="module")
def unclear() -> tuple[TabularMDP, Certificate]:
    mdp, _ = grouped_mdp(40, 4, noise=0.2, seed=0)
    certificate = single_build(mdp, 0.9, tau=0.5, neighbours=4, sweeps=2)
    assert not certificate.is_certified
    return mdp, certificate


# -- given clusterings -------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_losses_by_hand(gamma: float) -> None:
    rows = compare_clusterings(
        tiny(),
        {"apart": [0, 1, 2], "together": [4, 4, 7], "with the end": [0, 0, 0]},
        gamma,
    )
    assert [row.name for row in rows] == ["apart", "together", "with the end"]
    assert [row.n_clusters for row in rows] == [2, 1, 1]  # and the end
    apart, together, with_end = (row.loss for row in rows)
    assert max(apart.sup, apart.mean, apart.start) < 1e-12
    # On average action 0 pays 0.5 and action 1 pays 0.4: state 1 loses its 0.8.
    for loss in (together, with_end):
        assert loss.sup == pytest.approx(0.8, abs=1e-12)
        assert loss.mean == pytest.approx(0.8 / 3, abs=1e-12)
        assert loss.start == pytest.approx(0.75 * 0.8, abs=1e-12)
        assert loss.sup_lower <= 0.8 <= loss.sup
        # Action 1 for ever is worth 0.75 * 0.8 at the start, the best ones 0.85.
        assert loss.kept == pytest.approx((0.25 - 0.6) / (0.85 - 0.6))
    assert not any(row.is_certified for row in rows)
    assert [row.bound for row in rows] == [None] * 3


def test_known_optimal_values_are_used() -> None:
    mdp = tiny()
    best = value_iteration(mdp, 0.9)
    labels = {"together": [0, 0, 1]}
    given = compare_clusterings(mdp, labels, 0.9, optimal=best)
    assert given == compare_clusterings(mdp, labels, 0.9)
    with pytest.raises(InvalidArgumentError, match="optimal must be"):
        compare_clusterings(mdp, labels, 0.5, optimal=best)


def test_clusterings_are_checked() -> None:
    assert compare_clusterings(tiny(), {}, 0.9) == []
    with pytest.raises(InvalidArgumentError, match="one whole number per state"):
        compare_clusterings(tiny(), {"short": [0, 1]}, 0.9)
    with pytest.raises(InvalidArgumentError, match="gamma"):
        compare_clusterings(tiny(), {"apart": [0, 1, 2]}, 1.0)
    with pytest.raises(InvalidArgumentError):
        compare_clusterings("tiny", {}, 0.9)  # type: ignore[arg-type]


# -- certificates ------------------------------------------------------------------------------


def test_the_certified_clustering_comes_first(grouped: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = grouped
    rows = compare_abstractions(mdp, certificate)
    assert [row.name for row in rows] == ["certified", *OTHERS]
    first = rows[0]
    assert first.is_certified
    assert first.n_clusters == 5
    value = certificate.value
    assert value is not None
    assert first.loss == value_loss(mdp, 0.9, value.lifted_policy)
    assert first.bound == value.loss
    assert first.loss.sup_lower <= first.bound <= 1.1 * first.loss.sup + 1e-9
    for row in rows[1:]:
        assert not row.is_certified
        assert row.bound is None


def test_others_are_what_they_say(grouped: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = grouped
    points = np.random.default_rng(0).normal(size=(60, 3))
    rows = compare_abstractions(mdp, certificate, embedding=points, seed=4)
    assert [row.name for row in rows] == ["certified", *EMBEDDED]
    tau = certificate.tau
    assert tau is not None
    single = np.asarray(points, np.float32).astype(np.float64)
    expected = {
        "rewards, same threshold": cluster_by_rewards(mdp, tau),
        "rewards, k-means": k_means(mdp.rewards, 5, 4),
        "embedding, same threshold": cluster_by_embedding(single, 60, tau),
    }
    by_name = {row.name: row for row in rows}
    for row in compare_clusterings(mdp, expected, 0.9):
        assert by_name[row.name] == row
    assert by_name["embedding, k-means"].n_clusters == 5


class Learned:
    def __init__(self, points: Any) -> None:
        self.points = points

    def encode(self, states: Any) -> Any:
        return self.points[states]


def test_encoders(grouped: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = grouped
    points = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    by_points = compare_abstractions(mdp, certificate, embedding=points)
    assert compare_abstractions(mdp, certificate, embedding=Learned(points)) == by_points
    with pytest.raises(InvalidArgumentError, match="shape"):
        compare_abstractions(mdp, certificate, embedding=points[:5])


@pytest.mark.parametrize("seed", range(4))
def test_chance_has_as_many_clusters(seed: int, grouped: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = grouped
    chance = compare_abstractions(mdp, certificate, seed=seed)[-1]
    assert (chance.name, chance.n_clusters) == ("chance", 5)
    assert chance.loss.sup_lower > 10 * compare_abstractions(mdp, certificate)[0].loss.sup


def test_chance_where_nothing_is_merged(grouped: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = grouped
    rows = compare_abstractions(mdp, certificate, tau=0.0)
    assert [row.n_clusters for row in rows if row.name in ("certified", "chance")] == [60, 60]


def test_the_seed_decides(grouped: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = grouped
    assert compare_abstractions(mdp, certificate) == compare_abstractions(mdp, certificate, seed=0)
    one, other = (compare_abstractions(mdp, certificate, seed=seed) for seed in (1, 2))
    assert one[0] == other[0]
    assert one[-1] != other[-1]
    with pytest.raises(InvalidArgumentError, match="seed must be at least 0"):
        compare_abstractions(mdp, certificate, seed=-1)


def test_both_arms_where_they_differ(unclear: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = unclear
    rows = compare_abstractions(mdp, certificate)
    assert [row.name for row in rows] == ["upper arm", "lower arm", *OTHERS]
    assert not any(row.is_certified for row in rows)
    assert [row.bound for row in rows] == [None] * 5
    lower, upper = certificate.labels_lower, certificate.labels_upper
    assert rows[0].n_clusters == upper.max() + 1 > rows[1].n_clusters == lower.max() + 1
    # Chance and k-means get as many clusters as the upper arm.
    assert rows[-1].n_clusters == upper.max() + 1


def test_another_threshold(grouped: tuple[TabularMDP, Certificate]) -> None:
    mdp, certificate = grouped
    assert certificate.tau is not None
    same = compare_abstractions(mdp, certificate, tau=certificate.tau)
    assert same == compare_abstractions(mdp, certificate)
    one = compare_abstractions(mdp, certificate, tau=1e6)
    assert (one[0].name, one[0].n_clusters, one[0].is_certified) == ("certified", 1, True)
    assert one[0].bound is not None
    assert one[0].bound >= one[0].loss.sup_lower
    for tau, words in ((float("nan"), "tau must be finite"), ("x", "tau must be a real number")):
        with pytest.raises(InvalidArgumentError, match=words):
            compare_abstractions(mdp, certificate, tau=tau)  # type: ignore[arg-type]


def test_a_threshold_is_needed() -> None:
    mdp = random_mdp(5, seed=0)
    certificate = single_build(mdp, 0.9)
    with pytest.raises(InvalidArgumentError, match="tau must be given"):
        compare_abstractions(mdp, certificate)
    assert compare_abstractions(mdp, certificate, tau=0.5)


def test_certificates_of_other_models(grouped: tuple[TabularMDP, Certificate]) -> None:
    _, certificate = grouped
    other, _ = grouped_mdp(60, 5, noise=0.01, seed=1)
    with pytest.raises(InvalidArgumentError, match="of another model"):
        compare_abstractions(other, certificate)


def test_actions_are_matched_where_the_relation_is_lax() -> None:
    P = np.eye(3)[[[2, 2], [2, 2], [2, 2]]]
    mdp = TabularMDP.from_dense(
        P, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], order="sas", terminal_state=2
    )
    (plain,) = compare_clusterings(mdp, {"both": [0, 0, 0]}, 0.9)
    (lax,) = compare_clusterings(mdp, {"both": [0, 0, 0]}, 0.9, relation="lax")
    assert plain.loss.sup == pytest.approx(1.0)
    assert lax.loss.sup < 1e-6
    assert plain.n_clusters == lax.n_clusters == 1
