"""Array aliases and small protocols shared by all rooms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

AnyIntArray: TypeAlias = npt.NDArray[np.signedinteger[Any]]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
UIntArray: TypeAlias = npt.NDArray[np.uint64]
SeedLike: TypeAlias = int | np.random.Generator | None


@dataclass(frozen=True)
class Progress:
    """What a long computation tells its callback.

    Attributes:
        stage: What is being done, in a few words.
        done: Units finished.
        total: Units in all, or None where it is not known beforehand.
        detail: One short remark, for instance a residual.
    """

    stage: str
    done: int
    total: int | None = None
    detail: str = ""


ProgressCallback: TypeAlias = Callable[[Progress], None]
