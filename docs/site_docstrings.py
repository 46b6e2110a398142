"""Docstrings are written for readers of code; two habits of theirs mean something else on a page.

Read by `griffe`, which collects the docstrings for `mkdocs` (see `mkdocs.yml`).
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:$", flags=re.MULTILINE)
# Code in a line and lines of examples, which stay as they are; or brackets after brackets.
BRACKETS = re.compile(r"(`[^`]*`|^ *(?:>>>|\.\.\.).*$)|\]\[", flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """`Example:` holds prompts, not quotations, and `table[state][action]` is not a link."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            text = EXAMPLE.sub("Examples:", obj.docstring.value)
            obj.docstring.value = BRACKETS.sub(lambda match: match[1] or r"]\[", text)
