"""Runs: the whole chain in one directory, from a source to a report, stage by stage.

Every stage leaves a file, written whole or not at all, and reads only files of stages before
it: a run that was interrupted goes on where it stopped, and ends as it would have. A manifest
binds the files together, and a lock keeps a second run out (`manifest`, `_base.lock`).
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bisim_abstract._abstract.aggregate import lift_policy
from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._abstract.value_loss import ValueLoss
from bisim_abstract._app.config import LEARN_SEEDS, Config, Training, stored_config, versions
from bisim_abstract._app.manifest import (
    CERTIFICATE,
    COMPARISON,
    CONFIG,
    CURVES,
    ENCODER,
    FIRST,
    MANIFEST,
    MODEL,
    REPORT,
    VERIFICATION,
    Manifest,
    is_leftover,
)
from bisim_abstract._app.report import write_report
from bisim_abstract._app.sources import Source
from bisim_abstract._app.state_map import state_map
from bisim_abstract._base.atomic import (
    check_folder_writable,
    check_no_loop,
    remove_unfinished,
    write_json,
)
from bisim_abstract._base.checks import check_int
from bisim_abstract._base.lock import holder, locked
from bisim_abstract._base.memory import check_address_space
from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.text import clusters_text, counted
from bisim_abstract._base.types import FloatArray, ProgressCallback
from bisim_abstract._base.untrusted import parse_text, read_regular
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.verdict import Verdict, judge
from bisim_abstract._compare.embeddings import EmbeddingQuality, evaluate_embedding
from bisim_abstract._compare.learning import Curve, QLearning, learning_curve, score_above_baseline
from bisim_abstract._compare.losses import AbstractionLoss, compare_abstractions
from bisim_abstract._exact.planning import value_iteration
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._prove.driver import prove
from bisim_abstract._prove.options import AUTO, Options
from bisim_abstract._verify.verify import Verification, verify
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

if TYPE_CHECKING:
    from bisim_abstract.encoders import Encoder

STAGES = ("extract", "train", "certify", "verify", "compare", "learn", "report")
LEVELS = ("open", "poor", "useful")  # of verdicts, rising
# Checkpoints are not listed in manifests: they come and go, hold their own digest, and say of
# what model and settings they are, which is looked at when one is taken up.
CHECKPOINT, FIRST_CHECKPOINT = "checkpoint.npz", "first-checkpoint.npz"
POINTS = 20  # of a learning curve
MEASURE = "start value, the baseline 0 and the best policy 1"  # of its scores
MOST_FITTED = 1_000  # states up to which encoders are held against what they are trained for
RAW_LIMIT = 20_000_000  # entries of an agent's table over raw states


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
    """An encoder of the requested kind, not yet trained."""
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
    check_address_space(has_torch=True)
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
    source: Source,
    mdp: TabularMDP,
    certificate: Certificate,
    *,
    steps: int,
    seeds: int = LEARN_SEEDS,
) -> list[Curve]:
    """Q-learning on the certified abstraction, and the same agent on raw states.

    Scores are start values on a scale where the baseline has 0 and the best policy 1.

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
    score = score_above_baseline(mdp, gamma, optimal=value_iteration(mdp, gamma))
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
    asked: dict[str, Any] = {"seeds": seeds, "measure": MEASURE}
    for dynamics, name in (("aggregated", "aggregated steps"), ("ground", "real steps")):
        env = AbstractedEnv(source.env(mdp), certificate, dynamics=dynamics, reading=source.reading)
        small = env.aggregation

        def lifted(policy: Any, small: Any = small) -> float:
            return score(lift_policy(small, policy))

        has_end = mdp.terminal_state is not None
        label = f"{clusters_text(small.n_clusters, has_end=has_end)}, {name}"
        curves.append(learning_curve(label, agent(env), lifted, points, **asked))
        env.close()
    if mdp.n_states * mdp.n_actions <= RAW_LIMIT:
        raw = TabularEnv(source.env(mdp), reading=source.reading)
        label = counted(certificate.n_live, "raw state")
        curves.append(learning_curve(label, agent(raw, mdp.n_states), score, points, **asked))
        raw.close()
    return curves


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
        self.manifest: Manifest | None = None
        self._held = ExitStack()
        check_folder(self.folder)
        self._look()

    @classmethod
    def resume(cls, folder: str | Path, **kwargs: Any) -> Run:
        """The run of a directory, to go on with.

        Args:
            folder: The directory.
            **kwargs: As for the class.
        """
        return cls(folder, stored_config(Manifest.load(folder)), **kwargs)

    def _look(self) -> Manifest | None:
        """The manifest of the directory, if it holds a run; it must be this one."""
        if not self.folder.is_dir():
            return None
        names = {path.name for path in self.folder.iterdir() if not is_leftover(path)}
        if not names:
            return None
        if not names & {MANIFEST, CONFIG}:
            raise InvalidArgumentError(
                f"{self.folder} is not empty and holds no run; give another directory"
            )
        manifest = Manifest.load(self.folder)
        ours, theirs = (
            json.loads(json.dumps(each.header()["config"]))
            for each in (self.config, stored_config(manifest))
        )
        if ours != theirs:
            raise InvalidArgumentError(
                f"{self.folder} holds a run with other settings; give another directory, or "
                "resume that one"
            )
        return manifest

    def _take(self) -> None:
        """Keep others out of the directory, and look what is there."""
        self._held.enter_context(locked(self.folder, what="a run"))
        manifest = self._look()  # once more: nobody else writes there from now on
        remove_unfinished(self.folder)
        if manifest is None:
            manifest = Manifest(self.folder, self.config.digest)
            staged = manifest.staged(CONFIG)
            write_json(staged, self.config.header() | {"versions": versions()})
            manifest.land(CONFIG, staged)
        manifest.recover()
        manifest.check(is_resumed=True)
        self.manifest = manifest

    @property
    def files(self) -> Manifest:
        """The manifest of a directory that is taken."""
        assert self.manifest is not None
        return self.manifest

    def __call__(self) -> RunResult:
        """Do every stage that is not done yet.

        Raises:
            KeyboardInterrupt: If it was interrupted; what was done is kept.
        """
        self.stages, self.manifest = [], None
        with self._held:
            if (self.folder / MANIFEST).exists():
                self._take()
            return self._all_stages()

    def _all_stages(self) -> RunResult:
        config, mdp = self.config, self._model()
        certificate, encoder, use = self._certified(mdp)
        certificate = certificate.with_model(mdp)
        verification = self._verify(certificate, mdp)
        comparison: list[AbstractionLoss] = []
        curves: list[Curve] = []
        proof = [MODEL, CERTIFICATE]
        if verification.is_valid and certificate.tau is not None:
            comparison = self._json(
                "compare",
                COMPARISON,
                lambda: compare_abstractions(mdp, certificate, embedding=encoder, seed=config.seed),
                _losses,
                _loss_detail,
                made_from=proof if encoder is None else [*proof, ENCODER],
            )
        else:
            self.files.drop(COMPARISON)
        is_usable = certificate.is_certified and config.source.can_be_learned_on(mdp)
        if config.learn and verification.is_valid and is_usable:
            curves = self._json(
                "learn",
                CURVES,
                lambda: learning_curves(
                    config.source, mdp, certificate, steps=config.learn, seeds=config.learn_seeds
                ),
                _curves,
                _curve_detail,
                made_from=proof,
            )
        else:
            self.files.drop(CURVES)
        begin = self._begin("report")
        staged, parts = self.files.staged(REPORT), [CONFIG, *proof]
        parts += [name for name in (ENCODER, COMPARISON, CURVES) if name in self.files.files]
        write_report(
            staged,
            mdp,
            certificate,
            verification=verification,
            places=state_map(mdp, embedding=encoder),
            comparison=comparison,
            curves=curves,
            embedding=encoder,
            quality=embedding_quality(mdp, certificate, encoder, seed=config.seed),
            title=config.title,
            record={"encoder": str(use)} | run_record(self.folder),
            bonds=self.files.bonds(*parts),
            commands=run_commands(self.folder, config),
        )
        self.files.land(REPORT, staged, made_from=parts)
        report = self.folder / REPORT
        self._end("report", str(report), begin)
        return RunResult(self.folder, certificate, verification, report, tuple(self.stages), use)

    # -- stages ----------------------------------------------------------------------------

    def _model(self) -> TabularMDP:
        """The first stage also makes the directory: a bad source or goal leaves nothing behind."""
        made: list[TabularMDP] = []

        def work(path: Path | None) -> None:
            mdp = self.config.source.model(callback=self.callback)
            wanted = self.config.options.n_clusters
            if wanted is not None:
                live = mdp.n_states - (mdp.terminal_state is not None)
                check_int("n_clusters", wanted, low=1, high=max(live, 1))
            made.append(mdp)

        if self.manifest is not None and self.manifest.is_current(MODEL):
            mdp = TabularMDP.load(self.folder / MODEL)
            self._told(Done("extract", str(mdp), 0.0, False))
            return mdp
        begin = self._begin("extract", self._why(MODEL))
        compiled = _watched(work)(self.folder)
        if self.manifest is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take()
        if not self.files.is_current(MODEL):  # else another run of these settings was faster
            staged = self.files.staged(MODEL)
            made[0].save(staged)
            self.files.land(MODEL, staged)
        mdp = TabularMDP.load(self.folder / MODEL)
        self._end("extract", str(mdp), begin, compiled)
        return mdp

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
            return self._certificate(mdp), None, EncoderUse(False, "none was requested", False)
        if training.when == "always":
            encoder = self._encoder(mdp)
            certificate = self._certificate(mdp, encoder)
            return certificate, encoder, EncoderUse(True, "it was requested", True)
        if self.files.is_current(CERTIFICATE) and FIRST not in self.files.files:
            certificate = self._certificate(mdp)
            (self.folder / FIRST_CHECKPOINT).unlink(missing_ok=True)
            why = _why_no_encoder(certificate, asked) or "there was a certificate already"
            return certificate, None, EncoderUse(False, why, False)
        found = self._certificate(mdp, name=FIRST, checkpoint=FIRST_CHECKPOINT)
        why = _why_no_encoder(found, asked)
        if why:
            self.files.land(CERTIFICATE, self.folder / FIRST, made_from=[MODEL])
            return found, None, EncoderUse(False, why, False)
        why = f"what is found without an encoder is {judge(found).sentence}"
        encoder = self._encoder(mdp, why=why)
        certificate = self._certificate(mdp, encoder, rival=found, why="again, with the encoder")
        is_used = bool(certificate.run.get("settings", {}).get("embedding"))
        return certificate, encoder, EncoderUse(True, why, is_used)

    def _encoder(self, mdp: TabularMDP, *, why: str = "") -> Encoder:
        found: Encoder = self._file(
            "train",
            ENCODER,
            _watched(self._train(mdp)),
            _load_encoder,
            repr,
            why=why,
            made_from=[MODEL],
        )
        if found.n_states != mdp.n_states:
            raise FileFormatError(
                f"{self.folder / ENCODER} encodes {states_text(found)}, the model "
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
        times: dict[str, float] = {}

        def work(path: Path) -> float:
            unfinished = self.folder / checkpoint
            found = prove(
                mdp,
                self.config.gamma,
                self.config.options.with_embedding(encoder),
                resources=self.resources,
                # Several runs have no checkpoint in common: they begin anew.
                checkpoint=None if self.config.options.relation == AUTO else unfinished,
                callback=self.callback,
                gives_up=True,
            )
            best = found if rival is None or _worth(found) > _worth(rival) else rival
            best.save(path)
            times.update(best.times)
            return float(found.run["compile_seconds"])

        parts = [MODEL] if encoder is None else [MODEL, ENCODER]
        found: Certificate = self._file(
            "certify",
            name,
            work,
            Certificate.load,
            lambda found: judge(found).sentence,
            why=why,
            made_from=parts if rival is None else [*parts, FIRST],
            scratch=self.folder / checkpoint,
            times=times,
        )
        _check_bond(self.folder / name, found, mdp, self.config)
        return found.with_times(self.files.files[name].times)

    def _verify(self, certificate: Certificate, mdp: TabularMDP) -> Verification:
        """Always made anew, and here: a verdict in a file, or of a cluster, could be anybody's."""
        begin = self._begin("verify")
        found = verify(mdp, certificate, resources=self.resources.here, callback=self.callback)
        staged = self.files.staged(VERIFICATION)
        write_json(staged, plain(found))
        self.files.land(VERIFICATION, staged, made_from=[MODEL, CERTIFICATE])
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
        made_from: Iterable[str],
        scratch: Path | None = None,
        times: Mapping[str, float] | None = None,
    ) -> Any:
        path = self.folder / name
        if self.files.is_current(name):
            if scratch is not None:  # of a run that was killed right before it removed that
                scratch.unlink(missing_ok=True)
            found = load(path)
            self._told(Done(stage, detail(found), 0.0, False))
            return found
        begin = self._begin(stage, why or self._why(name))
        staged = self.files.staged(name)
        compiled = work(staged)  # says how long that was
        self.files.land(name, staged, made_from=made_from, times=times)
        if scratch is not None:  # only now: a kill before loses nothing
            scratch.unlink(missing_ok=True)
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
        *,
        made_from: Iterable[str],
    ) -> Any:
        made = _watched(lambda path: write_json(path, plain(work())))
        return self._file(
            stage, name, made, lambda path: _read_json(path, parse), detail, made_from=made_from
        )

    def _why(self, name: str) -> str:
        """Why a stage that was done is done again; empty if it was not."""
        if self.manifest is None or name not in self.manifest.files:
            return ""
        if self.manifest.is_stale(name):
            return "again, from what was made anew"
        return f"{name} is gone"

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


@dataclass(frozen=True)
class SavedRun:
    """What a directory holds of a run, read and not changed.

    Attributes:
        config: The settings.
        manifest: The files.
        mdp: The model.
        certificate: The certificate.
        encoder: The encoder, if one was trained.
        comparison: Losses beside others, if they are there yet.
        curves: Learning curves, if they are there yet.
    """

    config: Config
    manifest: Manifest
    mdp: TabularMDP
    certificate: Certificate
    encoder: Encoder | None
    comparison: list[AbstractionLoss]
    curves: list[Curve]


def read_run(folder: Path) -> SavedRun:
    """The run of a directory, whose files are all as it wrote them.

    Args:
        folder: The directory.

    Raises:
        InvalidArgumentError: If it holds no run, or one without a certificate yet.
        FileFormatError: If a file is missing, was altered, or is none of the run's.
    """
    manifest = Manifest.load(folder)
    manifest.check()
    config, names = stored_config(manifest), manifest.files
    if CERTIFICATE not in names:
        by = holder(folder)
        remedy = f"go on with it by bisim-abstract run --resume {folder}"
        if by is not None:
            remedy = f"it is under way, {by}; wait for its end"
        raise InvalidArgumentError(f"the run in {folder} has no certificate yet: {remedy}")
    found = SavedRun(
        config,
        manifest,
        TabularMDP.load(folder / MODEL),
        Certificate.load(folder / CERTIFICATE).with_times(names[CERTIFICATE].times),
        _load_encoder(folder / ENCODER) if ENCODER in names else None,
        _read_json(folder / COMPARISON, _losses) if COMPARISON in names else [],
        _read_json(folder / CURVES, _curves) if CURVES in names else [],
    )
    _check_bond(folder / CERTIFICATE, found.certificate, found.mdp, config)
    return found


def _check_bond(path: Path, found: Certificate, mdp: TabularMDP, config: Config) -> None:
    if found.fingerprint != mdp.fingerprint or found.gamma != config.gamma:
        raise FileFormatError(f"{path} is not of this run's model and discount")


def _read_json(path: Path, parse: Callable[[Any], Any]) -> Any:
    try:
        return parse(parse_text(read_regular(path)))
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f"{path} is damaged ({error}); delete it, and the run makes it anew"
        ) from error


def run_record(folder: Path) -> dict[str, Any]:
    """What a page says of a run: the settings and the versions.

    Args:
        folder: Where it is.
    """
    document: dict[str, Any] = _read_json(folder / CONFIG, dict)
    found = {"config": document["config"]}
    held = document.get("versions")
    if isinstance(held, dict):  # which nothing else has looked at
        found["versions"] = {name: text for name, text in held.items() if isinstance(text, str)}
    return found


def run_commands(folder: Path, config: Config) -> list[str]:
    """Commands that make a run again, and that check this one.

    Args:
        folder: Where it is.
        config: Its settings.
    """
    lines = [["run", *config.words(), "-o", "again"], ["verify", str(folder)]]
    return [shlex.join(["bisim-abstract", *line]) for line in lines]


def _why_no_encoder(found: Certificate, asked: Options) -> str:
    """Why no encoder could improve on a certificate that was made without; empty if one might."""
    if judge(found).level == "useful":
        return "the clusters found without one are certified and useful"
    if not asked.takes_embedding:
        return f"relation={asked.relation!r} takes none"
    if found.scope == "all" and "embedding" not in getattr(asked.method, "propose", ()):
        return "embeddings are not among the requested proposals"
    if found.scope == "all" and found.coverage == 1.0:
        return "all pairs of states were looked at, and no proposal adds to that"
    if asked.tol is not None and found.global_width <= asked.tol:
        return "all bounds are as narrow as requested without one"
    is_given = asked.threshold is not None or asked.n_clusters is not None
    if is_given and found.is_certified:
        return "the requested clusters are certified without one"
    is_asked = any(goal is not None for goal in (asked.tau, asked.tol, asked.n_clusters))
    if found.scope == "covered" and not is_asked:
        return "no clusters are requested"
    return ""


def _worth(found: Certificate) -> tuple[int, float, float]:
    """To compare certificates by: level of the verdict, kept share, width of the bounds."""
    verdict = judge(found)
    kept = -np.inf if verdict.kept is None else verdict.kept
    return LEVELS.index(verdict.level), kept, -found.global_width


def check_folder(folder: Path) -> None:
    """Refuse at once a directory that could not be written to."""
    check_no_loop(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(20, "is a file, and a directory is needed", str(folder))
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise NotADirectoryError(20, "is no directory", str(nearest))
    check_folder_writable(nearest)


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
    return f"{first.name}: {kept} retained, loss at most {lost}; next to {others}"


def _curves(rows: Any) -> list[Curve]:
    return [_curve(row) for row in rows]


def _curve(row: dict[str, Any]) -> Curve:
    scores: FloatArray = np.array(row["scores"], dtype=np.float64)
    steps = tuple(int(x) for x in row["steps"])
    if scores.ndim != 2 or 0 in scores.shape or scores.shape[1] != len(steps):
        points = counted(len(steps), "point")
        raise ValueError(f"scores of shape {scores.shape} do not belong to {points}")
    return Curve(str(row["name"]), steps, scores, str(row.get("measure", "score")))


def _curve_detail(curves: list[Curve]) -> str:
    # Adding 0 makes of a small loss "0%", not "-0%".
    ends = [(curve.name, round(float(np.median(curve.scores[:, -1])), 2) + 0.0) for curve in curves]
    return "; ".join(f"{name} {score:.0%}" for name, score in ends)
