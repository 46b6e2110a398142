"""Third-party models: every PRISM, JANI and UMB model in a directory.

    python scripts/models.py DIR                  all of them, a row each
    python scripts/models.py DIR --quick          those of at most 5,000 states
    python scripts/models.py DIR --markdown       the same as tables for the documentation
    python scripts/models.py DIR --const N=3      a value for constants that files leave open
    python scripts/models.py DIR --only wlan      those whose name contains this

Two tables. The first has exact classes, plain (actions correspond by their position) and lax, with
all rewards of the file, beside the quotients of Storm and its time in the same run, and by how much
values that Storm finds change on the way from it to a model and back as UMB. The second has
a certificate of one reward at the default `keep`: clusters next to the exact classes of the same
model ("optimal" has none), and the share of the achievable return that any agent is proven to
retain which solves the small model. Where less is proven than requested, the verdict and the
closest states that stay apart are printed below.

Each model runs in a process of its own, whose memory is its peak. Each certificate is verified by
independent code. The command fails if a count differs from Storm's or a certificate is rejected.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bisim_abstract import (
    Certificate,
    TabularMDP,
    bisimulation_classes,
    certify,
    read_model,
    verify,
    write_model,
)
from bisim_abstract._abstract.value import share_text
from bisim_abstract._base.text import plain_text
from bisim_abstract._model.storm import PRISM, build_model
from bisim_abstract._model.umb import read_umb
from bisim_abstract.errors import BisimError

SUFFIXES = (*PRISM, ".jani", ".umb")
QUICK = 5_000
SAME = 1e-6  # values that differ by no more are the same, as far as Storm solves for them
EXACT = ("plain", "lax")  # relations with classes, which Storm knows as well
RELATIONS = (*EXACT, "optimal")
console = Console(width=190, highlight=False)


@dataclass(frozen=True)
class Setting:
    """How a published model is used: its constants, and what is asked of it.

    Attributes:
        constants: Values of what the file leaves open.
        reward: What is paid in the second table; the first reward of the file, as a cost, if None.
        goal: Where it ends in the second table.
    """

    constants: dict[str, float] = field(default_factory=dict)
    reward: str | None = None
    goal: str | None = None


# What the models of the PRISM benchmark suite and of QComp are run with, by file name.
KNOWN: dict[str, list[Setting]] = {
    **{f"wlan{k}.nm": [Setting({"COL": 0}, "-cost")] for k in range(4)},
    "firewire.nm": [Setting({"delay": d}, "-time", "done") for d in (3, 36)],
    "firewire_abst.nm": [
        Setting({"delay": 3}, "-time", "done"),
        Setting({"delay": 3}, None, "done"),
    ],
    "firewire_abst.jani": [Setting({"delay": 3}, "-time", "done")],
    "csma2_2.nm": [
        Setting({}, "-time", "all_delivered"),
        Setting({}, None, "collision_max_backoff"),
    ],
    "csma2_6.nm": [Setting({}, "-time", "all_delivered")],
    "coin2.nm": [Setting({"K": k}, "-steps", "finished") for k in (2, 16)]
    + [Setting({"K": 2}, None, "all_coins_equal_1")],
    "resource-gathering.pm": [
        Setting({"GOLD_TO_COLLECT": 15, "GEM_TO_COLLECT": 15, "B": 400}, name)
        for name in ("rew_gold", "-attacks")
    ],
    "eajs.2.prism": [Setting({"energy_capacity": 100}, "utilityLocal")],
}


def seconds_of(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the least seconds of two calls."""
    begin = time.perf_counter()
    found = work()
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    work()
    return found, min(first, time.perf_counter() - begin)


def storm_model(path: Path, constants: dict[str, float]) -> Any:
    """The model as Storm itself reads it."""
    import stormpy

    if path.suffix == ".umb":
        return stormpy.build_model_from_umb(str(path))
    if path.suffix == ".jani":
        program = stormpy.parse_jani_model(str(path))[0]
    else:
        program = stormpy.parse_prism_program(str(path), prism_compatibility=True)
    return stormpy.build_model(stormpy.instantiate_constants(program, constants)[0])


def round_trip(model: Any, mdp: TabularMDP, goal: str | None) -> float:
    """Largest difference between what Storm finds on its model, and on ours as UMB.

    Least and greatest expected rewards until the goal, or over 100 steps where there is none; one
    that is infinite must be so on both sides. The UMB goes there and back twice: Storm's file is
    read, written and read by Storm.
    """
    import stormpy

    bound = "C<=100" if goal is None else f'F "{goal}"'
    names = list(model.reward_models)
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = Path(folder) / "theirs.umb", Path(folder) / "ours.umb"
        stormpy.io.export_to_umb(model, str(theirs))
        write_model(read_model(theirs, reward=names, actions="positions"), ours)
        again = stormpy.build_model_from_umb(str(ours))
        write_model(mdp, ours)
        built = stormpy.build_model_from_umb(str(ours))
    for name in names:
        for best in ("min", "max"):
            formula = stormpy.parse_properties(f'R{{"{name}"}}{best}=? [{bound}]')[0]
            values = [
                float(stormpy.model_checking(each, formula).get_value(each.initial_states[0]))
                for each in (model, again, built)
            ]
            if len({math.isinf(value) for value in values}) > 1:
                return math.inf
            if math.isfinite(values[0]):
                worst = max(worst, *(abs(value - values[0]) for value in values[1:]))
    return worst


def storm_counts(model: Any) -> dict[str, tuple[int, float]]:
    """Classes that Storm finds with all rewards, no labels and no names, and its seconds."""
    from stormpy.transformations import (
        BisimulationOptions,
        StateLabelPreservation,
        perform_bisimulation,
    )

    found = {}
    for relation in EXACT:
        options = BisimulationOptions()
        options.action_sensitive = relation == "plain"
        options.preserve_all_rewards = True
        options.preserve_choice_labels = False
        options.state_label_preservation = StateLabelPreservation.NONE
        quotient, seconds = seconds_of(lambda: perform_bisimulation(model, [], options=options))  # noqa: B023
        found[relation] = (quotient.nr_states, seconds)
    return found


def classes_row(path: Path, setting: Setting) -> dict[str, Any]:
    """States and exact classes of one model, ours and Storm's."""
    begin = time.perf_counter()
    if path.suffix == ".umb":
        explicit = read_umb(path)
    else:
        explicit = build_model(path, constants=setting.constants)
    mdp = explicit.to_mdp(reward=list(explicit.rewards), actions="positions")
    row: dict[str, Any] = {
        "states": mdp.n_states,
        "transitions": explicit.targets.size,
        "rewards": len(explicit.rewards),
        "read": time.perf_counter() - begin,
    }
    bisimulation_classes(one_state(mdp))  # compiles
    model = storm_model(path, setting.constants)
    row["round_trip"] = round_trip(model, mdp, setting.goal)
    for relation, (count, seconds) in storm_counts(model).items():
        ours, own = seconds_of(lambda: bisimulation_classes(mdp, relation=relation))  # noqa: B023
        row[relation] = [ours.n_classes, own, count, seconds]
    return row


def one_state(mdp: TabularMDP) -> TabularMDP:
    """One state of a model, for solvers to be compiled with."""
    return TabularMDP.from_dense([[[1.0]] * mdp.n_actions], [[0.0] * mdp.n_actions], order="sas")


def certificate_row(
    path: Path, setting: Setting, gamma: float, relation: str, seconds: float
) -> dict[str, Any]:
    """A certificate of one model, and how it compares with exact classes."""
    reward = setting.reward
    if reward is None and setting.goal is None:
        explicit = read_umb(path) if path.suffix == ".umb" else None
        explicit = explicit or build_model(path, constants=setting.constants)
        reward = "-" + next(iter(explicit.rewards))
    constants = None if path.suffix == ".umb" else setting.constants
    mdp = read_model(path, constants=constants, reward=reward, goal=setting.goal)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    found = certify(mdp, gamma, relation=relation, max_seconds=seconds)
    row: dict[str, Any] = {
        "states": mdp.n_states,
        "asked": (reward or "1 on entry") + (f", goal {setting.goal}" if setting.goal else ""),
        "relation": relation,
        "classes": None,
        "seconds": time.perf_counter() - begin,
        "verdict": found.verdict.level,
        "clusters": None if found.value is None else found.n_clusters,
        "kept": None if found.value is None else found.value.solver.kept,
        "problem": None,
        "nearest": "",
    }
    row["memory"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if relation in EXACT:
        row["classes"] = bisimulation_classes(mdp, relation=relation).n_classes
    checked = verify(mdp, found)
    if not checked.is_valid:
        row["problem"] = f"rejected: {checked.problem}"
    if found.verdict.level != "useful":
        row["nearest"] = reason(mdp, found)
    return row


def reason(mdp: TabularMDP, found: Certificate) -> str:
    """Why it is not worth more: the verdict, and the closest states that stay apart."""
    text = found.verdict.sentence
    if found.tau is not None:
        for pair in found.nearest(1, mdp):
            names = f"{mdp.state_name(pair.first)} | {mdp.state_name(pair.second)}"
            text += f" Nearest: {pair} ({names})."
    return plain_text(" ".join(text.split()))


def constant(text: str) -> tuple[str, float]:
    """A constant and its value from "NAME=VALUE"."""
    name, _, value = text.partition("=")
    if value in ("true", "false"):
        return name, value == "true"
    return name, float(value) if "." in value or "e" in value else int(value)


def cases(
    folder: Path, *, only: str, constants: dict[str, float]
) -> Iterator[tuple[Path, Setting]]:
    """Models of a directory, with what they are run with."""
    for path in sorted(folder.iterdir()):
        if path.suffix in SUFFIXES and only in path.name:
            for setting in KNOWN.get(path.name, [Setting(constants)]):
                yield path, setting


def apart(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One row, made by a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10 * seconds + 120)
    except subprocess.TimeoutExpired:
        return {"error": "took too long"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it ended without a word"]
        return {"error": lines[-1]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def one(job: dict[str, Any]) -> int:
    """The row that a process of its own makes."""
    setting = Setting(**job["setting"])
    path = Path(job["path"])
    try:
        if job["kind"] == "classes":
            row = classes_row(path, setting)
        else:
            row = certificate_row(path, setting, job["gamma"], job["relation"], job["seconds"])
    except BisimError as error:
        row = {"error": str(error)}
    sys.stdout.write(json.dumps(row) + "\n")
    return 0


def title(path: Path, setting: Setting) -> str:
    """A model and its constants, as a table names it."""
    constants = {name: f"{value:g}" for name, value in setting.constants.items()}
    given = ", ".join(f"{name}={value}" for name, value in constants.items())
    return f"{path.name} {given}".strip()


def show(head: list[str], rows: list[list[str]], *, is_markdown: bool) -> None:
    """One table."""
    if is_markdown:
        for line in (head, ["---"] * len(head), *rows):
            print("| " + " | ".join(line) + " |")
        print()
        return
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def main() -> int:
    """Both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--seconds", type=float, default=60.0, help="budget of each certificate")
    parser.add_argument("--const", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(json.loads(options.one))
    if options.folder is None or not options.folder.is_dir():
        parser.error("name a directory of models")
    constants = dict(constant(text) for text in options.const)
    found = list(cases(options.folder, only=options.only, constants=constants))
    if not found:
        parser.error(f"{options.folder} holds no PRISM, JANI or UMB models")
    faults: list[str] = []
    rows, seen, small = [], set(), []
    for path, setting in found:
        name = title(path, setting)
        if name in seen:
            continue
        seen.add(name)
        console.print(f"[dim]{name}[/dim]")
        job = {"kind": "classes", "path": str(path), "setting": asdict(setting)}
        row = apart(job, options.seconds)
        if "error" in row:
            rows.append([name, row["error"]])
            continue
        if row["states"] <= QUICK:
            small.append(name)
        line = [name, f"{row['states']:,}", f"{row['transitions']:,}", f"{row['read']:.2f}"]
        for relation in EXACT:
            ours, own, storms, theirs = row[relation]
            line += [f"{ours:,}", f"{storms:,}", f"{own:.3f}", f"{theirs:.3f}"]
            if ours != storms:
                faults.append(f"{name}, {relation}: {ours} classes, Storm has {storms}")
        line.append(f"{row['round_trip']:.1g}")
        if not row["round_trip"] <= SAME:
            faults.append(f"{name}: values differ by {row['round_trip']:.3g} after a round trip")
        rows.append(line)
    head = ["model", "states", "branches", "read, s"]
    for relation in EXACT:
        head += [f"{relation} classes", "Storm", "s", "Storm, s"]
    head.append("round trip")
    show(head, [row + [""] * (len(head) - len(row)) for row in rows], is_markdown=options.markdown)

    rows, reasons = [], []
    for path, setting in found:
        name = title(path, setting)
        if options.quick and name not in small:
            continue
        for relation in RELATIONS:
            console.print(f"[dim]{name}, {relation}[/dim]")
            job = {"kind": "certificate", "path": str(path), "setting": asdict(setting)}
            job |= {"gamma": options.gamma, "relation": relation, "seconds": options.seconds}
            row = apart(job, options.seconds)
            if "error" in row:
                rows.append([name, row["error"]])
                continue
            kept = "" if row["kept"] is None else share_text(row["kept"]).replace("at least", "≥")
            clusters = "none" if row["clusters"] is None else f"{row['clusters']:,}"
            classes = "" if row["classes"] is None else f"{row['classes']:,}"
            rows.append([name, row["asked"], relation, f"{row['states']:,}", classes])
            rows[-1] += [clusters, kept, row["verdict"], f"{row['seconds']:.1f}"]
            rows[-1].append(f"{row['memory']:.0f}")
            if row["problem"]:
                faults.append(f"{name}, {relation}: {row['problem']}")
            if row["nearest"]:
                reasons.append(f"{name}, {row['asked']}, {relation}: {row['nearest']}")
    head = [
        "model",
        "requested",
        "relation",
        "states",
        "classes",
        "clusters",
        "retained",
        "verdict",
        "s",
        "MB",
    ]
    show(head, [row + [""] * (len(head) - len(row)) for row in rows], is_markdown=options.markdown)
    for reason in reasons:
        console.print(reason)
    for fault in faults:
        console.print(f"[red]{fault}[/red]")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
