"""What this process has verified, so that the same claims are not checked twice.

A model and a certificate are remembered by one digest of all that they say, taken when the check
had passed. Arrays can be made writeable again and fields be set by force; whatever is changed has
another digest and is checked anew. Equal claims, read once more from a file, are not. Bounds, which
many thresholds share, are remembered by themselves, as the verifier read them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from bisim_abstract._verify_read import Claims, FeatureClaims, Table, WitnessClaim
from bisim_abstract.mdp import TabularMDP

T = TypeVar("T")

MOST = 4_096  # digests that are kept; the oldest goes first
# Neither the model nor a claim: who made it, how, and what it is called.
ASIDE = frozenset({"metadata", "model", "run", "stop"})

_digests: dict[bytes, None] = {}
_bounds: dict[bytes, BoundsCheck] = {}


@dataclass(frozen=True)
class BoundsCheck:
    """What a check of all bounds has found, which speaks of no threshold.

    Attributes:
        open_by: By how much inequalities may be missed; see `verify`.
        pairs: How many pairs were checked.
        levels: How many block levels.
        features: How many features and witnesses.
    """

    open_by: Fraction
    pairs: int
    levels: int
    features: int


def remember(mdp: TabularMDP, certificate: object) -> None:
    """Note that a certificate was verified against a model, in full."""
    digest = _digest(mdp, certificate)
    if digest is not None:
        _keep(_digests, digest, None)


def is_remembered(mdp: TabularMDP, certificate: object) -> bool:
    """Whether exactly this was verified before in this process."""
    return _digest(mdp, certificate) in _digests


def bounds_digest(mode: str, mdp: TabularMDP, claims: Claims) -> bytes:
    """Of all that a check of bounds looks at: not of thresholds, clusters and values."""
    digest = hashlib.sha256()
    for value in (mode, mdp, claims.n_states, claims.gamma, claims.tables, claims.features):
        _add(digest, value)
    return digest.digest()


def remember_bounds(digest: bytes, found: BoundsCheck) -> None:
    """Note what a check has found that passed."""
    _keep(_bounds, digest, found)


def recall_bounds(digest: bytes) -> BoundsCheck | None:
    """What was found when exactly these bounds were checked, if they were."""
    return _bounds.get(digest)


def _keep(where: dict[bytes, T], digest: bytes, value: T) -> None:
    where.pop(digest, None)
    where[digest] = value
    while len(where) > MOST:
        where.pop(next(iter(where)), None)


def _digest(mdp: TabularMDP, certificate: object) -> bytes | None:
    """Of all that both say; None for what could say something else at the next look."""
    from bisim_abstract.certificate import Certificate

    if type(mdp) is not TabularMDP or type(certificate) is not Certificate:
        return None
    digest = hashlib.sha256()
    try:
        _add(digest, mdp)
        _add(digest, certificate)
    except TypeError:
        return None
    return digest.digest()


def _add(digest: Any, value: object) -> None:
    """Put a value into the digest, its type and length first.

    Raises:
        TypeError: If it is none of the plain kinds that models and certificates consist of.
    """
    kind = type(value)
    if kind is np.ndarray and not value.dtype.hasobject:  # type: ignore[attr-defined]
        array = np.ascontiguousarray(value)
        digest.update(f"array {array.dtype.str} {array.shape};".encode())
        digest.update(array)
    elif value is None or kind in (bool, int, float, str):
        digest.update(f"{kind.__name__} {json.dumps(value)};".encode())
    elif kind is tuple:
        digest.update(f"tuple {len(value)};".encode())  # type: ignore[arg-type]
        for item in value:  # type: ignore[attr-defined]
            _add(digest, item)
    elif kind in _kinds():
        digest.update(f"{kind.__name__};".encode())
        for entry in fields(value):  # type: ignore[arg-type]
            if entry.name not in ASIDE:
                digest.update(f"{entry.name};".encode())
                _add(digest, getattr(value, entry.name))
    else:
        raise TypeError(f"{kind.__name__} is none of the kinds that are remembered")


def _kinds() -> frozenset[type]:
    """The frozen types of this package that models and certificates are made of."""
    from bisim_abstract.blocks import BlockLevel, BlockModel
    from bisim_abstract.certificate import Certificate
    from bisim_abstract.estimation import Estimate
    from bisim_abstract.features import ValueFeatures, Witness
    from bisim_abstract.value import ProvenValue, ValueBracket

    return frozenset(
        {
            BlockLevel,
            BlockModel,
            Certificate,
            Estimate,
            FeatureClaims,
            ProvenValue,
            Table,
            TabularMDP,
            ValueBracket,
            ValueFeatures,
            Witness,
            WitnessClaim,
        }
    )
