"""Runs: the whole chain in one directory, from a source to a report, stage by stage.

Every stage leaves a file, written whole or not at all, and reads only files of stages before
it: a run that was interrupted goes on where it stopped, and ends as it would have.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bisim_abstract._abstract.aggregate import ValueLoss, lift_policy
from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._app.report import write_report
from bisim_abstract._app.sources import Source
from bisim_abstract._app.state_map import state_map
from bisim_abstract._base.atomic import remove_unfinished, replaceable, write_json
from bisim_abstract._base.checks import check_choice, check_gamma, check_int
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.text import clusters_text, counted
from bisim_abstract._base.types import FloatArray, ProgressCallback
from bisim_abstract._base.untrusted import read_regular
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.verdict import Verdict, judge
from bisim_abstract._compare.embeddings import EmbeddingQuality, evaluate_embedding
from bisim_abstract._compare.learning import Curve, QLearning, learning_curve, score_above_random
from bisim_abstract._compare.losses import AbstractionLoss, compare_abstractions
from bisim_abstract._exact.planning import value_iteration
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._prove.driver import INTERRUPTED, prove
from bisim_abstract._prove.options import Options
from bisim_abstract._verify.verify import Verification, verify
from bisim_abstract._version import __version__
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract.encoders import Encoder

FORMAT = "bisim_abstract.Run"
VERSION = 1
ENCODERS = ("action-max", "dbc", "mico")
STAGES = ("extract", "train", "certify", "verify", "compare", "learn", "report")
WHEN = ("always", "needed")  # an encoder is trained
LEVELS = ("open", "poor", "useful")  # of verdicts, rising
CERTIFICATE, CHECKPOINT = "certificate.npz", "checkpoint.npz"
# Of a run that first tries to do without an encoder. Names of their own: a run that was killed
# must not go on with the bounds of the other attempt.
FIRST, FIRST_CHECKPOINT = "first-certificate.npz", "first-checkpoint.npz"
POINTS = 20  # of a learning curve
MOST_FITTED = 1_000  # states up to which encoders are held against what they are trained for
RAW_LIMIT = 20_000_000  # entries of an agent's table over raw states
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
        seed: Of everything.
        title: Of the report.
    """

    source: Source
    gamma: float = 0.9
    training: Training | None = None
    certify: Mapping[str, Any] = field(default_factory=dict)
    learn: int = 0
    learn_seeds: int = 1
    seed: int = 0
    title: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check_gamma(self.gamma))
        _ = self.options  # refuses what `certify` would refuse, before anything has been done
        if self.title is not None and not isinstance(self.title, str):
            raise InvalidArgumentError(f"title must be text, got {self.title!r}")
        check_int("learn", self.learn, low=0)
        check_int("learn_seeds", self.learn_seeds, low=1)
        check_int("seed", self.seed, low=0)

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

    def words(self) -> list[str]:
        """The arguments of `bisim-abstract run` that ask for the same."""
        source, training = self.source, self.training
        given: dict[str, Any] = {
            "--env-arg": [f"{key}={json.dumps(value)}" for key, value in source.env_args.items()],
            "--backgrounds": source.backgrounds,
            "--terminal": source.terminal,
            "--reachable-only": source.reachable_only,
            "--action-masks": source.action_masks,
            "--max-states": source.max_states,
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
            "--seed": self.seed,
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
            document = json.loads(text)
            if document["format"] != FORMAT or document["version"] != VERSION:
                raise FileFormatError(f"{path} is not the configuration of a run of this version")
            given = document["config"]
            training = given["training"]
            unknown = set(given) - {entry.name for entry in fields(cls)}
            if unknown:
                raise FileFormatError(f"{path} holds unknown settings: {sorted(unknown)}")
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


@dataclass(frozen=True)
class Begun:
    """A stage that begins.

    Attributes:
        stage: Its name.
        detail: Why, or with what, in a few words; empty where it goes without saying.
    """

    stage: str
    detail: str = ""


@dataclass(frozen=True)
class Done:
    """A finished stage.

    Attributes:
        stage: Its name.
        detail: What it found, in a few words.
        seconds: How long it took, compiling apart; 0 if it was found done.
        is_new: Whether it ran now.
        compile_seconds: How long solvers were compiled meanwhile, which happens once.
    """

    stage: str
    detail: str
    seconds: float
    is_new: bool
    compile_seconds: float = 0.0


@dataclass(frozen=True)
class EncoderUse:
    """Whether an encoder was trained, and why.

    Attributes:
        is_trained: Whether it was.
        reason: Why, or why not.
        is_used: Whether the certificate was found with it.
    """

    is_trained: bool
    reason: str
    is_used: bool

    def __str__(self) -> str:
        """In one line."""
        useless = "; it did not help" if self.is_trained and not self.is_used else ""
        return f"{'trained' if self.is_trained else 'not trained'}: {self.reason}{useless}"


@dataclass(frozen=True)
class RunResult:
    """What a run ended with.

    Attributes:
        folder: Where everything is.
        certificate: The certificate.
        verification: What the checker says of it.
        report: Path of the report.
        stages: How the stages went.
        encoder: Whether an encoder was trained, and why.
    """

    folder: Path
    certificate: Certificate
    verification: Verification
    report: Path
    stages: tuple[Done, ...]
    encoder: EncoderUse

    @property
    def verdict(self) -> Verdict:
        """What it amounts to."""
        return judge(self.certificate, self.verification)


# -- single stages, also for the command line --------------------------------------------------


def make_encoder(training: Training, **common: Any) -> Encoder:
    """An encoder of the kind that is asked for, not yet trained."""
    from bisim_abstract import encoders

    pairs = "same_action" if training.same_action else "any"
    makers: dict[str, Callable[[], Encoder]] = {
        "action-max": lambda: encoders.ActionMaxEncoder(**common),
        "dbc": lambda: encoders.DBCEncoder(**common, pairs=pairs),
        "mico": lambda: encoders.MICoEncoder(**common, pairs=pairs),
    }
    return makers[training.kind]()


def train_encoder(
    source: Source,
    mdp: TabularMDP,
    training: Training,
    gamma: float,
    seed: int,
    *,
    callback: ProgressCallback | None = None,
) -> Encoder:
    """A trained encoder of a model's states.

    Args:
        source: Where the model comes from.
        mdp: The model.
        training: How to train.
        gamma: The discount.
        seed: Of everything.
        callback: Told about the progress.
    """
    from bisim_abstract import encoders

    common: dict[str, Any] = {
        "dim": training.dim,
        "gamma": gamma,
        "steps": training.steps,
        "seed": seed,
    }
    encoder = make_encoder(training, **common)
    if training.experience == "model":
        return encoder.fit(mdp, n_transitions=training.transitions, callback=callback)
    env = source.env(mdp)
    try:
        data = encoders.collect_transitions(env, training.transitions, seed=seed)
    finally:
        env.close()
    encoder.fit(data, callback=callback)
    if encoder.n_states != mdp.n_states:
        raise InvalidArgumentError(
            f"steps of the environment show {states_text(encoder)}, the model has "
            f"{mdp.n_states:,}; train from the model instead (experience 'model')"
        )
    return encoder


def embedding_quality(
    mdp: TabularMDP, certificate: Certificate, encoder: Encoder | None, *, seed: int
) -> EmbeddingQuality | None:
    """How well an encoder imitates the metric, and in small models what it is trained for."""
    if encoder is None:
        return None
    is_small = mdp.n_states <= MOST_FITTED
    return evaluate_embedding(certificate, encoder, mdp=mdp if is_small else None, seed=seed)


def states_text(encoder: Encoder) -> str:
    """How many states an encoder knows, for people."""
    count = encoder.n_states
    return counted(count, "numbered state") if count else "no numbered states"


def learning_curves(
    source: Source, mdp: TabularMDP, certificate: Certificate, *, steps: int, seeds: int = 1
) -> list[Curve]:
    """Q-learning on the certified abstraction, and the same agent on raw states.

    Scores are start values on a scale where random actions have 0 and the best have 1.

    Args:
        source: The environment.
        mdp: Its model.
        certificate: A certificate of it, certified at its threshold.
        steps: Steps that each agent takes.
        seeds: Agents of each kind.
    """
    from bisim_abstract.wrappers import AbstractedEnv, TabularEnv

    gamma = certificate.gamma
    # Optimistic values make agents try everything: the largest sum of rewards, or where
    # episodes end the largest reward, of which there may be only one.
    top = float(mdp.rewards.max())
    ends = mdp.terminal_state is not None or (source.is_file and bool(mdp.absorbing.any()))
    start = max(0.0, top) if ends else top / (1.0 - gamma)
    score = score_above_random(mdp, gamma, optimal=value_iteration(mdp, gamma))
    points = sorted({max(1, steps * (k + 1) // POINTS) for k in range(POINTS)})

    def agent(env: Any, n_states: int | None = None) -> Callable[[int], QLearning]:
        return lambda seed: QLearning(
            env,
            gamma=gamma,
            start=start,
            n_states=n_states,
            epsilon=(1.0, 0.1),
            decay=steps,
            seed=seed,
        )

    curves = []
    common: dict[str, Any] = {"seed": source.seed, "max_states": source.max_states}
    for dynamics, name in (("aggregated", "aggregated steps"), ("ground", "real steps")):
        env = AbstractedEnv(source.env(mdp), certificate, dynamics=dynamics, **common)
        small = env.aggregation

        def lifted(policy: Any, small: Any = small) -> float:
            return score(lift_policy(small, policy))

        has_end = mdp.terminal_state is not None
        label = f"{clusters_text(small.n_clusters, has_end=has_end)}, {name}"
        curves.append(learning_curve(label, agent(env), lifted, points, seeds=seeds))
        env.close()
    if mdp.n_states * mdp.n_actions <= RAW_LIMIT:
        raw = TabularEnv(
            source.env(mdp),
            terminal=source.terminal,
            reachable_only=source.reachable_only,
            action_masks=source.action_masks,
            **common,
        )
        label = counted(certificate.n_live, "raw state")
        curves.append(learning_curve(label, agent(raw, mdp.n_states), score, points, seeds=seeds))
        raw.close()
    return curves


def versions() -> dict[str, str]:
    """Versions of what took part, by name."""
    found = {"bisim_abstract": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


# -- the whole chain ---------------------------------------------------------------------------


class Run:
    """A run directory.

    Args:
        folder: The directory; made if it does not exist. If it holds a run already, its
            configuration must be this one.
        config: What to do.
        resources: Threads, workers and memory. Results do not depend on them.
        callback: Told about the progress inside a stage.
        before: Called before each stage that is not done yet.
        after: Called after each stage, done now or found done.
    """

    def __init__(
        self,
        folder: str | Path,
        config: Config,
        *,
        resources: Resources = HERE,
        callback: ProgressCallback | None = None,
        before: Callable[[Begun], None] | None = None,
        after: Callable[[Done], None] | None = None,
    ) -> None:
        self.folder, self.config = Path(folder), config
        self.resources, self.callback = resources, callback
        self.before, self.after = before, after
        self.stages: list[Done] = []
        path = self.folder / "config.json"
        check_folder(self.folder)
        if self.folder.is_dir():
            remove_unfinished(self.folder)  # a run that was killed at its first file has no other
        if path.exists():
            theirs = Config.load(path).header()["config"]
            if json.loads(json.dumps(config.header()["config"])) != json.loads(json.dumps(theirs)):
                raise InvalidArgumentError(
                    f"{self.folder} holds a run with other settings; give another directory, or "
                    "resume that one"
                )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise InvalidArgumentError(
                f"{self.folder} is not empty and holds no run; give another directory"
            )

    @classmethod
    def resume(cls, folder: str | Path, **kwargs: Any) -> Run:
        """The run of a directory, to go on with.

        Args:
            folder: The directory.
            **kwargs: As for the class.
        """
        path = Path(folder) / "config.json"
        if not path.is_file():
            raise InvalidArgumentError(f"{folder} holds no run: there is no {path}")
        return cls(folder, Config.load(path), **kwargs)

    def __call__(self) -> RunResult:
        """Do every stage that is not done yet.

        Raises:
            KeyboardInterrupt: If it was interrupted; what was done is kept.
        """
        config = self.config
        mdp = self._file("extract", "mdp.npz", _watched(self._extract), TabularMDP.load, str)
        certificate, encoder, use = self._certified(mdp)
        certificate = certificate.with_model(mdp)
        verification = self._verify(certificate, mdp)
        comparison: list[AbstractionLoss] = []
        curves: list[Curve] = []
        if verification.is_valid and certificate.tau is not None:
            comparison = self._json(
                "compare",
                "comparison.json",
                lambda: compare_abstractions(mdp, certificate, embedding=encoder, seed=config.seed),
                _losses,
                _loss_detail,
            )
        is_usable = certificate.is_certified and config.source.can_be_learned_on(mdp)
        if config.learn and verification.is_valid and is_usable:
            curves = self._json(
                "learn",
                "curves.json",
                lambda: learning_curves(
                    config.source, mdp, certificate, steps=config.learn, seeds=config.learn_seeds
                ),
                lambda found: [_curve(row) for row in found],
                _curve_detail,
            )
        begin = self._begin("report")
        report = write_report(
            self.folder / "report.html",
            mdp,
            certificate,
            verification=verification,
            places=state_map(mdp, embedding=encoder),
            comparison=comparison,
            curves=curves,
            embedding=encoder,
            quality=embedding_quality(mdp, certificate, encoder, seed=config.seed),
            title=config.title,
            record=self._record(use),
            commands=self._commands(),
        )
        self._end("report", str(report), begin)
        return RunResult(self.folder, certificate, verification, report, tuple(self.stages), use)

    # -- stages ----------------------------------------------------------------------------

    def _extract(self, path: Path) -> None:
        """The first stage also makes the directory: a bad source or goal leaves nothing behind."""
        mdp = self.config.source.model(callback=self.callback)
        wanted = self.config.options.n_clusters
        if wanted is not None:
            live = mdp.n_states - (mdp.terminal_state is not None)
            check_int("n_clusters", wanted, low=1, high=max(live, 1))
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.json"
        if not config.exists():
            write_json(config, self.config.header() | {"versions": versions()})
        mdp.save(path)

    def _train(self, mdp: TabularMDP) -> Callable[[Path], None]:
        def work(path: Path) -> None:
            config = self.config
            assert config.training is not None
            train_encoder(
                config.source,
                mdp,
                config.training,
                config.gamma,
                config.seed,
                callback=self.callback,
            ).save(path)

        return work

    def _certified(self, mdp: TabularMDP) -> tuple[Certificate, Encoder | None, EncoderUse]:
        """The certificate, the encoder if one was trained, and why it was or was not."""
        training, asked = self.config.training, self.config.options
        if training is None:
            return self._certificate(mdp), None, EncoderUse(False, "none was asked for", False)
        if training.when == "always":
            encoder = self._encoder(mdp)
            certificate = self._certificate(mdp, encoder)
            return certificate, encoder, EncoderUse(True, "it was asked for", True)
        first = self.folder / FIRST
        if (self.folder / CERTIFICATE).exists() and not first.exists():
            certificate = self._certificate(mdp)
            why = _why_no_encoder(certificate, asked) or "there was a certificate already"
            return certificate, None, EncoderUse(False, why, False)
        found = self._certificate(mdp, name=FIRST, checkpoint=FIRST_CHECKPOINT)
        why = _why_no_encoder(found, asked)
        if why:
            os.replace(first, replaceable(self.folder / CERTIFICATE))
            return found, None, EncoderUse(False, why, False)
        why = f"what is found without an encoder is {judge(found).sentence}"
        encoder = self._encoder(mdp, why=why)
        certificate = self._certificate(mdp, encoder, rival=found, why="again, with the encoder")
        is_used = bool(certificate.run.get("settings", {}).get("embedding"))
        return certificate, encoder, EncoderUse(True, why, is_used)

    def _encoder(self, mdp: TabularMDP, *, why: str = "") -> Encoder:
        found: Encoder = self._file(
            "train", "encoder.npz", _watched(self._train(mdp)), _load_encoder, repr, why=why
        )
        if found.n_states != mdp.n_states:
            raise FileFormatError(
                f"{self.folder / 'encoder.npz'} encodes {states_text(found)}, the model "
                f"has {mdp.n_states:,}"
            )
        return found

    def _certificate(
        self,
        mdp: TabularMDP,
        encoder: Encoder | None = None,
        *,
        name: str = CERTIFICATE,
        checkpoint: str = CHECKPOINT,
        rival: Certificate | None = None,
        why: str = "",
    ) -> Certificate:
        """Made or found; a rival that is worth as much is taken instead."""

        def work(path: Path) -> float:
            unfinished = self.folder / checkpoint
            found = prove(
                mdp,
                self.config.gamma,
                self.config.options.with_embedding(encoder),
                resources=self.resources,
                checkpoint=unfinished,
                callback=self.callback,
            )
            if found.stop.startswith(INTERRUPTED):
                raise KeyboardInterrupt(found.stop)
            best = found if rival is None or _worth(found) > _worth(rival) else rival
            best.save(path)
            unfinished.unlink(missing_ok=True)
            return float(found.run["compile_seconds"])

        found: Certificate = self._file(
            "certify", name, work, Certificate.load, lambda found: judge(found).sentence, why=why
        )
        (self.folder / checkpoint).unlink(missing_ok=True)  # of a run killed right before that
        if found.fingerprint != mdp.fingerprint or found.gamma != self.config.gamma:
            raise FileFormatError(f"{self.folder / name} is not of this run's model and discount")
        return found

    def _verify(self, certificate: Certificate, mdp: TabularMDP) -> Verification:
        """Always made anew, and here: a verdict in a file, or of a cluster, could be anybody's."""
        begin = self._begin("verify")
        found = verify(mdp, certificate, resources=self.resources.here, callback=self.callback)
        write_json(self.folder / "verification.json", plain(found))
        detail = f"{found.verdict}: {found.problem}" if found.problem else found.verdict
        self._end("verify", detail, begin, found.compile_seconds)
        return found

    # -- files of stages -------------------------------------------------------------------

    def _file(
        self,
        stage: str,
        name: str,
        work: Callable[[Path], float],
        load: Callable[[Path], Any],
        detail: Callable[[Any], str],
        *,
        why: str = "",
    ) -> Any:
        path = self.folder / name
        if path.exists():
            found = load(path)
            self._told(Done(stage, detail(found), 0.0, False))
            return found
        begin = self._begin(stage, why)
        compiled = work(path)  # says how long that was
        # Read back though it is new: later stages see what a resumed run would see.
        found = load(path)
        self._end(stage, detail(found), begin, compiled)
        return found

    def _json(
        self,
        stage: str,
        name: str,
        work: Callable[[], Any],
        parse: Callable[[Any], Any],
        detail: Callable[[Any], str],
    ) -> Any:
        def load(path: Path) -> Any:
            try:
                return parse(json.loads(read_regular(path)))
            except FileFormatError:
                raise
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise FileFormatError(
                    f"{path} is damaged ({error}); delete it, and the run makes it anew"
                ) from error

        made = _watched(lambda path: write_json(path, plain(work())))
        return self._file(stage, name, made, load, detail)

    def _begin(self, stage: str, why: str = "") -> float:
        """Say that a stage begins, and when that was."""
        if self.before is not None:
            self.before(Begun(stage, why))
        return time.perf_counter()

    def _end(self, stage: str, detail: str, begin: float, compiled: float = 0.0) -> None:
        """Say what a stage that ran now came to, and how long it took."""
        seconds = max(time.perf_counter() - begin - compiled, 0.0)
        self._told(Done(stage, detail, seconds, True, compiled))

    def _told(self, done: Done) -> None:
        self.stages.append(done)
        if self.after is not None:
            self.after(done)

    # -- for the report --------------------------------------------------------------------

    def _record(self, use: EncoderUse) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(read_regular(self.folder / "config.json"))
        names = [name for name in ("config", "versions") if name in document]
        return {"encoder": str(use)} | {name: document[name] for name in names}

    def _commands(self) -> list[str]:
        files = [str(self.folder / name) for name in ("mdp.npz", CERTIFICATE)]
        lines = [["run", *self.config.words(), "-o", "again"], ["verify", *files]]
        return [shlex.join(["bisim-abstract", *line]) for line in lines]


def _constant(value: bool | int | float | str) -> str:
    """The value of a constant as the command line reads it."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _why_no_encoder(found: Certificate, asked: Options) -> str:
    """Why no encoder could improve on a certificate that was made without; empty if one might."""
    if judge(found).level == "useful":
        return "the clusters found without one are certified and worth it"
    if found.scope == "all" and "embedding" not in getattr(asked.method, "propose", ()):
        return "embeddings are not among the proposals asked for"
    if found.scope == "all" and found.coverage == 1.0:
        return "all pairs of states were looked at, and no proposal adds to that"
    if asked.tol is not None and found.global_width <= asked.tol:
        return "all bounds are as narrow as asked for without one"
    is_given = asked.threshold is not None or asked.n_clusters is not None
    if is_given and found.is_certified:
        return "the clusters asked for are certified without one"
    is_asked = any(goal is not None for goal in (asked.tau, asked.tol, asked.n_clusters))
    if found.scope == "covered" and not is_asked:
        return "no clusters are asked for"
    return ""


def _worth(found: Certificate) -> tuple[int, float, float]:
    """To compare certificates by: level of the verdict, share that is kept, width of the bounds."""
    verdict = judge(found)
    kept = -np.inf if verdict.kept is None else verdict.kept
    return LEVELS.index(verdict.level), kept, -found.global_width


def check_folder(folder: Path) -> None:
    """Refuse at once a directory that could not be written to."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(20, "is a file, and a directory is needed", str(folder))
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise NotADirectoryError(20, "is no directory", str(nearest))
    if not os.access(nearest, os.W_OK):
        raise PermissionError(13, "the directory is not writable", str(nearest))


def plain(value: Any) -> Any:
    """Results as JSON values: dataclasses as objects, arrays as lists, NaN and infinity as null."""
    if isinstance(value, Verification | AbstractionLoss | ValueLoss | Curve):
        # Times do not compare: files of equal runs are equal.
        held = [entry.name for entry in fields(value) if entry.compare]
        return {name: plain(getattr(value, name)) for name in held}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def _watched(work: Callable[[Path], None]) -> Callable[[Path], float]:
    """The same work, which also says how many seconds solvers were compiled for it."""

    def watched(path: Path) -> float:
        from bisim_abstract._base.jit import watching

        with watching() as found:
            work(path)
        return found.seconds

    return watched


def _load_encoder(path: Path) -> Encoder:
    from bisim_abstract.encoders import load_encoder

    return load_encoder(path)


def _losses(rows: Any) -> list[AbstractionLoss]:
    """Rows of a file, which must hold at least one."""
    found = [_loss(row) for row in rows]
    if not found:
        raise ValueError("no rows")
    return found


def _loss(row: dict[str, Any]) -> AbstractionLoss:
    numbers = {name: -np.inf if x is None else x for name, x in row["loss"].items()}
    return AbstractionLoss(**row | {"loss": ValueLoss(**numbers)})


def _loss_detail(rows: list[AbstractionLoss]) -> str:
    first = rows[0]
    kept, lost = share_text(first.loss.kept), amount_text(first.loss.sup)
    others = counted(len(rows) - 1, "other")
    return f"{first.name}: keeps {kept}, loses {lost} at most; {others} beside it"


def _curve(row: dict[str, Any]) -> Curve:
    scores: FloatArray = np.array(row["scores"], dtype=np.float64)
    steps = tuple(int(x) for x in row["steps"])
    if scores.ndim != 2 or 0 in scores.shape or scores.shape[1] != len(steps):
        points = counted(len(steps), "point")
        raise ValueError(f"scores of shape {scores.shape} do not belong to {points}")
    return Curve(str(row["name"]), steps, scores)


def _curve_detail(curves: list[Curve]) -> str:
    last = (f"{curve.name} {float(np.median(curve.scores[:, -1])):.0%}" for curve in curves)
    return "; ".join(last)
