"""The command `bisim-abstract`: what the package does, without writing Python.

Only the parser is made at once; everything heavy is imported by the command that needs it, so
that `--help` answers immediately. Commands that take both a model and a certificate take them in
this order, as the functions of the package do.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import io
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bisim_abstract._base import starting
from bisim_abstract._base.reading import Reading
from bisim_abstract._version import __version__

if TYPE_CHECKING:
    from bisim_abstract._abstract.value import ProvenValue
    from bisim_abstract._app.config import Config, Training
    from bisim_abstract._app.runs import Begun, Done, SavedRun
    from bisim_abstract._app.sources import Source
    from bisim_abstract._base.resources import Resources
    from bisim_abstract._base.types import Progress, ProgressCallback
    from bisim_abstract._certificate.certificate import Certificate

__all__ = ["console", "main"]

OK, FAULT, BAD_INPUT, NOT_CERTIFIED, REJECTED, POOR, STOPPED = 0, 1, 2, 3, 4, 5, 130
EXIT_CODES = """exit codes:
  0  done: certified and useful, verified, written
  1  a fault of this program
  2  bad input: an argument, an environment, a file
  3  not certified: no threshold, or the two clusterings differ there
  4  rejected: the certificate does not hold
  5  certified, but less is proven than requested, clearly fewer episodes may end than under
     the best policy, or nothing is merged
  130  interrupted
"""
EXAMPLES = """examples:
  bisim-abstract run bisim_abstract/RoomsGrid-v0 -o rooms --learn 10000
  bisim-abstract certify FrozenLake-v1 --env-arg map_name=8x8 -o lake.npz
  bisim-abstract verify FrozenLake-v1 lake.npz --env-arg map_name=8x8
"""
STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33"}  # as terminals number them
# Options that say how a source is read.
READING = (
    *("env_arg", "backgrounds"),
    *(name for name in Reading.flags() if name != "seed"),
    *("const", "reward", "goal", "actions"),
)
OR_RUN = "a certificate's file; none if SOURCE is the directory of a run, which has its own"
TRAINING = ("kind", "steps", "dim", "transitions", "experience", "same_action")


def console() -> NoReturn:
    """`main` as a process of its own, which ends when it has said what it has to say.

    Python would go on to take down half a million objects of torch and the compiled solvers one
    by one, for seconds; the system takes their memory back at once. What others want to have done
    at the end (Ray, temporary files) is done.
    """
    try:
        try:
            code = main()
        except SystemExit as stop:  # --help and --version
            code = int(stop.code or OK)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except KeyboardInterrupt:  # while an end was told, or something put away
        code = STOPPED
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: Arguments; those of the process by default.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Names of files may hold bytes that are no text: they are shown escaped.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Before anything is parsed, the words themselves say how errors are to be told.
    options = argparse.Namespace(words=words, json="--json" in words, debug="--debug" in words)
    before: dict[str, Any] = {}
    try:
        starting.done()
        _check_words(words)
        parser = _parser()
        _check_names(parser, words)
        options = parser.parse_args(_joined(words), argparse.Namespace(words=words))
        before = _outputs(options)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            for name in options.imports:
                _imported(name)
            code: int = options.command(options, Out(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        starting.stopped()
        return _failed(options, STOPPED, f"interrupted: {_what_is_kept(options, before)}")
    except BrokenPipeError:
        return _silenced()
    except Exception as error:
        if options.debug:
            raise
        return _failed(options, *_explained(error))


def _outputs(options: argparse.Namespace) -> dict[str, tuple[int, ...] | None]:
    """Files that a command may write, and by what to know those that lie there now."""
    given = vars(options)
    names = [given.get("out"), given.get("checkpoint")]
    if options.name == "certify":
        names.append(f"{options.out}.interrupted")
    if options.name == "export":
        names.append(options.clusters)
    return {name: _stamp(name) for name in names if name is not None and options.name != "run"}


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _what_is_kept(options: argparse.Namespace, before: Mapping[str, Any]) -> str:
    """What an interrupted command leaves, and how to go on. Files are written whole or not."""
    given = vars(options)
    if given.get("name") == "run":
        from bisim_abstract._app.manifest import MANIFEST

        folder = options.out if options.resume is None else options.resume
        if folder is not None and os.path.lexists(os.path.join(folder, MANIFEST)):
            again = _quoted(["bisim-abstract", "run", "--resume", folder])
            return f"what was done is kept in {folder}; go on with {again}"
        return "nothing is kept yet; give the same command again"
    if given.get("name") == "compile":
        return "what is compiled is kept; give the same command again for the rest"
    new = [path for path, stamp in before.items() if _stamp(path) not in (None, stamp)]
    kept = given.get("checkpoint")
    if new == [kept] or (not new and kept is not None and os.path.exists(kept)):
        return f"the steps that were done are kept in {kept}; the same command goes on from there"
    return (
        f"{' and '.join(new)} {'is' if len(new) == 1 else 'are'} written"
        if new
        else ("nothing was written")
    )


def _check_words(words: Sequence[str]) -> None:
    from bisim_abstract._base.text import short
    from bisim_abstract.errors import InvalidArgumentError

    for word in words:
        if "\0" in word:
            raise InvalidArgumentError(f"argument {short(word)} holds a null character")


def _check_names(parser: _Parser, words: Sequence[str]) -> None:
    """Say what a mistyped command or option may have meant; all else is left to the parser."""
    from bisim_abstract._base.text import did_you_mean, short
    from bisim_abstract.errors import InvalidArgumentError

    asked: _Parser = parser
    for word in words:
        if word in ("--", "-h", "--help", "--version"):
            return
        if not word.startswith("-") and asked is parser:
            if word not in parser.commands:
                hint = did_you_mean(word, parser.commands) or (
                    f"; commands are {', '.join(parser.commands)}"
                )
                raise InvalidArgumentError(f"there is no command {short(word)}{hint}")
            asked = parser.commands[word]
        flag = word.partition("=")[0]
        known = asked._option_string_actions
        # The parser takes what has a space for a value, and the beginning of a name for the name.
        is_known = any(option.startswith(flag) for option in known)
        if flag.startswith("--") and " " not in word and not is_known:
            hint = did_you_mean(flag, known) or f"; see {asked.prog} --help"
            raise InvalidArgumentError(f"there is no option {flag}{hint}")


def _joined(words: Sequence[str]) -> list[str]:
    """The words with costs, as in `--reward -energy`, joined to what they belong to.

    The parser would take such a name for an option.
    """
    found: list[str] = []
    for word in words:
        is_cost = word[:1] == "-" and word[1:2] not in ("", "-") and word not in ("-h", "-o")
        if is_cost and found[-1:] == ["--reward"]:
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _silenced() -> int:
    """The reader of our output has gone: nothing more can be told, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK


def _gymnasium_errors() -> tuple[type[Exception], ...]:
    """What Gymnasium raises itself; nothing if it was not used."""
    module = sys.modules.get("gymnasium.error")
    return () if module is None else (module.Error,)


def _explained(error: Exception) -> tuple[int, str]:
    """Exit code and sentence of an error."""
    from bisim_abstract._base.memory import address_limit, human_bytes
    from bisim_abstract.errors import BisimError, NotCertifiedError, VerificationError

    text, kind = str(error), type(error).__name__
    if isinstance(error, ImportError | OSError) and getattr(error, "errno", None) is None:
        limit = address_limit()  # short of which libraries cannot be loaded, and give other reasons
        if limit is not None:
            text += (
                f"; the address space of this process is limited to {human_bytes(limit)}: if that "
                "is too little, allow more with ulimit -v"
            )
            return BAD_INPUT, text
    for note in getattr(error, "__notes__", ()):
        from bisim_abstract.wrappers._source import RAISED

        if note.startswith(RAISED):  # in code of somebody else
            return BAD_INPUT, f"{kind}: {text or 'without a word'}, {note}; --debug shows where"
    if isinstance(error, NotCertifiedError):
        return NOT_CERTIFIED, text
    if isinstance(error, VerificationError):
        return REJECTED, text
    if isinstance(error, BisimError):
        return BAD_INPUT, text
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return BAD_INPUT, f"{where}{error.strerror or text}"
    if isinstance(error, _gymnasium_errors()):
        return BAD_INPUT, f"the environment cannot be made: {text}"
    if isinstance(error, MemoryError):
        return BAD_INPUT, f"out of memory {text}".strip()
    return FAULT, f"a fault of this program ({kind}: {text}); --debug shows where"


def _failed(options: argparse.Namespace, code: int, text: str) -> int:
    # One sentence on one line, whatever the message was made of.
    from bisim_abstract.errors import cut

    sentence = _shown(cut(" ".join(text.split())))
    if options.json:
        try:
            print(json.dumps({"error": sentence, "exit_code": code}), flush=True)  # noqa: T201
        except BrokenPipeError:
            _silenced()
    print(f"bisim-abstract: {sentence}", file=sys.stderr)  # noqa: T201
    return code


def _show_warning(message: Warning | str, *args: Any, **kwargs: Any) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(message))  # Gymnasium colours its own
    print(f"note: {_shown(' '.join(text.split()))}", file=sys.stderr)  # noqa: T201


def _shown(text: str) -> str:
    """A line as a terminal may see it: no control characters, and what is no text escaped.

    The last two are done in this order: an escape is text, and a byte that is none may be a
    control character of some terminal.
    """
    from bisim_abstract._base.text import plain_text

    return plain_text(text.encode("utf-8", "backslashreplace").decode())


def _imported(name: str) -> None:
    from bisim_abstract.errors import InvalidArgumentError

    # Scripts do not look there, other than `python -m`; last, so that nothing is hidden by it.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(name)
    except Exception as error:  # the module's own code runs here
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise InvalidArgumentError(f"--import {name}: {kind}{error}") from error


# -- output ------------------------------------------------------------------------------------


class Out:
    """Where results go: lines for people, or one JSON object.

    Attributes:
        callback: For functions that take long. None lets them show a line on a terminal.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.is_json, self.is_quiet = options.json, options.quiet or options.json
        # Colours are for eyes: a pipe or file never gets any, whatever the environment says.
        is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._has_colours = sys.stdout.isatty() and not is_plain
        self.callback: ProgressCallback | None = None
        if options.quiet:
            self.callback = _ignore
        elif self.is_json or not sys.stderr.isatty():
            self.callback = _notice

    def line(self, text: str, *, style: str = "") -> None:
        """One line for people, at once, so that a pipe shows it when it is said."""
        if self.is_quiet:
            return
        text = _shown(text)
        if style and self._has_colours:
            codes = ";".join(STYLES[word] for word in style.split())
            text = f"\x1b[{codes}m{text}\x1b[0m"
        print(text, flush=True)  # noqa: T201

    def finish(
        self,
        result: dict[str, Any],
        rows: Sequence[tuple[str, str]],
        title: str,
        *,
        colour: str = "",
    ) -> None:
        """Show a result: the object, or the rows under a title."""
        if self.is_json:
            from bisim_abstract._app.runs import plain

            print(json.dumps(plain(result), allow_nan=False), flush=True)  # noqa: T201
            return
        self.line(title, style=f"bold {colour}".strip())
        width = max((len(name) for name, _ in rows), default=0)
        for name, text in rows:
            self.line(f"  {name:<{width}}  {text}")

    def begun(self, stage: Begun) -> None:
        """One line for a stage of a run that begins."""
        why = f" ({stage.detail})" * bool(stage.detail)
        self.line(f"  {stage.stage} ...{why}")

    def done(self, stage: Done) -> None:
        """One line for what a stage came to."""
        from bisim_abstract._base.text import seconds_text

        if stage.is_new:
            took = seconds_text(stage.seconds, stage.compile_seconds)
            self.line(f"    {took}: {stage.detail}")
        else:
            self.line(f"  {stage.stage}, done before: {stage.detail}")


def _notice(progress: Progress) -> None:
    """What a log should hold of the progress: that solvers are compiled, when that begins."""
    if progress.stage == "compile" and progress.done == 0:
        print(f"note: {progress.detail}", file=sys.stderr, flush=True)  # noqa: T201


def _ignore(progress: Progress) -> None:
    pass


# -- commands ----------------------------------------------------------------------------------


def _extract(options: argparse.Namespace, out: Out) -> int:
    _check_target(options.out)
    mdp = _source(options).model(callback=out.callback)
    mdp.save(options.out)
    end = "none" if mdp.terminal_state is None else str(mdp.terminal_state)
    result = {
        "file": options.out,
        "states": mdp.n_states,
        "actions": mdp.n_actions,
        "transitions": mdp.nnz,
        "terminal_state": mdp.terminal_state,
        "fingerprint": mdp.fingerprint,
        "metadata": dict(mdp.metadata),
    }
    rows = [
        ("states", f"{mdp.n_states:,}"),
        ("actions", f"{mdp.n_actions:,}"),
        ("transitions", f"{mdp.nnz:,}"),
        ("end state", end),
        ("fingerprint", mdp.fingerprint[:16]),
        ("written", options.out),
    ]
    out.finish(result, rows, f"model of {options.source}")
    return OK


def _train(options: argparse.Namespace, out: Out) -> int:
    from bisim_abstract._app.runs import train_encoder
    from bisim_abstract._base.jit import watching
    from bisim_abstract._base.text import counted, seconds_text

    _check_target(options.out)
    training, source = _training(options), _source(options)
    mdp = source.model(callback=out.callback)
    begin = time.perf_counter()
    with watching() as compiled:
        encoder = train_encoder(
            source, mdp, training, options.gamma, options.seed, callback=out.callback
        )
    encoder.save(options.out)
    seconds = time.perf_counter() - begin - compiled.seconds
    result = {
        "file": options.out,
        "encoder": training.kind,
        "steps": training.steps,
        "dim": training.dim,
        **_times(seconds, compiled.seconds),
    }
    took = seconds_text(seconds, compiled.seconds)
    rows = [
        ("encoder", repr(encoder)),
        ("trained", f"{counted(training.steps, 'step')} in {took}"),
        ("written", options.out),
    ]
    states = counted(mdp.n_states, "state")
    out.finish(result, rows, f"encoder of the {states} of {options.source}")
    return OK


def _certify(options: argparse.Namespace, out: Out) -> int:
    from bisim_abstract._base.text import seconds_text
    from bisim_abstract._prove.driver import prove
    from bisim_abstract._prove.options import Options
    from bisim_abstract._prove.work import INTERRUPTED
    from bisim_abstract.errors import InvalidArgumentError

    _check_target(options.out, source=options.source)
    if options.checkpoint is not None:
        _check_target(options.checkpoint, source=options.source)
        if Path(options.checkpoint).resolve() == Path(options.out).resolve():
            raise InvalidArgumentError(
                f"-o and --checkpoint must be two files, got {options.out} for both: a checkpoint "
                "is an unfinished certificate"
            )
    asked = Options.named(_goal(options) | {"seed": options.seed})
    if options.encoder is not None:
        asked.check_embedding()
    mdp = _source(options).model(callback=out.callback)
    begin = time.perf_counter()
    found = prove(
        mdp,
        options.gamma,
        asked.with_embedding(_encoder(options, mdp.n_states)),
        resources=_resources(options),
        checkpoint=options.checkpoint,
        callback=out.callback,
    )
    is_stopped = found.stop.startswith(INTERRUPTED)
    target = options.out
    if is_stopped and Path(target).exists():
        target += ".interrupted"  # what is there may be better than half a run
    with starting.finishing():
        # Packing is what takes long, and nobody waits after Ctrl-C.
        found.save(target, compress=not is_stopped)
    compiled = float(found.run["compile_seconds"])
    seconds = time.perf_counter() - begin - compiled
    result = _described(found) | {"file": target} | _times(seconds, compiled)
    rows = [
        *_lines(found.summary()),
        ("took", seconds_text(seconds, compiled)),
        ("written", target),
    ]
    out.finish(result, rows, found.verdict.sentence, colour=found.verdict.colour)
    if is_stopped:
        kept = f"bisim-abstract: interrupted: what is proven so far is in {target}"
        print(_shown(kept), file=sys.stderr)  # noqa: T201
        return STOPPED
    return _judged(found)


def _verify(options: argparse.Namespace, out: Out) -> int:
    from bisim_abstract._app.manifest import check_run_of
    from bisim_abstract._base.text import seconds_text
    from bisim_abstract._certificate.certificate import Certificate
    from bisim_abstract._certificate.verdict import judge
    from bisim_abstract._verify.verify import check_counts, verify

    if options.certificate is None:
        saved = _saved_run(options)
        mdp, certificate = saved.mdp, saved.certificate
    else:
        check_run_of(options.source, options.certificate)
        with _in_order(options):
            source, certificate = _source(options), Certificate.load(options.certificate)
            mdp = source.model(callback=out.callback)
    begin = time.perf_counter()
    found = verify(
        mdp,
        certificate,
        mode=options.mode,
        sample=options.sample,
        seed=options.seed,
        resources=_resources(options),
        callback=out.callback,
    )
    compiled = found.compile_seconds
    seconds = time.perf_counter() - begin - compiled
    result = {
        **_described(certificate),
        "is_valid": found.is_valid,
        "verdict": found.verdict,
        "mode": found.mode,
        "problem": found.problem,
        "widening": found.widening,
        "remark": found.remark,
        "pairs_checked": found.pairs_checked,
        "values_checked": found.values_checked,
        **_times(seconds, compiled),
    }
    judged = judge(certificate, found)
    rows = [
        ("checked", ", ".join([*check_counts(found), f"{found.mode} arithmetic"])),
        ("took", seconds_text(seconds, compiled)),
        *([("remark", found.remark)] if found.remark else []),
        ("verdict", judged.sentence),
    ]
    what = f"{options.certificate} against {options.source}"
    if options.certificate is None:
        what = f"the run in {options.source}"
    title = f"{found.verdict}: {what}"
    out.finish(result, rows, title, colour=judged.colour)
    return OK if found.is_valid else REJECTED


def _compare(options: argparse.Namespace, out: Out) -> int:
    from bisim_abstract._base.jit import watching
    from bisim_abstract._base.text import seconds_text
    from bisim_abstract._compare.models import compare_models

    sources = [
        _source(options, name=name, env_args=[*options.env_arg, *own])
        for name, own in ((options.first, options.first_arg), (options.second, options.second_arg))
    ]
    first, second = (source.model(callback=out.callback) for source in sources)
    begin = time.perf_counter()
    with watching() as compiled:
        found = compare_models(
            first,
            second,
            options.gamma,
            relation=options.relation,
            digits=options.digits,
            max_seconds=options.max_seconds,
            resources=_resources(options),
            callback=out.callback,
        )
    seconds = time.perf_counter() - begin - compiled.seconds
    result = found.to_dict() | _times(seconds, compiled.seconds)
    took = ("took", seconds_text(seconds, compiled.seconds))
    out.finish(result, [*_lines(found.summary()), took], found.sentence)
    return OK


def _solve(options: argparse.Namespace, out: Out) -> int:
    import numpy as np

    from bisim_abstract._abstract.value_loss import value_loss
    from bisim_abstract._app.manifest import check_run_of
    from bisim_abstract._base.npz import write_npz
    from bisim_abstract._certificate.certificate import Certificate
    from bisim_abstract._exact.planning import value_iteration
    from bisim_abstract._prove.options import check_tau
    from bisim_abstract.errors import InvalidArgumentError

    if options.out is not None:
        _check_target(options.out)
    check_tau(options.tau)
    if options.tau is not None and options.certificate is None:
        raise InvalidArgumentError("--tau goes with a certificate: give SOURCE CERTIFICATE --tau X")
    certificate: Certificate | None = None
    if options.certificate is not None:
        check_run_of(options.source, options.certificate)
    with _in_order(options):
        source = _source(options)
        if options.certificate is not None:
            certificate = Certificate.load(options.certificate)
        mdp = source.model(callback=out.callback)
    policy: Any = None
    rows: list[tuple[str, str]] = []
    result: dict[str, Any] = {}
    if certificate is None:
        gamma = 0.9 if options.gamma is None else options.gamma
    else:
        certificate = _abstraction(certificate, mdp, options, out)
        gamma, value = certificate.gamma, certificate.value
        assert value is not None
        policy = value.lifted_policy
        rows.append(("clusters", certificate.verdict.sentence))
        result |= certificate.verdict.header()
    best = value_iteration(mdp, gamma)
    low, high = best.start_bounds(mdp)
    rows.append(("optimal start value", f"between {low:.10g} and {high:.10g}"))
    result |= {"gamma": gamma, "states": mdp.n_states, "start_value": [low, high]}
    if policy is None:
        policy = best.policy
    else:
        loss = value_loss(mdp, gamma, policy, optimal=best)
        rows.append(
            ("loss", f"at most {loss.sup:.6g} in any state, {loss.start:.6g} from the start")
        )
        result |= {"loss_sup": loss.sup, "loss_mean": loss.mean, "loss_start": loss.start}
    if options.out is not None:
        arrays = {"policy": np.asarray(policy), "lower": best.lower, "upper": best.upper}
        write_npz(options.out, arrays | {"state_ids": mdp.state_ids})
        rows.append(("written", options.out))
        result["file"] = options.out
    out.finish(result, rows, f"{options.source}, gamma = {gamma:g}")
    return OK


def _report(options: argparse.Namespace, out: Out) -> int:
    from bisim_abstract._app.config import versions
    from bisim_abstract._app.manifest import ALWAYS_ANEW, NAMES, check_run_of
    from bisim_abstract._app.report import write_report
    from bisim_abstract._app.runs import (
        embedding_quality,
        learning_curves,
        run_commands,
        run_record,
    )
    from bisim_abstract._app.state_map import state_map
    from bisim_abstract._base.checks import check_int
    from bisim_abstract._certificate.certificate import Certificate
    from bisim_abstract._certificate.verdict import judge
    from bisim_abstract._compare.losses import compare_abstractions
    from bisim_abstract._verify.verify import verify
    from bisim_abstract.errors import InvalidArgumentError

    _check_target(options.out)
    check_int("learn", options.learn, low=0)
    saved, record, bonds = None, {"versions": versions()}, None
    commands = ["bisim-abstract " + _quoted(options.words)]
    if options.certificate is None:
        saved = _saved_run(options)
        mdp, certificate, encoder = saved.mdp, saved.certificate, saved.encoder
        if options.learn or options.encoder is not None:
            raise InvalidArgumentError(
                f"{options.source} is the directory of a run with its own curves and encoder: drop "
                "--learn and --encoder"
            )
        record = run_record(saved.manifest.folder)
        bonds = saved.manifest.bonds(*(set(NAMES) - set(ALWAYS_ANEW)))
        commands = run_commands(Path(options.source), saved.config)
    else:
        check_run_of(options.source, options.certificate)
        with _in_order(options):
            source, certificate = _source(options), Certificate.load(options.certificate)
            if options.learn and not source.can_be_abstracted:
                raise InvalidArgumentError(
                    f"--learn needs an environment with ends of episodes; {source.name} is none"
                )
            mdp = source.model(callback=out.callback)
        if certificate.fingerprint != mdp.fingerprint:
            raise InvalidArgumentError(f"{options.certificate} is of another model")
        encoder = _encoder(options, mdp.n_states)
    found = verify(mdp, certificate, resources=_resources(options), callback=out.callback)
    rows, curves = [], []
    if saved is not None and found.is_valid:
        rows, curves = saved.comparison, saved.curves
    elif certificate.tau is not None and found.is_valid:
        rows = compare_abstractions(mdp, certificate, embedding=encoder, seed=options.seed)
    if options.learn and found.is_valid and certificate.is_certified:
        curves = learning_curves(source, mdp, certificate, steps=options.learn)
    write_report(
        options.out,
        mdp,
        certificate,
        verification=found,
        places=state_map(mdp, embedding=encoder),
        comparison=rows,
        curves=curves,
        embedding=encoder,
        quality=embedding_quality(mdp, certificate, encoder, seed=options.seed),
        title=options.title if saved is None or options.title else saved.config.title,
        record=record,
        bonds=bonds,
        commands=commands,
    )
    judged = judge(certificate, found)
    result = _described(certificate) | {"file": options.out, "verdict": judged.sentence}
    out.finish(result, [("written", options.out)], judged.sentence, colour=judged.colour)
    return OK if found.is_valid else REJECTED


def _export(options: argparse.Namespace, out: Out) -> int:
    from bisim_abstract._base.checks import check_suffix
    from bisim_abstract._certificate import cluster_files
    from bisim_abstract._model import export
    from bisim_abstract._prove.options import check_tau
    from bisim_abstract.errors import InvalidArgumentError

    if options.out is None and options.clusters is None:
        raise InvalidArgumentError(
            "export writes the model over clusters to -o FILE, which state is in which cluster to "
            "--clusters FILE, or both: give at least one of them"
        )
    for flag, path, writers in (
        ("-o", options.out, export.WRITERS),
        ("--clusters", options.clusters, cluster_files.WRITERS),
    ):
        if path is not None:
            check_suffix(flag, path, writers)
            _check_target(path, source=options.certificate)
            _check_target(path, source=options.source)
    targets = [Path(path).resolve() for path in (options.out, options.clusters) if path is not None]
    if len(set(targets)) < len(targets):
        raise InvalidArgumentError(
            f"-o and --clusters must be two files, got {options.out} for both"
        )
    check_tau(options.tau)
    mdp, certificate = _model_and_certificate(options, out)
    certificate = _abstraction(certificate, mdp, options, out)
    result: dict[str, Any] = _described(certificate)
    rows: list[tuple[str, str]] = []
    if options.out is not None:
        small = certificate.aggregate(mdp).mdp
        export.write_model(small, options.out)
        result |= {
            "file": options.out,
            "exported": {
                "states": small.n_states,
                "actions": small.n_actions,
                "transitions": small.nnz,
                "fingerprint": small.fingerprint,
            },
        }
        rows.append(("model over clusters", options.out))
    if options.clusters is not None:
        cluster_files.write_clusters(mdp, certificate, options.clusters)
        result["clusters_file"] = options.clusters
        rows.append(("states of clusters", options.clusters))
    judged = certificate.verdict
    out.finish(result, rows, judged.sentence, colour=judged.colour)
    return OK


def _model_and_certificate(options: argparse.Namespace, out: Out) -> tuple[Any, Certificate]:
    """Those of a run, or a certificate's file with the model that is named beside it."""
    from bisim_abstract._app.manifest import check_run_of
    from bisim_abstract._app.runs import read_run
    from bisim_abstract._app.sources import kind_of
    from bisim_abstract._certificate.certificate import Certificate
    from bisim_abstract.errors import BisimError, InvalidArgumentError

    folder = Path(options.certificate)
    if not folder.is_dir():
        check_run_of(folder)
        try:
            certificate = Certificate.load(options.certificate)
        except (OSError, BisimError) as error:
            if kind_of(options.certificate) != "model":
                raise
            raise InvalidArgumentError(
                f"{options.certificate} holds a model; export takes a certificate or the directory "
                "of a run, and the model by --model"
            ) from error
        if options.source is None:
            raise InvalidArgumentError(
                f"{options.certificate} does not hold the model that it is of: give it by --model"
            )
        return _source(options).model(callback=out.callback), certificate
    if options.source is not None:
        raise InvalidArgumentError(f"{folder} is a directory with its own model: drop --model")
    saved = read_run(folder)
    return saved.mdp, saved.certificate


def _saved_run(options: argparse.Namespace) -> SavedRun:
    """The run of a directory that stands where a source would, and has all of its own."""
    from bisim_abstract._app.runs import read_run
    from bisim_abstract.errors import InvalidArgumentError

    name, folder = options.name, Path(options.source)
    if not folder.is_dir():
        raise InvalidArgumentError(
            f"{name} takes SOURCE and CERTIFICATE, or the directory of a run, got {folder} alone; "
            f"see bisim-abstract {name} --help"
        )
    plain = vars(_parser().parse_args([name, options.source]))
    other = [
        flag
        for flag, key in ((f"--{key.replace('_', '-')}", key) for key in READING)
        if getattr(options, key) != plain[key]
    ]
    if other:
        raise InvalidArgumentError(
            f"{folder} is the directory of a run with its own model: drop {', '.join(other)}"
        )
    return read_run(folder)


def _run(options: argparse.Namespace, out: Out) -> int:
    from bisim_abstract._app.runs import Run
    from bisim_abstract.errors import InvalidArgumentError

    common: dict[str, Any] = {
        "resources": _resources(options),
        "callback": out.callback,
        "before": out.begun,
        "after": out.done,
    }
    if options.resume is not None:
        plain = vars(_parser().parse_args(["run"]))
        free = {
            "resume",
            "threads",
            "backend",
            "address",
            "memory_limit",
            "json",
            "quiet",
            "debug",
            "imports",
            "words",
        }
        other = [x for x, value in plain.items() if x not in free and getattr(options, x) != value]
        if other:
            raise InvalidArgumentError(
                f"--resume DIR takes all settings from DIR; leave out {', '.join(other)}"
            )
        run = Run.resume(options.resume, **common)
    elif options.source is None or options.out is None:
        raise InvalidArgumentError("run needs SOURCE and -o DIR, or --resume DIR")
    else:
        run = Run(options.out, _config(options), **common)
    out.line(f"{run.config.source.name} in {run.folder}", style="bold")
    found = run()
    result = {
        **_described(found.certificate),
        "is_valid": found.verification.is_valid,
        "folder": found.folder,
        "report": found.report,
        "verdict": found.verdict.sentence,
        "encoder": vars(found.encoder),
        "stages": [vars(done) for done in found.stages],
        "compile_seconds": sum(done.compile_seconds for done in found.stages),
    }
    judged = found.verdict
    rows = [("encoder", str(found.encoder)), ("report", str(found.report))]
    if found.certificate.merges_little:
        rows += [("try", found.certificate.advice)] if found.certificate.advice else []
        rows += [("closest", str(pair)) for pair in found.certificate.nearest(3)]
    out.finish(result, rows, judged.sentence, colour=judged.colour)
    return _judged(found.certificate) if found.verification.is_valid else REJECTED


def _compile(options: argparse.Namespace, out: Out) -> int:
    from bisim_abstract._app.compile import compile_kernels
    from bisim_abstract._base.checks import check_int
    from bisim_abstract._base.progress import shown
    from bisim_abstract._base.text import counted, seconds_text

    jobs = None if options.jobs is None else check_int("--jobs", options.jobs, low=1)
    with shown(out.callback) as report:
        found = compile_kernels(jobs=jobs, callback=report)
    if not found.n_kernels:
        raise PermissionError(
            13,
            "no folder for compiled solvers is writable; set NUMBA_CACHE_DIR to one that is",
        )
    result = {
        "kernels": found.n_kernels,
        "compiled": found.n_fresh,
        "seconds": round(found.seconds, 3),
    }
    took = seconds_text(found.seconds)
    fresh = f"in {took}" if found.n_fresh else "all of them before"
    rows = [("compiled", fresh)]
    out.finish(result, rows, f"{counted(found.n_kernels, 'solver')} ready for use")
    return OK


# -- what commands share -----------------------------------------------------------------------


def _described(certificate: Certificate) -> dict[str, Any]:
    """A certificate as JSON values."""
    known = certificate.thresholds_at_hand()
    judged, value = certificate.verdict.header(), certificate.value
    share = None if value is None else value.share(certificate.guarantee)
    return {
        **judged,
        "start_loss": None if share is None else share.start_loss,
        "keep": certificate.keep,
        "max_loss": certificate.max_loss,
        "value": None if value is None else _valued(value),
        "conditions": list(certificate.conditions),
        "states": certificate.n_live,
        "gamma": certificate.gamma,
        "scope": certificate.scope,
        "relation": certificate.relation,
        "tau": certificate.tau,
        "certified_thresholds": None if known is None else [vars(interval) for interval in known],
        "coverage": certificate.coverage,
        "width": certificate.width,
        "global_width": certificate.global_width,
        "alpha": certificate.alpha,
        "stop": certificate.stop,
        "fingerprint": certificate.fingerprint,
    }


def _valued(value: ProvenValue) -> dict[str, Any]:
    """What is proven of each kind of agent, of the scale and of episodes, as JSON values."""
    from bisim_abstract._abstract.value import NUMBERS
    from bisim_abstract._certificate.value_files import value_header

    header = value_header(value)
    return {"policy": {name: header.pop(name) for name in NUMBERS}, **header}


def _times(seconds: float, compiled: float) -> dict[str, float]:
    """How long it took, compiling apart, as JSON values."""
    return {"seconds": round(max(seconds, 0.0), 3), "compile_seconds": round(compiled, 3)}


@contextmanager
def _in_order(options: argparse.Namespace) -> Iterator[None]:
    """Where model and certificate are read: if they were given the other way round, say so."""
    from bisim_abstract._app.sources import kind_of
    from bisim_abstract.errors import BisimError, InvalidArgumentError

    try:
        yield
    except (OSError, BisimError) as error:
        files = (options.source, "certificate", "first"), (options.certificate, "model", "second")
        for path, kind, place in files:
            if path is not None and kind_of(path) == kind:
                raise InvalidArgumentError(
                    f"{options.name} takes SOURCE, then CERTIFICATE; {path} holds "
                    f"a {kind} and stands {place}"
                ) from error
        raise


def _judged(certificate: Certificate) -> int:
    """The exit code of a valid certificate."""
    if certificate.tau is None:
        # No clusters are requested where a width is, or bounds on covered pairs.
        has_width = certificate.run.get("settings", {}).get("tol") is not None
        return OK if has_width or certificate.scope == "covered" else NOT_CERTIFIED
    return {"useful": OK, "poor": POOR, "open": NOT_CERTIFIED}[certificate.verdict.level]


def _lines(summary: str) -> list[tuple[str, str]]:
    """The lines of a summary after its first, as name and text."""
    rows = []
    for line in summary.splitlines()[1:]:
        if line.startswith(12 * " "):  # goes on with the line before
            rows.append(("", line.strip()))
            continue
        name, _, text = line.strip().partition(" ")
        if name == "level":
            number, _, text = text.strip().partition(" ")
            name = f"level {number}"
        rows.append((name, text.strip()))
    return rows


def _source(
    options: argparse.Namespace, *, name: str | None = None, env_args: Sequence[str] | None = None
) -> Source:
    """The source that was named; or another with its own arguments, and all else as given."""
    from bisim_abstract._app.env_args import read_env_args
    from bisim_abstract._app.sources import Source

    name = options.source if name is None else name
    return Source(
        name=name,
        env_args=read_env_args(name, options.env_arg if env_args is None else env_args),
        backgrounds=options.backgrounds,
        reading=Reading.of_flags(vars(options)),
        constants=_constants(options.const),
        reward=tuple(options.reward),
        goal=options.goal,
        actions=options.actions,
    )


def _constants(given: Sequence[str]) -> dict[str, bool | int | float | str]:
    """Constants as model checkers take them: NAME=VALUE, by commas or one by one."""
    from bisim_abstract._base.text import short
    from bisim_abstract.errors import InvalidArgumentError

    found: dict[str, bool | int | float | str] = {}
    for entry in ",".join(given).split(",") if given else ():
        name, equals, text = (part.strip() for part in entry.partition("="))
        if not (name and equals and text):
            raise InvalidArgumentError(f"--const must be NAME=VALUE, got {short(entry.strip())}")
        if name in found:
            raise InvalidArgumentError(f"--const gives {name} twice")
        found[name] = _constant_value(text)
    return found


def _constant_value(text: str) -> bool | int | float | str:
    """A truth value or number, where it is one; else the text, for whoever reads the model."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        # Python also reads 1_000 and other digits, which no model checker does.
        if text.isascii() and "_" not in text:
            with suppress(ValueError):
                return kind(text)
    return text


def _training(options: argparse.Namespace, *, when: str = "always") -> Training:
    from bisim_abstract._app.config import Training

    return Training(**_given_training(options), when=when)


def _given_training(options: argparse.Namespace) -> dict[str, Any]:
    """Settings of the encoder that were given."""
    given = {name: getattr(options, name) for name in TRAINING}
    return {name: value for name, value in given.items() if value is not None}


def _wanted_training(options: argparse.Namespace) -> Training | None:
    """An encoder is requested by any of its settings; else it is trained only if needed."""
    from bisim_abstract.errors import InvalidArgumentError

    given = _given_training(options)
    if options.train == "never":
        if given:
            flags = ["--encoder" if x == "kind" else f"--{x.replace('_', '-')}" for x in given]
            raise InvalidArgumentError(
                f"--train never leaves nothing to set; leave out {', '.join(flags)}"
            )
        return None
    return _training(options, when=options.train or ("always" if given else "needed"))


def _config(options: argparse.Namespace) -> Config:
    from bisim_abstract._app.config import Config

    source = _source(options)
    return Config(
        source=source,
        gamma=options.gamma,
        training=_wanted_training(options),
        certify=_goal(options),
        learn=options.learn,
        learn_seeds=options.learn_seeds,
        title=options.title,
        imports=tuple(options.imports),
    )


def _goal(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `certify` that were given."""
    from bisim_abstract._prove.options import Options

    propose = None if options.propose is None else options.propose.split(",")
    given = {
        "relation": options.relation,
        "keep": options.keep,
        "max_loss": options.max_loss,
        "guarantee": options.guarantee,
        "tau": _threshold(options.tau),
        "n_clusters": options.clusters,
        "tol": options.tol,
        "method": options.method,
        "propose": propose,
        "max_pairs": options.max_pairs,
        "max_seconds": options.max_seconds,
        "max_rounds": options.max_rounds,
        "max_backups": options.max_backups,
    }
    goal = {name: value for name, value in given.items() if value is not None}
    Options.named(goal)  # refuses bad ones before any work
    return goal


def _threshold(text: str | None) -> float | str | None:
    """What `--tau` says: a number, or "auto"."""
    from bisim_abstract._base.text import short
    from bisim_abstract.errors import InvalidArgumentError

    if text in (None, "auto"):
        return text
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(f'--tau must be a number or "auto", got {short(text)}') from None


def _resources(options: argparse.Namespace) -> Resources:
    """What the command may use; commands without workers have no words for them."""
    from bisim_abstract._base.resources import Resources

    names = ("threads", "backend", "address", "memory_limit")
    return Resources(**{name: getattr(options, name) for name in names if hasattr(options, name)})


def _encoder(options: argparse.Namespace, n_states: int) -> Any:
    from bisim_abstract.errors import InvalidArgumentError

    if options.encoder is None:
        return None
    from bisim_abstract._app.runs import states_text
    from bisim_abstract.encoders import load_encoder

    encoder = load_encoder(options.encoder)
    if encoder.n_states != n_states:
        raise InvalidArgumentError(
            f"{options.encoder} encodes {states_text(encoder)}, the model has {n_states:,}"
        )
    return encoder


def _abstraction(
    certificate: Certificate, mdp: Any, options: argparse.Namespace, out: Out
) -> Certificate:
    """The certificate, verified, at the requested threshold, with its value."""
    from bisim_abstract._verify.verify import verify
    from bisim_abstract.errors import InvalidArgumentError, NotCertifiedError

    if options.gamma is not None and options.gamma != certificate.gamma:
        raise InvalidArgumentError(
            f"--gamma {options.gamma} differs from the certificate's, {certificate.gamma:g}"
        )
    found = verify(mdp, certificate, resources=_resources(options), callback=out.callback)
    found.raise_if_rejected()
    tau = certificate.tau if options.tau is None else options.tau
    if tau is None:
        raise InvalidArgumentError("the certificate has no threshold of its own: give --tau")
    there = certificate if tau == certificate.tau else certificate.at(tau)
    if not there.is_certified:
        raise NotCertifiedError(
            f"{there.verdict.sentence}; bisim-abstract report shows all certified thresholds"
        )
    return there.with_value(mdp) if there.value is None else there


def _check_target(path: str, *, source: str | None = None) -> None:
    """Refuse at once what could not be written in the end, or would destroy what is read."""
    from bisim_abstract._base.atomic import check_writable
    from bisim_abstract._base.text import short
    from bisim_abstract.errors import InvalidArgumentError

    if "\0" in path:
        raise InvalidArgumentError(f"{short(path)} is no file name")
    target = Path(path)
    is_both = source is not None and target.exists() and Path(source).exists()
    if is_both and target.samefile(str(source)):
        raise InvalidArgumentError(f"{path} is what is read; give another file to write")
    check_writable(target)


def _quoted(words: Sequence[str]) -> str:
    import shlex

    return shlex.join(words)


# -- the parser --------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, like everything else.

    Attributes:
        commands: The parsers of its commands, by name.
    """

    commands: Mapping[str, _Parser]

    def error(self, message: str) -> NoReturn:
        from bisim_abstract.errors import InvalidArgumentError

        raise InvalidArgumentError(f"{message}; see {self.prog} --help")


def _parser() -> _Parser:
    parser = _Parser(
        prog="bisim-abstract",
        description="Turn a finite Gymnasium environment into a smaller one, with a proof.",
        epilog=EXAMPLES + "\n" + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bisim-abstract {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, work: Callable[[argparse.Namespace, Out], int], text: str) -> Any:
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(command=work, name=name, imports=[])
        return command

    command = add("extract", _extract, "write the tabular model of an environment")
    _add_source(command)
    _add_out(command, "FILE", "mdp.npz")
    _add_common(command)

    command = add("train", _train, "train an encoder of a model's states")
    _add_source(command)
    _add_gamma(command)
    _add_training(command)
    _add_out(command, "FILE", "encoder.npz")
    _add_common(command)

    command = add("certify", _certify, "cluster the states of a model, with a proof")
    _add_source(command)
    _add_gamma(command)
    _add_goal(command)
    command.add_argument("--encoder", metavar="FILE", help="a trained encoder, for proposals")
    command.add_argument("--checkpoint", metavar="FILE", help="written after each step; resumed")
    _add_backend(command)
    _add_out(command, "FILE", "certificate.npz")
    _add_common(command)

    command = add("verify", _verify, "check a certificate, by code that did not make it")
    _add_source(command)
    _add_certificate(command, OR_RUN)
    command.add_argument(
        "--mode", choices=("float", "exact", "sampled"), default="float", help="arithmetic"
    )
    command.add_argument("--sample", type=int, default=200, help="pairs that mode sampled looks at")
    _add_backend(command)
    _add_common(command)

    command = add("compare", _compare, "bound how far apart two models are")
    for place in ("first", "second"):
        command.add_argument(
            place,
            metavar=place.upper(),
            help=f"the {place} model: an environment's id, or the file of a model",
        )
    group = _add_environment(command)
    for place in ("first", "second"):
        group.add_argument(
            f"--{place}-arg",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help=f"the same, for the {place} environment alone (repeatable)",
        )
    _add_model_file(command)
    _add_gamma(command)
    _add_relation(command, ("plain", "lax"), default="plain")
    command.add_argument(
        "--digits", metavar="N", type=int, help="states are alike up to N digits (exactly)"
    )
    command.add_argument("--max-seconds", metavar="S", type=float, help="budget of time")
    _add_memory_limit(command)
    _add_common(command)

    command = add("solve", _solve, "plan: optimal values, or a policy by way of a certificate")
    _add_source(command)
    _add_certificate(command, "take the policy over its clusters instead")
    command.add_argument("--gamma", type=float, help="discount (0.9, or the certificate's)")
    command.add_argument("--tau", type=float, help="threshold (the certificate's own)")
    command.add_argument("-o", "--out", metavar="FILE", help="write policy and value bounds (.npz)")
    _add_common(command)
    _add_memory_limit(command)

    command = add("report", _report, "write the HTML report of a certificate")
    _add_source(command)
    _add_certificate(command, OR_RUN)
    command.add_argument("--encoder", metavar="FILE", help="a trained encoder, to show")
    _add_learn(command, default=0)
    _add_out(command, "FILE", "report.html")
    _add_common(command)
    _add_memory_limit(command)

    command = add("export", _export, "write the model over certified clusters for other programs")
    command.add_argument(
        "certificate",
        metavar="RUN_OR_CERTIFICATE",
        help="the directory of a run, or a certificate's file",
    )
    command.add_argument(
        "--model",
        dest="source",
        metavar="SOURCE",
        help="the model of a certificate's file: an environment's id, or a file",
    )
    _add_reading(command)
    command.add_argument("--tau", type=float, help="threshold (the certificate's own)")
    command.add_argument(
        "-o", "--out", metavar="FILE", help="the model over clusters: .npz, .json, .csv or .umb"
    )
    command.add_argument(
        "--clusters", metavar="FILE", help="which state is in which cluster: .csv or .json"
    )
    command.set_defaults(gamma=None)  # the certificate's
    _add_common(command)
    _add_memory_limit(command)

    command = add("run", _run, "all of these, in one directory that can be resumed")
    _add_source(command, is_optional=True)
    command.add_argument("--resume", metavar="DIR", help="go on with the run in this directory")
    command.add_argument("-o", "--out", metavar="DIR", help="a new directory for the run")
    _add_gamma(command)
    _add_goal(command)
    _add_backend(command)
    command.add_argument(
        "--train",
        choices=("needed", "always", "never"),
        help="an encoder: if what is found without one leaves something open (the default), or as "
        "soon as one of its settings is given, always",
    )
    _add_training(command)
    _add_learn(command, default=10_000)
    command.add_argument("--learn-seeds", type=int, default=3, help="agents of each kind (3)")
    _add_common(command)

    command = add("compile", _compile, "compile all solvers now rather than at their first use")
    command.add_argument("--jobs", metavar="N", type=int, help="processes (one per core)")
    _add_telling(command)
    parser.commands = commands.choices
    return parser


def _add_source(command: Any, *, is_optional: bool = False) -> None:
    command.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?" if is_optional else None,
        help="an environment's id, or the file of a model: saved by this program, of BRIDGE, UMB, "
        "PRISM, JANI or DRN",
    )
    _add_reading(command)


def _add_reading(command: Any) -> None:
    """How a source becomes a model."""
    _add_environment(command)
    _add_model_file(command)


def _add_environment(command: Any) -> Any:
    """How an environment becomes a model; the group of options."""
    group = command.add_argument_group("the environment")
    group.add_argument(
        "--env-arg",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="argument of the environment; VALUE is a number, true, false, null, a list, or text "
        "for an argument that takes text (repeatable)",
    )
    group.add_argument(
        "--backgrounds", metavar="N", type=int, help="multiply by N background states"
    )
    for name, flag in Reading.flags().items():
        if name != "seed":  # which others have as well
            group.add_argument(f"--{name.replace('_', '-')}", **flag)
    group.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="import this module first; it may register environments (repeatable)",
    )
    return group


def _add_model_file(command: Any) -> None:
    """How the file of a model checker becomes a model."""
    group = command.add_argument_group("the file of a model checker")
    group.add_argument(
        "--const",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a constant that the model leaves open (repeatable, or several by commas)",
    )
    group.add_argument(
        "--reward",
        metavar="NAME",
        action="append",
        default=[],
        help="which reward is paid; -NAME for one that is a cost; several are kept side by side "
        "(repeatable)",
    )
    group.add_argument(
        "--goal", metavar="LABEL", help="states with this label are to be reached, and then stay"
    )
    group.add_argument(
        "--actions",
        choices=("names", "positions"),
        default="names",
        help="choices are the same action by name (names) or by their order (positions)",
    )


def _add_certificate(command: Any, text: str) -> None:
    command.add_argument("certificate", metavar="CERTIFICATE", nargs="?", help=text)


def _add_gamma(command: Any) -> None:
    command.add_argument("--gamma", type=float, default=0.9, help="discount, in [0, 1) (0.9)")


def _add_goal(command: Any) -> None:
    group = command.add_argument_group("the certificate")
    _add_relation(group, ("plain", "lax", "optimal", "auto"))
    group.add_argument(
        "--keep",
        metavar="SHARE",
        type=float,
        help="share of the achievable return to retain by proof: the fewest clusters that do; 0 "
        "is the best of random actions and of one action for ever, 1 the best policy (0.95)",
    )
    group.add_argument(
        "--max-loss", metavar="X", type=float, help="instead: no state may lose more, by proof"
    )
    group.add_argument(
        "--guarantee",
        choices=("solver", "policy", "learner"),
        help="of which agents: any that solves the small environment (solver, the default), the "
        "policy that comes with the certificate, or any one-step Q-learner on real steps",
    )
    group.add_argument(
        "--tau", metavar="X", help="instead: this threshold, or auto for the widest interval"
    )
    group.add_argument("--clusters", metavar="N", type=int, help="instead: so many clusters")
    group.add_argument("--tol", metavar="W", type=float, help="width of all bounds to reach")
    group.add_argument("--method", choices=("blocks", "covering"), help="how it is proven (blocks)")
    group.add_argument(
        "--propose", metavar="LIST", help="of classes,embedding,rewards,ahead,features, by commas"
    )
    group.add_argument("--max-pairs", metavar="N", type=int, help="single pairs (1,000,000)")
    group.add_argument("--max-seconds", metavar="S", type=float, help="budget of time")
    group.add_argument("--max-rounds", metavar="N", type=int, help="budget of steps (100)")
    group.add_argument("--max-backups", metavar="N", type=int, help="budget of pair backups")


def _add_relation(group: Any, names: Sequence[str], *, default: str | None = None) -> None:
    group.add_argument(
        "--relation",
        choices=names,
        default=default,
        help="states are alike action by action (plain), or after renaming actions (lax)"
        + (
            ", in optimal action values (optimal), or by what gives the fewest clusters (auto)"
            if "auto" in names
            else ""
        ),
    )


def _add_backend(command: Any) -> None:
    group = command.add_argument_group("where sweeps are done")
    group.add_argument(
        "--backend", choices=("local", "ray"), default="local", help="threads, or a Ray cluster"
    )
    group.add_argument("--address", help="of a running Ray cluster; else a local one is started")
    _add_memory_limit(group)


def _add_memory_limit(command: Any) -> None:
    command.add_argument(
        "--memory-limit", metavar="SIZE", type=_bytes, help="for tables: 500MB, 4GB, or bytes"
    )


def _bytes(text: str) -> int:
    """A size as people write it."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    plain = text.strip().upper()
    number = plain.rstrip("BKMGT")
    try:
        size = float(number) * units[plain[len(number) :]]
    except (KeyError, ValueError):
        size = 0.0
    if not 1.0 <= size < 2.0**62:
        raise argparse.ArgumentTypeError(f"must be a size such as 500MB or 4GB, got {text[:40]!r}")
    return int(size)


def _add_training(command: Any) -> None:
    group = command.add_argument_group("the encoder")
    group.add_argument(
        "--encoder",
        dest="kind",
        choices=("action-max", "dbc", "mico"),
        help="which loss (action-max)",
    )
    # No defaults here: that one of these is given asks for an encoder.
    group.add_argument("--steps", type=int, help="training steps (5000)")
    group.add_argument("--dim", type=int, help="coordinates (8)")
    group.add_argument("--transitions", type=int, help="to learn from (100000)")
    group.add_argument(
        "--experience",
        choices=("model", "steps"),
        help="draw transitions from the model, or step the environment (model)",
    )
    group.add_argument(
        "--same-action",
        action="store_true",
        default=None,
        help="DBC and MICo compare equal actions only",
    )


def _add_learn(command: Any, *, default: int) -> None:
    command.add_argument(
        "--learn",
        metavar="STEPS",
        type=int,
        default=default,
        help=f"steps of agents for learning curves, 0 for none ({default})",
    )
    command.add_argument("--title", help="of the report")


def _add_out(command: Any, metavar: str, default: str) -> None:
    command.add_argument(
        "-o", "--out", metavar=metavar, default=default, help=f"where to write ({default})"
    )


def _add_common(command: Any) -> None:
    group = command.add_argument_group("how to run")
    group.add_argument("--seed", **Reading.flags()["seed"])
    group.add_argument("--threads", metavar="N", type=int, help="all cores by default")
    _add_telling(group)


def _add_telling(group: Any) -> None:
    group.add_argument("--json", action="store_true", help="one JSON object instead of text")
    group.add_argument("--quiet", action="store_true", help="no progress and no text")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


if __name__ == "__main__":
    console()
