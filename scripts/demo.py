"""Extract Taxi and the gridworld, and compute Taxi's exact bisimulation metric."""

from __future__ import annotations

import time
import warnings

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bisim_abstract import (
    TabularMDP,
    bisimulation_classes,
    bisimulation_metric,
    sparse_mdp,
    value_iteration,
)
from bisim_abstract._typing import Progress
from bisim_abstract.wrappers import extract_mdp

GAMMA = 0.9


def models() -> dict[str, TabularMDP]:
    """The environments of the demo, by name."""
    with warnings.catch_warnings():
        # Where Taxi-v3 is retired its successor, with the same dynamics, stands in.
        warnings.simplefilter("ignore", UserWarning)
        taxi = extract_mdp("Taxi-v3")
    return {"Taxi": taxi, "RoomsGrid": extract_mdp("bisim_abstract/RoomsGrid-v0")}


def main() -> None:
    """Print a table of both models, then Taxi's metric."""
    console = Console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("extracting Taxi and RoomsGrid")
        found = models()
        bar.update(task, description="compiling kernels (first run only), finding classes")
        bisimulation_metric(sparse_mdp(3, support=1, seed=0), GAMMA)
        classes = {name: bisimulation_classes(mdp) for name, mdp in found.items()}
        bar.update(task, description="planning")
        values = {name: value_iteration(mdp, GAMMA) for name, mdp in found.items()}

        def show(progress: Progress) -> None:
            bar.update(task, description=f"Taxi: {progress.stage}, {progress.detail}")

        begin = time.perf_counter()
        metric = bisimulation_metric(found["Taxi"], GAMMA, callback=show)
        seconds = time.perf_counter() - begin

    table = Table(title=f"Models (gamma = {GAMMA:g})", title_justify="left")
    for header in ("environment", "states", "actions", "transitions", "classes", "start value"):
        table.add_column(header, justify="left" if header == "environment" else "right")
    for name, mdp in found.items():
        low, high = values[name].start_bounds(mdp)
        table.add_row(
            name,
            f"{mdp.n_states:,}",
            str(mdp.n_actions),
            f"{mdp.nnz:,}",
            f"{classes[name].n_classes:,}",
            f"{(low + high) / 2:.4f} ± {(high - low) / 2:.0e}",
        )
    console.print(table)
    console.print(f"\nTaxi, {metric.summary()}\n  time      {seconds:.3f} s", highlight=False)
    console.print(
        f"\nEvery one of the {metric.n_states * (metric.n_states - 1) // 2:,} distances is "
        f"enclosed to within {metric.gap:.1e}, with proof.",
        style="green" if metric.is_converged else "red",
        highlight=False,
    )


if __name__ == "__main__":
    main()
