"""`AbstractedEnv`: an environment over certified clusters, handed over only with its proof."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs, seeding

from bisim_abstract._abstract.aggregate import Aggregation, aggregate, lift_policy
from bisim_abstract._abstract.deploy import GroundAgent
from bisim_abstract._abstract.evaluation import AgentValue, evaluate_agent
from bisim_abstract._abstract.value import LEARNER_TERMS, ProvenValue, kept_text
from bisim_abstract._base.checks import check_choice, check_int, check_real
from bisim_abstract._base.html import table_html
from bisim_abstract._base.reading import CHECKS, FREEZE, Reading
from bisim_abstract._base.resources import Resources
from bisim_abstract._base.text import clusters_text, counted, plain_text
from bisim_abstract._base.types import BoolArray, IntArray, SeedLike
from bisim_abstract._bounds.spanning import undecided
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.partition import PartitionProof, load_proof
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._model.policies import lift_table, policy_table
from bisim_abstract._model.renaming import actions_called
from bisim_abstract._model.space_rows import SpaceRows
from bisim_abstract._verify.verify import verify_rest
from bisim_abstract.errors import ExtractionError, InvalidArgumentError, NotCertifiedError
from bisim_abstract.wrappers._drawing import grid_image, grid_text, strip_image
from bisim_abstract.wrappers._make import make_env
from bisim_abstract.wrappers._observing import Views, observe_numbered, observe_states
from bisim_abstract.wrappers._rewards import weigh
from bisim_abstract.wrappers._rows import ModelRows
from bisim_abstract.wrappers._source import (
    StartSeeds,
    StateLookup,
    TableSource,
    conditions_in,
    ends_in_states,
    find_source,
    frozen_in,
    has_table,
    layers,
    outer_time_limit,
    plain_action,
    state_met,
    time_limit_in,
    unknown_state,
)
from bisim_abstract.wrappers.rooms import RoomsGridEnv
from bisim_abstract.wrappers.tabular import (
    TabularEnv,
    compare_with_steps,
    env_name,
    extract_again,
    extract_mdp,
)

logger = logging.getLogger(__name__)

DYNAMICS = ("aggregated", "ground")
SCOPES = {
    "all": "certified over all pairs of states",
    "covered": "certified over covered pairs only",
    "partition": "proven for agents on a given partition, not certified",
}
STEPS = {
    "aggregated": "drawn from the model over clusters",
    "ground": "of the environment itself, clusters seen",
}
SHOWN = 5  # clusters or thresholds that a message lists

Table: TypeAlias = dict[int, dict[int, list[tuple[float, int, float, bool]]]]


class AbstractedEnv(gym.Wrapper[np.int64, Any, Any, Any], RecordConstructorArgs):
    """An environment seen through certified clusters; its steps are those of the aggregated model.

    By default (dynamics="aggregated") a step draws the next cluster from the model over clusters,
    and the environment itself is not stepped: rows and rewards are averages over a cluster's
    members, and a step pays the expected reward. To step the real environment and see clusters
    in place of its observations, pass dynamics="ground". To act on the real environment with
    what was learned here, see `deploy`.

    It exists only if the certificate speaks of this very environment, both its arms give the
    same clustering at the threshold, and `bisim_abstract.verify` finds that all of it holds, at
    this threshold. What this process has verified already is not verified again.

    Observations are numbers of clusters. If episodes can end, the last number is none of the
    clusters: it stands for the end, and is what a step that terminates returns. (Episodes of a
    `ModelEnv` also end in clusters that are never left and pay nothing.) Time limits hold with
    either dynamics, also those that the wrapped environment counts itself, as MiniGrid does; other
    wrappers inside have no effect on aggregated steps.

    Actions are those of clusters. In the plain relation these are the environment's own. In the
    lax one they are names: action 0 may be "left" in one state of a cluster and "right" in another
    (`aggregation.renaming`), and every state does what is its own; there can be fewer of them than
    the environment has. An action that a cluster lacks does what its first one does.

    `info` has "cluster" and "scope", and with "ground" also "state", the present state's index
    in the model, and "env_state", the environment's own id of it. Where clusters lack actions,
    "action_mask" tells which there are (int8, as Gymnasium's Taxi does), and so does
    `action_masks()`, as MaskablePPO of sb3-contrib asks for them.

    An environment that can be neither read nor enumerated comes with the model that it was
    estimated as (`mdp`, of `estimate_mdp`). The proof then speaks of the true model with
    probability at least 1 - alpha, and surely of nothing but the estimate; `info["holds"]`,
    `summary` and reports say so. With "ground" the real environment is stepped, and its
    observations are numbered as `collect_transitions` does, or by `read_state`. What is numbered
    so and is no state of the estimate, or ends where no sample did, is an error.

    Where the model was enumerated it is that of one seed, or of as many as `starts` says: the
    wrapped environment is then always reset with one of these, whatever seed `reset` is given.
    Aggregated steps follow the seed given.

    Args:
        env: The environment, or its id, of which one is made as `make_env` does.
        certificate: A certificate of its model, as `extract_mdp(env)` gives it (with all or
            with reachable states only), or the path of one. Give a path if the specification
            of the environment is to be written as JSON. Or a `PartitionProof` of its model, by
            `bisim_abstract.parts.prove_partition`: then the clusters are those of the partition,
            which are proven for agents and not certified, and everything says so.
        tau: The threshold; the certificate's own by default.
        dynamics: "aggregated" or "ground".
        weighting: Of members within a cluster: "uniform", "start", "visitation" (at the
            certificate's discount), or a list of one weight per state; see `aggregate`.
        require: "all" refuses certificates whose scope is "covered" pairs only.
        verify: Whether to check the certificate's claims with `bisim_abstract.verify`. Without
            that, bounds and values are taken as they are; clusters follow from them.
        reading: How the model is extracted. Whether all states or the reachable ones, and whether
            actions are masked, is decided by the certificate; ends must be absorbed. Where an
            enumerated `mdp` is given, it knows seed, starts and what is frozen.
        memory_limit: Bytes that verifying may take; what is available by default.
        mdp: The environment's model, if it is at hand: it must be the certificate's. Where an
            environment has no table and would have to be enumerated, the model is compared with
            some hundred real steps of a copy instead; you vouch for what these do not reach. It
            is no part of the specification; whoever makes the environment from that extracts it.
            An environment that was enumerated before is not enumerated again in either case.
            A model that was estimated from samples is taken by your word, and needed.
        read_state: What tells the number of a state (its id in the estimate's `state_ids`) from
            an observation, if the estimate's states were numbered in another way than by
            `collect_transitions`. No part of the specification either.

    If less is proven than the certificate's goal, or the clusters merge nothing, a warning that
    says so is logged. Which agents the proof speaks of depends on the steps: see `guarantee`.

    Attributes:
        proof: The certificate, at this threshold, with its proven value; or the proof of a
            partition. `certificate` is the same, and an error in the second case.
        tau: The threshold; None for a partition.
        mdp: The environment's model.
        aggregation: How its states fall into clusters.

    Raises:
        NotCertifiedError: If the certificate does not prove the abstraction; the message says
            what is missing and what can be done.

    Example:
        >>> from bisim_abstract import certify
        >>> ground = gym.make("bisim_abstract/RoomsGrid-v0", side=20, room_size=10)
        >>> env = AbstractedEnv(ground, certify(extract_mdp(ground), 0.9))
        >>> env.observation_space
        Discrete(4)
        >>> env.reset(seed=0)[1]["scope"]
        'all'
    """

    def __init__(
        self,
        env: gym.Env[Any, Any] | str,
        certificate: Certificate | PartitionProof | str | Path,
        tau: float | None = None,
        *,
        dynamics: str = "aggregated",
        weighting: str | list[float] = "uniform",
        require: str | None = None,
        verify: bool = True,
        reading: Reading | Mapping[str, Any] | None = None,
        memory_limit: int | None = None,
        mdp: TabularMDP | None = None,
        read_state: Callable[[Any], int] | None = None,
    ) -> None:
        _check_kinds(env, certificate, mdp)
        self._has_path = isinstance(certificate, str | Path)
        reading = check_ends(Reading.of(reading))
        if mdp is not None and mdp.metadata.get("method") == "enumeration":
            # That of the layout which the model has.
            told = mdp.metadata.get("seed", reading.seed)
            seed = check_int("the seed in mdp.metadata", told, low=0)
            reading = replace(reading, seed=seed)
        RecordConstructorArgs.__init__(
            self,
            certificate=str(certificate) if self._has_path else certificate,
            tau=tau,
            dynamics=dynamics,
            weighting=weighting if isinstance(weighting, str) else [float(w) for w in weighting],
            require=require,
            verify=verify,
            reading=reading.to_dict(),
            memory_limit=memory_limit,
        )
        self._resources = Resources(memory_limit=memory_limit)
        self.dynamics = check_choice("dynamics", dynamics, DYNAMICS)
        if require is not None:
            check_choice("require", require, ("all",))
        self.proof = load_proof(certificate) if isinstance(certificate, str | Path) else certificate
        self._check_scope(require)
        made = make_env(env) if isinstance(env, str) else env
        try:
            ground = weigh(made, reading)
            gym.Wrapper.__init__(self, ground)
            self.mdp = _model_of(ground, self.proof, mdp, reading)
            self._has_reader = read_state is not None
            self._read_state = _number_reader(ground, self.mdp, read_state)
            self.tau = _threshold(self.proof, tau)
            self.proof = self._proven(verify)
            if self.proof.verdict.level != "useful":
                logger.warning("%s", self.proof.verdict.sentence)
            elif self.dynamics == "ground":
                self._warn_of_learners()
            self.aggregation: Aggregation = aggregate(
                self.mdp,
                self.proof.labels,
                renaming=self.value.renaming,
                weighting=weighting,
                gamma=self.proof.gamma,
            )
        except BaseException:
            if made is not env:
                made.close()  # nobody else could
            raise
        small = self.aggregation.mdp
        self.observation_space = spaces.Discrete(small.n_states)
        if self.aggregation.renaming is not None:
            self.action_space = spaces.Discrete(small.n_actions)

        self._own_actions = _own_actions(self.aggregation)
        self._rows, self._has_masks = ModelRows(small), small.has_action_sets
        self._place = {k: i for i, k in enumerate(self.mdp.state_ids.tolist()) if k >= 0}
        self._seeds = StartSeeds(self.mdp, reading.seed)
        limits = [outer_time_limit(ground), time_limit_in(self.mdp)]
        self._limit = min(filter(None, limits), default=None)
        self._lookup = StateLookup(self.mdp)
        self._is_end = np.arange(small.n_states) == small.terminal_state
        if ends_in_states(self._source):
            self._is_end |= small.absorbing
        self._ends = self._is_end.tolist()
        self._constants: dict[str, Any] = {"scope": self.proof.scope}
        if self.proof.holds_for:
            self._constants["holds"] = self.proof.holds_for
        self._cluster: int | None = None
        self._state: int | None = None  # of the environment, with ground steps
        self._steps = 0
        self._rng: np.random.Generator | None = None
        self._rng_seed: int | None = None
        self._views: Views | None = None

    def _proven(self, verify: bool) -> Certificate | PartitionProof:
        """The certificate at the threshold, with its value; what is verified is what is used.

        Another threshold has other clusters, which rounding may speak against where it does not
        at the certificate's own; and where no value came with it, one is proven only now.
        """
        certificate = self.proof
        if isinstance(certificate, Certificate):
            if self.tau is not None and self.tau != certificate.tau:
                certificate = certificate.at(self.tau)
            if certificate.value is None:
                certificate = certificate.with_value(self.mdp)
        if verify:
            found = verify_rest(self.mdp, certificate, resources=self._resources)
            if not found.is_valid and self.tau is None:
                raise NotCertifiedError(
                    f"the proof of the partition does not hold: {found.problem}; make a new one "
                    "with prove_partition"
                )
            if not found.is_valid:
                raise NotCertifiedError(
                    f"the certificate does not hold at tau = {self.tau:g}: {found.problem}; make "
                    "a new one with certify or, where rounding is all that speaks against it, take "
                    "a threshold farther from the ends of its certified range"
                )
        return certificate

    def _warn_of_learners(self) -> None:
        """Warn where the verdict is about other agents than those that learn on these steps."""
        share, goal = self.value.learner, self.proof.goal
        if goal.guarantee == "learner" or (share is not None and goal.is_enough(share)):
            return
        logger.warning(
            "the verdict is about agents that solve the aggregated environment; these steps are "
            "the environment's own, on which any one-step Q-learner %s; guarantee='learner' looks "
            "for clusters on which it retains enough",
            kept_text(-math.inf if share is None else share.kept),
        )

    # -- what it says ----------------------------------------------------------------------

    @property
    def certificate(self) -> Certificate:
        """The certificate, at this threshold, with its proven value.

        Raises:
            NotCertifiedError: If there is none, as the clusters are those of a partition.
        """
        if isinstance(self.proof, Certificate):
            return self.proof
        raise NotCertifiedError(
            "the clusters are those of a partition, proven for agents and not certified: env.proof "
            "says what is proven"
        )

    @property
    def abstract_mdp(self) -> TabularMDP:
        """The aggregated model; its states are the observations."""
        return self.aggregation.mdp

    @property
    def value(self) -> ProvenValue:
        """A policy over observations, and what it and other agents retain and can lose."""
        assert self.proof.value is not None
        return self.proof.value

    @property
    def guarantee(self) -> str | None:
        """Which agents the proof speaks of that learn or plan on this very environment.

        "solver" for aggregated steps: whoever solves them, as they are those of the model that
        the proof is about. "learner" for ground steps. None for aggregated steps with weights
        other than uniform: these make another model, and only the policy in `value` is proven.
        """
        if self.dynamics == "ground":
            return "learner"
        return "solver" if self.aggregation.weighting == "uniform" else None

    def evaluate(
        self, agent: object, *, deterministic: bool = True, horizon: int | None = None
    ) -> AgentValue:
        """What an agent's own policy is worth on the environment itself, proven.

        Value, kept share and episodes of the policy that it ended with, by the model: nothing is
        sampled.

        Args:
            agent: Who acts on the clusters, as for `deploy`.
            deterministic: Whether models are asked for their deterministic actions; else for
                their probabilities, which PPO and A2C have.
            horizon: Time limit of episodes; by default the environment's own, if it has one.

        Example:
            >>> from bisim_abstract import abstract_env
            >>> small = abstract_env("FrozenLake-v1", gamma=0.9)
            >>> small.evaluate(small.value).share.kept >= small.value.kept
            True
            >>> small.evaluate(lambda cluster: 0).share.kept <= 0.0
            True
        """
        policy = lift_policy(self.aggregation, agent, deterministic=deterministic)
        gamma = self.proof.gamma
        return evaluate_agent(self.mdp, gamma, policy, horizon=horizon)

    @property
    def labels(self) -> IntArray:
        """(n_states of `mdp`) the observation of each state."""
        return self.aggregation.labels

    @property
    def P(self) -> Table:  # noqa: N802
        """The aggregated model as a Gymnasium table, made anew at each access.

        P[cluster][action] = [(probability, next cluster, expected reward, terminated), ...];
        actions that a cluster lacks are there, and do what its first one does.
        """
        small = self.abstract_mdp
        table: Table = {}
        for k in range(small.n_states):
            table[k] = {}
            for a in range(small.n_actions):
                successors, probs = small.successors(k, a)
                reward = float(small.rewards[k, a])
                table[k][a] = [
                    (p, t, reward, bool(self._is_end[t]))
                    for t, p in zip(successors.tolist(), probs.tolist(), strict=True)
                ]
        return table

    @property
    def initial_state_distrib(self) -> npt.NDArray[np.float64]:
        """(n_clusters, and the end) the start distribution over observations."""
        return self.abstract_mdp.start

    def deploy(
        self, agent: object, *, deterministic: bool = True, seed: SeedLike = None
    ) -> GroundAgent:
        """What was learned on the clusters as an agent of the environment itself.

        The result acts on the environment's own observations by the environment's own actions,
        whatever these are called in clusters. It takes single ones or batches of vector
        environments, is saved to a file, and needs neither this environment nor the library that
        trained it.

        Args:
            agent: Who acts on the clusters: a model of Stable-Baselines3 (or anything with
                `predict(observation, deterministic=...)`), a `QLearning`, a function from a
                cluster to its action, (n_clusters) actions or (n_clusters, n_actions)
                probabilities, or a result with a `policy`, such as `value`. Models and functions
                are asked once about each cluster. Recurrent models are refused.
            deterministic: Whether models are asked for their deterministic actions; else for
                their probabilities, which PPO and A2C have.
            seed: Seed or generator of actions that are drawn by probabilities.

        Raises:
            InvalidArgumentError: If the agent is none of these, or of other clusters.
            ExtractionError: If observations do not tell the cluster, as in MiniGrid where only a
                part of the world is seen, and the agent acts differently in those that look the
                same; the message says what can be done.

        Example:
            >>> from bisim_abstract import abstract_env
            >>> small = abstract_env("FrozenLake-v1", gamma=0.9)
            >>> small.deploy(lambda cluster: cluster % 4).predict(14)
            (np.int64(1), None)
        """
        small, seeds = self.abstract_mdp, self._seeds.seeds
        policy = policy_table(agent, small, deterministic=deterministic)
        names: dict[str, IntArray] = {}
        renaming = self.aggregation.renaming
        kinds = None
        if renaming is not None:
            told = np.column_stack([self.labels, renaming])
            rows, kinds = np.unique(told, axis=0, return_inverse=True)
            names = {"kinds": rows[:, 0], "renaming": rows[:, 1:]}
        if self._views is None and self.mdp.is_sampled:
            self._views = observe_numbered(
                self.env,
                self.mdp,
                self.labels if kinds is None else kinds,
                has_reader=self._has_reader,
            )
        elif self._views is None:
            self._views = observe_states(
                self.env, self.mdp, self.labels, kinds=kinds, seed=seeds[0] if seeds else 0
            )
        of_kinds = names.get("kinds", np.arange(small.n_states))
        acts = lift_table(policy, of_kinds, names.get("renaming"))
        about: dict[str, Any] = {
            "env": env_name(self.env),
            "agent": type(agent).__name__,
            "fingerprint": self.mdp.fingerprint,
            "tau": self.tau,
            "verdict": self.proof.verdict.sentence,
        }
        if seeds is not None:
            about |= {"seed": seeds[0], "starts": len(seeds)}
        if self.proof.holds_for:
            about["holds"] = self.proof.holds_for
        return GroundAgent(
            policy,
            self._views.settled(acts, self.labels, env_name(self.env)),
            n_actions=self.mdp.n_actions,
            has_end=self.mdp.terminal_state is not None,
            seed=seed,
            metadata=about,
            **names,
        )

    def summary(self) -> str:
        """A few lines for people."""
        largest = int(np.bincount(self.labels).max())
        scope = self.proof.scope
        lines = [
            self.proof.verdict.sentence,
            f"  steps     {STEPS[self.dynamics]}",
            f"  policy    {self.value.summary()}",
            f"  agents    {self._promise()}",
            f"  largest   {counted(largest, 'state')} in one cluster",
            f"  tau       {self._tau_text()} at gamma = {self.proof.gamma:g}",
            f"  scope     {scope}: {SCOPES[scope]}",
            f"  weights   {self.aggregation.weighting}",
        ]
        lines += [f"  {name:<9} {text}" for name, text in self._reservations()]
        if self._limit is not None:
            lines.append(f"  episodes  end after {self._limit:,} steps")
        return "\n".join(lines)

    def _tau_text(self) -> str:
        return "none" if self.tau is None else f"{self.tau:g}"

    def _promise(self) -> str:
        """What is proven of agents that use this environment as it is."""
        if self.guarantee is None:
            weights = self.aggregation.weighting
            return f"nothing is proven of agents on {weights} weights, only of the policy above"
        share = self.value.share(self.guarantee)
        steps = "solves these aggregated steps"
        if self.guarantee == "learner":
            steps = "learns on these ground steps"
        if share is None:
            return f"whoever {steps}: not computed; certify(..., guarantee='learner') does it"
        text = f"whoever {steps} {share.summary()}"
        return f"{text}, if {LEARNER_TERMS}" if self.guarantee == "learner" else text

    def _reservations(self) -> list[tuple[str, str]]:
        """What the proof is about, where that is not simply the environment."""
        found, seeds = [], self._seeds.seeds
        if self.proof.holds_for:
            found.append(("holds", self.proof.holds_for))
        frozen = [name for name in frozen_in(self.mdp) if name not in FREEZE]
        if seeds is not None and frozen:
            names = plain_text(", ".join(frozen))  # maybe of a file
            text = f"{names}: that it does not matter is your word"
            found.append(("frozen", text))
        if seeds is not None and len(seeds) > 1:
            found.append(("starts", f"as with {len(seeds)} seeds, from {seeds[0]} on"))
        conditions = conditions_in(self.mdp)
        if conditions:
            found.append(("only", "; ".join(conditions)))
        return found

    def _repr_html_(self) -> str:
        scope = self.proof.scope
        rows = [
            ("proven", self.proof.verdict.sentence),
            ("environment", env_name(self.env)),
            ("steps", f"{self.dynamics}: {STEPS[self.dynamics]}"),
            ("agents", self._promise()),
            ("observations", str(self.observation_space)),
            ("actions", str(self.action_space)),
            ("tau", f"{self._tau_text()} at gamma = {self.proof.gamma:g}"),
            ("scope", f"{scope}: {SCOPES[scope]}"),
            ("weights", self.aggregation.weighting),
        ]
        rows += self._reservations()
        if self._limit is not None:
            rows.append(("episodes", f"end after {self._limit:,} steps"))
        has_end = self.mdp.terminal_state is not None
        states = f"{self.proof.n_live:,} states"
        what = clusters_text(self.aggregation.n_clusters, has_end=has_end, of=states)
        return table_html(what, rows)

    def __str__(self) -> str:
        has_end = self.mdp.terminal_state is not None
        states = f"{self.proof.n_live:,} states"
        what = clusters_text(self.aggregation.n_clusters, has_end=has_end, of=states)
        return (
            f"<AbstractedEnv[{what}, tau {self._tau_text()}, "
            f"{SCOPES[self.proof.scope]}"
            f"{', of an estimate' * self.mdp.is_sampled}]{self.env}>"
        )

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The specification; one that holds a Certificate itself cannot be written as JSON."""
        spec = super().spec
        if spec is not None and not self._has_path:
            spec.__class__ = _UnsavedSpec
        return spec

    # -- acting ----------------------------------------------------------------------------

    @property
    def np_random(self) -> np.random.Generator:
        """The generator of aggregated steps; with "ground", that of the environment."""
        if self.dynamics == "ground":
            return self.env.np_random
        if self._rng is None:
            self._rng, self._rng_seed = seeding.np_random()
        return self._rng

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        if self.dynamics == "ground":
            self.env.np_random = value
        else:
            self._rng, self._rng_seed = value, -1

    @property
    def np_random_seed(self) -> int | None:  # type: ignore[override]
        """The seed of `np_random`; -1 if it was set directly."""
        if self.dynamics == "ground":
            return self.env.np_random_seed
        _ = self.np_random
        return self._rng_seed

    def action_masks(self) -> BoolArray:
        """(n_actions) which actions the present cluster has."""
        if self._cluster is None:
            raise ResetNeeded("call reset() before action_masks()")
        return np.array(self.abstract_mdp.available[self._cluster])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start an episode; seed and options are passed on to the environment too."""
        seen, info = self._seeds.reset(self.env, seed, options)
        self._steps = 0
        if self.dynamics == "ground":
            self._lookup.begin()
            return self._seen(info, seen, terminated=False)
        if seed is not None:
            self._rng, self._rng_seed = seeding.np_random(seed)
        self._cluster = cluster = self._rows.start(self.np_random.random())
        info = {"cluster": cluster, **self._constants}
        if self._has_masks:
            info["action_mask"] = self._mask(cluster)
        return np.int64(cluster), info

    def step(self, action: Any) -> tuple[np.int64, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take an action; a step that terminates returns the number of the end."""
        if self.dynamics == "ground":
            action = plain_action(action)
            if self._own_actions is not None:
                action = self._translated(action, self._own_actions)
            seen, reward, terminated, truncated, info = self.env.step(action)
            terminated = bool(terminated)
            observation, info = self._seen(info, seen, terminated=terminated)
            return observation, reward, terminated, bool(truncated), info
        rows = self._rows
        if type(action) is not int or not 0 <= action < rows.n_actions:
            action = check_int("action", plain_action(action), low=0, high=rows.n_actions - 1)
        if self._cluster is None:
            raise ResetNeeded("call reset() before step()")
        row = self._cluster * rows.n_actions + action
        rng = self._rng or self.np_random
        self._cluster = cluster = rows.follow(row, rng.random())
        self._steps += 1
        truncated = self._limit is not None and self._steps >= self._limit
        info = {"cluster": cluster, **self._constants}
        if self._has_masks:
            info["action_mask"] = self._mask(cluster)
        return np.int64(cluster), rows.rewards[row], self._ends[cluster], truncated, info

    def _translated(self, action: Any, own_actions: IntArray) -> int:
        """What the present state calls an action of its cluster."""
        name = check_int("action", action, low=0, high=own_actions.shape[1] - 1)
        if self._state is None:
            raise ResetNeeded("call reset() before step()")
        return int(own_actions[self._state, name])

    def _seen(
        self, info: dict[str, Any], seen: Any, *, terminated: bool
    ) -> tuple[np.int64, dict[str, Any]]:
        """The present cluster, and `info` with what it gains; `seen` is the real observation."""
        if self._own_actions is not None:  # the environment's own mask is of its own actions
            info = {key: entry for key, entry in info.items() if key != "action_mask"}
        if self._read_state is None:
            ident = self._lookup.ident(self.env)
        else:
            # What an observation is called at the end does not matter: ends are one state.
            ident = -1 if terminated else self._read_state(seen)
        state = self._place.get(ident)
        if terminated:
            state = state_met(self.mdp, self._place, ident, self._source, is_end=True)
        if state is None and self._read_state is not None:
            raise _not_estimated(ident, seen, terminated)
        if state is None:
            raise unknown_state(self.mdp, ident)
        self._state = state
        self._cluster = cluster = self.aggregation.labels.item(state)
        info = {**info, "state": state, "env_state": ident, "cluster": cluster, **self._constants}
        if self._has_masks:
            info["action_mask"] = self._mask(cluster)
        return np.int64(cluster), info

    def _mask(self, cluster: int) -> npt.NDArray[np.int8]:
        return np.asarray(self._rows.mdp.available[cluster], np.int8)

    @property
    def _source(self) -> TableSource | None:
        """Who describes the environment; who reads observations needs none."""
        return None if self.mdp.is_sampled else self._lookup.source(self.env)

    # -- showing ---------------------------------------------------------------------------

    def render(self) -> Any:
        """RoomsGrid coloured by cluster; other environments as they draw themselves.

        With "aggregated" there is no present state to draw: a RoomsGrid shows the present
        cluster, other environments show one square per cluster, or a line of text.
        """
        inner = self.env.unwrapped
        is_ground = self.dynamics == "ground"
        is_grid = isinstance(inner, RoomsGridEnv) and self._source is inner
        if self.render_mode not in ("ansi", "rgb_array") or (is_ground and not is_grid):
            if not is_ground and self.render_mode is not None:
                gym.logger.warn(
                    f"aggregated steps cannot be shown in render mode {self.render_mode!r}; "
                    "use 'ansi', 'rgb_array' or dynamics='ground'"
                )
                return None
            return self.env.render()
        if self._cluster is None:
            raise ResetNeeded("call reset() before render()")
        cluster = self._cluster
        size = int((self.labels == cluster).sum())
        title = f"cluster {cluster} of {self.aggregation.n_clusters} ({size:,} states)"
        if not isinstance(inner, RoomsGridEnv) or not is_grid:
            if self.render_mode == "ansi":
                return title + "\n"
            return strip_image(self.abstract_mdp.n_states, cluster)
        clusters = np.empty((inner.side, inner.side), np.int64)
        clusters.ravel()[self.mdp.state_ids] = self.labels
        cell = divmod(inner.s, inner.side) if is_ground else None
        if self.render_mode == "ansi":
            where = "" if cell is None else f", cell {cell}"
            return f"{title}{where}\n{grid_text(clusters, cell=cell, cluster=cluster)}"
        return grid_image(clusters, cell=cell, cluster=cluster)

    def _check_scope(self, require: str | None) -> None:
        if require == "all" and self.proof.scope == "partition":
            raise NotCertifiedError(
                "the clusters are those of a partition, and not certified at all: certify(mdp, "
                "gamma) looks for some that are, or do without require='all'"
            )
        if require == "all" and self.proof.scope != "all":
            raise NotCertifiedError(
                "the certificate's scope is 'covered pairs only': states of "
                "different clusters may still be within the threshold where their pair is not "
                "covered. Make one with certify(mdp, gamma), by Blocks, or do without "
                "require='all'"
            )


class _UnsavedSpec(EnvSpec):
    """The specification of an environment whose certificate is not in a file."""

    def to_json(self) -> str:
        raise InvalidArgumentError(
            "this specification holds a Certificate, which is no JSON value; save it with "
            "certificate.save(path) and wrap with AbstractedEnv(env, path)"
        )


def _check_kinds(env: object, certificate: object, mdp: object) -> None:
    """Refuse arguments of the wrong kind, swapped ones above all."""
    if not isinstance(env, gym.Env | str):
        hint = "the order is AbstractedEnv(env, certificate)"
        if isinstance(env, gym.vector.VectorEnv):
            hint = "a vector environment is made of single ones: wrap each of them"
        elif isinstance(env, TabularMDP):
            hint = "bisim_abstract.wrappers.ModelEnv(mdp) is an environment of a model"
        raise InvalidArgumentError(
            f"env must be a gymnasium.Env or the id of one, got {type(env).__name__}; {hint}"
        )
    # A class derived from it could say one thing when it is verified and another afterwards.
    if isinstance(certificate, ProvenValue):
        raise InvalidArgumentError(
            "a ProvenValue does not say which model and discount it is of: "
            "bisim_abstract.parts.prove_partition(mdp, value.labels, gamma) makes a proof that does"
        )
    kinds = (Certificate, PartitionProof)
    if type(certificate) not in kinds and not isinstance(certificate, str | Path):
        raise InvalidArgumentError(
            "certificate must be a Certificate or the path of one, got "
            f"{type(certificate).__name__}; bisim_abstract.certify(mdp, gamma) makes one"
        )
    if mdp is not None:
        check_mdp(mdp)


def _model_of(
    env: gym.Env[Any, Any],
    certificate: Certificate | PartitionProof,
    given: TabularMDP | None,
    reading: Reading,
) -> TabularMDP:
    """The environment's model, all of it or its reachable part: whichever is certified."""
    if given is None and certificate.alpha:
        raise NotCertifiedError(
            "the certificate is of a model that was estimated from samples, which cannot be read "
            "from the environment; give it as AbstractedEnv(env, certificate, mdp=estimate)"
        )
    if given is not None and given.is_sampled:
        _check_given(given, env, certificate)
        return given
    if given is not None:
        _check_given(given, env, certificate)
        # Tables and self-descriptions are read in any case: steps would not tell their numbers.
        is_enumerated = find_source(env) is None and not has_table(env)
        if is_enumerated and _is_model_of(given, env, reading):
            return given
    candidates = [layer.mdp for layer in layers(env) if isinstance(layer, TabularEnv)]
    for candidate in candidates:
        is_literal = candidate.metadata["terminal"] == "table"
        if candidate.fingerprint == certificate.fingerprint and not is_literal:
            return candidate
    # A model whose states lack actions: the environment is asked for these too.
    is_masked = not bool(certificate.available.all())
    whole = replace(reading, action_masks=is_masked, reachable_only=False)
    try:
        mdp = extract_again(env, whole)
    except ExtractionError as error:
        if not is_masked:
            raise
        raise NotCertifiedError(
            f"the certificate is of a model in which states lack actions, but {error}"
        ) from error
    if mdp.fingerprint == certificate.fingerprint:
        return mdp
    part = mdp.restrict(mdp.reachable())
    if part.fingerprint == certificate.fingerprint:
        return part.with_metadata(reachable_only=True)
    shape = (certificate.n_states, certificate.available.shape[1])
    hint = ""
    if mdp.metadata["method"] not in ("enumeration", "closed form"):  # which end, or may not
        literal = extract_mdp(env, reading=replace(whole, terminal="table", checks=0))
        part_of_it = literal.restrict(literal.reachable())
        if certificate.fingerprint in (literal.fingerprint, part_of_it.fingerprint):
            hint = (
                " It belongs to the table followed beyond the end of episodes (terminal='table')."
            )
    raise NotCertifiedError(
        f"the certificate is of another model: {shape[0]:,} states and {shape[1]} actions, "
        f"fingerprint {certificate.fingerprint[:12]}; this environment has {mdp.n_states:,} states "
        f"({part.n_states:,} reachable) and {mdp.n_actions} actions, fingerprint "
        f"{mdp.fingerprint[:12]} ({part.fingerprint[:12]}).{hint} Certify this one, "
        "certify(extract_mdp(env), gamma), or make the environment with the arguments (and, if "
        "it was enumerated, the seed and starts) that the certificate was made for"
    )


def check_ends(reading: Reading) -> Reading:
    """Refuse what goes on beyond ends of episodes: an abstraction's steps do not."""
    if reading.terminal != "absorb":
        raise InvalidArgumentError(
            f"terminal={reading.terminal!r} follows the table beyond the end of episodes, which an "
            "abstraction does not; leave it out"
        )
    return reading


def _check_given(
    given: TabularMDP, env: gym.Env[Any, Any], certificate: Certificate | PartitionProof
) -> None:
    """Refuse a model that cannot be the one that is certified."""
    if given.fingerprint != certificate.fingerprint:
        raise NotCertifiedError(
            f"mdp must be the model that the certificate speaks of, with fingerprint "
            f"{certificate.fingerprint[:12]}, got one of {given.n_states:,} states with "
            f"{given.fingerprint[:12]}; certify that one, or leave mdp out"
        )
    if given.metadata.get("terminal") == "table":
        raise NotCertifiedError(
            "mdp must send ends of episodes to an absorbing state, got one that follows the table "
            "beyond them (terminal='table'); certify extract_mdp(env)"
        )
    if given.n_actions != getattr(env.action_space, "n", None):
        raise NotCertifiedError(
            f"mdp must be the model of this environment, got one of {given.n_actions} actions for "
            f"{env.action_space}"
        )


def _number_reader(
    env: gym.Env[Any, Any], mdp: TabularMDP, read_state: Callable[[Any], int] | None
) -> Callable[[Any], int] | None:
    """What tells the id of a state from an observation; None where the environment tells it."""
    if not mdp.is_sampled:
        if read_state is not None:
            raise InvalidArgumentError(
                "read_state goes with a model that was estimated from samples; the states of this "
                "one are told by the environment: leave it out"
            )
        return None
    if read_state is not None:
        return lambda seen: check_int("the number that read_state gave", read_state(seen), low=0)
    rows = SpaceRows(env.observation_space)
    if rows.n_states is None:
        raise InvalidArgumentError(
            f"observations of {env_name(env)} are not finitely many, so that they do not tell the "
            "states of the estimate; give read_state, the function that numbered them"
        )
    return lambda seen: int(rows.rows(seen, 1)[0])


def _not_estimated(ident: int, seen: Any, terminated: bool) -> ExtractionError:
    if terminated:
        return ExtractionError(
            "an episode of the environment ended, but the estimate has no end; estimate the model "
            "again without never_ends, from steps that tell what terminated"
        )
    shown = " ".join(repr(seen).split())
    return ExtractionError(
        f"the observation {shown if len(shown) <= 80 else shown[:77] + '...'} is that of state "
        f"{ident}, which the estimate does not have; estimate the model again with this state in "
        "it, or read states as they were numbered then (read_state)"
    )


def _is_model_of(given: TabularMDP, env: gym.Env[Any, Any], reading: Reading) -> bool:
    """Whether real steps bear out a model that somebody has at hand; False if none can be taken.

    Raises:
        NotCertifiedError: If they contradict it.
    """
    try:
        return compare_with_steps(env, given, replace(reading, checks=CHECKS), is_given=True)
    except ExtractionError as error:
        raise NotCertifiedError(f"mdp is not the model of this environment: {error}") from error


def _threshold(proof: Certificate | PartitionProof, tau: float | None) -> float | None:
    """The threshold of a certificate; a partition has none."""
    if isinstance(proof, Certificate):
        return _certified_threshold(proof, tau)
    if tau is not None:
        raise InvalidArgumentError(
            "tau is a threshold of a certificate, and a partition has none: leave it out, got "
            f"{tau!r}"
        )
    return None


def _certified_threshold(certificate: Certificate, tau: float | None) -> float:
    """The threshold, if both arms agree on its clustering."""
    own = certificate.tau
    if tau is None and own is None:
        raise NotCertifiedError(
            f"the certificate has no threshold of its own: give tau. {_advice(certificate, None)}"
        )
    value = check_real("tau", own if tau is None else tau)  # type: ignore[arg-type]
    if value < 0.0:
        raise InvalidArgumentError(f"tau must be at least 0, got {value!r}")
    lower, upper = certificate.partitions(value)
    if value == own and not (
        np.array_equal(lower, certificate.labels_lower)
        and np.array_equal(upper, certificate.labels_upper)
    ):
        raise NotCertifiedError(
            "the certificate's clusterings do not follow from its bounds: it was altered. Load "
            "it again, or make a new one with certify"
        )
    open_ = undecided(lower, upper)
    if open_ is None:
        return value
    s, t = open_.example
    below, above = certificate.bounds(s, t)
    groups = np.unique(np.stack([lower, upper]), axis=1)
    counts = np.bincount(groups[0])
    which = np.sort(groups[1][counts[groups[0]] > 1])
    listed = ", ".join(map(str, which[:SHOWN])) + (", ..." if which.size > SHOWN else "")
    raise NotCertifiedError(
        f"not certified at tau = {value:g}: {counted(open_.clusters, 'cluster')} of the upper arm "
        f"({listed}) are undecided, {counted(open_.pairs, 'pair')} of states in "
        f"{counted(open_.groups, 'group')}; "
        f"states {certificate.state_text(s)} and {certificate.state_text(t)}, for instance, are "
        f"between {float(below):.4g} and "
        f"{float(above):.4g} apart. {_advice(certificate, value)}"
    )


def _advice(certificate: Certificate, tau: float | None) -> str:
    """Thresholds that would do, the nearest first, and what else could help."""
    intervals = certificate.certified_thresholds()
    has_end = certificate.terminal_state is not None
    if tau is not None:
        intervals.sort(key=lambda x: max(x.low - tau, tau - x.high))
    near = ", ".join(
        f"[{x.low:.6g}, {x.high:.6g}) with {clusters_text(x.n_clusters, has_end=has_end)}"
        for x in intervals[:SHOWN]
    )
    more = "more max_rounds or max_seconds, or by Blocks"
    if certificate.scope == "all":
        more = "more max_seconds, Blocks(max_pairs=) or max_rounds"
        if tau is not None:
            more = f"tau={tau:g}, so that work goes where it matters, or with {more}"
    return f"Thresholds that are certified: {near or 'none'}. Or certify with {more}"


def _own_actions(aggregation: Aggregation) -> IntArray | None:
    """(n_states, names) which action of a state each name of its cluster is; None if it is itself.

    What a cluster lacks does what its first action does, in the model and in every state.
    """
    renaming, small = aggregation.renaming, aggregation.mdp
    if renaming is None:
        return None
    own = np.empty((renaming.shape[0], small.n_actions), np.int64)
    for name in range(small.n_actions):
        played = small.played(np.full(small.n_states, name))
        own[:, name] = actions_called(renaming, played[aggregation.labels])
    return own
