"""What an abstraction of RoomsGrid is worth, and then the whole chain behind it.

    python scripts/demo.py [--out DIR] [--quick]

First the one call that most people need, and what it proves. Then every stage by itself: train,
certify, verify, compare, learn, report. A directory that holds an earlier demo is emptied first.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from rich.console import Console

from bisim_abstract import InvalidArgumentError, abstract_env
from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._app.config import Config, Training
from bisim_abstract._app.runs import Begun, Done, Run
from bisim_abstract._app.sources import Source
from bisim_abstract._base.jit import watching
from bisim_abstract._base.text import seconds_text

ENV = "bisim_abstract/RoomsGrid-v0"
GAMMA = 0.9
TITLE = "Demo: RoomsGrid"
WORDS = {
    "extract": "the model behind the environment",
    "train": "an encoder, which only proposes which states might be alike",
    "certify": "bounds on the metric of all pairs of states, and the fewest clusters worth having",
    "verify": "the certificate, by code that did not make it",
    "compare": "what planning on clusters loses, beside clusterings that nobody has proven",
    "learn": "agents on the clusters, and the same agent on raw states",
    "report": "everything on one page",
}


def main() -> None:
    """Show what is proven, then run the chain, telling what each stage does."""
    parser = argparse.ArgumentParser(description="RoomsGrid: its value, and the whole chain.")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="where to write")
    parser.add_argument("--quick", action="store_true", help="little training, one agent")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    _empty(options.out)
    begin = time.perf_counter()
    _show_value(console)
    config = Config(
        source=Source(name=ENV),
        gamma=GAMMA,
        training=Training(steps=300 if options.quick else 5_000),
        learn=2_000 if options.quick else 20_000,
        learn_seeds=1 if options.quick else 3,
        title=TITLE,
    )

    def before(begun: Begun) -> None:
        console.print(f"[bold]{begun.stage:<8}[/bold] {WORDS[begun.stage]}")

    def after(done: Done) -> None:
        took = seconds_text(done.seconds, done.compile_seconds)
        console.print(f"{'':8} {done.detail} ({took})", style="dim", markup=False)

    console.print("\nThe same in stages, with an encoder, agents and a report:\n")
    found = Run(options.out, config, before=before, after=after)()
    seconds = time.perf_counter() - begin
    console.print(f"\nreport: {found.report.resolve()} ({seconds:.0f} s in all)", markup=False)
    console.print(found.verdict.sentence, style=f"bold {found.verdict.colour}", markup=False)


def _show_value(console: Console) -> None:
    """The one call, and what it proves."""
    console.print(f"{ENV}: 2,500 states, but nobody tells us that they form 25 rooms\n")
    console.print(f'env = abstract_env("{ENV}", gamma={GAMMA:g})\n', style="dim", markup=False)
    begin = time.perf_counter()
    with watching() as compiled:
        env = abstract_env(ENV, gamma=GAMMA)
    seconds = time.perf_counter() - begin - compiled.seconds
    certificate, value = env.certificate, env.value
    rows = (
        ("clusters", f"{certificate.n_clusters:,} instead of {certificate.n_live:,} states"),
        ("retained", f"{share_text(value.solver.kept)} of the achievable return, by any solver"),
        ("lost", f"{amount_text(value.solver.loss)} at most, in any state"),
        ("proof", f"over all pairs, verified ({seconds_text(seconds, compiled.seconds)})"),
    )
    for name, text in rows:
        console.print(f"[bold]{name:<8}[/bold] {text}")


def _empty(folder: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    config = folder / "config.json"
    if not config.exists():
        return
    if Config.load(config).title != TITLE:
        raise InvalidArgumentError(f"{folder} holds another run; give another --out")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
