"""Hypothesis without the one thing that `derandomize` leaves to chance."""

from __future__ import annotations

from hypothesis.internal.conjecture import providers


def forget_local_constants() -> None:
    """Draw no constants from the source of the modules that happen to be loaded.

    Hypothesis collects the literals of all local modules in `sys.modules` and mixes them into
    what it draws. So examples would change with the selection of test files, with their order,
    and with every edit of the package: of a mutant, too.
    """
    nothing = providers._local_constants
    assert len(nothing) == 0, "constants were collected before any test ran"
    providers._get_local_constants = lambda: nothing
