"""The methods by the name of what they prove: the pairs in scope."""

from __future__ import annotations

from typing import Any

from bisim_abstract._prove.blocks import Blocks
from bisim_abstract._prove.covering import Covering

METHODS: dict[str, Any] = {method.scope: method for method in (Blocks, Covering)}
