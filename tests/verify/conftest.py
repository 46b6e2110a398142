"""What tests of `verify` share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.altered import ALTER_LABELS, ALTER_MDP, GAMMA
from tests.support.honest import (
    accepted,
    at_tau,
    bounds,
    build,
    thresholds,
)

# -- alterations -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def honest() -> dict[str, Any]:
    """Converged at all levels, so that nothing has room; some pairs of each kind covered."""
    content = build(
        ALTER_MDP,
        GAMMA,
        labelings=[ALTER_LABELS],
        pairs=[(0, 1), (0, 5), (1, 2), (3, 6)],
        sweeps=26,
    )
    taus = thresholds(*bounds(ALTER_MDP, content))[-6:]
    choices = [at_tau(ALTER_MDP, content, tau) for tau in taus]
    choices = [c for c in choices if 0 < c["labels_lower"].max() <= c["labels_upper"].max() < 7]
    assert choices
    accepted(choices[-1], ALTER_MDP)
    return choices[-1]
