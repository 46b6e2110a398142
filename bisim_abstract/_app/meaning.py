"""What a certificate means for its environment: in sentences, and in lines of Python.

Sentences speak of variables and actions by the names that the model has for them. Whatever is
claimed of values is what the certificate proves, and in no larger words.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from bisim_abstract._abstract.value import amount_text, share_text, start_means
from bisim_abstract._abstract.value_proof import bounded
from bisim_abstract._base.text import clusters_text, counted, plain_text, shortened, surely_text
from bisim_abstract._base.types import IntArray
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.policies import uniform_policy

MAX_VARIABLES = 40  # of which more is too much to read
MAX_LISTED = 8  # names in one sentence
SHORT = 40  # characters of one of them
UNTOLD = ["step_count"]  # what is held still without anybody's word


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
        yield from _model(mdp)
        return
    yield from _worth(certificate, mdp)
    yield from _members(certificate, mdp)
    yield from _plan(certificate, mdp)
    yield from _model(mdp)


def _worth(certificate: Certificate, mdp: TabularMDP) -> Iterator[str]:
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
        prefix = f"With probability at least {surely_text(certificate.alpha)}: "
        head = head[0].lower() + head[1:]
    if is_all_the_same(certificate, mdp):
        yield (
            "From the start, every policy is worth the same here: there is nothing to lose, and "
            "nothing to gain over acting at random."
        )
        got = "gets what all others get, from the start"
    elif value.kept > 0.0 and not _has_gain(certificate, mdp):
        got = "gets what the best plan gets, from the start, but that is not proven to be more "
        got += f"than by acting at random{_at_most(certificate, mdp)}"
    elif value.kept > 0.0:
        gains = f"gains {share_text(value.kept)} of what the best plan gains"
        got = f"{gains} over acting at random, from the start"
    else:
        got = "may gain no more than by acting at random, for all that is proven"
    yield (
        f"{prefix}{head} and follows the plan that was made on these clusters, {got}. In no state "
        f"does it get less than the best plan does by more than {amount_text(value.loss)}, "
        f"rewards being discounted by {certificate.gamma:g} a step."
    )


def is_all_the_same(certificate: Certificate, mdp: TabularMDP) -> bool:
    """Whether it is sure that all policies are worth the same from the start.

    That is so where, in all that can be reached, rewards are equal or actions do not differ. What
    is kept is then all of nothing.

    Args:
        certificate: The certificate.
        mdp: Its model.
    """
    if certificate.value is None or mdp.estimate is not None or _has_gain(certificate, mdp):
        return False
    states = mdp.reachable()
    rewards = mdp.rewards[states]
    return bool(rewards.min() == rewards.max()) or not mdp.restrict(states).has_choice


def _has_gain(certificate: Certificate, mdp: TabularMDP) -> bool:
    """Whether the best plan is proven to be worth more than acting at random, from the start."""
    value = certificate.value
    assert value is not None
    best = start_means(mdp.start, value.optimal_lower)[0]
    return best > start_means(mdp.start, value.random_upper)[1]


def _at_most(certificate: Certificate, mdp: TabularMDP) -> str:
    """What the best plan gains over acting at random, at most; empty for an estimate."""
    value = certificate.value
    if value is None or mdp.estimate is not None:
        return ""
    gamma = certificate.gamma
    random = bounded(mdp, gamma, value.random_upper, -1.0, uniform_policy(mdp))
    most = start_means(mdp.start, value.optimal_upper)[1] - start_means(mdp.start, random)[0]
    return f" (by {amount_text(max(most, 0.0))} at most)"


def _model(mdp: TabularMDP) -> Iterator[str]:
    """What an enumerated model leaves out, and which episodes it speaks of."""
    frozen, starts = mdp.metadata.get("frozen"), mdp.metadata.get("starts")
    is_list = isinstance(frozen, list | tuple) and all(isinstance(x, str) for x in frozen)
    if frozen and is_list and list(frozen) != UNTOLD:
        names = [shortened(plain_text(name), SHORT) for name in frozen]
        yield f"The model holds {_listed(names)} still; that this does not matter is your word."
    count = starts if type(starts) is int and starts > 1 else 1
    if count == 1 and mdp.metadata.get("method") != "enumeration":
        return
    seed = mdp.metadata.get("seed")
    is_known = type(seed) is int
    if count == 1:
        which = f"seed {seed}" if is_known else "the one seed that was looked at"
    else:
        which = f"{count:,} seeds" + (f" from {seed} on" if is_known else "")
    yield f"This speaks of episodes that begin as with {which}."


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
    arguments = source.get("env_args") or {}
    if source.get("backgrounds") is not None or source.get("action_masks"):
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
