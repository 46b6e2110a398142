"""Classes as Storm finds them: its default quotient, and its action-sensitive one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bisim_abstract import TabularMDP, bisimulation_classes
from bisim_abstract.parts import sparse_mdp
from tests.support.worlds import scrambled

pytestmark = pytest.mark.slow


def storm_model(mdp: TabularMDP, *, is_sensitive: bool) -> Any:
    """The model as one of Storm's, in which every action takes two steps.

    The first leads to a state of its own, whose label tells what is paid; the second leads on.
    So rewards belong to actions. A state has its own actions only; but as Storm matches them by
    position where names count, those that it lacks then lead to where nothing else does.
    """
    from stormpy.datastructures import BitVector, SparseMatrixBuilder
    from stormpy.models import SparseMdp, SparseModelComponents, StateLabeling

    n, n_actions = mdp.rewards.shape
    payments, kind = np.unique(mdp.rewards, return_inverse=True)
    kind = kind.reshape(n, n_actions)
    size = n + n * n_actions + 1
    nowhere = size - 1
    builder = SparseMatrixBuilder[float](
        rows=0, columns=0, entries=0, force_dimensions=False, has_custom_row_grouping=True
    )
    row = 0
    for s in range(n):
        builder.new_row_group(row)
        for a in range(n_actions):
            if is_sensitive or mdp.available[s, a]:
                to = n + s * n_actions + a if mdp.available[s, a] else nowhere
                builder.add_next_value(row, to, 1.0)
                row += 1
    for s in range(n):
        for a in range(n_actions):
            builder.new_row_group(row)
            for t, mass in zip(*mdp.successors(s, a), strict=True):
                builder.add_next_value(row, int(t), float(mass))
            row += 1
    builder.new_row_group(row)
    builder.add_next_value(row, nowhere, 1.0)

    labels = StateLabeling(size)
    marks = {"state": range(n), "nowhere": [nowhere], "init": [0]}
    for k in range(payments.size):
        marks[f"pays{k}"] = (n + np.flatnonzero(kind == k)).tolist()
    for name, states in marks.items():
        labels.add_label(name)
        labels.set_states(name, BitVector(size, list(states)))
    parts = SparseModelComponents[float](transition_matrix=builder.build(), state_labeling=labels)
    return SparseMdp[float](parts)


def storm_count(mdp: TabularMDP, *, is_sensitive: bool) -> int:
    """How many classes of states Storm finds."""
    from stormpy.transformations import BisimulationOptions, perform_bisimulation

    options = BisimulationOptions()
    options.action_sensitive = is_sensitive
    quotient = perform_bisimulation(
        storm_model(mdp, is_sensitive=is_sensitive), [], options=options
    )
    return len(list(quotient.labeling.get_states("state")))


@pytest.mark.parametrize("part", range(4))
def test_storm_finds_as_many_classes(part: int) -> None:
    merged, folded = 0, 0
    for seed in range(part * 50, part * 50 + 50):
        rng = np.random.default_rng(seed)
        base = sparse_mdp(int(rng.integers(2, 8)), int(rng.integers(1, 4)), support=2, seed=seed)
        base = TabularMDP(
            indptr=base.indptr,
            indices=base.indices,
            probs=np.full(base.nnz, 0.5),
            rewards=np.round(base.rewards),
        )
        mdp, _ = scrambled(base, seed, n_states=12 + seed % 9, n_actions=base.n_actions + 2)
        if seed % 3 == 0:  # all states have all actions
            mdp = TabularMDP.from_rows(mdp.indptr, mdp.indices, mdp.probs, mdp.rewards)
        plain = bisimulation_classes(mdp)
        lax = bisimulation_classes(mdp, relation="lax")
        assert storm_count(mdp, is_sensitive=True) == plain.n_classes, seed
        assert storm_count(mdp, is_sensitive=False) == lax.n_classes, seed
        merged += plain.n_classes < mdp.n_states
        folded += lax.n_classes < plain.n_classes
    assert merged >= 5
    assert folded >= 30
