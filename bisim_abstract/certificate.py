"""`Certificate`: bounds on the metric that can be checked without the code that made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._mdp_checks import checked_metadata, frozen
from bisim_abstract._npz import read_npz, write_npz
from bisim_abstract._typing import FloatArray, IntArray
from bisim_abstract._validation import (
    check_choice,
    check_gamma,
    check_int,
    check_real,
    check_states,
)
from bisim_abstract.arms import LOWER_STARTS, UPPER_STARTS, Arms, Starts
from bisim_abstract.errors import FileFormatError, InvalidArgumentError
from bisim_abstract.partition import (
    CertifiedInterval,
    Forest,
    certified_intervals,
    spanning_forest,
)

__all__ = ["Certificate"]

FORMAT = "bisim_abstract.Certificate"
VERSION = 1
SCOPES = ("covered",)
INTEGERS = ("keys", "labels_lower", "labels_upper")
REALS = ("rewards", "lower", "upper")
SCALARS = (
    "fingerprint",
    "n_states",
    "gamma",
    "lower_start",
    "upper_start",
    "eps_op",
    "tau",
    "scope",
    "stop",
)


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
        rewards: (n_states, n_actions) rewards of the model, which start values depend on.
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
    rewards: FloatArray
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

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "gamma", check_gamma(self.gamma))
        set_field(self, "n_states", check_int("n_states", self.n_states, low=1))
        for name in INTEGERS:
            set_field(self, name, frozen(name, getattr(self, name), np.int64))
        for name in REALS:
            set_field(self, name, frozen(name, getattr(self, name), np.float64))
        check_choice("lower_start", self.lower_start, LOWER_STARTS)
        check_choice("upper_start", self.upper_start, UPPER_STARTS)
        check_choice("scope", self.scope, SCOPES)
        for name in ("fingerprint", "stop"):
            if not isinstance(getattr(self, name), str):
                raise InvalidArgumentError(f"{name} must be text, got {getattr(self, name)!r}")
        if isinstance(self.eps_op, str) or check_real("eps_op", self.eps_op) < 0.0:
            raise InvalidArgumentError(f"eps_op must be a number >= 0, got {self.eps_op!r}")
        set_field(self, "eps_op", float(self.eps_op))
        _check_table(self)
        for name in ("labels_lower", "labels_upper"):
            expected = (0,) if self.tau is None else (self.n_states,)
            if getattr(self, name).shape != expected:
                raise InvalidArgumentError(
                    f"{name} must have shape {expected}, got {getattr(self, name).shape}"
                )
        if self.tau is not None:
            set_field(self, "tau", check_real("tau", self.tau))
        set_field(self, "run", MappingProxyType(checked_metadata(self.run, "run")))

    # -- what it says ----------------------------------------------------------------------

    @property
    def n_covered(self) -> int:
        """Number of covered pairs."""
        return int(self.keys.size)

    @property
    def coverage(self) -> float:
        """Share of all pairs that is covered."""
        total = self.n_states * (self.n_states - 1) // 2
        return self.n_covered / total if total else 1.0

    @property
    def margin(self) -> float:
        """How far the stored arms must be widened to enclose the metric: eps_op/(1 - gamma)."""
        return self.eps_op / (1.0 - self.gamma) * (1.0 + 4.0 * 2.0**-53)

    @property
    def width(self) -> float:
        """Largest distance between the two bounds over covered pairs."""
        lower, upper = self._widened
        return float((upper - lower).max(initial=0.0))

    @cached_property
    def global_width(self) -> float:
        """The same over all pairs; what uncovered pairs read is part of it."""
        if self.coverage == 1.0:
            return self.width
        return max(self.width, self._starts.widest() + 2.0 * self.margin)

    @property
    def is_certified(self) -> bool:
        """Whether both arms give the same clustering at `tau`.

        It is then the exact clustering over the pairs in scope: over covered pairs, an
        uncovered pair may still link two of its clusters.
        """
        return self.tau is not None and np.array_equal(self.labels_lower, self.labels_upper)

    def bounds(self, states: npt.ArrayLike, others: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds on the metric of any pairs, by broadcasting index arrays."""
        s, t = np.broadcast_arrays(
            check_states("states", states, self.n_states),
            check_states("others", others, self.n_states),
        )
        small, large = np.minimum(s, t).ravel(), np.maximum(s, t).ravel()
        lower, upper = self._starts.read(small, large)
        if self.n_covered:
            keys = small * self.n_states + large
            at = np.minimum(np.searchsorted(self.keys, keys), self.n_covered - 1)
            known = self.keys[at] == keys
            below, above = self._widened
            lower[known] = np.maximum(lower[known], below[at[known]])
            upper[known] = np.minimum(upper[known], above[at[known]])
        lower[small == large] = upper[small == large] = 0.0
        return lower.reshape(s.shape), upper.reshape(s.shape)

    def partitions(self, tau: float) -> tuple[IntArray, IntArray]:
        """(n_states) clusters of the lower and of the upper arm at a threshold."""
        return self._forests[0].labels(tau), self._forests[1].labels(tau)

    def certified_thresholds(self) -> list[CertifiedInterval]:
        """All thresholds at which both arms agree, as half-open intervals."""
        return certified_intervals(*self._forests)

    def summary(self) -> str:
        """A few lines for people."""
        n = self.n_states
        lines = [
            f"bisimulation certificate, gamma = {self.gamma:g}, scope: {self.scope} pairs",
            f"  covered   {self.n_covered:,} of {n * (n - 1) // 2:,} pairs ({self.coverage:.1%})",
            f"  width     {self.width:.4g} on covered pairs, {self.global_width:.4g} on all",
        ]
        if self.tau is not None:
            low, high = (len(set(x.tolist())) for x in (self.labels_lower, self.labels_upper))
            verdict = (
                f"{high:,} clusters, certified over {self.scope} pairs"
                if self.is_certified
                else (f"NOT certified: between {low:,} and {high:,} clusters")
            )
            lines.append(f"  tau       {self.tau:g}: {verdict}")
        lines.append(f"  stopped   {self.stop or 'not said'}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        verdict = (
            "" if self.tau is None else (", certified" if self.is_certified else ", not certified")
        )
        return (
            f"Certificate({self.n_states:,} states, {self.coverage:.1%} of pairs covered, "
            f"width {self.width:.3g}{verdict})"
        )

    # -- making and keeping it -------------------------------------------------------------

    @classmethod
    def of(cls, arms: Arms, *, tau: float | None, stop: str, run: Mapping[str, Any]) -> Certificate:
        """The certificate of two arms as they stand."""
        plain = cls(
            fingerprint=arms.mdp.fingerprint,
            n_states=arms.mdp.n_states,
            gamma=arms.gamma,
            rewards=arms.mdp.rewards,
            keys=arms.keys,
            lower=arms.lower,
            upper=arms.upper,
            lower_start=arms.starts.lower,
            upper_start=arms.starts.upper,
            stop=stop,
            run=run,
        )
        if tau is None:
            return plain
        lower, upper = plain.partitions(tau)
        fields = {name: getattr(plain, name) for name in cls.__dataclass_fields__}
        fields |= {"tau": tau, "labels_lower": lower, "labels_upper": upper, "run": dict(run)}
        return cls(**fields)

    def save(self, path: str | Path) -> None:
        """Write one `.npz` file: arrays, JSON header, and a digest of both; never a pickle."""
        arrays = {name: getattr(self, name) for name in (*INTEGERS, *REALS)}
        header = {name: getattr(self, name) for name in SCALARS} | {"run": dict(self.run)}
        header |= {"format": FORMAT, "version": VERSION}
        text = json.dumps(header, sort_keys=True)
        digest = _digest(text, arrays)
        arrays["header"] = np.frombuffer(text.encode(), np.uint8)
        arrays["digest"] = np.frombuffer(digest.encode(), np.uint8)
        write_npz(path, arrays)

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a file written by `save`; any changed byte is noticed.

        Raises:
            FileFormatError: If the file is damaged, changed, or of another kind.
        """
        arrays = read_npz(path)
        try:
            text = arrays.pop("header").tobytes().decode()
            stored = arrays.pop("digest").tobytes().decode()
            header = json.loads(text)
            if header.pop("format") != FORMAT or header.pop("version") != VERSION:
                raise FileFormatError(f"{path} holds no certificate of version {VERSION}")
            if set(arrays) != {*INTEGERS, *REALS} or set(header) != {*SCALARS, "run"}:
                raise FileFormatError(f"{path} has parts missing or too many")
            if stored != _digest(text, arrays):
                raise FileFormatError(f"{path} was changed after it was written")
            fields: dict[str, Any] = {**arrays, **header}
            return cls(**fields)
        except InvalidArgumentError as error:
            raise FileFormatError(f"{path} holds an inconsistent certificate: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{path} has a damaged header: {error!r}") from error

    @cached_property
    def _starts(self) -> Starts:
        return Starts.of(self.rewards, self.gamma, lower=self.lower_start, upper=self.upper_start)

    @cached_property
    def _forests(self) -> tuple[Forest, Forest]:
        first, second = np.divmod(self.keys, self.n_states)
        return (
            spanning_forest(self.n_states, first, second, self._widened[0]),
            spanning_forest(self.n_states, first, second, self._widened[1]),
        )

    @cached_property
    def _widened(self) -> tuple[FloatArray, FloatArray]:
        """Both arms moved outward by the margin, one more step for the rounding of that."""
        if self.margin == 0.0:
            return self.lower, self.upper
        return (
            np.nextafter(self.lower - self.margin, -np.inf),
            np.nextafter(self.upper + self.margin, np.inf),
        )


def _check_table(certificate: Certificate) -> None:
    keys, n = certificate.keys, certificate.n_states
    if certificate.rewards.ndim != 2 or certificate.rewards.shape[0] != n:
        raise InvalidArgumentError(
            f"rewards must have {n} rows, got shape {certificate.rewards.shape}"
        )
    if not np.isfinite(certificate.rewards).all():
        raise InvalidArgumentError("rewards must be finite")
    for name in ("keys", "lower", "upper"):
        array = getattr(certificate, name)
        if array.ndim != 1 or array.shape != keys.shape:
            raise InvalidArgumentError(f"{name} must have one entry per covered pair")
    first, second = np.divmod(keys, n)
    if keys.size and ((keys[1:] <= keys[:-1]).any() or keys[0] < 0 or keys[-1] >= n * n):
        raise InvalidArgumentError("keys must rise strictly and lie in the range of pairs")
    if (first >= second).any():
        raise InvalidArgumentError("keys must be those of pairs s < t")
    bad = ~(np.isfinite(certificate.lower) & np.isfinite(certificate.upper))
    bad |= ~((certificate.lower >= 0.0) & (certificate.lower <= certificate.upper))
    if bad.any():
        at = int(np.argmax(bad))
        raise InvalidArgumentError(
            f"bounds must be finite with 0 <= lower <= upper, got {certificate.lower[at]} and "
            f"{certificate.upper[at]} at pair ({first[at]}, {second[at]})"
        )


def _digest(text: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
