"""The one place where fuzzing and soak call `certify`, and how its options are drawn."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bisim_abstract import Blocks, Certificate, Covering, Resources, TabularMDP, certify
from bisim_abstract._abstract.value import GUARANTEES
from bisim_abstract.parts import single_build
from tests.stress.strategies import is_drawn, pick, powers, rarely, whole

SOURCES = ("classes", "embedding", "rewards", "features")
ONE = Resources(threads=1)


def make_certificate(
    mdp: TabularMDP,
    gamma: float,
    *,
    is_single: bool = False,
    method: str = "blocks",
    **options: Any,
) -> Certificate:
    """A certificate by `certify`, or by a single build; options of the method are told by name."""
    if is_single:
        return single_build(mdp, gamma, resources=ONE, **options)
    kind: type[Any] = Covering if method == "covering" else Blocks
    own = {entry.name: options.pop(entry.name) for entry in fields(kind) if entry.name in options}
    return certify(mdp, gamma, method=kind(**own), resources=ONE, **options)


@st.composite
def goals(
    draw: st.DrawFn, mdp: TabularMDP, *, has_tau: bool = True, has_single: bool = False
) -> dict[str, Any]:
    """Options of `make_certificate` for a model.

    Args:
        draw: Given by Hypothesis.
        mdp: The model.
        has_tau: Whether a threshold may be the goal.
        has_single: Whether a single build may be asked for.
    """
    if has_single and is_drawn(draw, 0.1):
        backup = pick(draw, ("exact", "index"))
        neighbours = draw(st.integers(0, 3))
        return {"is_single": True, "neighbours": neighbours, "sweeps": 5, "backup": backup}
    scale, n = float(np.ptp(mdp.rewards)) or 1.0, mdp.n_states
    n_live = max(n - (mdp.terminal_state is not None), 1)
    point = st.tuples(st.floats(-3.0, 3.0), st.floats(-3.0, 3.0))
    wide = powers(-6, 2).map(lambda x: max(scale * x, 5e-324))
    wanted: dict[str, st.SearchStrategy[Any]] = {
        "": st.none(),
        "n_clusters": st.integers(1, n_live),
        "tol": wide,
        "max_loss": wide,
        "keep": st.sampled_from((0.0, 0.5, 0.999, 1.0)) | st.floats(0.0, 1.0),
        "tau": powers(-3, 2).map(lambda x: x * scale)
        | st.sampled_from(("auto", 0.0, 5e-324, scale)),
    }
    name = pick(draw, [*list(wanted)[:-1], *["tau", "tau"] * has_tau])
    options: dict[str, st.SearchStrategy[Any]] = {
        name: wanted[name],
        "guarantee": rarely(0.5, st.sampled_from(GUARANTEES)),
        "embedding": rarely(0.3, st.lists(point, min_size=n, max_size=n).map(np.array)),
    }
    if name not in ("keep", "max_loss") and is_drawn(draw, 0.4):
        options |= {
            "method": st.just("covering"),
            "max_rounds": st.integers(1, 3),
            "index": st.sampled_from(("Flat", "LSH16", "HNSW16")),
            "neighbours": st.integers(0, 3),
            "partners": st.integers(0, 2),
            "lower_start": st.sampled_from(("reward", "zero")),
            "upper_start": st.sampled_from(("reward", "constant")),
            "dim": st.integers(1, 4),
        }
    else:
        options |= {
            "propose": rarely(0.5, st.lists(st.sampled_from(SOURCES), unique=True)),
            "max_pairs": rarely(0.5, st.integers(0, 7)),
            "partition": rarely(0.3, whole(n, n)),
            "max_rounds": rarely(0.3, st.integers(1, 3)),
            "max_backups": rarely(0.2, st.integers(1, 49)),
        }
    goal = draw(st.fixed_dictionaries({"seed": st.integers(0, 99), **options}))
    return {key: value for key, value in goal.items() if value is not None}
