"""Centres that list a block with next to no mass: in reach, and no part of any transport."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from bisim_abstract import Certificate, TabularMDP, verify
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import BlockLevel, BlockModel
from bisim_abstract._prove.making import make_certificate

SPECK = 5e-324


def world() -> TabularMDP:
    """States 0 and 1 are alike, but that 1 may come to the rich state 3."""
    P = np.zeros((4, 1, 4))
    P[0, 0, [0, 2]] = 0.5, 0.5
    P[1, 0, [0, 2, 3]] = 0.5, 0.375, 0.125
    P[2, 0, 2] = P[3, 0, 3] = 1.0
    return TabularMDP.from_dense(P, [[0.0], [0.0], [0.0], [8.0]])


def model(**changes: Any) -> BlockModel:
    fields: dict[str, Any] = {
        "labels": [0, 0, 1, 2],
        "low": [[0.0], [0.0], [8.0]],
        "high": [[0.0], [0.0], [8.0]],
        "indptr": [0, 3, 4, 5],
        "indices": [0, 1, 2, 1, 2],
        "probs": [0.5, 0.5, SPECK, 1.0, 1.0],
        "radius": [[0.125], [0.0], [0.0]],
    }
    return BlockModel(**fields | changes)


def certified(blocks: BlockModel, **changes: Any) -> Certificate:
    """What a level proves, and nothing else; changes are of the level."""
    mdp = world()
    arms = Arms(mdp, 0.5, model=blocks)
    arms.start_diagonal()
    arms.cover_all()
    for _ in range(60):
        arms.sweep()
    table = Arms(mdp, 0.5)
    table.add_level(dataclasses.replace(arms.level(), **changes))
    return make_certificate(table, tau=None, stop="", run={}, scope="all")


def level() -> BlockLevel:
    return certified(model()).levels[0]


def test_they_are_verified() -> None:
    for mode in ("float", "exact"):
        found = verify(world(), certified(model()), mode=mode)
        assert found.is_valid, found.problem
        assert found.widening <= 1e-12  # bounds are swept to the end: rounding is all that is left


def test_what_is_in_reach_counts_in_full() -> None:
    """The diameter of the first block is owed to the block that a speck stands for."""
    honest = level()
    at = int(np.flatnonzero(honest.keys == 0)[0])
    assert honest.upper[at] > 1.0
    for share in (0.999, 0.5):
        upper = honest.upper.copy()
        upper[at] *= share
        for mode in ("float", "exact"):
            found = verify(world(), certified(model(), upper=upper), mode=mode)
            assert found.verdict == "rejected", mode


@pytest.mark.parametrize(
    "changes",
    [
        {"radius": [[0.0625], [0.0], [0.0]]},
        {"indptr": [0, 2, 3, 4], "indices": [0, 1, 1, 2], "probs": [0.5, 0.5, 1.0, 1.0]},
    ],
    ids=["a radius without it", "not listed"],
)
def test_mass_that_is_hidden_is_found(changes: dict[str, Any]) -> None:
    lie = dataclasses.replace(certified(model()), levels=())
    false = dataclasses.replace(level(), model=model(**changes))
    for mode in ("float", "exact"):
        found = verify(world(), dataclasses.replace(lie, levels=(false,)), mode=mode)
        assert found.verdict == "rejected", mode
