"""Fuzzing: damaged files, forged certificates, awkward models, random command lines.

    python -m tests.stress.fuzz                                  every target, 10,000 cases each
    python -m tests.stress.fuzz certify --cases 500 --seed 51    one of them
    python -m tests.stress.fuzz certify --replay AXicY2BkQAAA    one finding again

A loader returns something that keeps its promises and survives a round trip, or refuses with
`FileFormatError`, `MemoryLimitError` or `OSError`: no other error, no warning, no hang. A
certificate that `verify` accepts is true. Solvers are right, by slow code of our own. Commands
end with a code that says why. Everything else is a finding: it is made as simple as it can be,
its input is kept, and the command that repeats it is printed. Exit code 1 if there are any.

The same seed draws the same cases. To use more cores, run other seeds beside each other.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
from pathlib import Path

from rich.console import Console

from tests.stress import commands, files, forging, solvers
from tests.stress.running import Target, fuzz
from tests.support.examples import forget_local_constants

TARGETS = {
    target.name: target
    for target in (
        *files.TARGETS,
        Target("certificate", forging.prepare_certificate, warm=20),
        *solvers.TARGETS,
        Target("cli", commands.prepare_cli, limit=20.0, is_strict=False, warm=20),
    )
}


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; 1 if anything was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--cases", type=int, default=10_000, help="per target (10000)")
    parser.add_argument("--seed", type=int, default=0, help="of all cases (0)")
    parser.add_argument("--replay", default="", metavar="BLOB", help="repeat one finding")
    parser.add_argument("--kept", type=Path, default=Path("fuzz-findings"), help="failing inputs")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.targets) - set(TARGETS))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if options.replay and len(options.targets) != 1:
        parser.error("--replay repeats a finding of one target")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    n_findings = 0
    for name in options.targets or TARGETS:
        tally = fuzz(
            TARGETS[name],
            cases=options.cases,
            seed=options.seed,
            kept=options.kept.resolve(),
            replay=options.replay,
        )
        n_findings += len(tally.findings)
        console.print(
            f"{name}: {tally.cases:,} cases in {tally.seconds:.1f} s, {tally.accepted:,} accepted, "
            f"{len(tally.findings)} findings"
        )
        for finding in tally.findings:
            text = finding.text.encode(errors="backslashreplace").decode()
            console.print(f"  {finding.kind}: {text[:300]}\n    {finding.kept}")
            console.print(f"    {finding.command}")
    return 1 if n_findings else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    faulthandler.enable()
    forget_local_constants()
    logging.getLogger("bisim_abstract").setLevel(logging.ERROR)
    sys.exit(main())
