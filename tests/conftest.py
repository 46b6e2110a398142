"""What holds for all tests: Hypothesis profiles, whose examples depend on the test alone."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import PROFILE, forget_local_constants

# Each test draws the same examples wherever and with whatever else it is run. `many` is what
# `make test-many` and the mutations run; tests do not set numbers of their own. `few` is as many as
# it takes to draw models of every kind, which a test of the metric looks at.
for name, examples in (("few", 75), ("many", 200)):
    settings.register_profile(
        name,
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(PROFILE)
forget_local_constants()

# Shells let background jobs ignore Ctrl-C, and so would all processes that are interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is left to the night is slow: "not slow" leaves it out."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")


@pytest.fixture
def _no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tightening of values that leads nowhere fails instead of hanging."""
    from tests.support.values import limit_tightening

    limit_tightening(monkeypatch)
