"""`estimate_mdp`: a model from steps that are given, or gathered from an environment as needed.

Gathering goes in epochs. Before each, blocks are proposed from all steps so far; during it, as many
steps again are taken, and only these are counted: rows summed by blocks need a partition that their
samples had no part in. So about half of all steps propose, and half prove.

Why the result holds. Within an epoch the radii hold for all numbers of visits at once, so it does
not matter which actions were chosen, by what was seen, nor when gathering stopped (`estimation`).
Blocks of an epoch depend on earlier steps alone. Every epoch has an equal share of alpha, and how
many there can be is known beforehand; so whichever estimate is handed out, it is one of those that
all hold with probability 1 - alpha.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.robust import backed_up
from bisim_abstract._abstract.value import ProvenValue
from bisim_abstract._abstract.value_proof import prove_value
from bisim_abstract._base.checks import as_generator, check_choice, check_gamma, check_int
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.progress import shown
from bisim_abstract._base.resources import HERE, Resources, check_resources
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import (
    FloatArray,
    IntArray,
    Progress,
    ProgressCallback,
    SeedLike,
)
from bisim_abstract._certificate.goal import KEEP
from bisim_abstract._exact.planning import value_iteration
from bisim_abstract._model.estimation import TransitionsLike, count_steps, reward_intervals
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.recorded import Dataset
from bisim_abstract._model.space_rows import SpaceRows
from bisim_abstract._propose.ahead import rewards_ahead
from bisim_abstract._propose.embedding import scaled_points
from bisim_abstract._propose.partitions import propose_components, repair_labels
from bisim_abstract._prove.certify import certify
from bisim_abstract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract.encoders import Transitions

__all__ = ["estimate_mdp"]

GOALS = ("value", "certificate")
FIRST = 8  # steps for each state and action before blocks are proposed for the first time
ROUNDS = 8  # of an epoch, after each of which widths are looked at anew
AT_RANDOM = 0.3  # share of actions that are, so that nothing is forgotten
HORIZON = 0.95  # discount of looking for what is not known well enough
FINER = 0.95  # of the loss that must not be left for finer blocks to be worth it
SHARPNESS = 4  # power of widths: a proof is as wide as the widest row that matters
SECONDS = 30.0  # that looking for a certificate may take


def estimate_mdp(
    states: gym.Env[Any, Any] | str | TransitionsLike | Dataset | npt.ArrayLike,
    actions: npt.ArrayLike | None = None,
    rewards: npt.ArrayLike | None = None,
    next_states: npt.ArrayLike | None = None,
    terminated: npt.ArrayLike | None = None,
    *,
    n_states: int | None = None,
    n_actions: int | None = None,
    reward_range: tuple[float, float],
    alpha: float = 0.05,
    support_bound: int | None = None,
    blocks: npt.ArrayLike | None = None,
    deterministic_rewards: bool = False,
    start: npt.ArrayLike | None = None,
    metadata: Mapping[str, Any] | None = None,
    resources: Resources = HERE,
    gamma: float | None = None,
    goal: str | None = None,
    keep: float | None = None,
    max_steps: int | None = None,
    never_ends: bool = False,
    seed: SeedLike = None,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> TabularMDP:
    """The empirical MDP of sampled transitions, marked as an estimate with its radii.

    Rows are visit frequencies and rewards are means. A pair never visited keeps a self-loop
    with radius 1 and the middle of the reward range with half its width: nothing is known, and
    plans made with the estimate alone may well head for such pairs.

    Steps are given; or they are gathered from an environment, until what is requested is proven
    or `max_steps` are taken. Then half of them propose blocks and half are counted, more of them
    where the proof is widest (see `Estimate.blocks`).

    Args:
        states: (N) states acted in. Or `Transitions` of numbered states, as
            `collect_transitions` gives them, and nothing else: these know all that follows up
            to `n_actions`. Where they have a terminal state of their own, that is the end; else
            one is added, whether or not an episode was seen to end. No step may have been left
            out for what came of it. Or a frame of pandas or Polars with a step in each row, in the
            columns state, action, reward, next_state and terminated. Or a dataset of Minari, or
            what has its `iterate_episodes`, with finitely many observations and `Discrete`
            actions: observations are taken for states, which is yours to know, and episodes must
            not have been selected by what happened in them (`filter_episodes`). Or an environment,
            or its id, whose observations are finitely many; it is stepped, or copies of it.
        actions: (N) actions taken.
        rewards: (N) rewards received.
        next_states: (N) states reached.
        terminated: (N) whether the episode ended there (not: was cut off). If given, such
            outcomes lead to one added absorbing state.
        n_states: Number of states, the added one not counted; needed with arrays.
        n_actions: Number of actions; needed with arrays.
        reward_range: Bounds that every single reward is known to respect. Nothing that follows
            exceeds what they allow.
        alpha: Probability allowed for any radius to fail.
        support_bound: Known bound on the number of successors of a state and action, the end
            among them; all states by default. A true bound makes the radii smaller.
        blocks: (n_states) a partition that was made without these steps, for instance from others
            that are not among them, collected with another seed. Rows summed by its blocks then
            have radii of their own, with which values and blocks are bounded. Made from the same
            steps, it would make the radii false, and nothing here could tell.
        deterministic_rewards: Whether a state and action is known to pay the same every time: one
            visit then tells the reward.
        start: (n_states) start distribution; uniform over visited states by default.
        metadata: See `TabularMDP`.
        resources: Memory that may be used; what is available by default.
        gamma: With an environment: the discount that is planned with; needed.
        goal: With an environment: "value" gathers until a policy over blocks is proven to retain
            `keep`; "certificate", the default, until `certify` finds clusters with that guarantee
            for agents that solve the small environment, which takes far more steps.
        keep: With an environment: share of the achievable return to retain, 0.95 by default; 0 is
            the baseline, 1 the optimal value, both from the start distribution.
        max_steps: With an environment: the most steps to take; needed.
        never_ends: Whether episodes are known never to end by themselves. Else every row may lead
            to the end with what its radius leaves open, unless arrays are given without
            `terminated`.
        seed: With an environment: seed or generator of everything random; needed.
        callback: With an environment: told about the progress. Without one, a progress line is
            shown if the program runs in a terminal.
        progress: Show a line also where there is no terminal, as in a notebook.

    Returns:
        The model. If it was gathered, `metadata["gathered"]` says with how many steps, of which
        how many are counted, and whether the goal was met.

    Raises:
        InvalidArgumentError: If lengths differ, an index is out of range, a reward lies outside
            `reward_range`, or arguments of the one way are given with the other.
        MemoryLimitError: If the model would not fit.

    Example:
        >>> mdp = estimate_mdp([0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 1],
        ...                    n_states=2, n_actions=1, reward_range=(0, 1))
        >>> mdp.estimate.counts.ravel()
        array([3, 1])
        >>> mdp.successors(0, 0)[1].round(3)
        array([0.333, 0.667])
    """
    check_resources(resources)
    shared: dict[str, Any] = {
        "reward_range": reward_range,
        "support_bound": support_bound,
        "deterministic_rewards": deterministic_rewards,
        "never_ends": never_ends,
        "start": start,
        "resources": resources,
    }
    of_env = {
        "gamma": gamma,
        "goal": goal,
        "keep": keep,
        "max_steps": max_steps,
        "seed": seed,
    }
    if not isinstance(states, str | gym.Env):
        surplus = [name for name, value in of_env.items() if value is not None]
        if surplus:
            raise InvalidArgumentError(
                f"{' and '.join(surplus)} must be left out where steps are given: that is for "
                "gathering them from an environment"
            )
        return count_steps(
            states,
            actions,
            rewards,
            next_states,
            terminated,
            n_states=n_states,
            n_actions=n_actions,
            alpha=alpha,
            blocks=blocks,
            metadata=metadata,
            **shared,
        )
    arrays = {
        "actions": actions,
        "rewards": rewards,
        "next_states": next_states,
        "terminated": terminated,
        "n_states": n_states,
        "n_actions": n_actions,
        "blocks": blocks,
    }
    surplus = [name for name, value in arrays.items() if value is not None]
    missing = [name for name in ("gamma", "max_steps", "seed") if of_env[name] is None]
    if surplus or missing:
        what = f"{' and '.join(surplus)} must be left out" if surplus else ""
        what = what or f"{' and '.join(missing)} must be given"
        raise InvalidArgumentError(f"{what} where steps are gathered from an environment")
    assert gamma is not None
    with shown(callback, progress) as report:
        return _Gathering(
            states,
            gamma=check_gamma(gamma),
            alpha=alpha,
            goal=check_choice("goal", goal or "certificate", GOALS),
            keep=KEEP if keep is None else keep,
            max_steps=check_int("max_steps", max_steps, low=100),  # type: ignore[arg-type]
            rng=as_generator(seed),
            metadata=dict(metadata or {}),
            options=shared,
            report=report,
        ).run()


@dataclass(frozen=True)
class _Found:
    """What an epoch has come to.

    Attributes:
        mdp: The estimate.
        value: What agents over its blocks are proven to retain and lose.
        is_met: Whether that is the goal.
    """

    mdp: TabularMDP
    value: ProvenValue
    is_met: bool


class _Gathering:
    """One call of `estimate_mdp` with an environment."""

    def __init__(
        self,
        env: gym.Env[Any, Any] | str,
        *,
        gamma: float,
        alpha: float,
        goal: str,
        keep: float,
        max_steps: int,
        rng: np.random.Generator,
        metadata: dict[str, Any],
        options: dict[str, Any],
        report: ProgressCallback | None,
    ) -> None:
        self._env, self._gamma, self._alpha, self._goal = env, gamma, alpha, goal
        self._keep, self._max_steps = keep, max_steps
        self._rng, self._metadata, self._options, self._report = rng, metadata, options, report
        self._steps = 0
        self._share = alpha  # of one epoch

    def run(self) -> TabularMDP:
        """Gather until the goal is met or the steps are used up."""
        # States and actions are numbered by the environment's spaces: a few steps tell.
        known = [self._gather(16, None)]
        n, many = known[0].n_states, known[0].n_actions
        if n is None:
            raise InvalidArgumentError(
                "env must have finitely many observations, got vectors; wrap it in "
                "gymnasium.wrappers.TransformObservation that rounds them to whole numbers"
            )
        # Each epoch doubles the steps, so that the last one ends with them.
        epochs = max(int(math.log2(self._max_steps / (FIRST * n * many))), 1)
        known.append(self._gather(max((self._max_steps >> epochs) - self._steps, 1), None))
        self._share = self._alpha / epochs
        best: _Found | None = None
        for _ in range(epochs):
            blocks = self._proposed(_joined(known))
            for found, steps in self._epoch(known, blocks):
                if best is None or _is_better(found, best):
                    best = found
                if found.is_met:
                    return self._labelled(found)
                last = steps
            known.append(last)
        assert best is not None
        return self._labelled(best)

    def _epoch(
        self, known: list[Transitions], blocks: IntArray
    ) -> Iterator[tuple[_Found, Transitions]]:
        """What is found after each round of an epoch, and its steps so far."""
        size = min(self._steps, self._max_steps - self._steps)
        mine: list[Transitions] = []
        before = self._counted(_joined(known), blocks)
        plan = self._plan(before, prove_value(before, _with_end(blocks, before), self._gamma))
        for k in range(ROUNDS):
            count = size * (k + 1) // ROUNDS - size * k // ROUNDS
            if count == 0:
                continue
            mine.append(self._gather(count, plan))
            steps = _joined(mine)
            found = self._judged(self._counted(steps, blocks), blocks)
            yield found, steps
            plan = self._plan(found.mdp, found.value)

    def _gather(self, count: int, plan: IntArray | None) -> Transitions:
        """So many steps; a plan has an action for each state, which is taken most of the time."""
        from bisim_abstract.encoders import collect_transitions

        rng, done, total = self._rng, self._steps, self._max_steps
        rows: SpaceRows | None = None

        def policy(seen: Any) -> IntArray:
            assert plan is not None
            nonlocal rows
            if rows is None:
                rows = SpaceRows(self._space)
            size = _batch(seen)
            acts = np.array(plan[rows.rows(seen, size)])
            is_random = rng.random(size) < AT_RANDOM
            acts[is_random] = rng.integers(self._n_actions, size=int(is_random.sum()))
            return np.asarray(acts + self._first_action)

        def tell(progress: Progress) -> None:
            if self._report is not None:
                self._report(Progress("sampling", done + progress.done, total, self._detail))

        if plan is None and done == 0:
            self._look()
        found = collect_transitions(
            self._env,
            count,
            policy=None if plan is None else policy,
            seed=int(rng.integers(2**31)),
            callback=tell,
        )
        self._steps += count
        return found

    def _look(self) -> None:
        """What the environment's spaces are."""
        self._detail = ""
        env = gym.make(self._env) if isinstance(self._env, str) else self._env
        try:
            self._space = env.observation_space
            space: Any = env.action_space
            self._n_actions, self._first_action = int(space.n), int(space.start)
        finally:
            if env is not self._env:
                env.close()

    def _counted(self, steps: Transitions, blocks: IntArray | None) -> TabularMDP:
        """The estimate of these steps alone, with the share of alpha that one epoch has."""
        mdp = count_steps(
            steps.states,
            steps.actions,
            steps.rewards,
            steps.next_states,
            steps.terminated,
            n_states=steps.n_states,
            n_actions=steps.n_actions,
            alpha=self._share,
            blocks=blocks,
            **self._options,
        )
        assert mdp.estimate is not None
        return replace(mdp, estimate=replace(mdp.estimate, alpha=self._alpha))

    def _proposed(self, steps: Transitions) -> IntArray:
        """Blocks that promise the best proof, by steps that will not be counted.

        Any will do. Radii are those of these steps, scaled to as many as can still be taken.
        """
        mdp = self._counted(steps, None)
        plain = replace(mdp, estimate=None)
        scale = math.sqrt(len(steps) / self._max_steps)
        best, least = None, math.inf
        found = _partitions(plain, self._gamma, int(self._rng.integers(2**31)))
        for labels in sorted(found, key=lambda labels: int(labels.max())):  # the coarsest first
            live = labels[: steps.n_states]
            tried = self._counted(steps, live)
            estimate = tried.estimate
            assert estimate is not None
            assert estimate.block_radius is not None
            narrow = replace(
                estimate,
                reward_radius=scale * estimate.reward_radius,
                row_radius=scale * estimate.row_radius,
                block_radius=scale * estimate.block_radius,
            )
            tried = replace(tried, estimate=narrow)
            labels = _with_end(live, tried)
            loss = prove_value(tried, labels, self._gamma).start_loss
            if loss < FINER * least:
                best, least = numbered(live), loss
        assert best is not None
        return best

    def _judged(self, mdp: TabularMDP, blocks: IntArray) -> _Found:
        """What is proven so far, and whether it is enough."""
        value = prove_value(mdp, _with_end(blocks, mdp), self._gamma)
        is_met = value.kept >= self._keep
        if is_met and self._goal == "certificate":
            made = certify(mdp, self._gamma, keep=self._keep, max_seconds=SECONDS)
            is_met = made.verdict.level == "useful"
        self._detail = f"{counted(int(blocks.max()) + 1, 'block')}, loss {value.start_loss:.3g}"
        return _Found(mdp, value, is_met)

    def _plan(self, mdp: TabularMDP, value: ProvenValue) -> IntArray:
        """(n_states) actions that lead where the proof is widest.

        That is where rewards and rows leave most room, except for actions that are proven not to
        be the best: these need not be known any better.
        """
        estimate = mdp.estimate
        assert estimate is not None
        assert estimate.block_radius is not None
        upper, lower = value.optimal_upper, value.optimal_lower
        low, high = reward_intervals(mdp)
        span = float(upper.max() - lower.min())
        room = (high - low) + self._gamma * 2.0 * estimate.block_radius * span
        room = (room / max(float(room.max()), 1e-300)) ** SHARPNESS
        could = backed_up(mdp, self._gamma, upper, 1.0) >= lower[:, None]
        wanted = replace(
            mdp, rewards=np.where(could, room, 0.0), estimate=None, terminal_state=None, metadata={}
        )
        return value_iteration(wanted, HORIZON).policy.astype(np.int64)

    def _labelled(self, found: _Found) -> TabularMDP:
        counts = found.mdp.estimate.counts if found.mdp.estimate is not None else np.zeros(1)
        gathered = {
            "steps": self._steps,
            "counted": int(counts.sum()),
            "goal": self._goal,
            "keep": self._keep,
            "gamma": self._gamma,
            "is_met": found.is_met,
        }
        return found.mdp.with_metadata(**self._metadata, gathered=gathered)


def _partitions(mdp: TabularMDP, gamma: float, seed: int) -> Iterator[IntArray]:
    """Partitions worth trying: of what states pay, of what lies ahead, and no merging at all."""
    yield np.arange(mdp.n_states)
    sources: list[FloatArray] = [mdp.rewards]
    if mdp.n_states >= 3:
        sources.append(rewards_ahead(mdp, gamma, seed=seed))
    for points in sources:
        for rank in (0, 1):
            found = propose_components(scaled_points(points), mdp.n_states, rank=rank, seed=seed)
            if found is not None:
                yield found
                yield repair_labels(mdp, found, gamma)


def _with_end(labels: IntArray, mdp: TabularMDP) -> IntArray:
    """Labels of the live states, with one more for the end if there is one."""
    missing = mdp.n_states - labels.size
    return np.append(labels, np.full(missing, labels.max() + 1))


def _batch(seen: Any) -> int:
    """How many observations there are in what a vector environment shows."""
    while isinstance(seen, tuple | dict):
        seen = next(iter(seen.values() if isinstance(seen, dict) else seen))
    return len(seen)


def _is_better(found: _Found, best: _Found) -> bool:
    return (found.is_met, -found.value.start_loss) > (best.is_met, -best.value.start_loss)


def _joined(parts: list[Transitions]) -> Transitions:
    """All steps as one."""
    if len(parts) == 1:
        return parts[0]
    names = ("states", "actions", "rewards", "next_states", "terminated")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in names
    }
    return replace(parts[0], **joined)
