"""The notebooks as pages of the site, with their outputs as they are stored.

Read by `mkdocs` (see `mkdocs.yml`). Nothing is executed: `make notebooks` does that.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

FOLDER = Path(__file__).parents[1] / "notebooks"
LINK = re.compile(r"\]\(((?:\.\./)*(?:notebooks/)?\w+)\.ipynb\)")


def on_files(files: Any, config: Any) -> Any:
    """One page per notebook, and its pictures beside it."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        pictures: list[bytes] = []
        text = "\n\n".join(_parts(path, pictures)) + "\n"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for k, picture in enumerate(pictures):
            name = f"notebooks/{path.stem}-{k}.png"
            files.append(File.generated(config, name, content=picture))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks lead to their pages."""
    return LINK.sub(r"](\1.md)", markdown)


def _parts(path: Path, pictures: list[bytes]) -> Iterator[str]:
    """The cells of a notebook as Markdown; pictures are gathered in the list."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source.replace("](../docs/", "](../")
            continue
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                yield f"![Drawn by the code above]({path.stem}-{len(pictures)}.png)"
                pictures.append(base64.b64decode("".join(data["image/png"])))
            elif "text/html" in data:
                yield "".join(data["text/html"])
            else:
                text = "".join(output.get("text") or data.get("text/plain", ""))
                yield f"```text\n{text.rstrip()}\n```"
