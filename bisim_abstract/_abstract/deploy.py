"""`GroundAgent`: what was learned on clusters, acting on the environment that they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._base.arrays import checked_metadata, frozen
from bisim_abstract._base.checks import as_generator, check_int
from bisim_abstract._base.html import table_html
from bisim_abstract._base.npz import read_record, write_record
from bisim_abstract._base.text import clusters_text, counted
from bisim_abstract._base.types import FloatArray, IntArray, SeedLike
from bisim_abstract._model.observations import Observations
from bisim_abstract._model.policies import check_table
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

__all__ = ["GroundAgent"]

FORMAT = "bisim_abstract.GroundAgent"
VERSION = 1
ARRAYS = ("policy", "keys", "clusters")
SETTINGS = ("n_actions", "has_end", "layout", "metadata")


class GroundAgent:
    """An agent that sees the environment's own observations and acts by their clusters.

    `AbstractedEnv.deploy` makes one of whatever was learned on the clusters, and `load` reads one
    from a file. It holds a table of actions over clusters, and which observation belongs to which
    cluster: neither the abstraction, nor its certificate, nor the library that trained the agent
    is needed any more.

    Args:
        policy: (n_clusters) actions, or (n_clusters, n_actions) probabilities; where episodes
            end, one more for the end, in which nobody acts.
        observations: The cluster of each observation.
        n_actions: Number of actions.
        has_end: Whether the last row is that of the end.
        seed: Seed or generator of actions that are drawn.
        metadata: Where it comes from; JSON values.

    Attributes:
        policy: The table, read-only.
        n_actions: Number of actions.
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
        seed: SeedLike = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_actions = check_int("n_actions", n_actions, low=1)
        self.policy = _checked(policy, self.n_actions)
        if not isinstance(has_end, bool):
            raise InvalidArgumentError(f"has_end must be True or False, got {has_end!r}")
        self.has_end = has_end
        top = int(observations.clusters.max())
        if observations.clusters.min() < 0 or top >= self.policy.shape[0]:
            raise InvalidArgumentError(
                f"observations must belong to clusters in [0, {self.policy.shape[0]}), got {top}"
            )
        self.metadata: dict[str, Any] = checked_metadata(metadata or {})
        self._observations = observations
        self._rng = as_generator(seed)
        self._sums: FloatArray | None = None
        self._best = np.asarray(self.policy, np.int64)
        if self.policy.ndim == 2:
            self._best = np.asarray(self.policy.argmax(axis=1), np.int64)
            sums = np.cumsum(self.policy, axis=1)
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
        return self._observations.find(observation)

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
            The action, a number for one observation and an array for a batch; and `state`.

        Raises:
            InvalidArgumentError: If no state of the model gives such an observation.
        """
        clusters = self.cluster(observation)
        if deterministic or self._sums is None:
            return self._best[clusters], state
        rows = self._sums[clusters]
        drawn = self._rng.random(rows.shape[:-1])
        actions = (rows <= np.asarray(drawn)[..., None]).sum(axis=-1)
        return (actions if actions.ndim else np.int64(actions)), state

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
        header, arrays = read_record(path, kind=FORMAT, version=VERSION, what="agent")
        try:
            if set(arrays) != set(ARRAYS) or set(header) != set(SETTINGS):
                raise FileFormatError(f"{path} has parts missing or too many")
            known = Observations(header["layout"], arrays["keys"], arrays["clusters"])
            return cls(
                arrays["policy"],
                known,
                n_actions=header["n_actions"],
                has_end=header["has_end"],
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
        where = f" of {self.metadata['env']}" if "env" in self.metadata else ""
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
            (name, str(self.metadata[key])) for key, name in named.items() if key in self.metadata
        ]
        if "seed" in self.metadata:
            rows.append(("layout", f"that of seed {self.metadata['seed']}"))
        return table_html("Agent of the environment itself", rows)


def _checked(policy: npt.ArrayLike, n_actions: int) -> IntArray | FloatArray:
    """The table, read-only, if it is one."""
    given = np.asarray(policy)
    if given.size == 0 or given.ndim not in (1, 2) or given.shape[1:] not in ((), (n_actions,)):
        raise InvalidArgumentError(
            f"policy must be actions, or probabilities of {n_actions} actions, by cluster, got "
            f"shape {given.shape}"
        )
    table = frozen("policy", given, np.int64 if given.ndim == 1 else np.float64)
    check_table(table, n_actions)
    return table
