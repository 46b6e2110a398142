"""`Certificate`: bounds on the metric that can be checked without the code that made them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._mdp_checks import checked_metadata
from bisim_abstract._npz import read_npz
from bisim_abstract._typing import FloatArray, IntArray
from bisim_abstract._validation import check_choice, check_gamma, check_int, check_real
from bisim_abstract.arms import LOWER_STARTS, UPPER_STARTS, Arms, Starts
from bisim_abstract.errors import FileFormatError, InvalidArgumentError
from bisim_abstract.mdp import TabularMDP
from bisim_abstract.partition import (
    CertifiedInterval,
    Forest,
    certified_intervals,
    spanning_forest,
)

FORMAT = "bisim_abstract.Certificate"
VERSION = 1
SCOPES = ("covered",)
ARRAYS = ("keys", "lower", "upper", "labels_lower", "labels_upper")


@dataclass(frozen=True, eq=False, kw_only=True)
class Certificate:
    """Lower and upper bounds on the bisimulation metric, with everything needed to check them.

    Covered pairs carry stored bounds; all others read their start values, which depend on the
    rewards alone. The bounds claim nothing beyond two inequalities, lower <= T(lower) and
    upper >= T(upper) on every covered pair, from which enclosure follows: `verify` checks them.

    Attributes:
        fingerprint: Of the model.
        n_states: Number of states of the model.
        gamma: The discount.
        keys: (covered) sorted pair keys, s * n_states + t with s < t.
        lower: (covered) lower bounds.
        upper: (covered) upper bounds.
        lower_start: "reward" or "zero": what uncovered pairs read below.
        upper_start: "reward" or "constant": what uncovered pairs read above.
        eps_op: Stated error of each backup. Bounds as stored are those of approximate arms;
            they hold for the metric after widening by eps_op / (1 - gamma).
        tau: The threshold asked for, or None.
        scope: "covered": clusterings link covered pairs only.
        labels_lower: (n_states) clusters of the lower arm at tau (empty without tau).
        labels_upper: (n_states) clusters of the upper arm at tau (empty without tau).
        stop: Why the run ended, in words.
        run: Rounds, sweeps, seeds, versions and the like; JSON values.
    """

    fingerprint: str
    n_states: int
    gamma: float
    keys: IntArray
    lower: FloatArray
    upper: FloatArray
    lower_start: str = "reward"
    upper_start: str = "reward"
    eps_op: float = 0.0
    tau: float | None = None
    scope: str = "covered"
    labels_lower: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    labels_upper: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    stop: str = ""
    run: Mapping[str, Any] = field(default_factory=dict)
