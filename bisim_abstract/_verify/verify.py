"""`verify`: whether the claims of a certificate are true, by code that made none of them.

A certificate claims bounds, not how they were found. Its components are checked one by one, in
an order in which each rests on those before:

- Start values follow from the rewards alone.
- A block level claims for all members x of C and y of C' that lower(C, C') <= d(x, y) <=
  upper(C, C'). Read as a table f over pairs of states, start values included, it satisfies
  f <= Tf (or f >= Tf) if its block inequalities hold, and then bounds d by itself.
- A feature bounds d from below by itself, if its residual has the span that is claimed.
- Pairs. With V⁻ <= d <= V⁺ what all of these say, h⁻ the larger of V⁻ and the stored lower
  bounds, h⁺ the smaller of V⁺ and the stored upper bounds (0 for a state and itself), these
  inequalities on covered pairs are enough:

      lower <= T h⁻ unless lower <= V⁻,   and   upper >= T h⁺ unless upper >= V⁺.

  For let m be the most by which h⁻ exceeds d. Where that is attained by V⁻, m <= 0; elsewhere
  m = lower - d <= T h⁻ - d <= T(d + m) - d <= γm, so that m <= 0 again; and mirrored above.

Relations. In the plain relation T compares the actions of two states by name, and is a constant M,
stored in the certificate, where the states do not have the same actions. In the lax relation it
compares each action of either state with the nearest of the other's: with δ what two actions differ
by, reward and transport,

    T f = max( max_a min_b δ_f(a, b), max_b min_a δ_f(a, b) ).

Both are monotone, and T(f + c) <= Tf + γc: no more is used above or below.

- M >= L/(1 - γ), L what any two rewards differ by. Then nothing exceeds M: L + γM <= M. So M is the
  diameter D from which upper start values are computed, and both bounds where actions differ.
- Blocks are of states with the same actions; or every action of a member is called one of its
  block's, each of these being some action of every member. Whatever holds of all that is called ā
  in C and b̄ in C' holds of some b for every a of a member that is called ā, so that the least over
  b̄ bounds the least over b from above; and every b is called some b̄, so that it bounds it from
  below. This is as true of a block and itself. Intervals, centres and radii are checked against all
  that is called so, nothing is read of names that are not used.
- A feature Φg = max or mean over a of φ(σ_a R_a) + γ P_a g, φ cutting off at both ends. With e the
  most by which |g(x) - g(y)| exceeds d, backups of x and y differ by d + γe if each term of one has
  its counterpart in the other. By name that is the same action. Where actions differ, in the place
  of an action that a state lacks stands its first: rewards there are within L, so that L + γ(M + e)
  <= M + γe bounds it; functions with signs of both kinds are not accepted nevertheless, as nobody
  needs them. Where actions are matched, the counterpart may be any: only a maximum over all, with
  one sign, is not changed by that. Witnesses look at one action, and need names: L + γ(M + e) again
  where actions differ, none where they are matched.
- Start values of lax bounds are Hausdorff distances of rewards. Rewards of one action keep no
  clusters apart then; the best and the worst of a state do.

Widening. Suppose that inequalities are missed by at most ε. The same argument for one level
gives m <= ε + γm, so that its entries are off by at most w = ε/(1 - γ): it is T, on pairs of
states, that contracts, and the block operator (which moves by γ(1 + t + t') where radii are
not 0) need not. A feature whose span is missed by ε is off by w, a witness by ε + γw <= w. So V⁻
and V⁺ are off by w, and in the argument for pairs m <= max(w, ε + γm), that is m <= w: all
components moved outward by one w enclose d, though they read each other as they are. ε is limited
by what rounding explains, see `explained`: what is open by more is not verified.

What is claimed about values does not rest on any of this: `_verify/value.py` checks it by one
backup of each of its functions, and as many as there are steps for what is said of episodes.

Float mode proves all this with one-sided bounds and widens by what rounding leaves open. Exact
mode computes with whole numbers and fractions and leaves nothing open; where rounding is the only
objection and the certificate is small, it decides. This module shares the model and the
certificate with the code that makes bounds, and nothing else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bisim_abstract._base.checks import (
    as_generator,
    check_choice,
    check_int,
)
from bisim_abstract._base.html import table_html
from bisim_abstract._base.progress import compiling, shown
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.text import counted, seconds_text
from bisim_abstract._base.types import Progress, ProgressCallback, SeedLike
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._verify.action_values import check_bounds
from bisim_abstract._verify.action_values import check_clusters as check_value_clusters
from bisim_abstract._verify.clusters import check_clusters
from bisim_abstract._verify.exact import ExactTable, check_exact_features, check_exact_radii
from bisim_abstract._verify.floats import (
    Radii,
    Reader,
    above_float,
    check_features,
    check_intervals,
    check_limit,
    check_radii,
    check_table,
    explained,
    stored_radii,
    violated,
)
from bisim_abstract._verify.read import PARTITION, Claims, Table, read_claims
from bisim_abstract._verify.remembered import (
    BoundsCheck,
    bounds_digest,
    claims_digest,
    known_bounds,
    known_claims,
    remember,
)
from bisim_abstract._verify.value import check_value
from bisim_abstract.errors import InvalidArgumentError, VerificationError

if TYPE_CHECKING:
    from bisim_abstract._certificate.certificate import Certificate
    from bisim_abstract._certificate.partition import PartitionProof

__all__ = ["Verification", "VerificationError", "verify"]

PARTS = ("values", "blocks", "features", "pairs", "clusters")
MODES = ("float", "exact", "sampled")
COMPILING = 7  # seconds it takes to compile what this module needs, on an ordinary machine
SMALL = 1_000_000  # steps, some seconds, up to which fractions decide what rounding leaves open
FEW = 50_000  # entries of rows up to which fractions decide radii that rounding leaves open
VALUE_STEPS = 40  # backups of the whole model that a proven value takes at most, and how slow
UNDERFLOW = 1e-290  # far above what is lost where products of small numbers become 0
PROBLEM_STEPS = 10  # what a transport problem takes per cost besides, in the same unit


@dataclass(frozen=True)
class Verification:
    """What a check of a certificate found.

    Attributes:
        is_valid: Whether every claim that was checked holds.
        verdict: "verified" if all claims were checked, "sampled" if the inequalities were
            checked on a sample of the pairs only, or "rejected".
        mode: "float", "exact" or "sampled": the one that decided.
        problem: The first violated claim in one sentence; empty if there is none.
        widening: How far the stored bounds must be moved outward to enclose the metric for
            certain: what the rounding of this check asks for. With u = 2**-53, D the largest
            distance that rewards allow, N the length of the longest row, of the model or a centre,
            and A the number of actions, it is at most (64·N + 32·A + 512)·u·D/(1 - γ); D is that of
            any two rewards where there are features, and has the largest end of a reward interval
            over 1 - γ added to it for estimates. Nor is it above 1e-9·D/(1 - γ). Whatever would ask
            for more is not verified.
        remark: What holds up to rounding only, so that mode "exact" may reject it as it is
            stored, and why; empty if there is nothing of the kind.
        pairs_checked: Number of covered pairs, of states and of blocks, whose inequalities were
            checked.
        levels_checked: Number of block levels whose intervals, centres and radii were checked.
        features_checked: Number of value features and witnesses that were checked.
        values_checked: Number of functions that were checked of those which bound values.
        seconds: How long it took, compiling apart.
        compile_seconds: How long solvers were compiled for it, which happens once.
    """

    is_valid: bool
    verdict: str
    mode: str
    problem: str
    widening: float
    pairs_checked: int
    remark: str = ""
    levels_checked: int = 0
    features_checked: int = 0
    values_checked: int = 0
    seconds: float = field(default=0.0, compare=False)
    compile_seconds: float = field(default=0.0, compare=False)

    def raise_if_rejected(self) -> None:
        """Do nothing if the certificate is valid.

        Raises:
            VerificationError: If the certificate was rejected; the message is the problem.
        """
        if not self.is_valid:
            raise VerificationError(self.problem)

    def _repr_html_(self) -> str:
        rows = [("problem", self.problem)] if self.problem else []
        rows += [
            ("checked", ", ".join(check_counts(self)) or "nothing"),
            ("arithmetic", self.mode),
            ("widening", f"{self.widening:.2g}"),
        ]
        if self.remark:
            rows.append(("remark", self.remark))
        if self.seconds or self.compile_seconds:
            rows.append(("took", seconds_text(self.seconds, self.compile_seconds)))
        return table_html(f"Certificate {self.verdict}", rows)


def check_counts(found: Verification) -> list[str]:
    """How much was checked, in words; nothing of what there was none."""
    levels, features = found.levels_checked, found.features_checked
    parts = [
        (found.pairs_checked, counted(found.pairs_checked, "pair")),
        (levels, counted(levels, "block level")),
        (features, counted(features, "feature")),
        (found.values_checked, f"{counted(found.values_checked, 'bound')} on values"),
    ]
    return [text for number, text in parts if number]


def verify(
    mdp: TabularMDP,
    certificate: Certificate | PartitionProof,
    *,
    mode: str = "float",
    sample: int = 200,
    seed: SeedLike = 0,
    resources: Resources = HERE,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> Verification:
    """Check every claim of a certificate against the model.

    A certificate that is malformed in any way is rejected; it never raises an error. One that
    is too large to be checked in the memory at hand is neither rejected nor verified. What was
    verified in full is remembered, so that `AbstractedEnv` need not check it again.

    Args:
        mdp: The model.
        certificate: What is to be checked, which speaks of that model; or a `PartitionProof`, which
            claims values only.
        mode: "float" checks all claims, fast; "exact" checks all claims in rational arithmetic,
            for small instances; "sampled" does so for a random sample of the pairs (and of the
            rows behind block levels), and checks the rest of the claims as "float" does. Where
            rounding alone speaks against a small certificate, "exact" decides. "float" may accept
            what "exact" rejects by less than rounding: `widening` and `remark` then say so. Bounds
            that follow from action values have no pairs to sample, and "sampled" is "float".
        sample: Number of pairs in "sampled" mode.
        seed: Seed or generator of the sample.
        resources: Threads, in "float" mode, workers and memory. The result does not depend on them;
            on a cluster, inequalities of pairs are checked there, and its workers are trusted.
        callback: Called when a part begins, and if solvers must be compiled first.
        progress: Show a line also where there is no terminal, as in a notebook.

    Raises:
        InvalidArgumentError: If the arguments are swapped, or the certificate is a path.
        MemoryLimitError: If the check would not fit; it says nothing about the certificate.
    """
    check_resources(resources)
    check_mdp(mdp, call="verify(mdp, certificate)")
    _check_kind(certificate)
    check_choice("mode", mode, MODES)
    sample = check_int("sample", sample, low=1)
    options = _Options(mode, sample, as_generator(seed), resources)
    return _judged(mdp, certificate, options, callback, progress)


def verify_rest(
    mdp: TabularMDP, certificate: Certificate | PartitionProof, *, resources: Resources = HERE
) -> Verification:
    """`verify`, without what this process has found of the very same claims or bounds.

    Thresholds of one certificate share their bounds; each has clusters and a value of its own.
    """
    options = _Options("float", 1, as_generator(0), resources, is_recalling=True)
    return _judged(mdp, certificate, options, None, False)


@dataclass(frozen=True)
class _Options:
    """How to check."""

    mode: str
    sample: int
    rng: np.random.Generator
    resources: Resources
    is_recalling: bool = False


def _judged(
    mdp: TabularMDP,
    certificate: Certificate | PartitionProof,
    options: _Options,
    callback: ProgressCallback | None,
    progress: bool,
) -> Verification:
    begin = time.perf_counter()
    # Values beyond all floats become infinite or NaN, which no comparison accepts.
    with (
        np.errstate(all="ignore"),
        shown(callback, progress) as report,
        compiling(report, about=COMPILING) as compiled,
    ):
        try:
            claims = read_claims(certificate, mdp, resources=options.resources)
        except VerificationError as reason:
            return Verification(False, "rejected", options.mode, str(reason), 0.0, 0)
        has_pairs = claims.actions is None and claims.scope != PARTITION
        if options.mode == "sampled" and not has_pairs:
            options = replace(options, mode="float")  # no pairs to sample: all is checked
        of_bounds = bounds_digest(mdp, claims)
        digest = claims_digest(of_bounds, claims)
        if options.is_recalling and digest in known_claims:
            return known_claims[digest]
        with options.resources.started(report) as ready:
            options = replace(options, resources=ready)
            check = _Check(mdp, options, of_bounds, report)
            found, is_open = check.judge(claims), check.is_open
            if is_open and _exact_work(claims, mdp) <= SMALL:
                check = _Check(mdp, replace(options, mode="exact"), of_bounds, report)
                found, is_open = check.judge(claims), False
    seconds = max(time.perf_counter() - begin - compiled.seconds, 0.0)
    found = replace(found, seconds=seconds, compile_seconds=compiled.seconds)
    if found.verdict == "verified":
        remember(known_claims, digest, found)
    if not is_open:
        return found
    return replace(found, problem=f'{found.problem}; mode "exact" would decide, slowly')


def _check_kind(certificate: object) -> None:
    """Refuse what was meant as something else; all other objects are judged by what they say."""
    kind = type(certificate)  # `isinstance` would ask the object, which may do anything
    if issubclass(kind, TabularMDP):
        raise InvalidArgumentError(
            "certificate must be a Certificate, got a TabularMDP; the order is "
            "verify(mdp, certificate)"
        )
    if issubclass(kind, str | Path):
        raise InvalidArgumentError(
            f"certificate must be a Certificate, got {certificate!r}; if that is the path of one, "
            "read it with Certificate.load(path)"
        )


class _Check:
    """One run of the verifier, and how far it has come."""

    def __init__(
        self,
        mdp: TabularMDP,
        options: _Options,
        of_bounds: bytes,
        report: ProgressCallback | None,
    ) -> None:
        self.pairs = self.levels = self.features = self.values = 0
        self.is_open = False  # whether rounding is all that speaks against it
        self._remarks: list[str] = []
        self._mdp = mdp
        self._options = options
        self._mode = options.mode
        self._digest = options.mode.encode() + of_bounds
        self._threads = options.resources.n_threads
        self._workers = options.resources.workers
        self._report = report

    def judge(self, claims: Claims) -> Verification:
        """Check everything; what was found."""
        problem, widening = "", Fraction(0)
        try:
            widening = self._run(claims)
        except VerificationError as reason:
            problem, self.is_open = str(reason), reason.is_open
        verdict = "sampled" if self._mode == "sampled" else "verified"
        return Verification(
            is_valid=not problem,
            verdict="rejected" if problem else verdict,
            mode=self._mode,
            problem=problem,
            widening=above_float(widening),
            remark="" if problem else "; ".join(self._remarks),
            pairs_checked=self.pairs,
            levels_checked=self.levels,
            features_checked=self.features,
            values_checked=self.values,
        )

    def _tell(self, part: str) -> None:
        """Say which part comes next."""
        if self._report is not None:
            self._report(Progress("verifying", PARTS.index(part), len(PARTS), part))

    def _run(self, claims: Claims) -> Fraction:
        """How far bounds must be widened."""
        if claims.scope == PARTITION:  # no distance is claimed
            self._tell("values")
            self.values = check_value(claims, self._mdp, is_exact=self._mode == "exact")
            return Fraction(0)
        levels = [ExactTable(level, claims.gamma) for level in claims.levels]
        states = ExactTable(
            claims.states,
            claims.gamma,
            levels=levels,
            features=claims.features,
            mdp=self._mdp,
        )
        is_float = self._mode == "float"
        for table in (*levels, states):
            if is_float and table.table.keys.size:
                check_limit(table.limit)
            _check_largest(table)
        _check_apart(states, claims.gamma)
        self._tell("values")
        is_exact = self._mode == "exact"
        self.values = check_value(claims, self._mdp, is_exact=is_exact)
        if claims.actions is not None:  # of which all distances follow
            check_bounds(claims.actions, self._mdp, claims.gamma, is_exact=is_exact)
            self.values += 1
            self._tell("clusters")
            check_value_clusters(claims, states.limit)
            return Fraction(0)
        reader = Reader(claims.states, claims.gamma, levels=claims.levels, features=claims.features)
        widening = self._check_bounds(claims, levels, states, reader) / (1 - Fraction(claims.gamma))
        remark = ""
        if claims.scope == "covered":  # what is claimed there are the clusters of bounds as stored
            check_clusters(claims, Fraction(0), "", reader, states, self._threads)
        if widening > 0:
            remark = f" once widened by {above_float(widening)!r}, which rounding asks for"
            self._remarks.append(
                "rounding leaves open whether all bounds and corrections hold as stored; they do "
                f'once bounds are moved outward by {above_float(widening)!r}, and mode "exact" '
                "decides about those stored"
            )
        self._tell("clusters")
        try:
            check_clusters(claims, widening, remark, reader, states, self._threads)
        except VerificationError as reason:
            # Wrong already as they stand? Then rounding is not to be blamed.
            check_clusters(claims, Fraction(0), "", reader, states, self._threads)
            raise VerificationError(str(reason), is_open=True) from reason
        return widening

    def _check_bounds(
        self, claims: Claims, levels: list[ExactTable], states: ExactTable, reader: Reader
    ) -> Fraction:
        """Everything but clusters and values: by how much inequalities may be missed."""
        known = known_bounds.get(self._digest) if self._options.is_recalling else None
        if known is not None:
            self.pairs, self.levels, self.features = known.pairs, known.levels, known.features
            self._remarks += known.remarks
            return known.open_by
        is_float = self._mode == "float"
        open_by = Fraction(0)
        radii = []
        for level in levels:
            self._tell("blocks")
            radii.append(self._check_model(level.table))
            self.levels += 1
        if is_float:
            for level, radius in zip(levels, radii, strict=True):
                self.pairs += level.table.keys.size
                own = Reader(level.table, claims.gamma)
                open_by = max(
                    open_by, check_table(own, claims, states.limit, radius, self._workers)
                )
        self._tell("features")
        # A maximum over actions is rounded at the size of what any two rewards differ by.
        size = max(states.limit, states.whole_limit)
        room = explained(claims.states, claims, states.limit, size)
        open_by = max(open_by, self._check_features(claims, room))
        self._tell("pairs")
        if is_float:
            self.pairs += claims.states.keys.size
            own_radii = stored_radii(claims.states)
            open_by = max(
                open_by, check_table(reader, claims, states.limit, own_radii, self._workers)
            )
        else:
            self._check_sample([*levels, states])
        if self._mode != "sampled":
            found = BoundsCheck(
                open_by, self.pairs, self.levels, self.features, tuple(self._remarks)
            )
            remember(known_bounds, self._digest, found)
        return open_by

    def _check_model(self, level: Table) -> Radii:
        """The model part of a level: proven radii."""
        mdp = self._mdp
        check_intervals(level, mdp)
        n_rows = mdp.n_states * mdp.n_actions
        if self._mode == "exact":
            check_exact_radii(level, mdp, range(n_rows))
            return stored_radii(level)
        radii = check_radii(level, mdp, self._threads)
        if radii.rows.size:
            radii = self._decide_radii(level, radii)
        if self._mode == "sampled":
            rows = self._options.rng.choice(
                n_rows, size=min(self._options.sample, n_rows), replace=False
            )
            check_exact_radii(level, mdp, np.sort(rows).tolist())
        return radii

    def _decide_radii(self, level: Table, radii: Radii) -> Radii:
        """Stored radii, by fractions, where floats leave few rows open; else the larger ones."""
        mdp = self._mdp
        states, actions = np.divmod(radii.rows, mdp.n_actions)
        centres = level.labels[states] * mdp.n_actions + actions
        if level.renaming is not None:
            centres += level.renaming[states, actions] - actions
        entries = np.diff(mdp.indptr)[radii.rows].sum() + np.diff(level.indptr)[centres].sum()
        if entries <= FEW:
            check_exact_radii(level, mdp, radii.rows.tolist())
            return stored_radii(level)
        state, action = int(states[0]), int(actions[0])
        block, name = int(level.labels[state]), level.called(state, action)
        self._remarks.append(
            f"level {level.level}: rounding leaves open whether radii and shorts as stored are "
            f"enough for {radii.rows.size:,} rows, of which action {action} of state {state} in "
            f"block {block} is the first; bounds hold for larger ones (there a radius of "
            f'{float(radii.radius[block, name])!r}), and mode "exact" decides about those stored'
        )
        return radii

    def _check_features(self, claims: Claims, room: Fraction) -> Fraction:
        """All features: how far they are open."""
        if claims.features is None:
            return Fraction(0)
        self.features = claims.features.functions()[1].size
        if self._mode == "exact":
            check_exact_features(claims, self._mdp)
            return Fraction(0)
        return check_features(claims, self._mdp, room, self._threads)

    def _check_sample(self, tables: list[ExactTable]) -> None:
        """Inequalities of all tables in exact arithmetic, or of a sample."""
        sizes = [table.table.keys.size for table in tables]
        which = np.arange(sum(sizes))
        if self._mode == "sampled" and self._options.sample < which.size:
            which = np.sort(
                self._options.rng.choice(which.size, size=self._options.sample, replace=False)
            )
        before = 0
        for table, size in zip(tables, sizes, strict=True):
            for index in which[(which >= before) & (which < before + size)].tolist():
                self.pairs += 1
                table.check(index - before)
            before += size


def _exact_work(claims: Claims, mdp: TabularMDP) -> int:
    """How many steps with fractions exact mode would take, about, and rather too many.

    A transport problem of l and m masses takes at most some (l + m)·l·m steps, a cost that it
    reads one step per feature.
    """
    work, functions = (0 if claims.value is None else VALUE_STEPS * mdp.probs.size), 0
    if claims.features is not None:
        functions = claims.features.functions()[1].size
        work += functions * mdp.probs.size
        if claims.features.witnesses is not None:
            support = claims.features.witnesses.support
            work += mdp.n_states * (functions * np.unique(support).size + support.size)
    for table in (*claims.levels, claims.states):
        lengths = np.diff(table.indptr).reshape(table.n, -1)
        if table.level is not None:  # every row is compared with the centre of its block
            work += mdp.probs.size + int(lengths[table.labels].sum())
        first, second = np.divmod(table.keys, table.n)
        one, two = lengths[first], lengths[second]
        steps = functions + PROBLEM_STEPS
        work += table.relation.n_steps(one, two, steps)
    return work


def _check_apart(states: ExactTable, gamma: float) -> None:
    """No two states may be farther apart than those with different actions.

    Nor may these be farther than that and a little for rounding: whoever reads bounds off the
    certificate takes the largest distance there can be for theirs.
    """
    apart = states.table.apart
    room = 1 + Fraction(1, 2**44) / (1 - Fraction(gamma))
    if apart is not None and Fraction(apart) > states.whole_limit * room + Fraction(UNDERFLOW):
        raise VerificationError(
            f"apart is {apart!r}, but states whose actions are not the same are at most "
            f"{above_float(states.whole_limit)!r} apart, up to rounding"
        )
    if apart is not None and Fraction(apart) < states.whole_limit:
        raise VerificationError(
            f"apart is {apart!r}, but states whose actions are not the same must be at least "
            f"{above_float(states.whole_limit)!r} apart, as far as rewards allow at all"
        )


def _check_largest(table: ExactTable) -> None:
    """The largest lower bound M cannot pass T h⁻ <= L + γM if it is above L/(1 - γ) = D."""
    lower = table.table.lower
    if lower.size:
        index = int(lower.argmax())
        if Fraction(float(lower[index])) > table.limit:
            raise violated(table.table, "lower", index, above_float(table.limit))
