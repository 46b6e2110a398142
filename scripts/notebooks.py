"""The notebooks: executed, with what they print and draw stored in them.

    python scripts/notebooks.py                executes all of them in place
    python scripts/notebooks.py quick_start    one of them
    python scripts/notebooks.py --check        executes them anew and compares, changes nothing

The files in `notebooks/` are the source: edit them in any editor of notebooks, or by hand, and then
run this. What is stored about cells beyond their text, outputs and tags is removed. Each notebook
runs in a process and in a directory of its own, and anything on the error stream is an error.

Outputs are compared as text. Words must be the same; numbers may differ by a millionth, or by 1e-9,
and in cells with the tag `learned`, which depend on how a processor sums up in single precision,
by a fifth, or by 0.1. Of pictures it is only compared that they are there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NAMES = ("quick_start", "distractors_and_encoders", "symmetries", "from_prism_to_agent")
TIMEOUT = 600  # seconds per cell, for slow machines
TAGS = frozenset({"learned"})
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
TEXTS = ("text/plain", "text/html", "text/markdown")
PICTURES = ("image/png", "image/svg+xml")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", flags=re.IGNORECASE)


@dataclass(frozen=True)
class Tolerance:
    """How much two numbers may differ: by a share of the larger one, or by so much."""

    share: float
    least: float

    def allows(self, one: str, other: str) -> bool:
        """Whether two numbers, as printed, count as the same."""
        a, b = (float(text.replace(",", "")) for text in (one, other))
        return abs(a - b) <= max(self.least, self.share * max(abs(a), abs(b)))


COMPUTED, LEARNED = Tolerance(1e-6, 1e-9), Tolerance(0.2, 0.1)


def execute(path: Path) -> dict[str, Any]:
    """A notebook with all of its cells run anew; nothing is written.

    Raises:
        RuntimeError: If a cell writes to the error stream.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as work:
        # What Jupyter keeps of its own goes away with the directory.
        own = {
            "PYTHONPATH": str(ROOT),
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "IPYTHONDIR": f"{work}/.ipython",
            "JUPYTER_RUNTIME_DIR": f"{work}/.jupyter",
        }
        os.environ.update(own)
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            kernel_name="python3",
            coalesce_streams=True,  # else it depends on the moment how output is cut
            extra_arguments=["--log-level=ERROR"],  # it warns that it listens on this machine
            resources={"metadata": {"path": work}},
        )
        client.execute()
    return cleaned(notebook, path.stem)


def cleaned(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """The notebook without what editors and kernels store beside text and outputs."""
    notebook["metadata"] = METADATA
    for k, cell in enumerate(notebook["cells"]):
        tags = sorted(TAGS & set(cell["metadata"].get("tags", ())))
        cell["metadata"] = {"tags": tags} if tags else {}
        cell["id"] = f"{name.split('_')[0]}-{k:02}"
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise RuntimeError(
                    f"{name}, cell {k}, writes to the error stream: {output['text']}"
                )
            if "metadata" in output:
                output["metadata"] = {}
    return notebook


def texts(cell: dict[str, Any]) -> str:
    """All that a cell shows, as one text in which pictures are only named."""
    parts: list[str] = []
    for output in cell.get("outputs", ()):
        if output["output_type"] == "stream":
            parts.append(output["text"])
            continue
        data = output.get("data", {})
        parts += [str(data[kind]) for kind in TEXTS if kind in data]
        parts += [f"[{kind}]" for kind in PICTURES if kind in data]
    return "\n".join(parts)


def differences(stored: dict[str, Any], fresh: dict[str, Any]) -> Iterator[str]:
    """Cells that show something else than is stored, one sentence each."""
    for k, (old, new) in enumerate(zip(stored["cells"], fresh["cells"], strict=True)):
        if old["cell_type"] == "code":
            tolerance = LEARNED if "learned" in old["metadata"].get("tags", ()) else COMPUTED
            problem = difference(texts(old), texts(new), tolerance)
            if problem:
                yield f"cell {k}: {problem}"


def difference(stored: str, fresh: str, tolerance: Tolerance) -> str:
    """Where two texts first differ, line by line, or nothing; spaces do not count."""
    before, after = ([line.split() for line in text.splitlines()] for text in (stored, fresh))
    for old, new in zip(before, after, strict=False):
        one, other = " ".join(old), " ".join(new)
        first, second = NUMBER.findall(one), NUMBER.findall(other)
        is_same = NUMBER.sub("#", one) == NUMBER.sub("#", other)
        if not is_same or not all(map(tolerance.allows, first, second)):
            return f"stored is\n    {one}\nand now it is\n    {other}"
    if len(before) != len(after):
        return f"stored are {len(before)} lines, and now there are {len(after)}"
    return ""


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="which notebooks; all by default")
    parser.add_argument("--check", action="store_true", help="compare with what is stored")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no notebook {sorted(unknown)}; there are {', '.join(NAMES)}")
    import nbformat

    # Compiling solvers is announced on the error stream: it is done before.
    compile_solvers = [sys.executable, "-m", "bisim_abstract", "compile"]
    subprocess.run(compile_solvers, cwd=ROOT, check=True, capture_output=True)
    is_good = True
    for name in arguments.names or NAMES:
        path = FOLDER / f"{name}.ipynb"
        begin = time.perf_counter()
        fresh = execute(path)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
        if not arguments.check:
            nbformat.write(fresh, path)
            continue
        for problem in differences(nbformat.read(path, as_version=4), fresh):
            is_good = False
            print(f"{name}, {problem}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
