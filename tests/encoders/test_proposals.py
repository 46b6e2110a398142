"""Encoders as what they are for: embeddings of `certify`, never trusted."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from bisim_abstract import Blocks, bisimulation_metric, certify, evaluate_embedding, verify
from bisim_abstract.encoders import (
    ActionMaxEncoder,
    DBCEncoder,
    Encoder,
    MICoEncoder,
    RandomEmbedding,
    RewardEmbedding,
)
from bisim_abstract.parts import grouped_mdp, single_build
from bisim_abstract.wrappers import RoomsGridEnv
from tests.support.asking import certify_named

CLASSES = [ActionMaxEncoder, DBCEncoder, MICoEncoder]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("method", ["blocks", "covering"])
def test_any_encoder_is_an_embedding_and_none_is_trusted(cls: type[Encoder], method: str) -> None:
    mdp, _ = grouped_mdp(40, 4, noise=0.05, seed=2)
    encoder = cls(dim=3, steps=20, batch_size=16).fit(mdp, n_transitions=500)
    only = {"propose": ["embedding"]} if method == "blocks" else {}
    found = certify_named(mdp, 0.8, tau=0.4, method=method, embedding=encoder, **only)
    assert verify(mdp, found).is_valid
    metric = bisimulation_metric(mdp, 0.8)
    states = np.arange(40)
    lower, upper = found.bounds(states[:, None], states)
    below, above = metric.bounds(states[:, None], states)
    assert (lower <= above).all()
    assert (upper >= below).all()
    assert verify(mdp, single_build(mdp, 0.8, sweeps=5, embedding=encoder)).is_valid


@pytest.mark.slow
def test_a_trained_encoder_finds_the_blocks_and_a_random_one_does_not() -> None:
    env = RoomsGridEnv(side=20, room_size=5)
    mdp = env.to_mdp()
    encoder = ActionMaxEncoder(steps=1_500).fit(mdp, n_transitions=16_000)
    only = partial(Blocks, propose=["embedding"], max_pairs=0)
    found = certify(mdp, 0.9, tau="auto", method=only(embedding=encoder))
    assert found.is_certified
    assert verify(mdp, found).is_valid
    both = np.unique(np.stack([found.labels_upper, env.rooms]), axis=1)
    assert both.shape[1] == 16 == found.labels_upper.max() + 1
    random = RandomEmbedding(mdp.n_states)
    chance = certify(mdp, 0.9, tau="auto", method=only(embedding=random))
    assert not chance.is_certified
    assert verify(mdp, chance).is_valid
    # Where other proposals come to the rescue, the useless one was work for nothing.
    helped = certify(mdp, 0.9, tau="auto", method=Blocks(embedding=encoder, max_pairs=0))
    rescued = certify(mdp, 0.9, tau="auto", method=Blocks(embedding=random, max_pairs=0))
    assert helped.is_certified
    assert rescued.is_certified
    assert helped.run["backups"] < rescued.run["backups"]


def test_quality_ranks_embeddings() -> None:
    mdp, _ = grouped_mdp(60, 5, noise=0.02, seed=1)
    truth = certify(mdp, 0.9, tol=1e-6)
    learned = ActionMaxEncoder(steps=600, batch_size=64).fit(mdp, n_transitions=20_000)
    good, plain, chance = (
        evaluate_embedding(truth, x) for x in (learned, RewardEmbedding(mdp), RandomEmbedding(60))
    )
    assert good.rank_correlation > plain.rank_correlation > chance.rank_correlation
    assert good.mean_error < plain.mean_error
    assert good.recall > 0.9 > 0.5 > chance.recall


def test_torch_is_not_imported_with_the_package() -> None:
    code = (
        "import sys, bisim_abstract, bisim_abstract.encoders as e; "
        "e.RewardEmbedding, e.Transitions; assert 'torch' not in sys.modules; "
        "e.DBCEncoder; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
