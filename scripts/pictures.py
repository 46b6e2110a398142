"""The pictures of a run in the documentation, made anew: `python scripts/pictures.py RUN`.

RUN is a run directory, for instance that of `make demo`. Screenshots of its report need
Chromium; without it only the plots are drawn. Drawings that need no run are made by
`scripts/drawings.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bisim_abstract import Certificate, Curve, TabularMDP, plot_curves, state_map
from bisim_abstract._app.plots import plot_dendrogram, plot_map, plot_profile

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
# Name, width and height in pixels, and whether dark.
SHOTS = (
    ("report", 1280, 900, False),
    ("report-page", 1280, 6230, False),
    ("report-phone", 390, 844, False),
    ("report-dark", 1280, 900, True),
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def overview(run: Path) -> None:
    """Profile, map, merges and learning curves of a run in one picture."""
    import matplotlib.pyplot as plt

    certificate, mdp = Certificate.load(run / "certificate.npz"), TabularMDP.load(run / "mdp.npz")
    rows: list[dict[str, Any]] = json.loads((run / "curves.json").read_text())
    curves = [
        Curve(row["name"], tuple(row["steps"]), np.array(row["scores"], dtype=np.float64))
        for row in rows
    ]
    figure, axes = plt.subplots(2, 2, figsize=(13, 9), layout="constrained")
    plot_profile(certificate, ax=axes[0, 0])
    plot_map(certificate, state_map(mdp), ax=axes[0, 1])
    plot_dendrogram(certificate, ax=axes[1, 0])
    plot_curves(curves, level=0.95, ax=axes[1, 1])
    axes[1, 1].set(title="Q-learning", ylabel="score: the baseline 0, the best 1")
    figure.savefig(IMAGES / "overview.png", dpi=100)
    plt.close(figure)


def screenshots(run: Path) -> None:
    """The report as a browser shows it."""
    browser = shutil.which("chromium")
    if browser is None:
        raise SystemExit("screenshots need Chromium: install the Debian package chromium")
    for name, width, height, is_dark in SHOTS:
        with tempfile.TemporaryDirectory() as profile:
            flags = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
            if is_dark:
                flags.append("--blink-settings=preferredColorScheme=0")
            target = IMAGES / f"{name}.png"
            page = (run / "report.html").resolve().as_uri()
            subprocess.run(
                [browser, *flags, f"--screenshot={target}", "--virtual-time-budget=3000", page],
                check=True,
                capture_output=True,
            )


def main() -> None:
    """Draw everything into docs/images."""
    parser = argparse.ArgumentParser(description="The pictures of a run in the documentation.")
    parser.add_argument("run", type=Path, help="a run directory, for instance runs/demo")
    options = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    overview(options.run)
    screenshots(options.run)
    print(f"pictures in {IMAGES}")


if __name__ == "__main__":
    main()
