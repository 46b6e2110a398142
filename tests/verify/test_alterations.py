"""`verify` rejects certificates that were altered in one place."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisim_abstract import (
    TabularMDP,
)
from tests.support.altered import (
    ALTER_LABELS,
    ALTER_MDP,
    GAMMA,
    at,
    drop_support,
    in_features,
    in_level,
    in_model,
    in_witnesses,
    merge,
    put,
    split,
)
from tests.support.honest import (
    accepted,
    build,
    deep,
    make_level,
    rejected,
)

# -- alterations -------------------------------------------------------------------------------


def both(content: dict[str, Any]) -> None:
    content["labels_upper"] = content["labels_lower"] = np.arange(8)


def empty_supports(content: dict[str, Any]) -> None:
    for name in ("support", "potential"):
        in_witnesses(name, lambda x: x[:, :0])(content)


ALTERATIONS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "label moved": (in_model("labels", at(0, lambda x: (x + 1) % 3)), "level 0"),
    "last label moved": (in_model("labels", at(-1, lambda x: (x + 1) % 3)), "level 0"),
    "label of no block": (in_model("labels", at(1, lambda x: 3)), "label of state 1"),
    "label negative": (in_model("labels", at(1, lambda x: -1)), "label of state 1"),
    "a block empty": (in_model("labels", lambda x: np.minimum(x, 1)), "block 2 has no members"),
    "labels short": (in_model("labels", lambda x: x[:-1]), "labels must give"),
    "low raised": (in_model("low", at((0, 0), lambda x: np.nextafter(x, 9.0))), "reward interval"),
    "high lowered": (
        in_model("high", at((2, 1), lambda x: np.nextafter(x, -9.0))),
        "reward interval",
    ),
    "low NaN": (in_model("low", at((0, 0), lambda x: np.nan)), "must be finite"),
    "interval turned": (in_model("low", at((0, 0), lambda x: 99.0)), "low <= high"),
    "radius shrunk a little": (
        in_model("radius", at((0, 0), lambda x: x * (1 - 1e-9))),
        "radius is",
    ),
    "last radius shrunk": (in_model("radius", at((2, 1), lambda x: x * 0.99)), "radius is"),
    "radius gone": (in_model("radius", lambda x: x * 0.0), "radius is"),
    "radius above 1": (in_model("radius", lambda x: x + 1.0), "must lie in [0, 1]"),
    "radius negative": (in_model("radius", lambda x: x - 1.0), "must lie in [0, 1]"),
    "short shrunk a little": (in_model("short", at((0, 0), lambda x: x * (1 - 1e-9))), "short is"),
    "last short shrunk": (in_model("short", at((2, 0), lambda x: x * 0.99)), "short is"),
    "short gone": (in_model("short", lambda x: x * 0.0), "short is"),
    "short above 1": (in_model("short", lambda x: x + 1.0), "must lie in [0, 1]"),
    "spare gone": (in_model("spare", lambda x: x * 0.0), "short is"),
    "spare negative": (in_model("spare", lambda x: x - 1.0), "must lie in [0, 1]"),
    "spare of another shape": (in_model("spare", lambda x: x[:-1]), "one row per block"),
    "spare raised": (in_model("spare", lambda x: x + 0.5), "upper bound of level 0"),
    "centre moved": (
        in_model("probs", lambda x: x + np.array([0.01, -0.01] + [0.0] * (x.size - 2))),
        "radius is",
    ),
    "centre no distribution": (in_model("probs", at(0, lambda x: x * 0.99)), "no sum 1"),
    "centre entry 0": (in_model("probs", at(0, lambda x: 0.0)), "no probability"),
    "centre NaN": (in_model("probs", at(0, lambda x: np.nan)), "no probability"),
    "centre at no block": (in_model("indices", at(0, lambda x: 7)), "at no block"),
    "centre unsorted": (in_model("indices", lambda x: x[::-1].copy()), "level 0"),
    "centre rows shifted": (in_model("indptr", at(1, lambda x: x + 1)), "level 0"),
    "centre rows wrap": (in_model("indptr", at(1, lambda x: 2**62)), "level 0"),
    "centre support cut": (drop_support, "which the centre row does not"),
    "model is called an estimate": (
        lambda c: setattr(c["levels"][0].model, "is_estimate", True),
        "is_estimate is True",
    ),
    "key doubled": (
        in_level("keys", lambda x: x[[0, 0, *range(2, x.size)]]),
        "strictly increasing",
    ),
    "key too large": (in_level("keys", at(-1, lambda x: 900)), "not a pair of blocks"),
    "key turned": (in_level("keys", at(1, lambda x: 3)), "not a pair of blocks"),
    "bound NaN": (in_level("upper", at(0, lambda x: np.nan)), "must be finite"),
    "bounds short": (in_level("upper", lambda x: x[:-1]), "upper has"),
    "diameter below": (in_level("lower", at(0, lambda x: 1e-300)), "within a block"),
    "feature value moved": (
        in_features("values", at((0, 3), lambda x: x + 0.01)),
        "correction of feature 0",
    ),
    "last feature value moved": (
        in_features("values", at((2, 7), lambda x: x - 1e-3)),
        "correction of feature 2",
    ),
    "feature values scaled": (in_features("values", lambda x: x * 1.01), "correction of feature"),
    "feature NaN": (in_features("values", at((1, 1), lambda x: np.nan)), "must be finite"),
    "feature enormous": (in_features("values", at((1, 1), lambda x: 1.7e308)), "feature"),
    "sign turned": (in_features("signs", at((0, 0), lambda x: -x)), "correction of feature 0"),
    "sign of 2": (in_features("signs", at((0, 0), lambda x: 2)), "must be -1, 0 or 1"),
    "no action used": (in_features("signs", at(1, lambda x: 0)), "uses no action"),
    "kind changed": (in_features("kinds", at(1, lambda x: 0)), "correction of feature 1"),
    "kind unknown": (in_features("kinds", at(1, lambda x: 2)), "must be 0 or 1"),
    "correction shrunk": (
        in_features("corrections", at(0, lambda x: x * 0.9)),
        "correction of feature 0",
    ),
    "corrections gone": (in_features("corrections", lambda x: x * 0.0), "correction of feature"),
    "correction negative": (in_features("corrections", lambda x: -x), "must be finite and not"),
    "witness value moved": (
        in_witnesses("values", at((0, 2), lambda x: x + 1e-3)),
        "correction of witness 0",
    ),
    "last witness value moved": (
        in_witnesses("values", at((1, 7), lambda x: x - 1e-3)),
        "correction of witness",
    ),
    "witness values scaled": (in_witnesses("values", lambda x: x * 1.01), "correction of witness"),
    "witness value NaN": (
        in_witnesses("values", at((1, 3), lambda x: np.nan)),
        "witnesses: value of function 1 at state 3 must be finite",
    ),
    "witness enormous": (in_witnesses("values", at((1, 1), lambda x: 1.7e308)), "witness"),
    "witness values short": (in_witnesses("values", lambda x: x[:, :-1]), "of 2 functions"),
    "witness values of another count": (in_witnesses("values", lambda x: x[:1]), "of 2 functions"),
    "witness support moved": (
        in_witnesses("support", at(0, lambda x: (x + 3) % 8)),
        "correction of witness 0",
    ),
    "last witness support moved": (
        in_witnesses("support", at((1, 0), lambda x: 5)),
        "correction of witness 1",
    ),
    "witness support outside": (
        in_witnesses("support", at((1, 0), lambda x: 8)),
        "support[1, 0] is no state",
    ),
    "witness support negative": (
        in_witnesses("support", at((0, 2), lambda x: -1)),
        "support[0, 2] is no state",
    ),
    "witness support empty": (empty_supports, "with at least one state"),
    "witness support wider": (
        in_witnesses("support", lambda x: np.tile(x, 2)),
        "support and potential must have one shape",
    ),
    "witness potential moved": (
        in_witnesses("potential", at((0, 2), lambda x: x - 0.5)),
        "correction of witness 0",
    ),
    "last witness potential moved": (
        in_witnesses("potential", at((1, 0), lambda x: x + 1e-3)),
        "correction of witness 1",
    ),
    "witness potential infinite": (
        in_witnesses("potential", at((0, 1), lambda x: np.inf)),
        "potential 1 of function 0 must be finite",
    ),
    "witness action": (in_witnesses("actions", at(0, lambda x: 1)), "correction of witness 0"),
    "last witness action": (in_witnesses("actions", at(1, lambda x: 0)), "correction of witness 1"),
    "witness action beyond": (
        in_witnesses("actions", at(1, lambda x: 2)),
        "action of function 1 is none",
    ),
    "witness action negative": (
        in_witnesses("actions", at(0, lambda x: -1)),
        "action of function 0 is none",
    ),
    "witness actions short": (in_witnesses("actions", lambda x: x[:1]), "of 2 functions"),
    "witness sign": (in_witnesses("signs", at(0, lambda x: 1)), "correction of witness 0"),
    "last witness sign": (in_witnesses("signs", at(1, lambda x: -1)), "correction of witness 1"),
    "witness sign 0": (
        in_witnesses("signs", at(1, lambda x: 0)),
        "sign of function 1 must be -1 or 1",
    ),
    "witness sign 2": (
        in_witnesses("signs", at(0, lambda x: 2)),
        "sign of function 0 must be -1 or 1",
    ),
    "witness sign wraps": (
        in_witnesses("signs", at(0, lambda x: -(2**63))),
        "sign of function 0 must be -1 or 1",
    ),
    "witness correction": (
        in_witnesses("corrections", at(0, lambda x: x * 0.99)),
        "correction of witness 0",
    ),
    "last witness correction": (
        in_witnesses("corrections", at(1, lambda x: x * 0.99)),
        "correction of witness 1",
    ),
    "witness corrections gone": (
        in_witnesses("corrections", lambda x: x * 0.0),
        "correction of witness 0",
    ),
    "witness correction negative": (
        in_witnesses("corrections", lambda x: -x),
        "correction of function 0 must be finite and not negative",
    ),
    "witness correction NaN": (
        in_witnesses("corrections", at(1, lambda x: np.nan)),
        "correction of function 1 must be finite and not negative",
    ),
    "no witnesses at all": (
        lambda c: setattr(
            c["features"],
            "witnesses",
            SimpleNamespace(**{k: v[:0] for k, v in vars(c["features"].witnesses).items()}),
        ),
        "at least one",
    ),
    "alpha": (put(alpha=0.05), "no estimate"),
    "upper clusters merged": (merge("labels_upper"), "labels_upper puts states"),
    "lower clusters split": (split("labels_lower"), "labels_"),
    "all split": (both, "labels_lower keeps states"),
    "lower clusters all split": (put(labels_lower=np.arange(8)), "which labels_lower keeps apart"),
    "clusters renumbered": (
        lambda c: c.update(labels_lower=c["labels_lower"].max() - c["labels_lower"]),
        "first appearance",
    ),
    "threshold raised": (lambda c: c.update(tau=c["tau"] * 4.0), "labels_lower keeps states"),
    "threshold lowered": (lambda c: c.update(tau=0.0), "labels_upper puts states"),
    "level gone": (put(levels=()), ""),
    "features gone": (put(features=None), ""),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_rejects_alterations(honest: dict[str, Any], name: str) -> None:
    content = deep(honest)
    alter, words = ALTERATIONS[name]
    alter(content)
    rejected(content, ALTER_MDP, words)


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_no_entry_has_room(honest: dict[str, Any], side: str) -> None:
    """Every single bound, of blocks, diameters and pairs, moved inward by a little."""
    for name in ("level", "states"):
        count = (honest["levels"][0].keys if name == "level" else honest["keys"]).size
        for k in range(count):
            content = deep(honest)
            holder = content["levels"][0] if name == "level" else SimpleNamespace(**content)
            values = getattr(holder, side)
            is_diameter = name == "level" and holder.keys[k] % 4 == 0
            move = 1e-4 * (1.0 + values[k])
            values[k] += move if side == "lower" else -move
            where = "level 0, block pair" if name == "level" else "bound of pair"
            rejected(
                content, ALTER_MDP, "within a block" if is_diameter and side == "lower" else where
            )


def test_missing_entries_read_their_start() -> None:
    """A level without some of its pairs: others may not rest on what is not there."""
    full = make_level(ALTER_MDP, GAMMA, ALTER_LABELS, 20)
    part = make_level(ALTER_MDP, GAMMA, ALTER_LABELS, 20, leave_out=[(0, 0), (0, 1)])
    content = build(ALTER_MDP, GAMMA, has_features=False)
    content["levels"] = (part,)
    accepted(content, ALTER_MDP)
    kept = np.isin(full.keys, part.keys)
    content["levels"] = (
        SimpleNamespace(
            model=full.model, keys=full.keys[kept], lower=full.lower[kept], upper=full.upper[kept]
        ),
    )
    rejected(content, ALTER_MDP, "level 0, block pair")


def test_levels_stand_alone() -> None:
    """No level may rest on another, on pairs or on features; pairs may rest on all."""
    content = build(ALTER_MDP, GAMMA, labelings=[ALTER_LABELS, list(range(8))], sweeps=20)
    accepted(content, ALTER_MDP)
    coarse, other = content["levels"]
    upper = coarse.upper.copy()
    for k, key in enumerate(coarse.keys.tolist()):
        one, two = divmod(key, len(coarse.model.low))
        entries = []  # what the finer level knows of all pairs of members
        for s in np.flatnonzero(coarse.model.labels == one):
            for t in np.flatnonzero(coarse.model.labels == two):
                x, y = sorted((int(other.model.labels[s]), int(other.model.labels[t])))
                entries += other.upper[other.keys == x * 8 + y].tolist()
        upper[k] = min(upper[k], max(entries))
    assert (upper < coarse.upper - 1e-4).any()
    coarse.upper = upper
    rejected(content, ALTER_MDP, "level 0, block pair")


def test_diameters_count_among_the_largest_costs() -> None:
    """States 0 and 1 reach the block {2, 3} of diameter 4, and state 4 in the middle of it."""
    P = np.zeros((5, 1, 5))
    P[0, 0, [2, 4]] = [0.5, 0.5]
    P[1, 0, 2] = 1.0
    P[[2, 3, 4], 0, [2, 3, 4]] = 1.0
    mdp = TabularMDP.from_dense(P, np.array([[0.0], [0.0], [0.0], [2.0], [1.0]]))
    content = build(mdp, 0.5, labelings=[[0, 0, 1, 1, 2]], sweeps=60, has_features=False)
    level = content["levels"][0]
    assert level.upper[level.keys == 4] == pytest.approx(4.0)
    assert level.upper[level.keys == 5] == pytest.approx(2.0)
    assert level.upper[level.keys == 0] == pytest.approx(2.0)
    accepted(content, mdp)
    for claim in (1.5, 1.999, 2.0 * (1.0 - 1e-11)):  # rounding does not explain the last either
        level.upper[level.keys == 0] = claim
        rejected(content, mdp, "upper bound of level 0, block pair (0, 0)")
