"""Classes of environments that are read by code of their own: a registry of adapters.

An adapter is a function of an environment (or of a wrapper) that returns its `TableSource`, or None
where it does not fit. It is registered by the full name of a class, so that nothing is imported for
environments that nobody has, and is asked for classes derived from it too. Other packages register
theirs as entry points of the group `bisim_abstract.adapters`, programs by `register_adapter`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias

from bisim_abstract.errors import ExtractionError, InvalidArgumentError

GROUP = "bisim_abstract.adapters"

Adapter: TypeAlias = Callable[[Any], Any]

OWN = {
    "gym_classics.envs.abstract.base_env.BaseEnv": "bisim_abstract.wrappers.classics:ClassicsTable",
    "gymnasium.envs.toy_text.blackjack.BlackjackEnv": (
        "bisim_abstract.wrappers.blackjack:adapt_blackjack"
    ),
}
_registered: dict[str, Adapter] = {}


def register_adapter(kind: type | str, adapter: Adapter) -> None:
    """Read environments of a class by a function of yours, in this process.

    A package registers its adapters for everybody by entry points of the group
    `bisim_abstract.adapters`, with the full name of the class as name.

    Args:
        kind: The class of the environment or wrapper, or its full name. Derived classes are read by
            the same adapter.
        adapter: Takes the environment and returns an object with `to_mdp(*, terminal="absorb")`
            and `state_id()`, as environments that describe themselves have them; or None where it
            does not fit. The model is compared with real steps, as any other.
    """
    if not callable(adapter):
        raise InvalidArgumentError(f"adapter must be a function of an environment, got {adapter!r}")
    _registered[kind if isinstance(kind, str) else _full_name(kind)] = adapter
    find_adapter.cache_clear()


@lru_cache(maxsize=1024)
def find_adapter(kind: type) -> Adapter | None:
    """The adapter of a class, or of the nearest class that it is derived from, if there is any."""
    for each in kind.__mro__:
        name = _full_name(each)
        if name in _registered:
            return _registered[name]
        entry = _entries().get(name)
        if entry is not None:
            try:
                found: Adapter = entry.load()
            except Exception as error:  # of somebody else's module
                raise ExtractionError(
                    f"the adapter {entry.value} for {name} could not be loaded "
                    f"({type(error).__name__}: {error}); repair or remove the package that "
                    "registers it"
                ) from error
            return found
    return None


@cache
def _entries() -> dict[str, EntryPoint]:
    """Entry points by the class that they are for; those of other packages come before our own."""
    own = {name: EntryPoint(name, value, GROUP) for name, value in OWN.items()}
    return own | {entry.name: entry for entry in entry_points(group=GROUP)}


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
