"""What covering pairs inside blocks can reach at best, against what it does reach."""

from __future__ import annotations

import numpy as np
import pytest

from bisim_abstract import Blocks, Resources, TabularMDP, certify, verify
from bisim_abstract._base.types import IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.blocks import build_blocks
from bisim_abstract._prove import reach, refinement
from bisim_abstract._prove.reach import shortest_links
from bisim_abstract.parts import grouped_mdp, sparse_mdp
from tests.support.examples import seeds


def with_blocks(mdp: TabularMDP, blocks: IntArray) -> Arms:
    """Arms over states that read the bounds of blocks."""
    level = Arms(mdp, 0.9, model=build_blocks(mdp, blocks), resources=Resources(threads=1))
    level.start_diagonal()
    level.cover_all()
    for _ in range(100):
        level.sweep()
    table = Arms(mdp, 0.9, resources=Resources(threads=1))
    table.add_level(level.level())
    return table


def reached(table: Arms, blocks: IntArray) -> float:
    """The longest of all states' shortest links, once all pairs inside blocks are swept."""
    first, second = np.triu_indices(table.n, 1)
    inside = blocks[first] == blocks[second]
    table.cover(first[inside], second[inside])
    for _ in range(300):
        table.sweep(lower=False)
    shortest = np.full(table.n, np.inf)
    for ends in table.pairs():
        np.minimum.at(shortest, ends, table.upper)
    return float(shortest.max())


@seeds(8)
def test_no_sweep_gets_below_what_is_said_to_be_the_best(seed: int) -> None:
    if seed % 2:
        mdp, blocks = grouped_mdp(40, 4, noise=(0.02, 0.3)[seed % 3 % 2], seed=seed)
    else:
        mdp, blocks = sparse_mdp(40, support=3, seed=seed), np.arange(40) % 5
    table = with_blocks(mdp, blocks)
    best = shortest_links(table, blocks, np.arange(40))  # nothing is linked yet
    assert 0.0 <= best <= reached(table, blocks) * (1.0 + 1e-12)


def test_blocks_that_are_linked_need_no_link() -> None:
    mdp, blocks = grouped_mdp(40, 4, noise=0.1, seed=0)
    assert shortest_links(with_blocks(mdp, blocks), blocks, blocks) == 0.0


def test_few_states_stand_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp, blocks = sparse_mdp(200, seed=0), np.arange(200) % 4
    table = with_blocks(mdp, blocks)
    whole = shortest_links(table, blocks, np.arange(200))
    monkeypatch.setattr(reach, "STATES", 10)
    assert 0.0 < shortest_links(table, blocks, np.arange(200)) <= whole


def test_blocks_far_wider_than_they_are_apart_are_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Halves of two groups are not apart at all, and the groups are certified all the same."""
    monkeypatch.setattr(refinement, "AT_ONCE", 0.0)
    mdp, groups = grouped_mdp(120, 12, noise=0.1, seed=1)
    blocks = np.where((groups < 2) & (np.arange(120) % 2 == 0), 12 + groups, groups)
    method = Blocks(partition=blocks, propose=[], max_pairs=3_000)
    found = certify(mdp, 0.9, tau=0.3, method=method, resources=Resources(threads=1))
    level = found.levels[0]
    first, second = np.divmod(level.keys, level.model.n_blocks)
    widest = level.upper[first == second].max()
    assert widest > 20.0 * level.lower[first != second].min()
    assert any("inside" in step for step in found.run["steps"])
    assert found.is_certified
    assert found.coverage < 0.1
    assert verify(mdp, found).is_valid


def test_pairs_are_not_swept_where_no_link_can_come_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refinement, "AT_ONCE", 0.0)
    mdp = sparse_mdp(60, seed=0)
    method = Blocks(partition=np.arange(60) % 20, propose=[], max_pairs=200)
    steps = {}
    for longest in (0.0, np.inf):
        monkeypatch.setattr(refinement, "LONG", longest)
        found = certify(mdp, 0.9, tau=1.0, method=method, resources=Resources(threads=1))
        assert not found.is_certified
        steps[longest] = any("inside" in step for step in found.run["steps"])
    assert steps == {0.0: False, np.inf: True}
