"""Exact bisimulation classes by partition refinement, and the quotient MDP they give."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.checks import check_gamma, check_int
from bisim_abstract._base.labels import by_first_appearance
from bisim_abstract._base.parallel import map_chunks
from bisim_abstract._base.progress import compiling
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.renaming import own_names
from bisim_abstract._relations.apart import TINY, overall_span
from bisim_abstract._relations.table import find_bisimulation, find_relation
from bisim_abstract.errors import BisimError, InvalidArgumentError

__all__ = ["BisimulationClasses", "bisimulation_classes"]

LIFT_ERROR = 4.0 * EPS
COMPILING = 4  # seconds it takes to compile what this needs, on an ordinary machine


@dataclass(frozen=True, eq=False)
class BisimulationClasses:
    """A partition of the states, with what its members are proven to differ by.

    Attributes:
        mdp: The model it is a partition of.
        labels: (n_states) class of each state, numbered by first appearance.
        representatives: (n_classes) the member each class is compared with: the terminal
            state in its class, the first member elsewhere.
        quotient: The MDP on classes: each behaves as its representative, with rows summed
            by class. Its start distribution is pushed forward. Its actions are the names of
            `renaming`: under the lax relation a class has one action for each name, numbered
            from 0 on, however many actions of its members have it.
        reward_gap: Bound on how much what an action of a member pays differs from what the
            representative's action of the same name pays.
        variation: Bound on the total variation distance between the row of an action of a
            member, summed by class, and that of the representative's action of the same name.
        lift_error: The same between the representative's summed row and the quotient's, which
            is rounded to floats.
        digits: Number of digits the signatures were rounded to, None for none.
        relation: "plain" if actions correspond by their names, "lax" if by what they do.
        renaming: (n_states, n_actions) what each action of a state is called in its class, -1
            where the state lacks it. None if every action is called what it is, in every state.

    Members of a class are bisimilar, at distance exactly 0, if `is_exact`.
    """

    mdp: TabularMDP
    labels: IntArray
    representatives: IntArray
    quotient: TabularMDP
    reward_gap: float
    variation: float
    lift_error: float
    digits: int | None
    relation: str = "plain"
    renaming: IntArray | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.representatives.size)

    @property
    def is_exact(self) -> bool:
        """Whether members are proven bisimilar, not only nearly so."""
        return self.reward_gap == 0.0 and self.variation == 0.0

    def distortion(self, gamma: float) -> float:
        """Bound on |d(s,t) - d'(class of s, class of t)|, d' being the quotient's metric.

        Read d' as a function of states. It is a pseudometric, so W₁ under it obeys the
        triangle inequality, and moving a row by total variation v costs at most v·D, where
        D bounds d'. So an action of s and one of t are as far apart as the actions of the
        classes that have their names, but for 2·reward_gap + 2·gamma·(variation + lift_error)·D.
        Every action has a name and every name an action, in s as in t: maxima and minima over
        actions, by name or in the Hausdorff distance, differ by no more, and where d compares
        nothing, between different action sets, both are the same constant. Hence the operator
        moves d' by at most that much. As it is a gamma-contraction with fixed point d,
        |d - d'| is at most that over 1 - gamma. The last factor covers the rounding of these
        few operations, and TINY their underflow: a product of small numbers may be computed as 0,
        where members do differ.

        D is L/(1 - gamma), L the largest reward difference under one action; of any two rewards
        if actions are renamed; and the distance of different action sets if there are such.
        """
        gamma = check_gamma(gamma)
        relation = find_bisimulation(self.relation)
        diameter = relation.apart(self.mdp, gamma)
        if diameter is None:
            diameter = relation.span(self.quotient) / (1.0 - gamma)
        variation = self.variation + self.lift_error
        local = 2.0 * self.reward_gap + 2.0 * gamma * variation * diameter
        if self.reward_gap > 0.0 or (gamma > 0.0 and variation > 0.0 and diameter > 0.0):
            local += TINY
        return local / (1.0 - gamma) * (1.0 + 1e-12)

    def __repr__(self) -> str:
        kind = "exact"
        if not self.is_exact:
            kind = f"reward gap {self.reward_gap:.2g}, variation {self.variation:.2g}"
        count, n = self.n_classes, self.labels.size
        adjective = find_relation(self.relation).adjective
        classes = counted(count, f"{adjective} class".strip())
        return f"BisimulationClasses({classes} of {counted(n, 'state')}, {kind})"


def bisimulation_classes(
    mdp: TabularMDP,
    *,
    relation: str = "plain",
    digits: int | None = None,
    initial: npt.ArrayLike | None = None,
    resources: Resources = HERE,
) -> BisimulationClasses:
    """The coarsest partition into bisimilar states, in near-linear time.

    Two states are bisimilar if they have the same actions and every action pays the same in both
    and reaches every class with the same probability. Under the lax relation they are if each
    action of either has its like among those of the other, whatever they are called and however
    many do the same: a mirror image is the same (Taylor, Precup and Panangaden 2009).

    By default numbers are the same if they are equal as floats, sums being correctly rounded
    and so independent of their order. That is brittle where
    equal models were computed along different ways; `digits` then rounds what is compared,
    and the result states what its members are proven to differ by.

    Args:
        mdp: The model.
        relation: "plain", or "lax" for states that are alike after renaming actions.
        digits: Compare rewards rounded to this many digits relative to their span, and class
            probabilities rounded to this many decimals. None compares floats.
        initial: (n_states) labels; the result refines this partition.
        resources: Threads for the final check; all cores by default.

    Returns:
        The classes. Rounding may merge or split too much, but never in secret: see
        `BisimulationClasses.is_exact`.

    Example:
        >>> import numpy as np
        >>> P = np.eye(3)[:, None, :]  # three states that stay where they are
        >>> bisimulation_classes(TabularMDP.from_dense(P, [1.0, 0.0, 1.0])).labels
        array([0, 1, 0])
    """
    check_resources(resources)
    from bisim_abstract._kernels.refine import deviation_kernel, refine_kernel

    check_mdp(mdp)
    known = find_bisimulation(relation)
    if known.matches_actions and mdp.names.rewards:
        return _of_several_rewards(
            mdp, relation=known.name, digits=digits, initial=initial, resources=resources
        )
    n = mdp.n_states
    if initial is None:
        block = np.zeros(n, np.int64)
    else:
        given = np.asarray(initial)
        if given.shape != (n,):
            raise InvalidArgumentError(
                f"initial must have one label per state ({n}), got shape {given.shape}"
            )
        block = by_first_appearance(given)[0]
    if known.has_apart(mdp.available):
        sets = mdp.action_sets
        block = by_first_appearance(block * (int(sets.max()) + 1) + sets)[0]
    keys, scale = _reward_keys(mdp.rewards, digits)
    bits = np.empty(1)
    word = bits.view(np.uint64)
    rows = mdp.indptr, mdp.indices, mdp.probs
    with compiling(None, about=COMPILING):
        refine_kernel(mdp.n_actions, *rows, keys, scale, known.matches_actions, block, bits, word)
    labels, representatives = by_first_appearance(block)
    if mdp.terminal_state is not None:
        representatives[labels[mdp.terminal_state]] = mdp.terminal_state
    # A chunk takes time for every class as well: where there are many, chunks are few.
    chunk = max(4096, n // 64, representatives.size // 4)
    threads = resources.n_threads
    renaming: IntArray | None
    if known.matches_actions:
        renaming = _named(mdp, keys, scale, labels, representatives, threads, chunk)
        compared, chosen = renaming, _first_called(renaming[representatives])
    else:
        renaming = own_names(mdp) if mdp.has_action_sets else None
        chosen = np.broadcast_to(np.arange(mdp.n_actions), (representatives.size, mdp.n_actions))
        chosen = np.ascontiguousarray(chosen)
        compared = np.empty((0, mdp.n_actions), np.int64)  # what states lack is alike as well
    quotient, lift_error = _quotient(
        mdp, labels, representatives, chosen if known.matches_actions else None
    )

    def deviation(begin: int, end: int) -> tuple[float, float]:
        return deviation_kernel(
            begin,
            end,
            mdp.indptr,
            mdp.indices,
            mdp.probs,
            mdp.rewards,
            labels,
            representatives,
            chosen,
            compared,
            mdp.max_support,
        )

    parts = map_chunks(deviation, n, threads=threads, chunk=chunk)
    labels.setflags(write=False)
    representatives.setflags(write=False)
    if renaming is not None:
        renaming.setflags(write=False)
    return BisimulationClasses(
        mdp=mdp,
        labels=labels,
        representatives=representatives,
        quotient=quotient,
        reward_gap=max(gap for gap, _ in parts),
        variation=max(variation for _, variation in parts),
        lift_error=lift_error,
        digits=digits,
        relation=known.name,
        renaming=renaming,
    )


def _of_several_rewards(
    mdp: TabularMDP,
    *,
    relation: str,
    digits: int | None,
    initial: npt.ArrayLike | None,
    resources: Resources,
) -> BisimulationClasses:
    """Classes after renaming, where actions pay several rewards (see `Names.rewards`).

    Only whether rewards are equal matters. So an action is taken once, and pays a number that
    stands for all that it pays: equal numbers, equal rewards.
    """
    if digits is not None:
        raise InvalidArgumentError(
            "digits cannot be given where several rewards are kept side by side and actions are "
            "renamed: use relation='plain', or one reward by mdp.for_reward(name)"
        )
    n, depth = mdp.n_states, len(mdp.names.rewards)
    once = mdp.for_reward(mdp.names.rewards[0])
    vectors = (mdp.rewards + 0.0).reshape(-1, depth)  # + 0.0: -0.0 is the same reward
    codes = np.unique(vectors, axis=0, return_inverse=True)[1].reshape(n, -1).astype(np.float64)
    if mdp.has_action_sets:  # padding pays what the first action pays
        first = np.take_along_axis(codes, once.first_actions[:, None], axis=1)
        codes = np.where(once.available, codes, first)
    coded = replace(once, rewards=codes, terminal_state=None)
    found = bisimulation_classes(coded, relation=relation, initial=initial, resources=resources)
    representatives = found.representatives
    if mdp.terminal_state is not None:
        representatives = representatives.copy()
        representatives[found.labels[mdp.terminal_state]] = mdp.terminal_state
    assert found.renaming is not None
    chosen = _of_each_reward(_first_called(found.renaming[representatives]), depth)
    quotient, lift_error = _quotient(mdp, found.labels, representatives, chosen)
    return BisimulationClasses(
        mdp=mdp,
        labels=found.labels,
        representatives=representatives,
        quotient=replace(quotient, names=replace(quotient.names, rewards=mdp.names.rewards)),
        # Numbers that stand for rewards differ by nothing that means anything.
        reward_gap=0.0 if found.reward_gap == 0.0 else overall_span(mdp),
        variation=found.variation,
        lift_error=lift_error,
        digits=None,
        relation=relation,
        renaming=_of_each_reward(found.renaming, depth),
    )


def _first_called(called: IntArray) -> IntArray:
    """(k, n_actions) the first action of each name, -1 where no action is called so."""
    chosen = np.full(called.shape, -1)
    for a in range(called.shape[1] - 1, -1, -1):  # what is written last stays
        has = np.flatnonzero(called[:, a] >= 0)
        chosen[has, called[has, a]] = a
    return chosen


def _of_each_reward(actions: IntArray, depth: int) -> IntArray:
    """(k, n_actions * depth) numbers of actions that occur once for each reward, -1 staying -1."""
    copies = actions[:, :, None] * depth + np.arange(depth)
    return np.where(actions[:, :, None] < 0, -1, copies).reshape(len(actions), -1)


def _reward_keys(rewards: FloatArray, digits: int | None) -> tuple[IntArray, float]:
    """What stands for a reward in a signature, and the grid of probabilities (0: none)."""
    if digits is None:
        # + 0.0, because -0.0 and 0.0 are the same reward.
        return (rewards + 0.0).view(np.int64), 0.0
    scale = 10.0 ** check_int("digits", digits, low=1, high=15)
    with np.errstate(over="ignore"):
        span = float(np.ptp(rewards)) or 1.0
    if not math.isfinite(span):
        raise InvalidArgumentError("rewards differ by more than a float can hold; rescale them")
    grid = np.rint((rewards - rewards.min()) / span * scale)
    return (grid + 0.0).view(np.int64), scale


def _named(
    mdp: TabularMDP,
    keys: IntArray,
    scale: float,
    labels: IntArray,
    representatives: IntArray,
    threads: int,
    chunk: int,
) -> IntArray:
    """(n_states, n_actions) what actions are called in their classes, -1 where a state lacks them.

    Actions of one name have one signature. What they really differ by is stated elsewhere.
    """
    from bisim_abstract._kernels.refine import naming_kernel

    names = np.empty(mdp.rewards.shape, np.int64)

    def part(begin: int, end: int) -> int:
        bits = np.empty(1)
        return naming_kernel(
            begin,
            end,
            mdp.indptr,
            mdp.indices,
            mdp.probs,
            keys,
            scale,
            labels,
            representatives,
            mdp.max_support,
            bits,
            bits.view(np.uint64),
            names,
        )

    odd = max(map_chunks(part, mdp.n_states, threads=threads, chunk=chunk))
    if odd >= 0:
        raise BisimError(
            f"the signatures of states {odd} and {representatives[labels[odd]]} collide, though "
            "their actions differ; part them with initial="
        )
    names[~mdp.available] = -1
    return names


def _quotient(
    mdp: TabularMDP, labels: IntArray, representatives: IntArray, chosen: IntArray | None
) -> tuple[TabularMDP, float]:
    """The MDP on classes, and by how much rounding moved its rows in total variation.

    Its actions are those of the representatives, or as `chosen` (n_classes, n_actions) says: which
    of the representative's is action k of its class, -1 where the class has fewer.

    A class probability is a sum held to twice float precision and rounded once, so the row's
    entries are off by EPS relative each. Dividing both rows by their sums leaves at most
    2·EPS(1 + EPS) relative, half of which is total variation: 4·EPS is ample.
    """
    from bisim_abstract._kernels.refine import lift_rows_kernel

    count, n_actions = representatives.size, mdp.n_actions
    own = np.arange(n_actions)
    if count == mdp.n_states and (chosen is None or (chosen == own).all()):
        return mdp, 0.0
    if chosen is None:
        taken, available = own, mdp.available[representatives]
    else:
        available = chosen >= 0
        taken = np.where(available, chosen, chosen[:, :1])
    rows = (representatives[:, None] * n_actions + taken).ravel()
    room = int(np.diff(mdp.indptr)[rows].sum())
    indptr = np.empty(rows.size + 1, np.int64)
    indices, probs = np.empty(room, np.int64), np.empty(room)
    is_exact = lift_rows_kernel(
        rows, mdp.indptr, mdp.indices, mdp.probs, labels, count, indptr, indices, probs
    )
    start = np.bincount(labels, weights=mdp.start, minlength=count)
    quotient = TabularMDP(
        indptr=indptr,
        indices=indices[: indptr[-1]],
        probs=probs[: indptr[-1]],
        rewards=mdp.rewards.ravel()[rows].reshape(count, n_actions),
        available=available,
        start=start / start.sum(),
        state_ids=mdp.state_ids[representatives],
        terminal_state=None if mdp.terminal_state is None else int(labels[mdp.terminal_state]),
        names=mdp.names.take(representatives, has_own_actions=chosen is None),
        metadata=mdp.metadata,
    )
    return quotient, 0.0 if is_exact else LIFT_ERROR
