"""What a certificate means for its environment: in sentences, and in lines of Python.

Sentences speak of variables and actions by the names that the model has for them. Whatever is
claimed of values is what the certificate proves, and in no larger words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._base.text import clusters_text, counted, shortened
from bisim_abstract._base.types import IntArray
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._model.mdp import TabularMDP

MAX_VARIABLES = 40  # of which more is too much to read
MAX_LISTED = 8  # names in one sentence
SHORT = 40  # characters of one of them


def meaning(certificate: Certificate, mdp: TabularMDP, *, is_rejected: bool) -> Iterator[str]:
    """What is proven of the environment, as paragraphs.

    Args:
        certificate: The certificate.
        mdp: Its model.
        is_rejected: Whether a check found that the certificate does not hold.
    """
    if is_rejected:
        yield "The independent check rejected this certificate. Nothing on this page is proven."
        return
    if certificate.tau is None or not certificate.is_certified:
        yield (
            "Nothing is certified here: which states belong together is not decided by what is "
            "proven so far. Colours and numbers below show what is known on either side."
        )
        return
    yield from _worth(certificate)
    yield from _members(certificate, mdp)
    yield from _plan(certificate, mdp)


def _worth(certificate: Certificate) -> Iterator[str]:
    """What an agent gets that is told of clusters alone."""
    value, n = certificate.value, certificate.n_live
    seen = f"which of {clusters_text(certificate.n_clusters, has_end=False)} it is in"
    if certificate.n_clusters == n:
        yield "No two states are merged: this is the environment as it was."
    if value is None or certificate.is_under_policy:
        return
    head = f"An agent that is told only {seen}, and not which of {counted(n, 'state')},"
    if certificate.relation == "lax":
        head += " whose actions are renamed in each state as the certificate says,"
    prefix = ""
    if certificate.alpha:
        prefix = f"With probability at least {1.0 - certificate.alpha:.6g}: "
        head = head[0].lower() + head[1:]
    if value.kept > 0.0:
        gains = f"gains {share_text(value.kept)} of what the best plan gains"
        got = f"{gains} over acting at random, from the start"
    else:
        got = "may gain no more than by acting at random, for all that is proven"
    yield (
        f"{prefix}{head} and follows the plan that was made on these clusters, {got}. In no state "
        f"does it get less than the best plan does by more than {amount_text(value.loss)}, "
        f"rewards being discounted by {certificate.gamma:g} a step."
    )


def _members(certificate: Certificate, mdp: TabularMDP) -> Iterator[str]:
    """Which states are merged."""
    states = _live(certificate)
    labels = certificate.labels[states]
    sizes = np.bincount(labels)
    sizes = sizes[sizes > 0]
    if not sizes.size or sizes.max() == 1:
        return
    largest, alone = int(sizes.max()), int((sizes == 1).sum())
    text = f"The largest cluster has {counted(largest, 'state')}"
    if int(sizes.min()) == largest:
        each = f"{counted(largest, 'state')} each"
        text = f"All states are in one cluster, {counted(largest, 'state')}"
        text = text if sizes.size == 1 else f"All clusters have {each}"
    elif alone:
        text += f"; {counted(alone, 'state')} {'is' if alone == 1 else 'are'} alone in "
        text += "its cluster" if alone == 1 else "their clusters"
    yield f"{text}. {' '.join(_variables(mdp, states, labels))}".strip()


def _variables(mdp: TabularMDP, states: IntArray, labels: IntArray) -> Iterator[str]:
    """What states of a cluster share, and what makes no difference."""
    names, columns = [], []
    for variable in mdp.names.variables[:MAX_VARIABLES]:
        codes = np.unique(variable.values[states], return_inverse=True)[1]
        if variable.name and codes.max(initial=0) > 0:  # else there is nothing to tell
            names.append(shortened(variable.name, SHORT))
            columns.append(codes)
    if not columns or len(mdp.names.variables) > MAX_VARIABLES:
        return
    held = [_decides(labels, column) for column in columns]
    idle = []
    for k in range(len(columns)):
        others = _joined([c for j, c in enumerate(columns) if j != k], labels.size)
        # Where no two states differ in that alone, there is nothing to claim.
        idle.append(np.unique(others).size < labels.size and _decides(others, labels))
    shared = [name for name, is_held in zip(names, held, strict=True) if is_held]
    ignored = [name for name, is_idle in zip(names, idle, strict=True) if is_idle]
    if shared:
        yield f"States of one cluster always have the same {_listed(shared)}."
    if ignored:
        word = "alone" if len(ignored) == 1 else "alone, one of these at a time,"
        yield f"States that differ in {_listed(ignored, 'or')} {word} are always in one cluster."
    rest = [name for name in names if name not in shared and name not in ignored]
    if rest and not ignored:
        yield f"Some clusters hold states that differ in {_listed(rest, 'or')}."


def _plan(certificate: Certificate, mdp: TabularMDP) -> Iterator[str]:
    """What the proven plan does, by number of clusters."""
    value, actions = certificate.value, mdp.names.actions
    if value is None or actions is None or value.renaming is not None or mdp.n_actions < 2:
        return
    labels = np.unique(value.labels[_live(certificate)])
    counts = np.bincount(value.policy[labels], minlength=mdp.n_actions)
    order = [a for a in np.argsort(-counts, kind="stable").tolist() if counts[a]]
    parts = [f"{mdp.action_text(a)} in {int(counts[a]):,}" for a in order[:MAX_LISTED]]
    if len(order) > MAX_LISTED:
        parts.append(f"others in {int(counts[order[MAX_LISTED:]].sum()):,}")
    yield f"What the plan does: {', '.join(parts)} of {counted(labels.size, 'cluster')}."


def _live(certificate: Certificate) -> IntArray:
    states = np.arange(certificate.n_states)
    end = certificate.terminal_state
    return states if end is None else np.delete(states, end)


def _decides(one: IntArray, other: IntArray) -> bool:
    """Whether equal entries of one have equal entries of the other."""
    pairs = np.unique(np.column_stack([one, other]), axis=0)
    return bool(pairs.shape[0] == np.unique(one).size)


def _joined(columns: Sequence[IntArray], count: int) -> IntArray:
    """One code for each combination of entries."""
    codes: IntArray = np.zeros(count, np.int64)
    for column in columns:
        codes = np.unique(codes * (int(column.max()) + 1) + column, return_inverse=True)[1]
    return codes


def _listed(names: Sequence[str], word: str = "and") -> str:
    names = list(names)
    if len(names) > MAX_LISTED:
        names = [*names[:MAX_LISTED], f"{len(names) - MAX_LISTED:,} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


# -- in Python ---------------------------------------------------------------------------------


def snippet(
    certificate: Certificate, mdp: TabularMDP, record: Mapping[str, Any] | None = None
) -> str:
    """How to use a certificate and its model, once both are saved, from Python.

    Args:
        certificate: The certificate.
        mdp: Its model.
        record: That of a run, which tells how its environment was made.
    """
    env = _env_call(mdp, record or {})
    is_certified, value = certificate.is_certified, certificate.value
    is_plain = certificate.scope == "all" and not certificate.is_under_policy
    with_env = env is not None and is_certified and is_plain
    lines = ["import gymnasium as gym"] if with_env else []
    lines.append("from bisim_abstract import Certificate, TabularMDP, verify")
    if with_env:
        lines.append("from bisim_abstract.wrappers import AbstractedEnv")
        if str(mdp.metadata["env"]).startswith("MiniGrid-"):
            lines.insert(1, "import minigrid  # registers its environments")
    lines += [
        "",
        'mdp = TabularMDP.load("mdp.npz")  # as the run wrote them, or mdp.save and',
        'certificate = Certificate.load("certificate.npz")  # certificate.save did',
        "assert verify(mdp, certificate).is_valid",
        "frame = certificate.to_frame(mdp)  # a row for each state",
    ]
    if is_certified:
        small = clusters_text(certificate.n_clusters, has_end=mdp.terminal_state is not None)
        lines.append(f"small = certificate.aggregate(mdp).mdp  # the model of {small}")
    if value is not None and is_certified:
        lines.append("plan = certificate.value.lifted_policy  # an action for each state, proven")
    if with_env:
        # Where there is no table to read, the model at hand saves enumerating it again.
        known = ", mdp=mdp" if mdp.metadata.get("method") == "enumeration" else ""
        lines.append(f"env = AbstractedEnv({env}, certificate{known})  # for any agent")
    return "\n".join(lines)


def _env_call(mdp: TabularMDP, record: Mapping[str, Any]) -> str | None:
    """How the environment is made, as code; None where there is none, or nobody knows."""
    config, name = record.get("config"), mdp.metadata.get("env")
    is_other = mdp.is_sampled or "n_background" in mdp.metadata  # wrapped
    if not isinstance(name, str) or not name or is_other:
        return None
    source = config.get("source") if isinstance(config, Mapping) else None
    asked: Mapping[str, Any] = source if isinstance(source, Mapping) else {}
    arguments = asked.get("env_args") or {}
    if asked.get("backgrounds") is not None or asked.get("action_masks"):
        return None
    if mdp.metadata.get("terminal") == "table" or not isinstance(arguments, Mapping):
        return None
    if not all(str(key).isidentifier() for key in arguments):
        return None
    given = "".join(f", {key}={entry!r}" for key, entry in arguments.items())
    return f"gym.make({json.dumps(name)}{given})"
