"""The whole chain on RoomsGrid: train, certify, verify, abstract, learn, report.

    python scripts/demo.py [--out DIR] [--quick]

A directory that holds an earlier demo is emptied first.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from rich.console import Console

from bisim_abstract import InvalidArgumentError
from bisim_abstract.runs import Config, Done, Run, Training
from bisim_abstract.sources import Source
from bisim_abstract.wrappers import AbstractedEnv

ENV = "bisim_abstract/RoomsGrid-v0"
TITLE = "Demo: RoomsGrid"
WORDS = {
    "extract": "the model behind the environment",
    "train": "an encoder, which only proposes which states might be alike",
    "certify": "bounds on the metric of all pairs of states, and a clustering both agree on",
    "verify": "the certificate, by code that did not make it",
    "compare": "what planning on clusters loses, beside clusterings that nobody has proven",
    "learn": "agents on the clusters, and the same agent on raw states",
    "report": "everything on one page",
}


def main() -> None:
    """Run the chain, telling what each stage does."""
    parser = argparse.ArgumentParser(description="The whole chain on RoomsGrid.")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="where to write")
    parser.add_argument("--quick", action="store_true", help="little training, one agent")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    _empty(options.out)
    config = Config(
        source=Source(name=ENV),
        gamma=0.9,
        training=Training(steps=300 if options.quick else 5_000),
        learn=2_000 if options.quick else 20_000,
        learn_seeds=1 if options.quick else 3,
        title=TITLE,
    )

    def after(done: Done) -> None:
        console.print(f"[bold]{done.stage:<8}[/bold] {WORDS[done.stage]}")
        console.print(f"{'':8} {done.detail} ({done.seconds:.1f} s)", style="dim", markup=False)

    begin = time.perf_counter()
    console.print(f"{ENV}: 2,500 states, but nobody tells us that they form 25 rooms\n")
    found = Run(options.out, config, after=after)()
    env = AbstractedEnv(config.source.env(), found.certificate)
    console.print(f"\n{env.summary()}", markup=False)
    seconds = time.perf_counter() - begin
    style = "bold green" if found.certificate.is_certified else "bold red"
    console.print(f"\nreport: {found.report.resolve()} ({seconds:.0f} s in all)", markup=False)
    console.print(found.verdict, style=style, markup=False)


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
