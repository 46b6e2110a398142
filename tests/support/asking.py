"""Certificates asked for by names and values, as commands and files do."""

from __future__ import annotations

from typing import Any

from bisim_abstract import Certificate, Resources, TabularMDP
from bisim_abstract._prove.certify import single_build
from bisim_abstract._prove.driver import prove
from bisim_abstract._prove.options import Options

RESOURCES = ("threads", "backend", "address", "memory_limit")
APART = ("checkpoint", "callback", "progress")


def single_named(mdp: TabularMDP, gamma: float, **given: Any) -> Certificate:
    """`single_build`, with resources by name."""
    return single_build(mdp, gamma, resources=_resources(given), **given)


def certify_named(mdp: TabularMDP, gamma: float, **given: Any) -> Certificate:
    """`certify` with all options by name: those of the method, its name and resources too."""
    resources = _resources(given)
    apart = {name: given.pop(name) for name in APART if name in given}
    return prove(mdp, gamma, Options.named(given), resources=resources, **apart)


def _resources(given: dict[str, Any]) -> Resources:
    named = {name: given.pop(name) for name in RESOURCES if name in given}
    found: Resources = given.pop("resources", Resources(**named))
    return found
