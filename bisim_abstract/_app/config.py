"""What a run is asked for: settings as they are checked, written, read and told as a command."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from bisim_abstract._app.manifest import CONFIG, MANIFEST, Manifest, value_digest
from bisim_abstract._app.sources import Source
from bisim_abstract._base.checks import check_choice, check_gamma, check_int
from bisim_abstract._base.text import did_you_mean, short
from bisim_abstract._base.untrusted import parse_text, read_regular
from bisim_abstract._prove.options import Options
from bisim_abstract._version import __version__
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

FORMAT = "bisim_abstract.Run"
VERSION = 1
PARTS = ("format", "version", "config", "versions")
ENCODERS = ("action-max", "dbc", "mico")
LEARN_SEEDS = 3  # agents of each kind: one alone says little
WHEN = ("always", "needed")  # an encoder is trained
PACKAGES = ("numpy", "scipy", "numba", "gymnasium", "faiss-cpu", "torch")


@dataclass(frozen=True, kw_only=True)
class Training:
    """How an encoder is trained.

    Attributes:
        kind: "action-max", "dbc" or "mico".
        steps: Training steps.
        dim: Coordinates of the embedding.
        transitions: How many to learn from.
        experience: "model" draws them from the model, uniformly over states; "steps" takes
            them from random steps of the environment.
        same_action: Whether DBC and MICo compare equal actions only.
        when: "always", or "needed" to train only if the certificate that is found without an
            encoder leaves something to be wished for that a better proposal might give.
    """

    kind: str = "action-max"
    steps: int = 5_000
    dim: int = 8
    transitions: int = 100_000
    experience: str = "model"
    same_action: bool = False
    when: str = "always"

    def __post_init__(self) -> None:
        check_choice("encoder", self.kind, ENCODERS)
        check_int("steps", self.steps, low=1)
        check_int("dim", self.dim, low=1)
        check_int("transitions", self.transitions, low=1)
        check_choice("experience", self.experience, ("model", "steps"))
        check_choice("when", self.when, WHEN)
        if type(self.same_action) is not bool:
            raise InvalidArgumentError(
                f"same_action must be true or false, got {self.same_action!r}"
            )


def _is_module(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides what a run does.

    Attributes:
        source: Where the model comes from.
        gamma: The discount.
        training: How to train an encoder, and when; None for never.
        certify: Goal, budgets and options of the method by name, as `Options.named` reads them.
        learn: Steps of the agents whose learning curves are drawn; 0 for none.
        learn_seeds: Number of agents of each kind.
        title: Of the report.
        imports: Modules that were imported before; never by what reads this.
    """

    source: Source
    gamma: float = 0.9
    training: Training | None = None
    certify: Mapping[str, Any] = field(default_factory=dict)
    learn: int = 0
    learn_seeds: int = LEARN_SEEDS
    title: str | None = None
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check_gamma(self.gamma))
        options = self.options  # refuses what `certify` would refuse, before any work
        if self.training is not None and self.training.when == "always":
            options.check_embedding()
        if self.title is not None and not isinstance(self.title, str):
            raise InvalidArgumentError(f"title must be text, got {self.title!r}")
        names = self.imports
        if not isinstance(names, list | tuple) or not all(_is_module(name) for name in names):
            raise InvalidArgumentError(f"imports must be a list of modules, got {names!r}")
        object.__setattr__(self, "imports", tuple(names))
        check_int("learn", self.learn, low=0)
        check_int("learn_seeds", self.learn_seeds, low=1)

    @property
    def seed(self) -> int:
        """The seed of everything: that with which the environment is read."""
        return self.source.reading.seed

    @property
    def options(self) -> Options:
        """What `certify` is asked for, with the seed of the run."""
        if not isinstance(self.certify, Mapping):
            raise InvalidArgumentError(f"certify must hold names with values, got {self.certify!r}")
        if "seed" in self.certify:
            raise InvalidArgumentError("a run has one seed, for everything: not one of certify")
        return Options.named({**self.certify, "seed": self.seed})

    def header(self) -> dict[str, Any]:
        """As JSON values."""
        return {"format": FORMAT, "version": VERSION, "config": asdict(self)}

    @property
    def digest(self) -> str:
        """Of the settings, as manifests hold it."""
        return value_digest(self.header()["config"])

    def words(self) -> list[str]:
        """The arguments of `bisim-abstract run` that ask for the same."""
        source, training = self.source, self.training
        given: dict[str, Any] = {
            "--import": list(self.imports),
            "--env-arg": [f"{key}={json.dumps(value)}" for key, value in source.env_args.items()],
            "--backgrounds": source.backgrounds,
            **source.reading.words(),
            "--const": [f"{name}={_constant(value)}" for name, value in source.constants.items()],
            "--reward": list(source.reward),
            "--goal": source.goal,
            "--actions": None if source.actions == "names" else source.actions,
            "--gamma": self.gamma,
            "--train": "never" if training is None else training.when,
        }
        if training == Training(when="needed"):
            del given["--train"]  # what happens without a word
        elif training is not None:
            given |= {
                "--encoder": training.kind,
                "--steps": training.steps,
                "--dim": training.dim,
                "--transitions": training.transitions,
                "--experience": training.experience,
                "--same-action": training.same_action,
            }
        for name, value in self.certify.items():
            flag = "--clusters" if name == "n_clusters" else f"--{name.replace('_', '-')}"
            given[flag] = ",".join(value) if name == "propose" else value
        given |= {
            "--learn": self.learn,
            "--learn-seeds": self.learn_seeds,
            "--title": self.title,
        }
        words = [source.name]
        for flag, value in given.items():
            for entry in value if isinstance(value, list) else [value]:
                if entry is True:
                    words.append(flag)
                elif entry is not None and entry is not False:
                    text = str(entry)
                    # What begins with a minus would be taken for an option.
                    words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
        return words

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read the `config.json` of a run.

        Args:
            path: The file.

        Raises:
            FileFormatError: If it is something else, or damaged.
        """
        text = read_regular(path)
        try:
            document = parse_text(text)
            if document["format"] != FORMAT or document["version"] != VERSION:
                raise FileFormatError(f"{path} is not the configuration of a run of this version")
            given = document["config"]
            training = given["training"]
            _check_names(path, document, PARTS)
            _check_names(path, given, [entry.name for entry in fields(cls)])
            return cls(
                **given
                | {
                    "source": Source(**given["source"]),
                    "training": None if training is None else Training(**training),
                }
            )
        except InvalidArgumentError as error:
            raise FileFormatError(f"{path} holds a bad setting: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{path} is not the configuration of a run: {error}") from error


def _check_names(path: str | Path, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"; known are {', '.join(known)}"
            raise FileFormatError(f"{path} holds an unknown setting, {short(name)}{hint}")


def stored_config(manifest: Manifest) -> Config:
    """The settings of the run in a directory.

    Args:
        manifest: That of the directory.

    Raises:
        FileFormatError: If they are missing, or not those that it began with.
    """
    path = manifest.path_of(CONFIG)
    if path is None:
        manifest.check()  # says what it is
        raise FileFormatError(
            f"{manifest.folder / MANIFEST} lists no {CONFIG}; begin anew in another directory"
        )
    config = Config.load(path)
    # As the file has them: a later version may know settings that this run was begun without.
    if value_digest(json.loads(read_regular(path))["config"]) != manifest.settings:
        raise FileFormatError(
            f"{manifest.folder / CONFIG} holds other settings than {MANIFEST} states; begin anew "
            "in another directory"
        )
    return config


def versions() -> dict[str, str]:
    """Versions of what took part, by name."""
    found = {"bisim_abstract": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _constant(value: bool | int | float | str) -> str:
    """The value of a constant as the command line reads it."""
    return json.dumps(value) if isinstance(value, bool) else str(value)
