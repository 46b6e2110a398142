"""Fuzzing: damaged files, forged certificates, awkward models, random command lines.

    python scripts/fuzz.py                              every target, 10,000 cases each
    python scripts/fuzz.py mdp certify --count 500      some of them
    python scripts/fuzz.py --seconds 60                 at most a minute for each
    python scripts/fuzz.py certify --seed 0 --only 17   one case again

A loader returns something that keeps its promises and survives a round trip, or refuses with
`FileFormatError`, `MemoryLimitError` or `OSError`: no other error, no warning, no hang. A
certificate that `verify` accepts is true. Solvers are right, by slow code of our own. Commands
end with a code that says why. Everything else is a finding: its input is kept, and the command
that repeats it is printed. Ends with exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fuzzing import commands, files, forge, solvers
from fuzzing.core import HANG_SECONDS, Tally, Target, fuzz
from rich.console import Console
from rich.table import Table

# At a discount of 0.999 every proposal may take 10,000 sweeps: slow, and still no hang.
SLOW = {"certify": 60.0, "estimate": 60.0}
TARGETS = {
    target.name: target
    for target in (
        Target("mdp", files.archive_target(files.make_models, files.read_mdp, files.seal_model)),
        Target("bridge", files.archive_target(files.make_bridges, files.read_bridge_file)),
        Target("certificate", forge.prepare_certificate, warm=20),
        Target("encoder", files.archive_target(files.make_encoders, files.read_encoder)),
        Target("transitions", files.archive_target(files.make_transitions, files.read_transitions)),
        Target("config", files.prepare_config),
        *(
            Target(name, prepare, warm=20, limit=SLOW.get(name, HANG_SECONDS))
            for name, prepare in solvers.targets().items()
        ),
        Target("cli", commands.prepare_cli, limit=20.0, is_strict=False, warm=20),
    )
}


def run_target(
    name: str, count: int, seed: int, seconds: float | None, kept: Path, first: int
) -> Tally:
    """Fuzz one target in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        return fuzz(
            TARGETS[name],
            count=count,
            seed=seed,
            work=Path(work),
            kept=kept,
            seconds=seconds,
            first=first,
        )


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; 1 if anything was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--count", type=int, default=10_000, help="cases per target (10000)")
    parser.add_argument("--seed", type=int, default=0, help="of all cases (0)")
    parser.add_argument("--seconds", type=float, help="budget per target")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the cases (1)")
    parser.add_argument("--only", type=int, metavar="CASE", help="run this case alone")
    parser.add_argument("--kept", type=Path, default=Path("fuzz-findings"), help="failing inputs")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.targets) - set(TARGETS))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    names = options.targets or list(TARGETS)
    first, count = (0, options.count) if options.only is None else (options.only, 1)
    kept: Path = options.kept
    console = Console(highlight=False, width=130)
    given = (options.seed, options.seconds, kept.resolve())
    tallies: list[Tally] = []
    if options.jobs > 1:
        # A fresh interpreter each: a fork would inherit threads that are not there.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.jobs, context, _prepare) as pool:
            for name in names:
                tallies.append(Tally(name))
                step = max(1, -(-count // options.jobs))
                for job in [
                    pool.submit(run_target, name, min(step, count - begin), *given, first + begin)
                    for begin in range(0, count, step)
                ]:
                    tallies[-1].add(job.result())
                _show(console, tallies[-1])
    else:
        for name in names:
            tallies.append(run_target(name, count, *given, first))
            _show(console, tallies[-1])
    console.print(_table(tallies, options.seed))
    return 1 if any(tally.findings for tally in tallies) else 0


def _show(console: Console, tally: Tally) -> None:
    console.print(f"{tally.target}: {tally.cases:,} cases in {tally.seconds:.1f} s", markup=False)
    seen: dict[tuple[str, str], int] = {}
    for finding in tally.findings:
        key = finding.kind, finding.text[:40]
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= 3:  # one cause often shows many times
            text = finding.text.encode(errors="backslashreplace").decode()
            console.print(f"  {finding.kind}: {text[:300]}", markup=False)
            console.print(f"    {finding.command}", markup=False)
            console.print(f"    {finding.kept}", markup=False)


def _table(tallies: list[Tally], seed: int) -> Table:
    table = Table(title=f"Fuzzing, seed {seed}", title_justify="left")
    for header in ("target", "cases", "accepted", "refused", "seconds", "findings"):
        table.add_column(header, justify="left" if header == "target" else "right")
    for tally in tallies:
        table.add_row(
            tally.target,
            f"{tally.cases:,}",
            f"{tally.accepted:,}",
            f"{tally.refused:,}",
            f"{tally.seconds:.1f}",
            f"{len(tally.findings):,}",
        )
    return table


def _prepare() -> None:
    """Settings of a process that runs cases."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    faulthandler.enable()
    logging.getLogger("bisim_abstract").setLevel(logging.ERROR)


if __name__ == "__main__":
    _prepare()
    sys.exit(main())
