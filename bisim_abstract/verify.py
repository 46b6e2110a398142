"""`verify`: whether the claims of a certificate are true, by code that made none of them.

A certificate claims bounds, not how they were found. With h⁻ the stored lower bounds (the
lower start elsewhere) and h⁺ the stored upper bounds (the upper start elsewhere, and where the
start is less), two inequalities on the covered pairs are enough:

    lower <= T h⁻   and   upper >= T h⁺.

Elsewhere they hold by themselves: T h⁻ is at least d_R and 0, as h⁻ >= 0; and h⁺ is nowhere
above its start, a super-solution. So h⁻ <= d <= h⁺ on all pairs. If an inequality is missed
by at most ε, then h⁻ - w and h⁺ + w satisfy both for w = ε/(1 - γ), and enclose d.

Float mode proves both with one-sided bounds and widens by what rounding leaves open. Exact
mode computes with whole numbers and fractions and leaves nothing open. This module shares the
model and the certificate with the code that makes bounds, and nothing else.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._parallel import map_chunks, thread_count
from bisim_abstract._typing import BoolArray, FloatArray, IntArray, SeedLike
from bisim_abstract._validation import as_generator, check_choice, check_int
from bisim_abstract.errors import VerificationError
from bisim_abstract.mdp import TabularMDP

if TYPE_CHECKING:
    from bisim_abstract.certificate import Certificate

__all__ = ["Verification", "VerificationError", "verify"]

MODES = ("float", "exact", "sampled")
CHUNK = 1024  # pairs per unit of work; results do not depend on it
CONFIRMED = 1e-9  # of the diameter: a bound that is open by more was not confirmed
SMALLEST, LARGEST = 1e-270, 1e300  # sizes between which the float bounds mean something
EPS = 2.0**-53


@dataclass(frozen=True)
class Verification:
    """What a check of a certificate found.

    Attributes:
        is_valid: Whether every claim that was checked holds.
        verdict: "verified" if all claims were checked, "sampled" if the inequalities were
            checked on a sample of the covered pairs only, or "rejected".
        mode: "float", "exact" or "sampled".
        problem: The first violated claim in one sentence; empty if there is none.
        widening: How far the stored bounds must be moved outward to enclose the metric for
            certain: what stated backup errors and the rounding of this check ask for.
        pairs_checked: Number of covered pairs whose inequalities were checked.
    """

    is_valid: bool
    verdict: str
    mode: str
    problem: str
    widening: float
    pairs_checked: int

    def raise_if_rejected(self) -> None:
        """Do nothing if the certificate is valid.

        Raises:
            VerificationError: If the certificate was rejected; the message is the problem.
        """
        if not self.is_valid:
            raise VerificationError(self.problem)


def verify(
    certificate: Certificate,
    mdp: TabularMDP,
    *,
    mode: str = "float",
    sample: int = 200,
    seed: SeedLike = 0,
    threads: int | None = None,
) -> Verification:
    """Check every claim of a certificate against the model.

    A certificate that is malformed in any way is rejected; it never raises an error.

    Args:
        certificate: What is to be checked.
        mdp: The model it speaks of.
        mode: "float" checks all pairs, fast; "exact" checks all pairs in rational arithmetic,
            for small instances; "sampled" does so for a random sample of the pairs.
        sample: Number of pairs in "sampled" mode.
        seed: Seed or generator of the sample.
        threads: Number of threads in "float" mode; all cores by default. The result does not
            depend on it.
    """
    check_choice("mode", mode, MODES)
    sample = check_int("sample", sample, low=1)
    rng = as_generator(seed)
    threads = thread_count(threads)
    checked = 0
    try:
        claims = _read(certificate, mdp)
        model = _Exact(claims, mdp)
        _check_largest(claims, model.limit)
        if mode == "float":
            checked = claims.keys.size
            open_by = _check_float(claims, mdp, model.limit, threads)
        else:
            which = np.arange(claims.keys.size)
            if mode == "sampled" and sample < which.size:
                which = np.sort(rng.choice(which.size, size=sample, replace=False))
            for pair in which.tolist():
                checked += 1
                model.check(pair)
            open_by = Fraction(0)
        stated = Fraction(claims.eps_op) / (1 - Fraction(claims.gamma))
        widening = stated + open_by / (1 - Fraction(claims.gamma))
        _check_partitions(claims, stated, "")
        if widening > stated:
            _check_partitions(
                claims, widening, f" once widened by {_above(widening)!r}, which rounding asks for"
            )
    except VerificationError as reason:
        return Verification(
            is_valid=False,
            verdict="rejected",
            mode=mode,
            problem=str(reason),
            widening=0.0,
            pairs_checked=checked,
        )
    return Verification(
        is_valid=True,
        verdict="sampled" if mode == "sampled" else "verified",
        mode=mode,
        problem="",
        widening=_above(widening),
        pairs_checked=checked,
    )


# -- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Claims:
    """A certificate whose fields have the right types, shapes and ranges."""

    n_states: int
    gamma: float
    keys: IntArray
    lower: FloatArray
    upper: FloatArray
    lower_start: str
    upper_start: str
    eps_op: float
    tau: float | None
    labels_lower: IntArray
    labels_upper: IntArray

    def pair(self, index: int) -> tuple[int, int]:
        """The states of a covered pair."""
        s, t = divmod(int(self.keys[index]), self.n_states)
        return s, t


def _read(certificate: Certificate, mdp: TabularMDP) -> _Claims:
    fingerprint = _field(certificate, "fingerprint")
    if not isinstance(fingerprint, str) or fingerprint != mdp.fingerprint:
        raise VerificationError(
            f"fingerprint is {_short(fingerprint)}, but that of the model is "
            f"{_short(mdp.fingerprint)}: the certificate speaks of another model"
        )
    n = _field(certificate, "n_states")
    try:
        n = operator.index(n)
    except TypeError:
        raise VerificationError(f"n_states must be a whole number, got {_short(n)}") from None
    if n != mdp.n_states:
        raise VerificationError(f"n_states is {n}, but the model has {mdp.n_states} states")
    gamma = _real(certificate, "gamma")
    if not 0.0 <= gamma < 1.0:
        raise VerificationError(f"gamma must lie in [0, 1), got {gamma!r}")
    eps_op = _real(certificate, "eps_op")
    if eps_op < 0.0:
        raise VerificationError(f"eps_op must not be negative, got {eps_op!r}")
    rewards = _field(certificate, "rewards")
    if not isinstance(rewards, np.ndarray) or not np.array_equal(rewards, mdp.rewards):
        raise VerificationError("rewards are not those of the model, on which the starts depend")
    tau = None if _field(certificate, "tau") is None else _real(certificate, "tau")
    lower_start = _choice(certificate, "lower_start", ("reward", "zero"))
    upper_start = _choice(certificate, "upper_start", ("reward", "constant"))
    _choice(certificate, "scope", ("covered",))
    keys = _array(certificate, "keys", np.int64)
    lower = _array(certificate, "lower", np.float64)
    upper = _array(certificate, "upper", np.float64)
    _check_keys(keys, n)
    for name, values in (("lower", lower), ("upper", upper)):
        if values.size != keys.size:
            raise VerificationError(
                f"{name} has {values.size} entries, but there are {keys.size} keys"
            )
        bad = np.flatnonzero(~np.isfinite(values) | (values < 0.0))
        if bad.size:
            pair = divmod(int(keys[bad[0]]), n)
            raise VerificationError(
                f"{name} bound of pair {pair} must be finite and not negative, "
                f"got {float(values[bad[0]])!r}"
            )
    bad = np.flatnonzero(lower > upper)
    if bad.size:
        raise VerificationError(
            f"lower bound of pair {divmod(int(keys[bad[0]]), n)} is {float(lower[bad[0]])!r}, "
            f"above its upper bound {float(upper[bad[0]])!r}"
        )
    labels = {}
    for name in ("labels_lower", "labels_upper"):
        labels[name] = _array(certificate, name, np.int64)
        expected = 0 if tau is None else n
        if labels[name].size != expected:
            why = "without tau" if tau is None else "one for each state"
            raise VerificationError(
                f"{name} must have {expected} entries ({why}), got {labels[name].size}"
            )
    return _Claims(
        n_states=n,
        gamma=gamma,
        keys=keys,
        lower=lower,
        upper=upper,
        lower_start=lower_start,
        upper_start=upper_start,
        eps_op=eps_op,
        tau=tau,
        **labels,
    )


def _check_keys(keys: IntArray, n: int) -> None:
    # States first: whatever else is wrong with the order, each key must name a pair.
    s, t = np.divmod(keys, n)
    bad = np.flatnonzero((keys < 0) | (s >= n) | (s >= t))
    if bad.size:
        k = int(bad[0])
        raise VerificationError(
            f"keys[{k}] is {int(keys[k])}, not a pair of states s < t of {n}: "
            f"it reads ({int(s[k])}, {int(t[k])})"
        )
    bad = np.flatnonzero(keys[1:] <= keys[:-1])
    if bad.size:
        k = int(bad[0])
        raise VerificationError(
            f"keys must be strictly increasing, but keys[{k + 1}] = {int(keys[k + 1])}, "
            f"pair ({int(s[k + 1])}, {int(t[k + 1])}), follows {int(keys[k])}"
        )


def _field(certificate: Certificate, name: str) -> Any:
    try:
        return getattr(certificate, name)
    except Exception:  # whatever a malformed certificate does when it is read
        raise VerificationError(f"the certificate has no {name} that can be read") from None


def _real(certificate: Certificate, name: str) -> float:
    value = _field(certificate, name)
    if not isinstance(value, Real) or isinstance(value, bool):
        raise VerificationError(f"{name} must be a real number, got {_short(value)}")
    try:
        number = float(value)
    except (OverflowError, ValueError):
        number = math.inf
    # A number that is rounded on the way would not be the one that was claimed.
    if not math.isfinite(number) or number != value:
        raise VerificationError(f"{name} must be a finite float, got {_short(value)}")
    return number


def _choice(certificate: Certificate, name: str, choices: tuple[str, ...]) -> str:
    value = _field(certificate, name)
    if not isinstance(value, str) or value not in choices:
        listed = " or ".join(repr(choice) for choice in choices)
        raise VerificationError(f"{name} must be {listed}, got {_short(value)}")
    return value


def _array(certificate: Certificate, name: str, dtype: type) -> npt.NDArray[Any]:
    values = _field(certificate, name)
    wanted = np.dtype(dtype)
    if not isinstance(values, np.ndarray):
        raise VerificationError(f"{name} must be an array of {wanted}, got {type(values).__name__}")
    if values.dtype != wanted or values.ndim != 1:
        raise VerificationError(
            f"{name} must be a one-dimensional array of {wanted}, "
            f"got shape {values.shape} and dtype {values.dtype}"
        )
    # A copy: nobody else can change it while it is checked, and it is contiguous.
    return np.array(values, dtype=wanted, order="C", subok=False)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # any repr of a malformed field may fail; the verdict must not
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= 40 else text[:36] + " ..."


# -- float mode --------------------------------------------------------------------------------


def _check_largest(claims: _Claims, limit: Fraction) -> None:
    """The largest lower bound M cannot pass T h⁻ <= L + γM if it is above (L + ε)/(1 - γ)."""
    if claims.lower.size == 0:
        return
    index = int(claims.lower.argmax())
    if Fraction(float(claims.lower[index])) > limit:
        raise _violated(claims, "lower", index, _above(limit))


def _check_float(claims: _Claims, mdp: TabularMDP, limit: Fraction, threads: int) -> Fraction:
    """How far the inequalities are open by rounding; a violated one ends the check."""
    from bisim_abstract._verify_kernels import check_pairs_kernel

    size = claims.keys.size
    if size == 0:
        return Fraction(0)
    if limit > LARGEST:
        raise VerificationError(
            f"the metric may reach {_above(limit):.3g}, too large to be checked in float mode; "
            "use exact mode, or rescale the rewards"
        )
    eps, gamma = claims.eps_op, claims.gamma
    diameter = float((mdp.rewards.max(axis=0) - mdp.rewards.min(axis=0)).max()) / (1.0 - gamma)
    first, second = np.divmod(claims.keys, claims.n_states)
    start = np.full(size, diameter)
    if claims.upper_start == "reward":
        gap = np.zeros(size)
        for a in range(mdp.n_actions):
            np.maximum(gap, np.abs(mdp.rewards[first, a] - mdp.rewards[second, a]), out=gap)
        start = gap + gamma * diameter
    above = np.minimum(claims.upper, start)
    # What must be proved, stated backup errors included, rounded to the strict side.
    claim_below, claim_above = claims.lower, claims.upper
    margin = np.zeros(size)
    if eps > 0.0:
        with np.errstate(over="ignore"):  # a sum beyond all floats becomes the largest of them
            claim_below = np.nextafter(claims.lower - eps, np.inf)
            claim_above = np.nextafter(claims.upper + eps, -np.inf)
        margin = 4.0 * EPS * (np.minimum(claims.upper, claim_above) + eps)
    row_start = np.searchsorted(first, np.arange(claims.n_states + 1)).astype(np.int64)
    low, high = np.empty((size, 2)), np.empty((size, 2))

    def part(begin: int, end: int) -> None:
        check_pairs_kernel(
            begin,
            end,
            row_start,
            claims.keys,
            claims.lower,
            above,
            claim_below,
            claim_above,
            mdp.indptr,
            mdp.indices,
            mdp.probs,
            mdp.rewards,
            gamma,
            diameter,
            claims.lower_start == "reward",
            claims.upper_start == "reward",
            mdp.max_support,
            low,
            high,
        )

    map_chunks(part, size, threads=threads, chunk=CHUNK)
    # Certainly false: the claim lies beyond what its backup can be. NaN counts as beyond.
    for side, beyond, bound in (
        ("lower", claim_below - low[:, 1] - margin, low[:, 1]),
        ("upper", high[:, 1] - claim_above - margin, high[:, 1]),
    ):
        worst = int(beyond.argmax())  # the first NaN, if there is one
        if not beyond[worst] <= 0.0:
            raise _violated(claims, side, worst, float(bound[worst]))
    # Open: rounding could explain it. By how much, and is that still small?
    open_by = 0.0
    for side, short, bound in (
        ("lower", claim_below - low[:, 0], low[:, 0]),
        ("upper", high[:, 0] - claim_above, high[:, 0]),
    ):
        worst = int(short.argmax())
        if not short[worst] <= CONFIRMED * max(float(limit), SMALLEST):
            s, t = claims.pair(worst)
            stored = getattr(claims, side)[worst]
            raise VerificationError(
                f"{side} bound of pair ({s}, {t}) is {float(stored)!r}, which could not be "
                f"confirmed: its backup is only known to reach {float(bound[worst])!r}"
            )
        if short[worst] > 0.0:
            open_by = max(open_by, float(np.nextafter(short[worst], np.inf)))
    return Fraction(open_by)


def _violated(claims: _Claims, side: str, index: int, bound: float) -> VerificationError:
    s, t = claims.pair(index)
    stored = float(getattr(claims, side)[index])
    beyond = f" by more than eps_op = {claims.eps_op!r}" if claims.eps_op else ""
    relation = ("above", "at most") if side == "lower" else ("below", "at least")
    return VerificationError(
        f"{side} bound of pair ({s}, {t}) is {stored!r}, {relation[0]} its backup{beyond}, "
        f"which is {relation[1]} {bound!r}"
    )


# -- exact mode --------------------------------------------------------------------------------


class _Exact:
    """The model and the claims as exact numbers."""

    def __init__(self, claims: _Claims, mdp: TabularMDP) -> None:
        self._claims = claims
        self._mdp = mdp
        self._gamma = Fraction(claims.gamma)
        tops, bottoms = mdp.rewards.max(axis=0).tolist(), mdp.rewards.min(axis=0).tolist()
        span = max(Fraction(x) - Fraction(y) for x, y in zip(tops, bottoms, strict=True))
        self._diameter = span / (1 - self._gamma)
        self._costs: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
        # No sub-solution up to eps_op is larger.
        self.limit = (span + Fraction(claims.eps_op)) / (1 - self._gamma)

    def check(self, index: int) -> None:
        """Both inequalities at one covered pair."""
        claims, mdp = self._claims, self._mdp
        s, t = claims.pair(index)
        claim_below = Fraction(float(claims.lower[index])) - Fraction(claims.eps_op)
        claim_above = Fraction(float(claims.upper[index])) + Fraction(claims.eps_op)
        backup_below = self._gap(s, t)  # T h⁻ >= d_R; actions below can only raise it
        for action in range(mdp.n_actions):
            gap = self._action_gap(s, t, action)
            (x, p), (y, q) = mdp.successors(s, action), mdp.successors(t, action)
            if np.array_equal(x, y) and np.array_equal(p, q):
                if gap > claim_above:
                    raise _violated(claims, "upper", index, _below(gap))
                continue
            costs = [[self._cost(i, j) for j in y.tolist()] for i in x.tolist()]
            masses = [Fraction(v) for v in p.tolist()], [Fraction(v) for v in q.tolist()]
            if backup_below < claim_below:
                least = exact_transport([[c[0] for c in line] for line in costs], *masses)
                backup_below = max(backup_below, gap + self._gamma * least)
            # No coupling costs more than the largest cost.
            if gap + self._gamma * max(c[1] for line in costs for c in line) > claim_above:
                least = exact_transport([[c[1] for c in line] for line in costs], *masses)
                if gap + self._gamma * least > claim_above:
                    raise _violated(claims, "upper", index, _below(gap + self._gamma * least))
        if backup_below < claim_below:
            raise _violated(claims, "lower", index, _above(backup_below))

    def _action_gap(self, s: int, t: int, action: int) -> Fraction:
        rewards = self._mdp.rewards
        return abs(Fraction(float(rewards[s, action])) - Fraction(float(rewards[t, action])))

    def _gap(self, s: int, t: int) -> Fraction:
        return max(self._action_gap(s, t, a) for a in range(self._mdp.n_actions))

    def _cost(self, s: int, t: int) -> tuple[Fraction, Fraction]:
        """What a pair of states reads below and above."""
        if s == t:
            return Fraction(0), Fraction(0)
        if s > t:
            s, t = t, s
        if (s, t) not in self._costs:
            self._costs[s, t] = self._read(s, t)
        return self._costs[s, t]

    def _read(self, s: int, t: int) -> tuple[Fraction, Fraction]:
        claims = self._claims
        gap = self._gap(s, t)
        below = gap if claims.lower_start == "reward" else Fraction(0)
        above = self._diameter
        if claims.upper_start == "reward":
            above = gap + self._gamma * self._diameter
        key = s * claims.n_states + t
        at = int(np.searchsorted(claims.keys, key))
        if at < claims.keys.size and claims.keys[at] == key:
            below = Fraction(float(claims.lower[at]))
            above = min(above, Fraction(float(claims.upper[at])))
        return below, above


def exact_transport(cost: list[list[Fraction]], a: list[Fraction], b: list[Fraction]) -> Fraction:
    """The least cost of moving a/Σa to b/Σb, exactly; costs must not be negative.

    Whole numbers throughout: masses are multiplied by the other side's sum and by a common
    denominator, costs by theirs. Shortest augmenting paths start from one row after another;
    they end because every path moves at least one unit. The answer proves itself before it is
    returned: its potentials are feasible and reach the cost of its plan.
    """
    n, m = len(a), len(b)
    sum_a, sum_b = sum(a, Fraction(0)), sum(b, Fraction(0))
    mass_unit = math.lcm(*(v.denominator for v in (*a, *b)))
    whole_a, whole_b = [int(v * mass_unit) for v in a], [int(v * mass_unit) for v in b]
    total_a, total_b = sum(whole_a), sum(whole_b)
    supply, demand = [v * total_b for v in whole_a], [v * total_a for v in whole_b]
    cost_unit = math.lcm(*(v.denominator for line in cost for v in line))
    c = [[v.numerator * (cost_unit // v.denominator) for v in line] for line in cost]
    unit = cost_unit * mass_unit * mass_unit * sum_a * sum_b
    if n == 1 or m == 1:
        single = sum(
            c[i][j] * (demand[j] if n == 1 else supply[i]) for i in range(n) for j in range(m)
        )
        return Fraction(single) / unit

    y, z = [0] * n, [min(c[i][j] for i in range(n)) for j in range(m)]
    plan = [[0] * m for _ in range(n)]
    room = list(demand)
    for source in range(n):
        left = supply[source]
        while left:
            reach: list[int | None] = [None] * m
            through, back = [source] * m, {source: -1}
            settled: dict[int, int] = {}
            frontier = {source: 0}
            rows = {source: 0}
            while True:
                for row, here in frontier.items():
                    for j in range(m):
                        length = here + c[row][j] - y[row] - z[j]
                        known = reach[j]
                        if known is None or length < known:
                            reach[j], through[j] = length, row
                distance, j = min(
                    (r, k) for k, r in enumerate(reach) if r is not None and k not in settled
                )
                settled[j] = distance
                if room[j]:
                    break
                frontier = {i: distance for i in range(n) if i not in rows and plan[i][j]}
                for i in frontier:
                    back[i] = j
                rows.update(frontier)
            for i, here in rows.items():
                y[i] += distance - here
            for k, here in settled.items():
                z[k] -= distance - here
            # The path, from its end to the source: forward and backward cells in turn.
            forward, backward, k = [], [], j
            while True:
                forward.append((through[k], k))
                if through[k] == source:
                    break
                backward.append((through[k], back[through[k]]))
                k = back[through[k]]
            amount = min([left, room[j], *(plan[r][k] for r, k in backward)])
            for r, k in forward:
                plan[r][k] += amount
            for r, k in backward:
                plan[r][k] -= amount
            left -= amount
            room[j] -= amount
    primal = sum(c[i][j] * plan[i][j] for i in range(n) for j in range(m))
    dual = sum(map(operator.mul, y, supply)) + sum(map(operator.mul, z, demand))
    is_feasible = all(y[i] + z[j] <= c[i][j] for i in range(n) for j in range(m))
    if not is_feasible or primal != dual or any(room) or min(map(min, plan)) < 0:
        raise AssertionError("an exact transport problem was not solved")
    return Fraction(primal) / unit


# -- partitions --------------------------------------------------------------------------------


def _check_partitions(claims: _Claims, widening: Fraction, remark: str) -> None:
    """Clusters at tau of the arms, moved outward by `widening`, must be the claimed ones.

    lower - w <= tau means lower <= tau + w: comparing with the largest float below that limit
    is exact.
    """
    if claims.tau is None:
        return
    tau = Fraction(claims.tau)
    for name, values, labels, limit in (
        ("lower", claims.lower, claims.labels_lower, tau + widening),
        ("upper", claims.upper, claims.labels_upper, tau - widening),
    ):
        found = _components(claims, values <= _below(limit))
        bad = np.flatnonzero(found != labels)
        if bad.size:
            state = int(bad[0])
            raise VerificationError(
                f"labels_{name} gives state {state} the cluster {int(labels[state])}, but the "
                f"links {name} <= tau = {claims.tau!r} give {int(found[state])}{remark}"
            )


def _components(claims: _Claims, is_link: BoolArray) -> IntArray:
    """Connected components of the linked covered pairs, numbered by first appearance."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = claims.n_states
    s, t = np.divmod(claims.keys[is_link], n)
    graph = coo_array((np.ones(s.size, np.int8), (s, t)), shape=(n, n))
    _, labels = connected_components(graph, directed=False)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return np.asarray(rank[inverse], np.int64)


# -- rounding ----------------------------------------------------------------------------------


def _below(value: Fraction) -> float:
    """The largest float that is not above `value`."""
    try:
        number = float(value)
    except OverflowError:
        return math.nextafter(math.inf, 0.0) if value > 0 else -math.inf
    return number if Fraction(number) <= value else math.nextafter(number, -math.inf)


def _above(value: Fraction) -> float:
    """The smallest float that is not below `value`."""
    return 0.0 - _below(-value)
