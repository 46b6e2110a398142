"""`Encoder`: what all learned embeddings share: fitting, encoding, distances, files."""

from __future__ import annotations

import abc
import inspect
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bisim_abstract._base.checks import (
    as_array,
    check_gamma,
    check_int,
    check_positive,
    check_states,
)
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.npz import Archive, write_npz
from bisim_abstract._base.progress import shown
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import BoolArray, Progress, ProgressCallback
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract.encoders._nets import Observer, Optimiser, Samples, one_thread
from bisim_abstract.encoders.transitions import (
    Transitions,
    collect_transitions,
    sample_transitions,
)
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

__all__ = ["Encoder", "Source", "load_encoder"]

logger = logging.getLogger(__name__)

FORMAT = "bisim_abstract.Encoder"
VERSION = 1
DRAWN = 64  # steps whose batches are drawn at once
PAIR_BYTES = 20  # what a pair of a batch takes at least: distance, target, both errors, slope
REPORT = 100  # steps between reports
CHUNK = 65_536  # states or pairs evaluated at once
MOST_LAYERS = 100  # hidden ones
PAIRS = ("any", "same_action")
SHAPE = ("n_states", "n_features", "n_actions", "scale")

Source: TypeAlias = "Transitions | TabularMDP | gym.Env[Any, Any] | str"
Generator: TypeAlias = "torch.Generator | None"
Points: TypeAlias = npt.NDArray[np.float32]
KINDS: dict[str, type[Encoder]] = {}


class Learner(nn.Module, abc.ABC):
    """The trained part of an encoder: `phi`, and whatever its loss needs besides."""

    phi: Observer

    @abc.abstractmethod
    def loss(self, samples: Samples, rows: Tensor, columns: Tensor) -> Tensor:
        """The loss over all pairs of one sample in `rows` and one in `columns`."""

    @abc.abstractmethod
    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """(..., n, m) learned distances of n latent points from m others."""

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """(n) learned distances of n latent points, each from its own partner."""
        return self.pairwise(x[:, None], y[:, None])[:, 0, 0]

    def prepare(self, samples: Samples) -> None:
        """Called once before training."""
        for module in self.modules():
            if isinstance(module, Observer) and samples.pool is not None:
                module.standardise(samples.pool, samples.end)

    def after_step(self, step: int) -> None:
        """Called after each step, for instance to move a target network."""


class Encoder(abc.ABC):
    """Places states in R^dim so that a distance between them imitates a metric.

    Rewards are divided by their range while learning, and the result is given in their own
    unit again. Where episodes end, the end is a state of its own: with state indices it is the
    one after the last, as in `bisim_abstract.wrappers.extract_mdp`.

    Args:
        dim: Number of coordinates.
        gamma: The discount, in [0, 1).
        steps: Number of training steps.
        batch_size: Samples on either side of the pairs of one step, which are their product.
        learning_rate: Step size of Adam; constant for the first half, then falling to 0.
        hidden: Sizes of hidden layers.
        device: Where torch computes, for instance "cpu" or "cuda".
        seed: Seed of data, initial weights and batches. The same seed gives the same bits on
            the same machine, if that is a CPU.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        *,
        dim: int = 8,
        gamma: float = 0.9,
        steps: int = 5_000,
        batch_size: int = 128,
        learning_rate: float = 0.01,
        hidden: Sequence[int] = (64, 64),
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.dim = check_int("dim", dim, low=1)
        self.gamma = check_gamma(gamma)
        self.steps = check_int("steps", steps, low=1)
        self.batch_size = check_int("batch_size", batch_size, low=1)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        if isinstance(hidden, str | int):
            raise InvalidArgumentError(f"hidden must be a sequence of sizes, got {hidden!r}")
        self.hidden = tuple(check_int("hidden", size, low=1) for size in hidden)
        if len(self.hidden) > MOST_LAYERS:  # a small file could ask for hours of making them
            raise InvalidArgumentError(
                f"hidden must have at most {MOST_LAYERS} sizes, got {len(self.hidden)}"
            )
        try:
            self.device = str(torch.device(device))
        except (RuntimeError, TypeError) as error:
            raise InvalidArgumentError(f"device must be one torch knows: {error}") from None
        self.seed = check_int("seed", seed, low=0)
        self._learner: Learner | None = None
        self._shape: dict[str, Any] = {}
        self._seen: BoolArray = np.empty(0, bool)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" not in vars(cls):
            return  # a variant of another class, whose files stay that class's
        known = KINDS.get(cls.kind, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidArgumentError(
                f"kind {cls.kind!r} is {known.__qualname__}'s; give {cls.__qualname__} another"
            )
        KINDS[cls.kind] = cls

    @abc.abstractmethod
    def _make(self, n_rows: int, n_features: int, n_actions: int, g: Generator) -> Learner:
        """An untrained learner; `n_features` is 0 for a table of `n_rows` states."""

    def _unit(self, scale: float) -> float:
        """What latent points are multiplied by, given the unit of rewards."""
        return scale

    # -- learning --------------------------------------------------------------------------

    def fit(
        self,
        source: Source,
        *,
        n_transitions: int = 100_000,
        callback: ProgressCallback | None = None,
        progress: bool = False,
    ) -> Self:
        """Learn from an environment, its id, a model, or transitions.

        Args:
            source: Where transitions come from. Environments are stepped with random actions,
                models are sampled uniformly over their states.
            n_transitions: How many are gathered, unless they are given.
            callback: Told about the progress; without one, a terminal shows a line.
            progress: Show a line also where there is no terminal, as in a notebook.

        Raises:
            InvalidArgumentError: If nothing can be learned from this source, or the loss is no
                longer finite.
        """
        with shown(callback, progress) as report:
            data = _gathered(source, n_transitions, self.seed, report)
            learner, samples = self._learned(data, report)
        self._shape = {
            "n_states": samples.n_rows if data.is_discrete else None,
            "n_features": 0 if data.is_discrete else data.n_features,
            "n_actions": data.n_actions,
            "scale": samples.scale,
        }
        self._seen = np.zeros(0, bool)
        if data.is_discrete:
            self._seen = np.zeros(samples.n_rows, bool)
            self._seen[samples.now.cpu().numpy()] = True
            missing = int((~self._seen).sum())
            if missing:
                logger.info("%d of %d states were never left", missing, samples.n_rows)
        self._learner = learner.eval()
        return self

    def _learned(
        self, data: Transitions, report: ProgressCallback | None
    ) -> tuple[Learner, Samples]:
        """A learner that was trained on transitions, and what they look like to it."""
        with one_thread():
            generator = torch.Generator().manual_seed(self.seed)
            device = torch.device(self.device)
            samples = Samples.of(data, device)
            n_features = 0 if data.is_discrete else data.n_features
            learner = self._make(samples.n_rows, n_features, data.n_actions, generator)
            learner.prepare(samples)
            learner.to(device)
            self._train(learner, samples, generator, report)
        return learner, samples

    def _train(
        self,
        learner: Learner,
        samples: Samples,
        generator: torch.Generator,
        report: ProgressCallback | None,
    ) -> None:
        check_memory(
            PAIR_BYTES * self.batch_size**2 + 16 * DRAWN * self.batch_size,
            what=f"training on {self.batch_size:,} x {self.batch_size:,} pairs at once",
            instead="choose a smaller batch_size",
        )
        optimiser = Optimiser(learner, self.learning_rate, self.steps)
        for step in range(self.steps):
            if step % DRAWN == 0:
                shape = (DRAWN, 2, self.batch_size)
                drawn = torch.randint(len(samples), shape, generator=generator)
                drawn = drawn.to(samples.now.device)
            rows, columns = drawn[step % DRAWN]
            loss = learner.loss(samples, rows, columns)
            optimiser.step(loss)
            learner.after_step(step)
            if (step + 1) % REPORT == 0 or step + 1 == self.steps:
                value = float(loss.detach())
                if not np.isfinite(value):
                    raise InvalidArgumentError(
                        f"the loss is {value} after {counted(step + 1, 'step')}; learning_rate "
                        f"{self.learning_rate} is too large for these transitions"
                    )
                if report is not None:
                    report(Progress("training", step + 1, self.steps, f"loss {value:.3g}"))

    # -- using -----------------------------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` has been called, or the encoder comes from a file."""
        return self._learner is not None

    @property
    def trained_for(self) -> str | None:
        """Which distance the learned one imitates: "bisimulation", "on_policy", "mico" or None.

        `bisim_abstract.evaluate_embedding` compares it with that one too. None if it is neither.
        """
        return None

    @property
    def n_states(self) -> int | None:
        """Number of states that can be encoded; None if observations are vectors."""
        self._fitted()
        number: int | None = self._shape["n_states"]
        return number

    @property
    def seen(self) -> BoolArray:
        """(n_states) whether the data hold a step from the state; the others are guesses."""
        self._fitted()
        return self._seen.copy()

    def encode(self, states: npt.ArrayLike, /) -> Points:
        """(..., dim) points of states, one for each entry of an array, a list or a range.

        A single state gives a single point, (dim). Observations that are vectors lie along the
        last axis.
        """
        learner = self._fitted()
        inputs = self._inputs("states", states)
        shape, rest = self._split_shape(inputs)
        unit = np.float32(self._unit(self._shape["scale"]))
        with torch.no_grad(), one_thread():
            flat = inputs.reshape(math.prod(shape), *rest)
            parts = [_latent(learner, part) for part in torch.split(flat, CHUNK)]
            points: npt.NDArray[Any] = torch.cat(parts).cpu().numpy()
        return (points * unit).astype(np.float32).reshape(*shape, self.dim)

    def distance(self, states: npt.ArrayLike, others: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The learned distance of states, by broadcasting two arrays of indices.

        Two single states give a single number. Observations that are vectors broadcast over all
        but their last axis.
        """
        learner = self._fitted()
        x, y = self._inputs("states", states), self._inputs("others", others)
        (left, rest), (right, _) = self._split_shape(x), self._split_shape(y)
        try:
            shape = np.broadcast_shapes(left, right)
        except ValueError:
            raise InvalidArgumentError(
                f"states and others must broadcast, got shapes {left} and {right}; for all pairs "
                "of two lists give states[:, None]"
            ) from None
        size = math.prod(shape)
        x, y = (part.expand((*shape, *rest)).reshape(size, *rest) for part in (x, y))
        out = np.empty(x.shape[0])
        with torch.no_grad(), one_thread():
            for begin in range(0, x.shape[0], CHUNK):
                span = slice(begin, begin + CHUNK)
                found = learner.distance(_latent(learner, x[span]), _latent(learner, y[span]))
                out[span] = found.double().cpu().numpy()
        return np.asarray(out * self._shape["scale"]).reshape(shape)

    def __repr__(self) -> str:
        state = "fitted" if self.is_fitted else "not fitted"
        return f"{type(self).__name__}(dim={self.dim}, gamma={self.gamma!r}, {state})"

    def _fitted(self) -> Learner:
        if self._learner is None:
            raise InvalidArgumentError(
                f"this {type(self).__name__} has learned nothing yet; call fit(source) first"
            )
        return self._learner

    def _split_shape(self, inputs: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of the array of states, and that of one of them."""
        own = 0 if self.n_states is not None else 1
        cut = inputs.ndim - own
        return tuple(inputs.shape[:cut]), tuple(inputs.shape[cut:])

    def _inputs(self, name: str, values: npt.ArrayLike) -> Tensor:
        device = torch.device(self.device)
        if self.n_states is not None:
            return torch.as_tensor(check_states(name, values, self.n_states), device=device)
        features = as_array(name, values)
        if features.dtype.kind not in "fiu" or features.shape[-1:] != (self._shape["n_features"],):
            raise InvalidArgumentError(
                f"{name} must hold observations of {self._shape['n_features']} features along "
                f"the last axis, got {features.dtype} of shape {features.shape}"
            )
        if not np.isfinite(features).all():
            raise InvalidArgumentError(f"{name} must be finite")
        return torch.as_tensor(features.astype(np.float32), device=device)

    # -- files -----------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The arguments that make an equal encoder, as JSON values.

        A class that passes `**kwargs` on has its parents' arguments too.
        """
        names: list[str] = []
        for init in (
            vars(cls)["__init__"] for cls in type(self).__mro__ if "__init__" in vars(cls)
        ):
            own = list(inspect.signature(init).parameters.values())[1:]
            names += [x.name for x in own if x.kind is not x.VAR_KEYWORD]
            if all(x.kind is not x.VAR_KEYWORD for x in own):
                break
        values = {name: getattr(self, name) for name in names}
        values["hidden"] = list(self.hidden)
        return values

    def save(self, path: str | Path) -> None:
        """Write one `.npz` file: weights and a JSON header; never a pickle."""
        learner = self._fitted()
        if KINDS[self.kind] is not type(self):
            raise InvalidArgumentError(
                f"{type(self).__name__} has no `kind` of its own, by which its files would be "
                "read; set one in the class"
            )
        header = {"format": FORMAT, "version": VERSION, "kind": self.kind}
        text = json.dumps(header | {"config": self.config(), "shape": self._shape})
        arrays: dict[str, npt.NDArray[Any]] = {
            f"weight/{name}": value.cpu().numpy() for name, value in learner.state_dict().items()
        }
        arrays["seen"] = self._seen
        arrays["header"] = np.frombuffer(text.encode(), np.uint8)
        write_npz(path, arrays)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file written by `save`; the result computes on the CPU.

        Raises:
            FileFormatError: If the file is damaged, or holds an encoder of another class.
        """
        encoder = load_encoder(path)
        if not isinstance(encoder, cls):
            raise FileFormatError(
                f"{path} holds a {type(encoder).__name__}, not a {cls.__name__}; "
                "load_encoder(path) reads either"
            )
        return encoder


def load_encoder(path: str | Path) -> Encoder:
    """Read an encoder of any class; it computes on the CPU.

    Args:
        path: A file written by `Encoder.save`.

    Raises:
        FileFormatError: If the file is damaged or of another kind.
    """
    try:
        with Archive(path) as archive:
            header = json.loads(archive.header_text())
            if header["format"] != FORMAT or header["version"] != VERSION:
                raise FileFormatError(f"{path} holds no encoder of version {VERSION}")
            if header["kind"] not in KINDS:
                _import_kinds()
            encoder = KINDS[header["kind"]](**{**header["config"], "device": "cpu"})
            _restore(encoder, header["shape"], archive)
        return encoder
    except InvalidArgumentError as error:
        raise FileFormatError(f"{path} holds an inconsistent encoder: {error}") from error
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path} has a damaged header: {error!r}") from error


def _import_kinds() -> None:
    from bisim_abstract.encoders import action_max, dbc, mico

    logger.debug("known: %s, %s, %s", action_max.__name__, dbc.__name__, mico.__name__)


def _restore(encoder: Encoder, shape: dict[str, Any], archive: Archive) -> None:
    """Put stored weights into an encoder, once all of them fit."""
    path, claims = archive.path, archive.claims
    if set(shape) != set(SHAPE):
        raise FileFormatError(f"{path} has parts missing or too many")
    n_features = check_int("n_features", shape["n_features"], low=0)
    n_actions = check_int("n_actions", shape["n_actions"], low=1)
    scale = check_positive("scale", shape["scale"])
    n_states = shape["n_states"]
    if (n_states is None) != (n_features > 0):
        raise FileFormatError(f"{path} holds neither a table of states nor a network")
    n_rows = 0 if n_states is None else check_int("n_states", n_states, low=1)
    if claims["seen"].dtype != bool or claims["seen"].shape != (n_rows,):
        raise FileFormatError(f"{path}: seen must be {n_rows} booleans")
    # What the header says is compared with what the file holds before anything is unpacked.
    with torch.device("meta"):
        learner = encoder._make(n_rows, n_features, n_actions, None)
    expected = {f"weight/{name}": value for name, value in learner.state_dict().items()}
    if {*expected, "seen", "header"} != set(claims):
        raise FileFormatError(f"{path} has weights missing or too many")
    for name, value in expected.items():
        claim = claims[name]
        if claim.dtype != np.float32 or claim.shape != tuple(value.shape):
            raise FileFormatError(
                f"{path}: {name} must be float32 of shape {tuple(value.shape)}, got {claim}"
            )
    arrays = archive.read(but=("header",))
    seen = arrays.pop("seen")
    state: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise FileFormatError(f"{path}: {name} must be finite")
        state[name.removeprefix("weight/")] = torch.from_numpy(array.copy())
    learner.load_state_dict(state, assign=True)
    encoder._learner = learner.eval()
    encoder._shape = {
        "n_states": n_states,
        "n_features": n_features,
        "n_actions": n_actions,
        "scale": scale,
    }
    encoder._seen = seen


def _gathered(
    source: Source, n_transitions: int, seed: int, report: ProgressCallback | None
) -> Transitions:
    if isinstance(source, Transitions):
        return source
    n = check_int("n_transitions", n_transitions, low=1)
    if isinstance(source, TabularMDP):
        return sample_transitions(source, n, seed=seed)
    if isinstance(source, str | gym.Env):
        return collect_transitions(source, n, seed=seed, callback=report)
    raise InvalidArgumentError(
        "source must be an environment, its id, a TabularMDP or Transitions, "
        f"got {type(source).__name__}"
    )


def _latent(learner: Learner, inputs: Tensor) -> Tensor:
    phi = learner.phi
    return phi.of_states(inputs) if phi.is_table else phi.of_features(inputs)
