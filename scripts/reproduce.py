"""The paper's experiments on this implementation, beside the published numbers.

    python scripts/reproduce.py                  all of them, into results/
    python scripts/reproduce.py audit taxi       some of them
    python scripts/reproduce.py --quick          small sizes and few seeds, to see that it works

Prints tables with published and measured columns and a verdict for each claim; writes CSV
files and figures. Ends with exit code 1 if a theorem was violated.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent))

from paper.engine import VERDICTS, Options, Result, claim_table, show, write_tables
from paper.page import write_page

EXPERIMENTS = (
    "audit",
    "scaling",
    "sandwich",
    "pipeline",
    "coverage",
    "lower_bounds",
    "downstream",
    "scale",
    "taxi",
    "gridworld",
    "surrogates",
    "closure",
)


def main() -> int:
    """Run the experiments asked for and summarise them."""
    parser = argparse.ArgumentParser(description="The paper's experiments on this implementation.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(EXPERIMENTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, few seeds")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of results")
    parser.add_argument("--seed", type=int, default=0, help="base of all seeds")
    parser.add_argument("--docs", type=Path, help="also write a page with pictures to this folder")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    options = Options(quick=given.quick, out=given.out, seed=given.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(width=150, highlight=False)
    results = []
    begin = time.perf_counter()
    for name in given.names or EXPERIMENTS:
        results.append(run_one(name, options))
        show(console, results[-1])
    seconds = time.perf_counter() - begin
    if given.docs is not None:
        write_page(given.docs, results, options, seconds)
    return summarise(console, results, options, seconds)


def run_one(name: str, options: Options) -> Result:
    """One experiment, with its tables written."""
    module = importlib.import_module(f"paper.{name}")
    begin = time.perf_counter()
    result: Result = module.run(options)
    result.seconds = time.perf_counter() - begin
    write_tables(result, options.out)
    return result


def summarise(console: Console, results: list[Result], options: Options, seconds: float) -> int:
    """The claims of the abstract, counts of verdicts, and the exit code."""
    claims = [x for result in results for x in result.claims]
    abstract = [x for x in claims if x.in_abstract]
    console.rule("Summary", align="left")
    if abstract:
        console.print(claim_table(abstract, title="Claims of the abstract"))
    counts = {x: sum(claim.verdict == x for claim in claims) for x in VERDICTS}
    summary = Result("summary", "", options, claims=abstract)
    summary.add_table(
        "summary",
        "",
        [
            {
                "experiment": x.name,
                "claims": len(x.claims),
                "theorems broken": len(x.broken()),
                "seconds": round(x.seconds, 1),
            }
            for x in results
        ],
    )
    write_tables(summary, options.out)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    console.print(f"{len(claims)} claims: {listed}; {seconds:.0f} s; results in {options.out}")
    broken = [x for result in results for x in result.broken()]
    for claim in broken:
        console.print(f"THEOREM VIOLATED: {claim.text}: {claim.measured}", style="bold red")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
