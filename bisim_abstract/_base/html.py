"""Small tables for notebooks: no script, no sheet of styles, and nothing that is not escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence

# Colours are those of the page around it, or grey: it may be dark or light.
LINE = "1px solid rgba(128,128,128,0.4)"
TABLE = "border-collapse:collapse;border:none;margin:0.2em 0;font-size:90%"
HEAD = f"text-align:left;font-weight:600;padding:0.2em 0;border-bottom:{LINE}"
PLACE = "text-align:left;vertical-align:top"
NAME = f"{PLACE};padding:0.15em 1.5em 0.15em 0;white-space:nowrap;opacity:0.7"
CELL = f"{PLACE};padding:0.15em 0;white-space:normal"


def table_html(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A title and rows of two columns as HTML.

    Args:
        title: Plain text.
        rows: Names and what they are, plain text both.
    """
    head = f'<tr><td colspan="2" style="{HEAD}">{escaped(title)}</td></tr>'
    body = "".join(
        f'<tr><td style="{NAME}">{escaped(name)}</td><td style="{CELL}">{escaped(text)}</td></tr>'
        for name, text in rows
    )
    return f'<table style="{TABLE}">{head}{body}</table>'


def escaped(text: str) -> str:
    """Any text as HTML that shows it and does nothing else.

    Names come from files that anyone may have written: halves of characters, which no page can
    hold, are shown by their number.
    """
    return html.escape(text.encode("utf-8", "backslashreplace").decode(), quote=True)
