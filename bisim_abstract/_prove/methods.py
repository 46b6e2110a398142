"""The methods by name, as commands and files name them."""

from __future__ import annotations

from typing import Any

from bisim_abstract._prove.blocks import Blocks
from bisim_abstract._prove.covering import Covering
from bisim_abstract._prove.optimal import ActionGaps

METHODS: dict[str, Any] = {method.name: method for method in (Blocks, Covering, ActionGaps)}
