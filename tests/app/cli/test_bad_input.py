"""Bad input is named in one line and changes nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bisim_abstract._app import sources
from bisim_abstract._app.cli import main
from bisim_abstract.errors import ExtractionError
from tests.support.commands import COMMANDS, QUICK, ROOMS, World, check_refused, command, loaded

# -- bad input ---------------------------------------------------------------------------------


BAD_SOURCES: dict[str, tuple[list[str], str]] = {
    "unknown": (["Nope-v0"], "no environment 'Nope-v0'"),
    "no such version": (["FrozenLake-v99"], "no environment 'FrozenLake-v99'"),
    "continuous": (["CartPole-v1"], "CartPole-v1 has continuous observations"),
    "empty": ([""], "an id or a path"),
    "colon": (["some_module:Env-v0"], "--import some_module"),
    "missing": (["missing.npz"], "missing.npz: No such file"),
    "garbage": (["{garbage}"], "garbage.npz is not a readable .npz"),
    "truncated": (["{truncated}"], "truncated.npz is not a readable .npz"),
    "certificate": (["{certificate}"], "certificate.npz holds a "),
    "encoder": (["{encoder}"], "encoder.npz"),
    "folder": (["{folder}"], "no environment"),
    "no value": (["FrozenLake-v1", "--env-arg", "foo"], "key=value, got 'foo'"),
    "no key": (["FrozenLake-v1", "--env-arg", "=1"], "key=value, got '=1'"),
    "no name": (["FrozenLake-v1", "--env-arg", "2x=1"], "key=value, got '2x=1'"),
    "not taken": (
        ["FrozenLake-v1", "--env-arg", "foo=1"],
        "takes no argument 'foo'; it takes render_mode",
    ),
    "not possible": ([ROOMS[0], "--env-arg", "side=x"], "takes a whole number, got 'x'"),
    "no truth value": (["FrozenLake-v1", "--env-arg", "is_slippery=no"], "takes true or false"),
    "mistyped": (["FrozenLake-v1", "--env-arg", "is_slipery=true"], "did you mean is_slippery?"),
    "twice": ([ROOMS[0], "--env-arg", "side=4", "--env-arg", "side=6"], "side is given twice"),
    "no pair": ([ROOMS[0], "--env-arg", "side=20", "--env-arg", "room_size=3"], "room_size"),
    "of a file": (["{lake}", "--env-arg", "side=4"], "is a file"),
    "backgrounds of a file": (["{lake}", "--backgrounds", "4"], "is a file"),
    "backgrounds": (["FrozenLake-v1", "--backgrounds", "0"], "backgrounds must be at least 1"),
    "states": (["FrozenLake-v1", "--max-states", "0"], "max_states must be at least 1"),
    "too many": (["MiniGrid-Empty-5x5-v0", "--max-states", "3"], "more than"),
    "seed": (["FrozenLake-v1", "--seed", "-1"], "seed must be at least 0"),
    "seed text": (["FrozenLake-v1", "--seed", "x"], "argument --seed: invalid int value"),
    "terminal": (["FrozenLake-v1", "--terminal", "x"], "argument --terminal: invalid choice"),
    "import": (["FrozenLake-v1", "--import", "no_such"], "--import no_such: No module named"),
    "too much": (["FrozenLake-v1", "more", "more"], "unrecognized arguments: more"),
    "option": (["FrozenLake-v1", "--colour", "red"], "there is no option --colour; see bisim-"),
    "near option": (["FrozenLake-v1", "--sed", "1"], "there is no option --sed; did you mean --se"),
}


# What Python and the environments themselves say to such arguments is not an error of ours.
STRANGE_SOURCES: dict[str, tuple[list[str], str]] = {
    "import relative": (["FrozenLake-v1", "--import", ".no_such"], "--import .no_such"),
    "import nothing": (["FrozenLake-v1", "--import", ""], "--import"),
    "map": (["FrozenLake-v1", "--env-arg", "map_name=9x9"], "9x9"),
    "desc": (["FrozenLake-v1", "--env-arg", "desc=[]"], "FrozenLake-v1"),
    "our name": (["FrozenLake-v1", "--env-arg", "env_id=1"], "env_id"),
    "our checker": (["FrozenLake-v1", "--env-arg", "disable_env_checker=1"], "checker"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("bad", BAD_SOURCES)
def test_bad_sources(bad: str, name: str, call: Any, world: World) -> None:
    words, cause = BAD_SOURCES[bad]
    source = [word.format(**{k: str(v) for k, v in world._asdict().items()}) for word in words]
    check_refused(call(*command(name, world, *source)), cause)


@pytest.mark.parametrize("bad", STRANGE_SOURCES)
def test_strange_sources(bad: str, call: Any, world: World) -> None:
    words, cause = STRANGE_SOURCES[bad]
    check_refused(call(*command("extract", world, *words)), cause)


@pytest.mark.parametrize("name", ["train", "certify", "solve", "run"])
@pytest.mark.parametrize("gamma", ["1", "-0.1", "nan", "inf", "x"])
def test_bad_discounts(gamma: str, name: str, call: Any, world: World) -> None:
    ended = call(*command(name, world, world.lake), "--gamma", gamma)
    check_refused(ended, "gamma", {"x": "'x'", "1": "1.0"}.get(gamma, gamma))


@pytest.mark.parametrize("name", ["certify", "run", "solve"])
@pytest.mark.parametrize("tau", ["-1", "nan", "inf", "abc"])
def test_bad_thresholds(tau: str, name: str, call: Any, world: World) -> None:
    words = command(name, world, world.lake)
    if name == "solve":
        words.insert(2, world.certificate)
    check_refused(call(*words, "--tau", tau), "tau", "-1.0" if tau == "-1" else tau)


GOALS = {
    "--clusters 0": "n_clusters must be",
    "--clusters 18": "n_clusters must be between 1 and 16",
    "--clusters 2 --tau 0.1": "tau or n_clusters",
    "--clusters x": "invalid int value",
    "--tol 0": "tol must be above 0",
    "--tol nan": "tol must be finite",
    "--method some": "invalid choice",
    "--propose guess": "propose must be one of",
    "--propose ,": "propose must be one of",
    "--max-pairs -1": "max_pairs must be at least 0",
    "--max-seconds 0": "max_seconds must be above 0",
    "--max-seconds inf": "max_seconds must be finite",
    "--max-rounds 0": "max_rounds must be at least 1",
    "--max-backups 0": "max_backups must be at least 1",
    "--threads 0": "threads must be at least 1",
}


@pytest.mark.parametrize("goal", GOALS)
def test_bad_goals(goal: str, call: Any, world: World) -> None:
    check_refused(call(*command("certify", world, world.lake), *goal.split()), GOALS[goal])


@pytest.mark.parametrize("goal", GOALS)
def test_bad_goals_of_runs(goal: str, call: Any, world: World) -> None:
    check_refused(call(*command("run", world, world.lake), *goal.split()), GOALS[goal])


@pytest.mark.parametrize("name", ["train", "run"])
@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("--steps 0", "steps must be at least 1"),
        ("--dim 0", "dim must be at least 1"),
        ("--transitions 0", "transitions must be at least 1"),
        ("--encoder nope", "invalid choice: 'nope'"),
        ("--experience nope", "invalid choice: 'nope'"),
    ],
)
def test_bad_training(words: str, cause: str, name: str, call: Any, world: World) -> None:
    start = command(name, world, world.lake)
    start = [word for word in start if word not in ("--train", "never")]
    if name == "run":
        start += QUICK
    check_refused(call(*start, *words.split()), cause)


@pytest.mark.parametrize("words", ["--learn -1", "--learn x", "--learn-seeds 0"])
def test_bad_learning(words: str, call: Any, world: World) -> None:
    check_refused(call(*command("run", world, "FrozenLake-v1"), *words.split()), "learn")
    if "seeds" not in words:
        check_refused(call(*command("report", world, "FrozenLake-v1"), *words.split()), "learn")


@pytest.mark.parametrize("name", ["verify", "report", "solve"])
@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("missing", "missing.npz: No such file"),
        ("garbage", "garbage.npz is not a readable .npz"),
        ("truncated", "truncated.npz is not a readable .npz"),
        ("lake", "lake.npz"),
        ("encoder", "encoder.npz"),
        ("bridge", "bridge.npz"),
        ("folder", "Is a directory"),
    ],
)
def test_bad_certificates(file: str, cause: str, name: str, call: Any, world: World) -> None:
    path = getattr(world, file, world.folder / "missing.npz")
    words = {
        "verify": ["verify", world.lake, path],
        "report": ["report", world.lake, path, "-o", "out.html"],
        "solve": ["solve", world.lake, path, "-o", "out.npz"],
    }[name]
    check_refused(call(*words), cause)


@pytest.mark.parametrize("name", ["verify", "report", "solve"])
@pytest.mark.parametrize("second", ["FrozenLake-v1", "lake", "bridge", "missing.npz"])
@pytest.mark.parametrize("more", [(), ("--env-arg", "map_name=8x8")])
def test_swapped_files_are_told_the_order(
    name: str, second: str, more: tuple[str, ...], call: Any, world: World
) -> None:
    model = getattr(world, second, second)
    ended = call(name, world.certificate, model, *more)
    check_refused(
        ended,
        f"bisim-abstract: {name} takes SOURCE, then CERTIFICATE; {world.certificate} holds a "
        "certificate and stands first",
    )
    if second in ("lake", "bridge"):
        ended = call(name, "FrozenLake-v1", model)
        check_refused(ended, f"{model} holds a model and stands second")


def test_a_model_is_not_called_a_damaged_certificate(call: Any, world: World) -> None:
    ended = call("verify", world.lake, world.lake)
    check_refused(ended, "lake.npz holds a model and stands second")


@pytest.mark.parametrize("name", ["certify", "report"])
@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("rooms_encoder", "encodes 400 numbered states, the model has 17"),
        ("missing", "missing.npz: No such file"),
        ("garbage", "garbage.npz"),
        ("lake", "holds no encoder"),
        ("certificate", "holds no encoder"),
    ],
)
def test_bad_encoders(file: str, cause: str, name: str, call: Any, world: World) -> None:
    path = getattr(world, file, world.folder / "missing.npz")
    check_refused(call(*command(name, world, world.lake), "--encoder", path), cause)


@pytest.mark.parametrize(
    ("file", "cause"),
    [("garbage", "garbage.npz"), ("lake", "lake.npz"), ("folder", "directory")],
)
def test_bad_checkpoints(file: str, cause: str, call: Any, world: World) -> None:
    before = {path: path.stat().st_mtime_ns for path in world.folder.iterdir()}
    words = command("certify", world, world.lake)
    check_refused(call(*words, "--checkpoint", getattr(world, file)), cause)
    check_refused(call(*words, "--checkpoint", "no_folder/k.npz"), "no_folder")
    check_refused(call(*words, "--checkpoint", world.rooms_certificate), "not a checkpoint")
    check_refused(call(*words, "--checkpoint", f"./{words[-1]}"), "must be two files")
    assert before == {path: path.stat().st_mtime_ns for path in world.folder.iterdir()}


@pytest.mark.parametrize("name", ["extract", "train", "certify", "solve", "report"])
def test_targets_that_cannot_be_written(
    name: str, call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*args: Any, **kwargs: Any) -> None:
        pytest.fail("the target is to be looked at first")

    monkeypatch.setattr(sources.Source, "model", too_late)
    words = command(name, world, world.lake)[:-2]
    check_refused(call(*words, "-o", world.lake / "below"), "lake.npz", "directory")
    check_refused(call(*words, "-o", "no/such/file"), "no/such: there is no such directory")
    check_refused(call(*words, "-o", world.folder), str(world.folder), "is a directory")
    check_refused(call(*words, "-o", ""), "is a directory")
    # Root may write everywhere, and cannot here.
    check_refused(call(*words, "-o", "/proc/x.npz"), "/proc: no file can be written in this")
    loop = looped(world.folder)
    check_refused(call(*words, "-o", loop), f"{loop}: is a link that leads back to itself")


def looped(folder: Path) -> Path:
    """A link to a link to itself."""
    first, second = folder / "loop", folder / "other"
    for link, target in ((first, second), (second, first)):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return first


def test_a_loop_of_links_is_told_by_exports_too(call: Any, world: World) -> None:
    loop = looped(world.folder).rename(world.folder / "loop.json")
    (world.folder / "other").unlink()
    (world.folder / "other").symlink_to(loop)
    loop.unlink()
    loop.symlink_to(world.folder / "other")
    words = ("export", world.certificate, "--model", world.lake)
    for flag in ("-o", "--clusters"):
        check_refused(call(*words, flag, loop), "is a link that leads back to itself")
        check_refused(call(*words, flag, "/proc/x.json"), "/proc: no file can be written")


def test_brackets_do_not_come_back(call: Any, world: World) -> None:
    long = "[" * 5_000
    for words in (
        ("certify", "FrozenLake-v1", "--env-arg", f"map_name={long}"),
        ("certify", "FrozenLake-v1", "--env-arg", f"is_slippery={long}"),
        ("certify", "FrozenLake-v1", "--env-arg", long),
        ("certify", "FrozenLake-v1", "--env-arg", f"desc={long}"),
        ("certify", "FrozenLake-v1", "--tau", long),
        ("certify", world.lake, "--const", long),
        ("certify", "FrozenLake-v1", "--memory-limit", long),
        ("certify", "FrozenLake-v1", "--gamma", long),
        ("certify", "FrozenLake-v1", "--backend", long),
        ("certify", long),
        (long,),
    ):
        ended = call(*words)
        check_refused(ended)
        assert len(ended.err) < 1_200, words


def test_runs_that_cannot_be_written(
    call: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command("run", world, world.lake)[:-2]
    check_refused(call(*words, "-o", world.lake), "lake.npz: is a file")
    check_refused(call(*words, "-o", world.lake / "below"), "lake.npz: is no directory")
    check_refused(call(*words, "-o", world.folder), "is not empty and holds no run")
    loop = looped(world.folder)
    check_refused(call(*words, "-o", loop), f"{loop}: is a link that leads back to itself")
    check_refused(call(*words, "-o", "/proc/run"), "/proc: no file can be written in this")

    def refused(self: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    check_refused(call(*words, "-o", "out"), "out: Permission denied")


def test_run_needs_to_know_where(call: Any, world: World) -> None:
    check_refused(call("run"), "run needs SOURCE and -o DIR")
    check_refused(call("run", world.lake), "run needs SOURCE and -o DIR")
    check_refused(call("run", "-o", "out"), "run needs SOURCE and -o DIR")
    check_refused(call("run", "--resume", "out"), "out holds no run")
    check_refused(call("run", "--resume", world.folder), "holds no run")
    check_refused(call("run", world.lake, "--resume", "out"), "takes all settings")
    check_refused(call("run", "--resume", "out", "-o", "more"), "takes all settings")


def test_settings_beside_resume_are_refused(call: Any, world: World) -> None:
    """They would be ignored, and the caller think otherwise."""
    assert call(*command("run", world, world.lake)).code == 0
    ended = call("run", "--resume", "out", "--gamma", "0.5")
    assert ended.code == 2
    assert "--resume" in ended.err


def test_commands(call: Any) -> None:
    check_refused(call(), "COMMAND", "--help")
    check_refused(call("destroy"), "there is no command 'destroy'; commands are extract, train")
    for name in COMMANDS:
        if name != "run":
            lacking = "RUN_OR_CERTIFICATE" if name == "export" else "SOURCE"
            check_refused(call(name), f"bisim-abstract {name} --help", lacking)
    check_refused(call("compile", "more"), "unrecognized arguments: more")
    check_refused(call("solve", "FrozenLake-v1", "--tau", "1"), "--tau goes with a certificate")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["certfy", "FrozenLake-v1"], "there is no command 'certfy'; did you mean certify?"),
        (["veryfy"], "did you mean verify?"),
        (["--vresion"], "there is no option --vresion; did you mean --version?"),
        (["certify", "--gama", "0.5"], "there is no option --gama; did you mean --gamma?"),
        (["certify", "x", "--max_pairs=3"], "did you mean --max-pairs?"),
        (["run", "x", "--no-train"], "there is no option --no-train"),
    ],
)
def test_mistyped_words(words: list[str], hint: str, call: Any) -> None:
    check_refused(call(*words), hint)


def test_words_that_only_look_mistyped(call: Any, world: World) -> None:
    ended = call("report", world.lake, world.certificate, "--title", "--a title", "-o", "r.html")
    assert ended.code == 0
    assert call("solve", "--gam", "0.5", world.lake).code == 0
    assert call("--help", "certfy").code == 0
    assert call("certify", "--help", "--gama").code == 0
    Path("--gama").write_bytes(world.lake.read_bytes())
    assert call("solve", "--", "--gama").code == 0


def test_another_discount_than_the_certificates(call: Any, world: World) -> None:
    words = ["solve", world.lake, world.certificate, "--gamma"]
    check_refused(call(*words, "0.5"), "--gamma 0.5", "0.9")
    assert call(*words, "0.9").code == 0


def test_reports_are_of_one_model(call: Any, world: World) -> None:
    ended = call("report", world.lake, world.rooms_certificate, "-o", "r.html")
    check_refused(ended, "is of another model")


@pytest.mark.parametrize("name", COMMANDS)
def test_errors_as_json(name: str, call: Any, world: World) -> None:
    ended = call(*command(name, world, "Nope-v0"), "--json", "--quiet")
    assert ended.code == 2
    found = loaded(ended.out)
    assert found["exit_code"] == 2
    assert "no environment 'Nope-v0'" in found["error"]
    assert ended.err == f"bisim-abstract: {found['error']}\n"


@pytest.mark.parametrize(
    "words", [["certify", "x", "--json", "--gamma", "x"], ["extract", "--json"]]
)
def test_errors_of_the_parser_as_json(words: list[str], call: Any) -> None:
    ended = call(*words)
    check_refused(ended)
    found = loaded(ended.out)
    assert found["exit_code"] == 2
    assert found["error"] in ended.err


def test_errors_of_the_parser_are_one_line(call: Any) -> None:
    check_refused(call("extract", "FrozenLake-v1", "two\nlines"), "unrecognized arguments: two")


def test_debug_raises(call: Any, world: World) -> None:
    with pytest.raises(ExtractionError, match="Nope-v0"):
        main(["extract", "Nope-v0", "--debug"])
    with pytest.raises(FileNotFoundError, match=r"missing\.npz"):
        main(["verify", "FrozenLake-v1", "missing.npz", "--debug"])


def test_names_that_are_no_text(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.fsdecode(b"out\xff")
    words = [*command("run", world, str(world.lake))[:-1], name, "--quiet"]
    monkeypatch.setattr(sys, "argv", ["bisim-abstract", *words])
    assert main() == 0
    assert (Path(name) / "report.html").is_file()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_no_json(value: str, call: Any, world: World) -> None:
    words = [ROOMS[0], "--env-arg", f"noise={value}"]
    check_refused(call(*command("run", world, *words)), "noise")
    check_refused(call(*command("extract", world, *words)), "noise")


def test_what_export_refuses(call: Any, world: World) -> None:
    given = ["export", world.certificate, "--model", world.lake]
    check_refused(call(*given), "-o FILE", "--clusters FILE")
    check_refused(call(*given, "-o", "q.txt"), "-o must end in .npz, .json, .csv or .umb")
    check_refused(call(*given, "--clusters", "c.npz"), "--clusters must end in .csv or .json")
    check_refused(call(*given, "-o", "a.csv", "--clusters", "./a.csv"), "two files")
    check_refused(call(*given, "-o", world.lake), "is what is read")
    check_refused(call(*given, "-o", world.certificate), "is what is read")
    check_refused(call("export", world.certificate, "-o", "q.csv"), "give it by --model")
    check_refused(call("export", world.lake, "-o", "q.csv"), "holds a model", "--model")
    check_refused(call("export", world.folder, "-o", "q.csv"), "holds no run")
    ended = call("export", world.certificate, "--model", world.rooms, "-o", "q.csv")
    assert ended.code == 4
    assert "another model" in ended.err
    assert list(Path.cwd().iterdir()) == []


def test_only_what_is_certified_and_true_is_exported(call: Any, world: World) -> None:
    for certificate, code in ((world.unclear, 3), (world.forged, 4)):
        ended = call("export", certificate, "--model", world.lake, "-o", "q.csv")
        assert ended.code == code, ended
        assert list(Path.cwd().iterdir()) == []
