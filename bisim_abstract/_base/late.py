"""What objects offer and later rooms make: asked for by name, when it is wanted.

The one arrow in the house that points up. A certificate can draw itself, as people expect, and
still imports no plots: whoever only certifies never loads them.
"""

from __future__ import annotations

import importlib
from typing import Any

MAKERS = {"plots": "bisim_abstract._app.plots"}


def maker(name: str) -> Any:
    """The module that makes what is asked for."""
    return importlib.import_module(MAKERS[name])
