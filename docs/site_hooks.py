"""What the site does beyond the pages: formulas, and names and pictures that are links.

Read by `mkdocs` (see `mkdocs.yml`); no page depends on it to be read as it is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

DOCS = Path(__file__).parent
GUIDE = "CONTRIBUTING.md"
DIRECTIVE = re.compile(r"^::: (bisim_abstract\.(?:\w+\.)*(\w+))$", flags=re.MULTILINE)
# Code in a line that is neither part of a heading nor a link already.
CODE = re.compile(r"(<(a|h[1-6]|pre)\b.*?</\2>)|<code>(\w+)</code>", flags=re.DOTALL)
# A picture by itself; on a telephone one wants to see it larger.
PICTURE = re.compile(r'<p>(<img [^>]*src="([^"]+\.png)"[^>]*>)</p>')
# Where GitHub wants a bar in code escaped.
CELL = re.compile(r"<td\b.*?</td>", flags=re.DOTALL)


def on_config(config: Any) -> Any:
    """Blocks of language `math` become MathML, which browsers draw by themselves."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "math", "format": _formula}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """CONTRIBUTING.md, which lies where people look for it, is a page too."""
    text = (DOCS.parent / GUIDE).read_text(encoding="utf-8").replace("](docs/", "](")
    # What else lies there has no page.
    text = re.sub(r"\[([^\]]+)\]\(([A-Z_]+\.md)\)", r"\1 (`\2`)", text)
    files.append(File.generated(config, "contributing.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to it lead to its page."""
    return re.sub(rf"\]\(((?:\.\./)*)\.\./{GUIDE}\)", r"](\1contributing.md)", markdown)


def _formula(source: str, *_: Any, **__: Any) -> str:
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Public names, written as code, lead to where they are described; pictures to themselves."""
    up = "../" * page.file.src_uri.count("/")

    def link(match: re.Match[str]) -> str:
        skipped, _, name = match.groups()
        if skipped or name not in HOMES:
            return match[0]
        where, anchor = HOMES[name]
        return f'<a class="name" href="{up}{where}#{anchor}"><code>{name}</code></a>'

    html = PICTURE.sub(r'<p><a href="\2">\1</a></p>', CODE.sub(link, html))
    return CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), html)


def _homes() -> dict[str, tuple[str, str]]:
    """Page and anchor of every public name."""
    return {
        name: (f"reference/{path.stem}.html", anchor)
        for path in sorted((DOCS / "reference").glob("*.md"))
        for anchor, name in DIRECTIVE.findall(path.read_text(encoding="utf-8"))
    }


HOMES = _homes()
