"""What a certificate means for its environment: in sentences, and in lines of Python.

Sentences speak of variables and actions by the names that the model has for them. Whatever is
claimed of values is what the certificate proves of the agents that its guarantee names.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from bisim_abstract._abstract.value import ProvenValue, amount_text, kept_text
from bisim_abstract._base.text import clusters_text, counted, plain_text, shortened, surely_text
from bisim_abstract._base.types import IntArray
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.verdict import AGENTS
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._relations.table import find_relation

MAX_VARIABLES = 40  # of which more is too much to read
MAX_LISTED = 8  # names in one sentence
SHORT = 40  # characters of one of them
UNTOLD = ["step_count"]  # what is frozen by default


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
        yield from _model(mdp, certificate.conditions)
        return
    yield from _worth(certificate, mdp)
    yield from _members(certificate, mdp)
    yield from _plan(certificate, mdp)
    yield from _model(mdp, certificate.conditions)


def _worth(certificate: Certificate, mdp: TabularMDP) -> Iterator[str]:
    """What agents get that see clusters only: those of the guarantee first, then all others."""
    value, n = certificate.value, certificate.n_live
    if certificate.n_clusters == n:
        yield "No two states are merged: this is the environment as it was."
    share = None if value is None else value.share(certificate.guarantee)
    if value is None or share is None or certificate.is_under_policy:
        return
    seen = f"which of {clusters_text(certificate.n_clusters, has_end=False)} it is in"
    given = f"Agents are given only {seen}, not which of {counted(n, 'state')}"
    if find_relation(certificate.relation).matches_actions:
        given += ", and their actions are renamed in each state as the certificate says"
    yield f"{given}. Rewards are discounted by {certificate.gamma:g} a step."
    prefix = ""
    if certificate.alpha:
        prefix = f"With probability at least {surely_text(certificate.alpha)}: "
    agent = AGENTS[certificate.guarantee]
    loss = f"In no state does it lose more than {amount_text(share.loss)} against the best policy."
    if value.is_settled:
        yield (
            f"{_start(prefix, baseline_text(value, mdp))} is already optimal from the start, so "
            f"there is nothing to decide and no share to retain. For {agent}: {_lowered(loss)}"
        )
    else:
        yield f"{_start(prefix, agent)} {kept_text(share.kept)}, from the start. {loss}"
        yield _scale(value, mdp)
    if value.episodes is not None:
        yield f"Episodes: {value.episodes.summary(certificate.guarantee)}."


def _scale(value: ProvenValue, mdp: TabularMDP) -> str:
    """What 0% and 100% of the achievable return are."""
    best, base = value.optimal_start[0], value.baseline_start[1]
    text = (
        f"On this scale 0% is the baseline, {baseline_text(value, mdp)}, which is worth {base:.4g} "
        f"at the start; 100% is the best policy, worth {best:.4g}."
    )
    if value.optimal_start[0] <= value.baseline_start[1]:
        text += " The best policy is not proven to be worth more than the baseline."
    elif value.has_tiny_stake:
        text += " That is a gain of less than 0.1% of its value."
    return text


def baseline_text(value: ProvenValue, mdp: TabularMDP) -> str:
    """The best policy that looks at nothing, in words.

    Args:
        value: What is proven.
        mdp: The model, which may have names for actions.
    """
    if value.baseline_action < 0:
        return "acting at random"
    return f"taking {mdp.action_text(value.baseline_action)} for ever"


def _start(prefix: str, text: str) -> str:
    """The start of a sentence, after a condition or without one."""
    return prefix + text if prefix else text[0].upper() + text[1:]


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _model(mdp: TabularMDP, conditions: Sequence[str]) -> Iterator[str]:
    """What an enumerated model leaves out, and what every claim about it assumes."""
    frozen = mdp.metadata.get("frozen")
    is_list = isinstance(frozen, list | tuple) and all(isinstance(x, str) for x in frozen)
    if frozen and is_list and list(frozen) != UNTOLD:
        names = [shortened(plain_text(name), SHORT) for name in frozen]
        yield (
            f"{_listed(names)} {'is' if len(names) == 1 else 'are'} frozen in the model. "
            "bisim_abstract does not check that this does not matter."
        )
    if conditions:
        yield f"All of this holds {plain_text('; '.join(conditions))}."


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
    # Where no two states differ in one alone, there is nothing to claim.
    idle = [
        _distinct(others) < labels.size and _decides(others, labels)
        for others in _all_but_one(columns)
    ]
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
    return _distinct(_together(one, other)) == _distinct(_together(one))


def _all_but_one(columns: Sequence[IntArray]) -> Iterator[IntArray]:
    """For each column, one code for each combination of entries of all others.

    What comes before and what comes after it are joined once for all, so that work grows as the
    number of columns does.
    """
    codes: IntArray = np.zeros(columns[0].size, np.int32)
    after = [codes]
    for column in reversed(columns[1:]):
        after.append(_together(column, after[-1]))
    for column in columns:
        yield _together(codes, after.pop())
        codes = _together(codes, column)


def _together(*columns: IntArray) -> IntArray:
    """One code for each combination of entries, from 0 on without gaps."""
    codes = columns[0].astype(np.int64)
    for column in columns[1:]:
        codes = codes * (int(column.max(initial=0)) + 1) + column
    return np.unique(codes, return_inverse=True)[1].astype(np.int32)


def _distinct(codes: IntArray) -> int:
    return int(codes.max(initial=-1)) + 1


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
    call = _env_call(mdp, record or {})
    is_certified, value = certificate.is_certified, certificate.value
    is_plain = certificate.scope == "all" and not certificate.is_under_policy
    with_env = call is not None and is_certified and is_plain
    lines = []
    if call is not None and with_env:
        lines.append("import gymnasium as gym")
        lines += [f"import {module}  # registers the environment" for module in call[0]]
    lines.append("from bisim_abstract import Certificate, TabularMDP, verify")
    if with_env:
        lines.append("from bisim_abstract.wrappers import AbstractedEnv")
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
    if call is not None and with_env:
        # Where there is no table to read, the model at hand saves enumerating it again.
        known = ", mdp=mdp" if mdp.metadata.get("method") == "enumeration" else ""
        lines.append(f"env = AbstractedEnv({call[1]}, certificate{known})  # for any agent")
    return "\n".join(lines)


def _env_call(mdp: TabularMDP, record: Mapping[str, Any]) -> tuple[list[str], str] | None:
    """Modules to import and how the environment is made then, as code; None where nobody knows.

    Only the record of a run tells with which arguments that was. Whatever is printed must work for
    whoever copies it.
    """
    config, name = record.get("config"), mdp.metadata.get("env")
    is_other = mdp.is_sampled or "n_background" in mdp.metadata  # wrapped
    if not isinstance(name, str) or is_other or not isinstance(config, Mapping):
        return None
    source = config.get("source")
    if not isinstance(source, Mapping) or not _is_same_id(source.get("name"), name):
        return None  # a file, maybe: with what arguments its model was extracted is not known
    arguments, reading = source.get("env_args") or {}, source.get("reading") or {}
    if source.get("backgrounds") is not None or not isinstance(reading, Mapping):
        return None
    if reading.get("action_masks") or reading.get("start"):
        return None
    if mdp.metadata.get("terminal") == "table" or not _is_code(arguments):
        return None
    modules = _modules(name, config.get("imports"))
    if modules is None:
        return None
    given = "".join(f", {key}={entry!r}" for key, entry in arguments.items())
    return modules, f"gym.make({json.dumps(name)}{given})"


def _is_same_id(asked: Any, made: str) -> bool:
    """Whether the environment that was asked for is the one that was made."""
    from bisim_abstract.wrappers._make import SAME_DYNAMICS

    return asked == made or any(asked in pair and made in pair for pair in SAME_DYNAMICS)


def _is_code(arguments: Any) -> bool:
    """Whether arguments can be written as those of a call."""
    if not isinstance(arguments, Mapping) or not all(_is_name(key) for key in arguments):
        return False
    try:
        text = json.dumps(arguments, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return "\N{REPLACEMENT CHARACTER}" not in text  # which stands for what was not for reading


def _is_name(word: Any) -> bool:
    return isinstance(word, str) and word.isidentifier() and not keyword.iskeyword(word)


def _modules(name: str, imports: Any) -> list[str] | None:
    """What registers an id, apart from Gymnasium and this package; None where nobody knows."""
    import gymnasium as gym

    from bisim_abstract.wrappers._make import MINIGRID

    modules = ["minigrid"] if name.startswith(MINIGRID) else []
    if modules and importlib.util.find_spec("minigrid") is None:
        return None
    if isinstance(imports, list | tuple) and imports:
        is_code = all(isinstance(x, str) and all(map(_is_name, x.split("."))) for x in imports)
        return list(dict.fromkeys([*modules, *imports])) if is_code else None
    spec = gym.registry.get(name)
    if modules or spec is None:
        return modules or None
    home = spec.entry_point
    if not isinstance(home, str):
        home = str(getattr(home, "__module__", ""))
    # Others may be registered in this process alone.
    plugins = {plugin.module for plugin in entry_points(group="gymnasium.envs")}
    known = {module.partition(".")[0] for module in ("gymnasium", "bisim_abstract", *plugins)}
    return [] if home.partition(":")[0].partition(".")[0] in known else None
