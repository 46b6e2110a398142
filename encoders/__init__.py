"""Learned embeddings, used only as proposals: nothing here is trusted by a proof.

- `Transitions`, what encoders learn from; `collect_transitions` steps an environment,
  `sample_transitions` draws from a model.
- `DBCEncoder` and `MICoEncoder`, two published losses, and `ActionMaxEncoder`, which imitates
  the metric that `bisim_abstract.bisimulation_metric` computes. All follow the base class
  `Encoder`: `fit`, `encode`, `distance`, `save`, `load`; `load_encoder` reads any of them.
- `RewardEmbedding` and `RandomEmbedding`, the baselines to beat.

Encoders load torch when one of them is first named; the rest of the package never does.

Example:
    >>> from bisim_abstract.parts import grouped_mdp
    >>> from bisim_abstract.encoders import ActionMaxEncoder
    >>> mdp, planted = grouped_mdp(30, 3, seed=0)
    >>> encoder = ActionMaxEncoder(dim=4, steps=50).fit(mdp, n_transitions=2_000)
    >>> encoder.encode([0, 1, 2]).shape
    (3, 4)
"""

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "bisim_abstract.encoders":
    raise ImportError(
        f"import this package as bisim_abstract.encoders, not as {__name__}: "
        "a second copy of its classes would not be recognised by the first"
    )

from bisim_abstract.encoders.baselines import RandomEmbedding, RewardEmbedding
from bisim_abstract.encoders.transitions import (
    Transitions,
    collect_transitions,
    sample_transitions,
)

if TYPE_CHECKING:
    from bisim_abstract.encoders.action_max import ActionMaxEncoder
    from bisim_abstract.encoders.base import Encoder, load_encoder
    from bisim_abstract.encoders.dbc import DBCEncoder
    from bisim_abstract.encoders.mico import MICoEncoder

__all__ = [
    "ActionMaxEncoder",
    "DBCEncoder",
    "Encoder",
    "MICoEncoder",
    "RandomEmbedding",
    "RewardEmbedding",
    "Transitions",
    "collect_transitions",
    "load_encoder",
    "sample_transitions",
]

_NEEDS_TORCH = {
    "ActionMaxEncoder": "action_max",
    "DBCEncoder": "dbc",
    "Encoder": "base",
    "MICoEncoder": "mico",
    "load_encoder": "base",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bisim_abstract._base.checks import require

    require("torch")
    value = getattr(importlib.import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
