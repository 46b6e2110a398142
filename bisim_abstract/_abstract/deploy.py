"""`GroundAgent`: what was learned on clusters, acting on the environment that they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import checked_metadata, frozen
from bisim_abstract._base.checks import as_generator, check_int
from bisim_abstract._base.html import table_html
from bisim_abstract._base.npz import Forms, read_record, write_record
from bisim_abstract._base.text import clusters_text, counted, plain_text
from bisim_abstract._base.types import FloatArray, IntArray, SeedLike
from bisim_abstract._model.observations import Observations
from bisim_abstract._model.policies import check_table, lift_table
from bisim_abstract._model.renaming import actions_called
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract._abstract.evaluation import AgentValue
    from bisim_abstract._abstract.value import ProvenValue
    from bisim_abstract._model.mdp import TabularMDP

__all__ = ["GroundAgent"]

FORMAT = "bisim_abstract.GroundAgent"
VERSION = 2
ARRAYS = ("policy", "keys", "clusters")
NAMES = ("kinds", "renaming")  # both, where actions are not called what they are
SETTINGS = ("n_actions", "has_end", "layout", "metadata")


class Certified(Protocol):
    """What is read of a certificate here, which is made of what lies above."""

    @property
    def fingerprint(self) -> str:
        """Of the model."""

    @property
    def gamma(self) -> float:
        """The discount."""

    @property
    def value(self) -> ProvenValue | None:
        """What is proven of its clusters."""


class GroundAgent:
    """An agent that sees the environment's own observations and acts by their clusters.

    `AbstractedEnv.deploy` makes one of whatever was learned on the clusters, and `load` reads one
    from a file. It holds a table of actions over clusters, and which observation belongs to which
    cluster: neither the abstraction, nor its certificate, nor the library that trained the agent
    is needed any more. Where clusters have names for actions, it also holds what each action of
    the environment is called, and `predict` tells the environment's own.

    Args:
        policy: (n_clusters) actions, or (n_clusters, n_actions) probabilities, by their names
            there; where episodes end, one more for the end, in which nobody acts.
        observations: The cluster of each observation; with `kinds`, its kind.
        n_actions: Number of the environment's actions.
        has_end: Whether the last row is that of the end.
        kinds: (n_kinds) clusters: a kind are those states of a cluster that call their actions
            the same. Needed with `renaming`.
        renaming: (n_kinds, n_actions) what each action is called by states of a kind, -1 where
            they lack it. By default, actions are called what they are, and kinds are clusters.
        seed: Seed or generator of actions that are drawn.
        metadata: Where it comes from; JSON values.

    Attributes:
        policy: The table, read-only.
        n_actions: Number of the environment's actions.
        has_end: Whether its last row is that of the end of episodes.
        metadata: Where it comes from: environment, model, and what is proven of the clusters.

    Example:
        >>> import gymnasium as gym
        >>> from bisim_abstract import abstract_env
        >>> small = abstract_env("CliffWalking-v1", gamma=0.9)
        >>> agent = small.deploy(small.value)  # or a model of Stable-Baselines3, a table, ...
        >>> env = gym.make("CliffWalking-v1", max_episode_steps=50)
        >>> observation, _ = env.reset(seed=0)
        >>> total, is_over = 0, False
        >>> while not is_over:
        ...     action, _ = agent.predict(observation)
        ...     observation, reward, terminated, truncated, _ = env.step(action)
        ...     total, is_over = total + reward, terminated or truncated
        >>> total
        -13
    """

    def __init__(
        self,
        policy: npt.ArrayLike,
        observations: Observations,
        *,
        n_actions: int,
        has_end: bool = False,
        kinds: npt.ArrayLike | None = None,
        renaming: npt.ArrayLike | None = None,
        seed: SeedLike = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_actions = check_int("n_actions", n_actions, low=1)
        self.policy = _checked(policy, self.n_actions, is_renamed=renaming is not None)
        self._kinds, self._renaming = _checked_names(kinds, renaming, self.policy, self.n_actions)
        if not isinstance(has_end, bool):
            raise InvalidArgumentError(f"has_end must be True or False, got {has_end!r}")
        self.has_end = has_end
        top, count = int(observations.clusters.max()), self._kinds.size
        if observations.clusters.min() < 0 or top >= count:
            what = "clusters" if self._renaming is None else "kinds"
            raise InvalidArgumentError(
                f"observations must belong to {what} in [0, {count}), got {top}"
            )
        most = int(observations.clusters.size) + 1  # the end has none
        if count > most or len(self.policy) > count:
            raise InvalidArgumentError(
                f"policy must have a row for each cluster that has an observation, and one for the "
                f"end of episodes at most, got {len(self.policy):,} rows"
            )
        self.metadata: dict[str, Any] = checked_metadata(metadata or {})
        self._observations = observations
        self._rng = as_generator(seed)
        self._sums: FloatArray | None = None
        best = self.policy if self.policy.ndim == 1 else self.policy.argmax(axis=1)
        names = np.asarray(best[self._kinds], np.int64)
        self._best = names if self._renaming is None else actions_called(self._renaming, names)
        if self.policy.ndim == 2:
            sums = np.cumsum(lift_table(self.policy, self._kinds, self._renaming), axis=1)
            self._sums = np.asarray(sums / sums[:, -1:])  # ends in exactly 1: no draw is beyond

    @property
    def is_deterministic(self) -> bool:
        """Whether it always does the same in a cluster."""
        return self._sums is None

    @property
    def n_clusters(self) -> int:
        """Number of clusters, the end of episodes not counted."""
        return int(self.policy.shape[0]) - self.has_end

    @property
    def n_observations(self) -> int:
        """How many different observations it knows."""
        return int(self._observations.clusters.size)

    def cluster(self, observation: Any) -> np.int64 | IntArray:
        """The cluster that an observation belongs to, or those of a batch.

        Args:
            observation: As the environment gives it, or many, put together as a vector
                environment does.

        Raises:
            InvalidArgumentError: If no state of the model gives such an observation.
        """
        found = self._kinds[self._observations.find(observation)]
        return found if found.ndim else np.int64(found)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.int64 | IntArray, Any]:
        """What to do, with the arguments and results that Stable-Baselines3 has.

        Args:
            observation: As the environment gives it, or many, put together as a vector
                environment does.
            state: Given back as it is: this agent remembers nothing.
            episode_start: Not needed here.
            deterministic: Take the likeliest action, where the agent has probabilities; else one
                is drawn.

        Returns:
            The environment's own action, a number for one observation and an array for a batch;
            and `state`.

        Raises:
            InvalidArgumentError: If no state of the model gives such an observation.
        """
        kinds = self._observations.find(observation)
        if deterministic or self._sums is None:
            return self._best[kinds], state
        rows = self._sums[kinds]
        drawn = self._rng.random(rows.shape[:-1])
        actions = (rows <= np.asarray(drawn)[..., None]).sum(axis=-1)
        return (actions if actions.ndim else np.int64(actions)), state

    def evaluate(
        self, mdp: TabularMDP, certificate: Certified, *, horizon: int | None = None
    ) -> AgentValue:
        """What this agent's policy is worth, proven: its value, kept share and episodes.

        Args:
            mdp: The environment's model.
            certificate: That of the clusters that it acts by.
            horizon: Time limit of episodes; by default the environment's own, if it has one.

        Raises:
            InvalidArgumentError: If model or certificate are not those that it was made for.
        """
        from bisim_abstract._abstract.evaluation import evaluate_agent

        value, known = certificate.value, self.metadata.get("fingerprint", mdp.fingerprint)
        if certificate.fingerprint != mdp.fingerprint or known != mdp.fingerprint:
            raise InvalidArgumentError("mdp and certificate must be those that the agent is of")
        if value is None or len(value.policy) != len(self.policy):
            raise InvalidArgumentError(
                "certificate must have a proven value for the agent's "
                f"{counted(self.n_clusters, 'cluster')}"
            )
        policy = lift_table(self.policy, value.labels, value.renaming)
        return evaluate_agent(mdp, certificate.gamma, policy, horizon=horizon)

    def save(self, path: str | Path) -> None:
        """Write one `.npz` file: arrays, JSON header, and a digest of both; never a pickle.

        Args:
            path: The file.
        """
        arrays: dict[str, npt.NDArray[Any]] = {
            "policy": self.policy,
            "keys": self._observations.keys,
            "clusters": self._observations.clusters,
        }
        if self._renaming is not None:
            arrays |= {"kinds": self._kinds, "renaming": self._renaming}
        header = {
            "n_actions": self.n_actions,
            "has_end": self.has_end,
            "layout": self._observations.layout,
            "metadata": self.metadata,
        }
        write_record(path, header, arrays, kind=FORMAT, version=VERSION)

    @classmethod
    def load(cls, path: str | Path, *, seed: SeedLike = None) -> GroundAgent:
        """Read a file written by `save`; any changed byte is noticed.

        Args:
            path: The file.
            seed: Seed or generator of actions that are drawn.

        Raises:
            FileFormatError: If the file is damaged, changed, or of another kind.
        """
        rng = as_generator(seed)
        header, arrays = read_record(path, kind=FORMAT, version=VERSION, what="agent", forms=_forms)
        try:
            names = set(NAMES) & set(arrays)
            is_whole = set(arrays) - names == set(ARRAYS) and len(names) in (0, len(NAMES))
            if not is_whole or set(header) != set(SETTINGS):
                raise FileFormatError(f"{path} has parts missing or too many")
            known = Observations(header["layout"], arrays["keys"], arrays["clusters"])
            return cls(
                arrays["policy"],
                known,
                n_actions=header["n_actions"],
                has_end=header["has_end"],
                kinds=arrays.get("kinds"),
                renaming=arrays.get("renaming"),
                seed=rng,
                metadata=header["metadata"],
            )
        except InvalidArgumentError as error:
            raise FileFormatError(f"{path} holds an inconsistent agent: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{path} has a damaged header: {error!r}") from error

    def __repr__(self) -> str:
        kind = "actions" if self.is_deterministic else "probabilities"
        where = f" of {plain_text(str(self.metadata['env']))}" if "env" in self.metadata else ""
        return (
            f"GroundAgent({counted(self.n_observations, 'observation')}{where}, {kind} over "
            f"{clusters_text(self.n_clusters, has_end=self.has_end)})"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("observations", f"{self.n_observations:,}"),
            ("clusters", clusters_text(self.n_clusters, has_end=self.has_end)),
            ("table", f"{'actions' if self.is_deterministic else 'probabilities'} by cluster"),
        ]
        named = {"env": "environment", "agent": "learned by", "verdict": "proven of the clusters"}
        rows += [
            (name, plain_text(str(self.metadata[key])))
            for key, name in named.items()
            if key in self.metadata
        ]
        if "seed" in self.metadata:
            rows.append(("layout", plain_text(f"that of seed {self.metadata['seed']}")))
        return table_html("Agent of the environment itself", rows)


def _forms(header: Mapping[str, Any]) -> Forms:
    """The arrays of a file, as docs/certificate-format.md has them."""
    shapes = {"policy": "c|c a", "keys": "m|m 16", "clusters": "m", "kinds": "j", "renaming": "j A"}
    return Forms(
        shapes, known={"A": header.get("n_actions")}, most={"a": "A", "c": "m+1", "j": "m+1"}
    )


def _checked(policy: npt.ArrayLike, n_actions: int, *, is_renamed: bool) -> IntArray | FloatArray:
    """The table, read-only, if it is one; there may be fewer names than actions."""
    given = np.asarray(policy)
    widths = range(1, n_actions + 1) if is_renamed else (n_actions,)
    is_table = given.ndim == 1 or (given.ndim == 2 and given.shape[1] in widths)
    if given.size == 0 or not is_table:
        raise InvalidArgumentError(
            f"policy must be actions, or probabilities of {n_actions} actions, by cluster, got "
            f"shape {given.shape}"
        )
    table = frozen("policy", given, np.int64 if given.ndim == 1 else np.float64)
    check_table(table, n_actions)
    return table


def _checked_names(
    kinds: npt.ArrayLike | None,
    renaming: npt.ArrayLike | None,
    policy: IntArray | FloatArray,
    n_actions: int,
) -> tuple[IntArray, IntArray | None]:
    """The cluster of each kind, and what it calls its actions, read-only, if they fit the table."""
    if (kinds is None) != (renaming is None):
        raise InvalidArgumentError("kinds and renaming must be given together, or neither")
    count = policy.shape[0]
    if kinds is None or renaming is None:
        return frozen("kinds", np.arange(count), np.int64), None
    clusters = frozen("kinds", kinds, np.int64)
    if (
        clusters.ndim != 1
        or clusters.size == 0
        or not 0 <= clusters.min() <= clusters.max() < count
    ):
        raise InvalidArgumentError(f"kinds must belong to clusters in [0, {count})")
    names = frozen("renaming", renaming, np.int64)
    top = n_actions if policy.ndim == 1 else policy.shape[1]
    if (
        names.shape != (clusters.size, n_actions)
        or not -1 <= names.min() <= names.max() < top
        or not (names >= 0).any(axis=1).all()
    ):
        raise InvalidArgumentError(
            f"renaming must have shape {(clusters.size, n_actions)} and hold names in [0, {top}), "
            "-1 for what is lacking, and one name at least in each row"
        )
    return clusters, names
