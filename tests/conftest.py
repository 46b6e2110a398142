"""What holds for all tests: one Hypothesis profile, whose examples depend on the test alone."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import forget_local_constants

# Each test draws the same examples wherever and with whatever else it is run; a test says how many
# only where the usual number takes long or is too small.
settings.register_profile(
    "house",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
forget_local_constants()


@pytest.fixture
def _no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tightening of values that leads nowhere fails instead of hanging."""
    from tests.support.values import limit_tightening

    limit_tightening(monkeypatch)
