"""Ways to alter an honest certificate of one small model, field by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bisim_abstract._model.generators import grouped_mdp
from tests.support.honest import (
    _renamed,
)
from tests.support.oracles import first_appearance

# -- alterations -------------------------------------------------------------------------------


ALTER_MDP = _renamed(grouped_mdp(8, 3, 2, noise=0.05, support=2, seed=3))


ALTER_LABELS = first_appearance(grouped_mdp(8, 3, 2, noise=0.05, support=2, seed=3)[1].tolist())


GAMMA = 0.5


def in_model(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        model = content["levels"][0].model
        setattr(model, name, change(getattr(model, name).copy()))

    return alter


def in_level(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        level = content["levels"][0]
        setattr(level, name, change(getattr(level, name).copy()))

    return alter


def in_features(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        features = content["features"]
        setattr(features, name, change(getattr(features, name).copy()))

    return alter


def in_witnesses(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        witnesses = content["features"].witnesses
        setattr(witnesses, name, change(getattr(witnesses, name).copy()))

    return alter


def at(index: Any, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def alter(values: Any) -> Any:
        values = np.array(values)
        values[index] = change(values[index])
        return values

    return alter


def drop_support(content: dict[str, Any]) -> None:
    """Take the last block out of a centre row, with a radius that would allow for it."""
    model = content["levels"][0].model
    sizes = np.diff(model.indptr)
    row = int(np.argmax(sizes))
    last = int(model.indptr[row + 1]) - 1
    model.probs[model.indptr[row]] += model.probs[last]
    model.indices, model.probs = np.delete(model.indices, last), np.delete(model.probs, last)
    model.indptr = model.indptr - (np.arange(model.indptr.size) > row)
    for shares in (model.radius, model.short):
        shares[divmod(row, shares.shape[1])] = 1.0


def merge(name: str) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        labels = content[name]
        content[name] = np.array(
            first_appearance(np.where(labels == labels.max(), 0, labels).tolist()), np.int64
        )

    return alter


def split(name: str) -> Callable[[dict[str, Any]], None]:
    def alter(content: dict[str, Any]) -> None:
        labels = content[name].copy()
        many = int(np.argmax(np.bincount(labels) > 1))
        labels[np.flatnonzero(labels == many)[-1]] = labels.max() + 1
        content[name] = np.array(first_appearance(labels.tolist()), np.int64)

    return alter


def put(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(values)


EMPTY = {"labels_lower": np.empty(0, np.int64), "labels_upper": np.empty(0, np.int64)}
