"""What this process has verified, so that the same claims are not checked twice.

Remembered by digests of the claims as the verifier read them, which are copies of its own, and of
the arrays of the model: not of objects, which can be altered by force and then say something else.
Equal claims, read once more from a file, are the same claims. Bounds, which the thresholds of a
certificate share, are remembered by themselves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._verify.read import (
    ActionClaims,
    Claims,
    FeatureClaims,
    ShareClaims,
    Table,
    ValueClaims,
    WitnessClaims,
)

if TYPE_CHECKING:
    from bisim_abstract._verify.verify import Verification

T = TypeVar("T")

MOST = 4_096  # entries of a memory; the oldest goes first
KINDS = (ActionClaims, FeatureClaims, ShareClaims, Table, ValueClaims, WitnessClaims)
# What checks read of the model besides its rows, their radii and the actions of states, which stand
# in the claims' own table of states. Rewards and their radii stand there as intervals, from which
# they cannot be told.
MODEL = ("rewards", "start", "terminal_state")


@dataclass(frozen=True)
class BoundsCheck:
    """What a check of all bounds has found, which speaks of no threshold.

    Attributes:
        open_by: By how much inequalities may be missed; see `verify`.
        pairs: How many pairs were checked.
        levels: How many block levels.
        features: How many features and witnesses.
        remarks: What holds up to rounding only.
    """

    open_by: Fraction
    pairs: int
    levels: int
    features: int
    remarks: tuple[str, ...] = ()


known_bounds: dict[bytes, BoundsCheck] = {}
known_claims: dict[bytes, Verification] = {}


def remember(memory: dict[bytes, T], digest: bytes, found: T) -> None:
    """Note what a check has found that passed."""
    memory.pop(digest, None)
    memory[digest] = found
    for oldest in list(memory)[: max(len(memory) - MOST, 0)]:
        memory.pop(oldest, None)


def bounds_digest(mdp: TabularMDP, claims: Claims) -> bytes:
    """Of all that a check of bounds looks at: not of thresholds, clusters and values."""
    digest = hashlib.sha256()
    _add(digest, tuple(getattr(mdp, name) for name in MODEL))
    if mdp.estimate is not None:
        estimate = mdp.estimate
        _add(digest, (estimate.reward_radius, estimate.alpha, estimate.reward_range))
        _add(digest, (estimate.blocks, estimate.block_radius))
    known = (claims.n_states, claims.gamma, claims.relation, claims.tables, claims.features)
    _add(digest, (*known, claims.actions))
    return digest.digest()


def claims_digest(of_bounds: bytes, claims: Claims) -> bytes:
    """Of all claims, given the digest of the bounds."""
    digest = hashlib.sha256(of_bounds)
    labels = (claims.labels_lower, claims.labels_upper)
    _add(digest, (claims.tau, claims.scope, labels, claims.value))
    return digest.digest()


def _add(digest: Any, value: object) -> None:
    """Put a value into the digest, its type and length first."""
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        digest.update(f"array {array.dtype.str} {array.shape};".encode())
        digest.update(array)
    elif isinstance(value, tuple):
        digest.update(f"tuple {len(value)};".encode())
        for item in value:
            _add(digest, item)
    elif isinstance(value, KINDS):
        digest.update(f"{type(value).__name__};".encode())
        for entry in fields(value):
            _add(digest, getattr(value, entry.name))
    else:
        digest.update(f"{type(value).__name__} {value!r};".encode())
