"""Forged certificates by component, each against the exact metric, in float and in exact mode.

    python -m tests.stress.forgeries                            every component, 1,000 each
    python -m tests.stress.forgeries features --count 5000      one of them
    python -m tests.stress.forgeries features --seed 7 --only 3171    one forgery again

Honest certificates of small models, with all components and no room to spare, are altered in one
component, often with bounds shifted to match. The metric of each model is known as fractions, so
that an accepted certificate is true or is not. Float mode decides by itself here: it may not ask
fractions for help. A table says, by component:

    forged      how many there were
    true        of these, how many both modes accept: the alteration did no harm
    rounding    accepted by floats up to rounding, which the verdict says, and rejected by fractions
    open        rejected by floats because they cannot tell, and accepted by fractions
    false       accepted though false, even once moved outward by the widening
    unsaid      accepted by floats without a word, and rejected by fractions
    lost        rejected by floats for good, and accepted by fractions

The last three must be 0: exit code 1 if they are not.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import importlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from bisim_abstract import Certificate, TabularMDP, certify, verify
from tests.stress.certifying import ONE
from tests.stress.truth import linked
from tests.support.blocks import dyadic, estimated, true_models
from tests.support.honest import (
    apart_of,
    at_tau,
    block_model,
    bounds,
    build,
    down,
    lacking_exact,
    thresholds,
    up,
)
from tests.support.oracles import compared_metric, lifted_exact, metric_exact, variation_exact
from tests.support.proven import false_claims
from tests.support.relations import random_labels, random_renaming, renamed_mdp
from tests.support.values import Exact

Content = dict[str, Any]
Floats = npt.NDArray[np.float64]
Rng = np.random.Generator
COLUMNS = ("true", "rounding", "open", "false", "unsaid", "lost")
WRONG = ("false", "unsaid", "lost")
GAMMAS = (0.3, 0.5, 0.9, 0.99)
FUNCTIONS = ("optimal_upper", "optimal_lower", "policy_lower", "random_upper")


class World:
    """A model, an honest certificate of it, and the truth for any claim about it.

    Of an estimate claims are true if they are for every model that its radii allow: some at the
    edge of them stand for all.
    """

    def __init__(
        self, mdp: TabularMDP, content: Content, truths: Sequence[TabularMDP] = ()
    ) -> None:
        self.mdp, self.content, self.truths = mdp, content, tuple(truths) or (mdp,)
        self.scale = float(np.ptp(mdp.rewards)) / (1.0 - content["gamma"])
        self._metrics: dict[Any, list[list[Fraction]]] = {}

    def metric(self, gamma: float, apart: float | None, number: int = 0) -> list[list[Fraction]]:
        """Of one of the truths, in fractions; both numbers are what a forgery says they are."""
        key = gamma, apart, number
        if key not in self._metrics:
            mdp, relation = self.truths[number], self.content["relation"]
            guess = compared_metric(mdp, gamma, relation=relation, apart=apart, sweeps=6)
            self._metrics[key] = metric_exact(mdp, gamma, guess, relation, apart)
        return self._metrics[key]


# -- honest certificates ---------------------------------------------------------------------------


def small_models(relation: str) -> list[tuple[TabularMDP, float]]:
    """Four states, two actions; rewards of many sizes, some masses next to nothing."""
    found = []
    for seed in range(6):
        missing = 0.35 * (seed % 2) if relation == "plain" else 0.35 * (seed % 3 > 0)
        mdp = renamed_mdp(40 + seed, n=4, n_actions=2, missing=missing, noise=0.01)
        scale = (1.0, 1.0, 1e-200, 1.0, 1e250, 1.0)[seed]
        probs = mdp.probs.copy()
        if seed in (3, 4):  # specks of mass, in rows of several entries
            lengths = np.repeat(np.diff(mdp.indptr), np.diff(mdp.indptr))
            first = mdp.indptr[:-1][np.diff(mdp.indptr) > 1]
            probs[first[lengths[first] > 1]] = (5.7e-305, 1e-290)[seed - 3]
            sums = np.add.reduceat(probs, mdp.indptr[:-1])
            probs /= np.repeat(sums, np.diff(mdp.indptr))
        mdp = dataclasses.replace(mdp, probs=probs, rewards=mdp.rewards * scale)
        found.append((mdp, GAMMAS[seed % 4]))
    return [*found, (specks_alone(5.7e-305, 1.0), 0.5), (specks_alone(5e-324, 1e299), 0.5)]


def specks_alone(mass: float, reward: float) -> TabularMDP:
    """States 0 and 1 differ by a speck of mass that comes to the rich state 3, and in nothing."""
    P = np.zeros((4, 2, 4))
    P[0, :, 2], P[0, 0, 3], P[0, 1, 3] = 1.0 + 9e-10, mass, 2.0 * mass
    P[[1, 2, 3], :, [2, 2, 3]] = 1.0
    return TabularMDP.from_dense(P, [[0.0, 0.0]] * 3 + [[reward, reward]])


def honest_world(mdp: TabularMDP, gamma: float, relation: str, seed: int) -> World:
    """All components; covered pairs are as near to the metric as they can be and be proven."""
    rng = np.random.default_rng([5, seed])
    labels = random_labels(mdp, rng, is_pure=relation == "plain")
    names = random_renaming(mdp, labels, rng) if relation == "lax" else None
    content = build(mdp, gamma, labelings=[labels], renamings=[names], sweeps=12, relation=relation)
    world = World(mdp, content)
    d, n = world.metric(gamma, content["apart"]), mdp.n_states
    keys = [(s, t) for s in range(n) for t in range(s + 1, n)]
    # Moved outward by δ both inequalities hold, with (1 - γ)·δ to spare for rounding to floats.
    spare = Fraction(2.0**-50) * Fraction(world.scale) / (1 - Fraction(gamma))
    is_apart = [content["apart"] is not None and d[s][t] == content["apart"] for s, t in keys]
    low, high = (
        [
            d[s][t] + (0 if fixed else sign * spare)
            for (s, t), fixed in zip(keys, is_apart, strict=True)
        ]
        for sign in (-1, 1)
    )
    content["keys"] = np.array([s * n + t for s, t in keys], np.int64)
    content["lower"] = np.array([max(down(x), 0.0) for x in low])
    content["upper"] = np.array([up(x) for x in high])
    tau = thresholds(*bounds(mdp, content))[-1]
    content = at_tau(mdp, content, tau)
    made = World(mdp, content)
    made._metrics = world._metrics
    return made


def value_world(mdp: TabularMDP, gamma: float, relation: str, seed: int) -> World:
    """A certificate of the package, with a proven value."""
    rng = np.random.default_rng([6, seed])
    tol = 1e-6 * float(np.ptp(mdp.rewards))
    found = certify(mdp, gamma, tol=tol, relation=relation, resources=ONE)
    taus = [x.low for x in found.certified_thresholds()]
    certificate = found.at(float(rng.choice(taus))).with_value()
    content = {name: getattr(certificate, name) for name in Certificate.__dataclass_fields__}
    content["run"] = {}
    assert certificate.value is not None
    content["value"] = opened(certificate.value)
    content["levels"] = tuple(opened(level) for level in content["levels"])
    if content["features"] is not None:
        content["features"] = opened(content["features"])
    return World(mdp, content)


def estimate_world(gamma: float, relation: str, seed: int) -> World:
    """A certificate of an estimate; numbers are dyadic, so that edges of radii are exact."""
    rng = np.random.default_rng([7, seed])
    base = dyadic(4, 2, rng)
    shape = base.rewards.shape
    few = rng.random(shape) < 0.7
    mdp = estimated(base, rng.integers(0, 5, shape) / 64 * few, rng.integers(0, 9, shape) / 64)
    truths = [base, *true_models(mdp, rng, 4)]
    labels = random_labels(mdp, rng, is_pure=relation == "plain")
    names = random_renaming(mdp, labels, rng) if relation == "lax" else None
    pairs = [(s, t) for s in range(4) for t in range(s + 1, 4)]
    content = build(
        mdp,
        gamma,
        labelings=[labels],
        renamings=[names],
        pairs=pairs,
        sweeps=12,
        relation=relation,
    )
    content = at_tau(mdp, content, thresholds(*bounds(mdp, content))[-1])
    return World(mdp, content, truths)


def opened(part: Any) -> Any:
    """A component whose fields can be set."""
    if not dataclasses.is_dataclass(part):
        return part
    names = [field.name for field in dataclasses.fields(part)]
    return SimpleNamespace(**{name: opened(getattr(part, name)) for name in names})


@functools.cache
def make_world(kind: str, relation: str, seed: int) -> World:
    """One of those in which components are forged; its own certificate is accepted."""
    if kind == "estimates":
        world = estimate_world(GAMMAS[seed % 3], relation, seed)
    else:
        mdp, gamma = small_models(relation)[seed]
        make = value_world if kind == "values" else honest_world
        world = make(mdp, gamma, relation, seed)
    column, why = judge(world.content, world)
    assert column in ("true", "rounding", "open"), f"an honest certificate: {column}: {why}"
    return world


def draw_world(rng: Rng, component: str) -> World:
    """Any in which a component can be forged."""
    relations = {"witnesses": ("plain",), "renaming": ("lax",)}.get(component, ("plain", "lax"))
    # Proven values are made by the package, for rewards of ordinary size.
    seeds = (0, 1, 3, 5) if component == "values" else range(8)
    kind = component if component in ("values", "estimates") else "bounds"
    return make_world(kind, str(rng.choice(relations)), int(rng.choice(seeds)))


# -- forging ---------------------------------------------------------------------------------------


def amount(rng: Rng, scale: float) -> float:
    """From far below rounding to far above all distances, most often next to rounding."""
    low, high = [(-18, -13), (-15, -9), (-9, 0), (0, 3), (-320, -280)][
        int(rng.choice(5, p=[0.4, 0.25, 0.25, 0.05, 0.05]))
    ]
    return float(scale * 10.0 ** rng.uniform(low, high)) or 5e-324


def move(rng: Rng, values: Floats, scale: float, sign: float) -> Floats:
    """One number, some or all of them: moved by ulps, by a step, or set to something extreme."""
    out = np.array(values, np.float64)
    if out.size == 0:
        return out
    flat = out.reshape(-1)
    where = np.ones(flat.size, bool)
    kind = rng.choice(3, p=[0.4, 0.4, 0.2])
    if kind == 0:
        where = np.arange(flat.size) == rng.integers(flat.size)
    elif kind == 2:
        where = rng.random(flat.size) < 0.5
    kind = rng.choice(4, p=[0.25, 0.6, 0.1, 0.05])
    if kind == 0:
        for _ in range(int(rng.integers(1, 4))):
            flat[where] = np.nextafter(flat[where], sign * np.inf)
    elif kind == 1:
        flat[where] += sign * amount(rng, scale)
    elif kind == 2:
        flat[where] *= float(rng.choice([0.0, 0.5, 1.0 - 1e-12, 1.0 + 1e-12, 2.0]))
    else:
        flat[where] = float(rng.choice([0.0, 5e-324, 1e-310, 1e-290, 1e20, 1e290, 1.7e308]))
    return out


def shift_bounds(rng: Rng, holder: Any, scale: float) -> None:
    """Bounds of a table moved inward, lower ones or upper ones or both."""
    for side, sign in (("lower", 1.0), ("upper", -1.0)):
        if rng.random() < 0.6:
            moved = np.maximum(move(rng, getattr(holder, side), scale, sign), 0.0)
            setattr(holder, side, moved)
    keys, n = holder.keys, len(holder.model.low) if hasattr(holder, "model") else 0
    if n:  # within a block the lower bound is 0, or nothing else is looked at
        holder.lower = np.where(keys % n == keys // n, 0.0, holder.lower)
    if rng.random() < 0.8:  # crossed bounds are rejected at once
        holder.upper = np.maximum(holder.lower, holder.upper)


def shift_pairs(rng: Rng, content: Content, world: World) -> None:
    holder = SimpleNamespace(**{name: content[name] for name in ("keys", "lower", "upper")})
    shift_bounds(rng, holder, world.scale)
    content["lower"], content["upper"] = holder.lower, holder.upper


def near_the_metric(rng: Rng, content: Content, world: World) -> None:
    """All bounds of one arm at the metric, or a little beyond."""
    d, n = world.metric(content["gamma"], content["apart"]), world.mdp.n_states
    exact = np.array([float(d[key // n][key % n]) for key in content["keys"].tolist()])
    step = amount(rng, world.scale) * float(rng.choice([0.0, 1.0]))
    if rng.random() < 0.3:  # nothing to spare, but rounded to the right side
        pairs = [divmod(key, n) for key in content["keys"].tolist()]
        content["lower"] = np.array([down(d[s][t]) for s, t in pairs])
        content["upper"] = np.array([up(d[s][t]) for s, t in pairs])
    elif rng.random() < 0.5:
        content["lower"] = exact + step
        content["upper"] = np.maximum(content["lower"], content["upper"])
    else:
        content["upper"] = np.maximum(exact - step, 0.0)
        content["lower"] = np.minimum(content["lower"], content["upper"])


def forge_pairs(rng: Rng, content: Content, world: World) -> None:
    (shift_pairs if rng.random() < 0.6 else near_the_metric)(rng, content, world)


def forge_levels(rng: Rng, content: Content, world: World) -> None:
    level = content["levels"][int(rng.integers(len(content["levels"])))]
    if rng.random() < 0.5:
        shift_bounds(rng, level, world.scale)
        return
    # All entries next to what is true of all members.
    d, n = world.metric(content["gamma"], content["apart"]), len(level.model.low)
    labels = level.model.labels
    step = amount(rng, world.scale) * float(rng.choice([0.0, 1.0]))
    side = "lower" if rng.random() < 0.5 else "upper"
    values = getattr(level, side).copy()
    for k, key in enumerate(level.keys.tolist()):
        one, two = (np.flatnonzero(labels == block) for block in divmod(key, n))
        found = [float(d[s][t]) for s in one for t in two]
        if side == "upper":
            values[k] = max(max(found) - step, 0.0)
        elif key // n != key % n:
            values[k] = min(found) + step
    setattr(level, side, values)
    level.upper = np.maximum(level.lower, level.upper)


def forge_blocks(rng: Rng, content: Content, world: World) -> None:
    level = content["levels"][int(rng.integers(len(content["levels"])))]
    model = level.model
    kind = str(rng.choice(["radius", "short", "spare", "low", "high", "probs", "labels", "speck"]))
    if kind in ("radius", "short", "spare"):
        sign = float(rng.choice([-1.0, -1.0, 1.0]))
        setattr(model, kind, np.clip(move(rng, getattr(model, kind), 1.0, sign), 0.0, 1.0))
    elif kind in ("low", "high"):
        size = world.scale * (1.0 - content["gamma"])
        sign = (1.0 if kind == "low" else -1.0) * float(rng.choice([1.0, 1.0, -1.0]))
        setattr(model, kind, move(rng, getattr(model, kind), size, sign))
    elif kind == "probs":
        probs = np.abs(move(rng, model.probs, 1.0, float(rng.choice([-1.0, 1.0]))))
        sums = np.add.reduceat(probs, model.indptr[:-1])
        if rng.random() < 0.8:
            probs = probs / np.repeat(sums, np.diff(model.indptr))
        model.probs = probs
    elif kind == "speck":  # an entry of a centre is next to nothing, and the radius is as before
        at = int(rng.integers(model.probs.size))
        model.probs = model.probs.copy()
        model.probs[at] = float(rng.choice([5e-324, 1e-310, 1e-301, 1e-299, 1e-17]))
        if rng.random() < 0.5:
            model.radius, model.short = model.radius.copy(), model.short.copy()
            model.radius[:], model.short[:] = 1.0, 1.0
    else:
        labels = model.labels.copy()
        labels[int(rng.integers(labels.size))] = int(rng.integers(len(model.low)))
        model.labels = labels
        if rng.random() < 0.5 and np.unique(labels).size == len(model.low):
            names = content["relation"] == "lax"
            level.model = block_model(world.mdp, labels.tolist(), model.renaming if names else None)
    if rng.random() < 0.4:
        shift_bounds(rng, level, world.scale)


def forge_features(rng: Rng, content: Content, world: World) -> None:
    features = content["features"]
    kind = str(rng.choice(["zero", "stretched", "values", "corrections", "signs", "kinds", "cut"]))
    if kind in ("zero", "stretched"):  # one more function, with a correction that excuses it
        line = np.zeros(world.mdp.n_states)
        shift_jointly(rng, content, world)
        correction = float(10.0 ** rng.uniform(-10, 300)) * max(world.scale, 1e-290)
        if kind == "stretched":
            line = features.values[0] * float(10.0 ** rng.uniform(0, 40))
            correction = float(np.ptp(line)) * float(rng.choice([1.0, 1.0 - 1e-15, 0.999, 2.0]))
        add_function(features, line, min(correction, 1.7e308))
    elif kind == "values":
        features.values = move(rng, features.values, world.scale, float(rng.choice([-1.0, 1.0])))
    elif kind == "corrections":
        features.corrections = np.maximum(move(rng, features.corrections, world.scale, -1.0), 0.0)
    elif kind in ("signs", "kinds"):
        array = getattr(features, kind).copy()
        at = int(rng.integers(array.size))
        array.reshape(-1)[at] = int(rng.integers(-1, 2)) if kind == "signs" else rng.integers(2)
        setattr(features, kind, array)
    else:
        name = str(rng.choice(["floor", "ceiling"]))
        array = getattr(features, name).copy()
        array[int(rng.integers(array.size))] = float(rng.choice(world.mdp.rewards.reshape(-1)))
        setattr(features, name, array)
    if rng.random() < 0.3:
        forge_pairs(rng, content, world)


def shift_jointly(rng: Rng, content: Content, world: World) -> None:
    """One whole arm by far more than rounding, and by less than a percent of a percent.

    Backups move along, so that inequalities are missed by 1 - γ times that only.
    """
    step = world.scale * 10.0 ** rng.uniform(-13, -4)
    if rng.random() < 0.5:
        content["lower"] = content["lower"] + step
        content["upper"] = np.maximum(content["lower"], content["upper"])
    else:
        content["upper"] = np.maximum(content["upper"] - step, 0.0)
        content["lower"] = np.minimum(content["lower"], content["upper"])


def add_function(features: Any, line: Floats, correction: float) -> None:
    features.values = np.vstack([features.values, line])
    features.signs = np.vstack([features.signs, features.signs[:1]])
    features.kinds = np.append(features.kinds, features.kinds[:1])
    features.corrections = np.append(features.corrections, correction)
    features.floor = np.append(features.floor, features.floor[:1])
    features.ceiling = np.append(features.ceiling, features.ceiling[:1])


def forge_witnesses(rng: Rng, content: Content, world: World) -> None:
    witnesses, n = content["features"].witnesses, world.mdp.n_states
    kind = str(
        rng.choice(["values", "potential", "corrections", "support", "actions", "signs", "far"])
    )
    if kind in ("values", "potential"):
        sign = float(rng.choice([-1.0, 1.0]))
        setattr(witnesses, kind, move(rng, getattr(witnesses, kind), world.scale, sign))
    elif kind == "corrections":
        sign = float(rng.choice([-1.0, -1.0, 1.0]))
        moved = np.maximum(move(rng, witnesses.corrections, world.scale, sign), 0.0)
        witnesses.corrections = moved
    elif kind == "far":  # potentials so large that small numbers drown in them
        far = float(10.0 ** rng.uniform(0, 200)) * max(world.scale, 1e-200)
        witnesses.potential = witnesses.potential + far
        if rng.random() < 0.5:
            witnesses.corrections = np.maximum(
                move(rng, witnesses.corrections, world.scale, -1.0), 0.0
            )
    else:
        array = getattr(witnesses, kind).copy()
        choices = {"support": range(n), "actions": range(world.mdp.n_actions), "signs": (-1, 1)}
        array.reshape(-1)[int(rng.integers(array.size))] = int(rng.choice(list(choices[kind])))
        setattr(witnesses, kind, array)
    if rng.random() < 0.4:
        forge_pairs(rng, content, world)


def forge_values(rng: Rng, content: Content, world: World) -> None:
    value, bracket = content["value"], content["value"].bracket
    size = max(world.scale, float(np.abs(value.optimal_upper).max()), 5e-324)
    kinds = ["function", "bracket", "number", "policy", "swap", "near", *["agents"] * 4]
    kind = str(rng.choice(kinds))
    if kind in ("function", "near"):
        name = str(rng.choice(FUNCTIONS))
        sign = -1.0 if name.endswith("upper") else 1.0
        start = getattr(value, name)
        if kind == "near":
            start = np.array([float(x) for x in true_function(content, world, name)])
        setattr(value, name, move(rng, start, size, sign))
    elif kind == "bracket":
        name = str(rng.choice(["lower", "upper"]))
        sign = -1.0 if name == "upper" else 1.0
        setattr(bracket, name, move(rng, getattr(bracket, name), size, sign))
    elif kind == "number":
        name = str(rng.choice(["loss", "start_loss", "kept"]))
        before = np.array([getattr(value, name)])
        if math.isinf(before[0]):
            before[0] = 0.5
        moved = move(rng, before, 1.0 if name == "kept" else size, 1.0 if name == "kept" else -1.0)
        setattr(value, name, float(moved[0]))
    elif kind == "agents":
        forge_agents(rng, value, size)
    elif kind == "policy":
        holder = value if rng.random() < 0.5 else bracket
        array = holder.policy.copy()
        array[int(rng.integers(array.size))] = int(rng.integers(world.mdp.n_actions))
        holder.policy = array
    else:
        one, two = rng.choice(FUNCTIONS, size=2, replace=False)
        setattr(value, str(one), getattr(value, str(two)))
    if rng.random() < 0.3:  # what follows from them, as it would follow
        value.loss = up(
            max(
                map(
                    lambda u, v: Fraction(u) - Fraction(v),
                    value.optimal_upper.tolist(),
                    value.policy_lower.tolist(),
                )
            )
        )


AGENTS = ("solver", "learner", "converged")
OF_AGENTS = ("lower", "q_lower", "q_upper", "excess", "choices", "kept", "loss", "start_loss")


def forge_agents(rng: Rng, value: Any, size: float) -> None:
    """What is said of the baseline or of agents, better than it is."""
    holder, names = value, ["constant_upper", "baseline_lower", "baseline_action", "baseline_start"]
    if rng.random() < 0.8:
        who = str(rng.choice(AGENTS))
        holder = value.learner.converged if who == "converged" else getattr(value, who)
        if holder is None:
            return
        names = [name for name in OF_AGENTS if hasattr(holder, name)]
    name = str(rng.choice(names))
    old = getattr(holder, name)
    if name == "choices":
        holder.choices = old & (rng.random(old.shape) < 0.6)
    elif name == "baseline_action":
        value.baseline_action = int(rng.integers(-1, value.constant_upper.shape[1]))
    elif name == "baseline_start":
        low, high = (float(x) for x in move(rng, np.array(old), size, float(rng.choice([-1, 1]))))
        value.baseline_start = (low, high)
    elif isinstance(old, float):
        start = np.array([0.5 if math.isinf(old) else old])
        is_share = name == "kept"
        moved = move(rng, start, 1.0 if is_share else size, 1.0 if is_share else -1.0)
        setattr(holder, name, float(moved[0]))
    else:
        sign = -1.0 if name.endswith(("upper", "excess")) else 1.0
        moved = move(rng, old.ravel(), size, sign).reshape(old.shape)
        setattr(holder, name, np.maximum(moved, 0.0) if name == "excess" else moved)


def forge_renaming(rng: Rng, content: Content, world: World) -> None:
    model = content["levels"][0].model
    names = model.renaming.copy()
    states, actions = np.nonzero(names >= 0)
    kind = rng.integers(3)
    if kind == 0:
        at = int(rng.integers(states.size))
        names[states[at], actions[at]] = int(rng.integers(world.mdp.n_actions))
    elif kind == 1:
        state = int(rng.integers(names.shape[0]))
        own = np.flatnonzero(names[state] >= 0)
        names[state, own] = rng.permutation(names[state, own])
    else:
        names = random_renaming(world.mdp, model.labels.tolist(), rng)
    model.renaming = names
    if rng.random() < 0.3:
        used = np.zeros_like(model.available)
        for state, block in enumerate(model.labels.tolist()):
            used[block, names[state][names[state] >= 0]] = True
        model.available = used
    if rng.random() < 0.3:
        shift_bounds(rng, content["levels"][0], world.scale)


def forge_clusters(rng: Rng, content: Content, world: World) -> None:
    n = world.mdp.n_states
    d = world.metric(content["gamma"], content["apart"])
    for name in ("labels_lower", "labels_upper"):
        if rng.random() < 0.4:
            labels = rng.integers(0, int(rng.integers(1, n + 1)), n)
            first = {x: k for k, x in enumerate(dict.fromkeys(labels.tolist()))}
            content[name] = np.array([first[x] for x in labels.tolist()], np.int64)
    if rng.random() < 0.6:
        s, t = sorted(rng.choice(n, size=2, replace=False).tolist())
        step = float(rng.choice([-1.0, 0.0, 1.0])) * amount(rng, world.scale)
        content["tau"] = float(max(float(d[s][t]) + step, 0.0))
    if rng.random() < 0.5:  # as the metric itself has it
        tau = Fraction(content["tau"])
        root = linked(n, [(s, t) for s in range(n) for t in range(s + 1, n) if d[s][t] <= tau])
        first = {x: k for k, x in enumerate(dict.fromkeys(root))}
        labels = np.array([first[x] for x in root], np.int64)
        content["labels_lower"] = content["labels_upper"] = labels
    if rng.random() < 0.2:
        content["scope"] = "covered"
    if rng.random() < 0.3:
        forge_pairs(rng, content, world)


def forge_starts(rng: Rng, content: Content, world: World) -> None:
    kind = rng.integers(4)
    if kind == 0:
        content["lower_start"] = str(rng.choice(["reward", "zero"]))
        content["upper_start"] = str(rng.choice(["reward", "constant"]))
    elif kind == 1 and content["apart"] is not None:
        sign = float(rng.choice([-1.0, 1.0]))
        content["apart"] = float(move(rng, np.array([content["apart"]]), world.scale, sign)[0])
    elif kind == 2:
        content["gamma"] = float(
            np.clip(move(rng, np.array([content["gamma"]]), 1.0, -1.0)[0], 0.0, 0.999)
        )
    else:  # nothing is covered: start values alone
        is_kept = rng.random(content["keys"].size) < 0.5
        for name in ("keys", "lower", "upper"):
            content[name] = content[name][is_kept]
    if rng.random() < 0.6:
        forge_pairs(rng, content, world)


def forge_estimates(rng: Rng, content: Content, world: World) -> None:
    """Claims that are true of the centre, and not of all models within its radii."""
    kinds = ["edge", "other", "radius", "range", "alpha"]
    kind = str(rng.choice(kinds, p=[0.6, 0.25, 0.05, 0.05, 0.05]))
    if kind == "edge":  # as narrow as the models that were drawn, or a little narrower
        gamma, apart, n = content["gamma"], content["apart"], world.mdp.n_states
        known = [world.metric(gamma, apart, k) for k in range(len(world.truths))]
        pairs = [divmod(key, n) for key in content["keys"].tolist()]
        step = amount(rng, world.scale) * float(rng.choice([0.0, 1.0]))
        if rng.random() < 0.5:
            least = [float(min(d[s][t] for d in known)) for s, t in pairs]
            content["lower"] = np.array(least) + step
            content["upper"] = np.maximum(content["lower"], content["upper"])
        else:
            most = [float(max(d[s][t] for d in known)) for s, t in pairs]
            content["upper"] = np.maximum(np.array(most) - step, 0.0)
            content["lower"] = np.minimum(content["lower"], content["upper"])
    elif kind == "radius":  # rewards are known better than they are
        moved = move(rng, content["reward_radius"], 1.0, -1.0)
        content["reward_radius"] = np.maximum(moved, 0.0)
    elif kind == "range":
        low, high = content["reward_range"]
        content["reward_range"] = low * float(rng.random()), high * float(rng.random())
    elif kind == "alpha":
        content["alpha"] = float(rng.choice([0.0, 0.05, 1e-300, 0.5]))
    else:
        forge = (forge_levels, forge_blocks, forge_features, forge_clusters, forge_starts)
        forge[int(rng.integers(len(forge)))](rng, content, world)
    if rng.random() < 0.4:
        shift_pairs(rng, content, world)
    if kind == "edge" or rng.random() < 0.3:  # and clusters that follow from that
        content |= at_tau(world.mdp, content, content["tau"])


FORGERS: dict[str, Callable[[Rng, Content, World], None]] = {
    "pairs": forge_pairs,
    "levels": forge_levels,
    "blocks": forge_blocks,
    "features": forge_features,
    "witnesses": forge_witnesses,
    "values": forge_values,
    "renaming": forge_renaming,
    "clusters": forge_clusters,
    "starts": forge_starts,
    "estimates": forge_estimates,
}


# -- judging ---------------------------------------------------------------------------------------


def what_is_false(content: Content, world: World, found: Any) -> str:
    """A claim of an accepted certificate that is not true, in a few words; else nothing."""
    if found.widening > largest_widening(content, world.mdp):
        return f"a widening of {found.widening!r}"
    if world.mdp.estimate is not None:
        for name in ("alpha", "reward_range"):
            if content[name] != getattr(world.mdp.estimate, name):
                return f"another {name}"
    for number in range(len(world.truths)):
        why = what_is_false_of(number, content, world, found)
        if why:
            return f"{why} in model {number}" if number else why
    return ""


def what_is_false_of(number: int, content: Content, world: World, found: Any) -> str:
    """The same of one of the truths."""
    mdp, wide, n = world.truths[number], Fraction(found.widening), world.mdp.n_states
    d = world.metric(content["gamma"], content["apart"], number)
    for what, s, t, low, high in claimed(content, n):
        if (low is not None and Fraction(low) - wide > d[s][t]) or (
            high is not None and Fraction(high) + wide < d[s][t]
        ):
            return f"{what} of ({s}, {t}): {low!r} to {high!r}, but it is {float(d[s][t])!r}"
    points, corrections = functions(content)
    for k, (line, c) in enumerate(zip(points, corrections, strict=True)):
        for s in range(n):
            for t in range(s):
                if abs(Fraction(line[s]) - Fraction(line[t])) - Fraction(c) - wide > d[s][t]:
                    return f"function {k} at ({s}, {t})"
    for k, level in enumerate(content["levels"]):
        if not found.remark and not are_radii_enough(level.model, mdp):
            return f"radii of level {k}"
    return false_clusters(content, d, n) or false_value(content, world)


def largest_widening(content: Content, mdp: TabularMDP) -> float:
    """As the documentation has it, generously rounded."""
    gamma = float(content["gamma"])
    lengths = [int(np.diff(mdp.indptr).max())]
    lengths += [int(np.diff(level.model.indptr).max()) for level in content["levels"]]
    far = apart_of(mdp, gamma)
    terms = 64 * max(lengths) + 32 * mdp.n_actions + 512
    return terms * 2.0**-53 * far / (1.0 - gamma) * (1.0 + 1e-9)


def claimed(content: Content, n: int) -> list[tuple[str, int, int, float | None, float | None]]:
    """All stored bounds, on pairs of states."""
    out: list[tuple[str, int, int, float | None, float | None]] = []
    parts = [("pair", np.arange(n), n, content)]
    for number, level in enumerate(content["levels"]):
        parts.append((f"level {number}", level.model.labels, len(level.model.low), vars(level)))
    for what, labels, count, holder in parts:
        rows = zip(*(holder[name].tolist() for name in ("keys", "lower", "upper")), strict=True)
        for key, low, high in rows:
            one, two = (np.flatnonzero(labels == block).tolist() for block in divmod(key, count))
            out += [(what, s, t, low, high) for s in one for t in two if s != t]
    return out


def functions(content: Content) -> tuple[list[list[float]], list[float]]:
    features = content["features"]
    if features is None:
        return [], []
    points, corrections = features.values.tolist(), features.corrections.tolist()
    if features.witnesses is not None:
        points = points + features.witnesses.values.tolist()
        corrections = corrections + features.witnesses.corrections.tolist()
    return points, corrections


def are_radii_enough(model: Any, mdp: TabularMDP) -> bool:
    """Whether radii and shorts are, for every row of every member."""
    labels = model.labels.tolist()
    for s, a in np.ndindex(mdp.rewards.shape):
        name = a if model.renaming is None else int(model.renaming[s, a])
        if name < 0:
            continue
        block = labels[s]
        at = block * mdp.n_actions + name
        part = slice(int(model.indptr[at]), int(model.indptr[at + 1]))
        entries = [Fraction(x) for x in model.probs[part].tolist()]
        total = sum(entries, Fraction(0))
        centre = {b: x / total for b, x in zip(model.indices[part].tolist(), entries, strict=True)}
        row = lifted_exact(mdp, labels, s, a)
        if variation_exact(row, centre) > Fraction(float(model.radius[block, name])):
            return False
        spare = float(model.spare[block, name])
        if lacking_exact(row, centre, spare) > Fraction(float(model.short[block, name])):
            return False
    return True


def false_clusters(content: Content, d: list[list[Fraction]], n: int) -> str:
    if content["tau"] is None:
        return ""
    tau, pairs = Fraction(content["tau"]), [(s, t) for s in range(n) for t in range(s + 1, n)]
    if content["scope"] == "covered":
        pairs = [divmod(key, n) for key in content["keys"].tolist()]
    below, above = content["labels_lower"].tolist(), content["labels_upper"].tolist()
    for s, t in pairs:
        if below[s] != below[t] and d[s][t] <= tau:
            return f"({s}, {t}) kept apart by labels_lower"
    root = linked(n, [(s, t) for s, t in pairs if d[s][t] <= tau])
    for s in range(n):
        if root[s] != root[above.index(above[s])]:
            return f"{s} put into a cluster of labels_upper"
    return ""


def true_function(content: Content, world: World, name: str) -> list[Fraction]:
    """What a claimed function bounds."""
    value, mdp = content["value"], world.mdp
    model = Exact.of(mdp, content["gamma"])
    if name == "random_upper":
        return model.at_random(mdp.available)
    if name.startswith("optimal") or name == "bracket upper":
        return model.optimal([0] * mdp.n_states)
    policy = value.policy if name == "policy_lower" else value.bracket.policy
    return model.of_actions(lifted(value, mdp, policy))


def lifted(value: Any, mdp: TabularMDP, policy: npt.NDArray[np.int64]) -> list[int]:
    """The first action that is called so; the first of all if none is."""
    actions = []
    for s, cluster in enumerate(value.labels.tolist()):
        name, names = int(policy[cluster]), list(range(mdp.n_actions))
        if value.renaming is not None:
            names = value.renaming[s].tolist()
        own = [a for a in range(mdp.n_actions) if mdp.available[s, a]]
        called = [a for a in own if names[a] == name]
        actions.append((called or own)[0])
    return actions


def false_value(content: Content, world: World) -> str:
    value = content["value"]
    if value is None:
        return ""
    labels, mdp = value.labels, world.mdp
    claims = {name: getattr(value, name) for name in FUNCTIONS}
    claims["bracket upper"] = value.bracket.upper[labels]
    claims["bracket lower"] = value.bracket.lower[labels]
    for name, values in claims.items():
        sign = 1 if name.endswith("upper") else -1
        for x, exact in zip(values.tolist(), true_function(content, world, name), strict=True):
            if sign * (Fraction(x) - exact) < 0:
                return name
    best = true_function(content, world, "optimal_upper")
    own = true_function(content, world, "policy_lower")
    if max(b - o for b, o in zip(best, own, strict=True)) > Fraction(value.loss):
        return "loss"
    weights = [Fraction(x) for x in mdp.start.tolist()]

    def mean(values: list[Fraction]) -> Fraction:
        return sum((w * v for w, v in zip(weights, values, strict=True)), Fraction(0)) / sum(
            weights
        )

    lost = mean(best) - mean(own)
    if lost > Fraction(value.start_loss):
        return "start_loss"
    # One backup of each function, and all that follows from them, as the oracle finds it.
    false = false_claims(value, mdp, content["gamma"])
    return false[0] if false else ""


def judge(content: Content, world: World) -> tuple[str, str]:
    """Which column a forgery belongs to, "" for one that both modes reject; and why."""
    certificate: Any = SimpleNamespace(**content)
    module = importlib.import_module("bisim_abstract._verify.verify")
    small, module.SMALL = module.SMALL, -1  # type: ignore[attr-defined]
    try:
        floats = verify(world.mdp, certificate, resources=ONE)
    finally:
        module.SMALL = small  # type: ignore[attr-defined]
    exact = verify(world.mdp, certificate, mode="exact", resources=ONE)
    for found in (floats, exact):
        if found.is_valid and (why := what_is_false(content, world, found)):
            return "false", f"{found.mode}: {why}"
    if floats.is_valid and exact.is_valid:
        return "true", ""
    if floats.is_valid:
        return ("rounding" if floats.remark else "unsaid"), exact.problem
    if exact.is_valid:
        is_open = floats.problem.endswith('; mode "exact" would decide, slowly')
        return ("open" if is_open else "lost"), floats.problem
    return "", ""


def run(
    component: str, count: int, seed: int, only: int | None = None
) -> tuple[Counter[str], list[str]]:
    """How many forgeries of a component fall into which column, and what went wrong.

    Args:
        component: What to forge.
        count: Number of forgeries.
        seed: Decides all of them.
        only: This one alone.
    """
    tally, wrong = Counter[str](), list[str]()
    for number in range(count) if only is None else [only]:
        rng = np.random.default_rng([seed, number])
        world = draw_world(rng, component)
        content = copy.deepcopy(world.content)
        with np.errstate(all="ignore"):
            FORGERS[component](rng, content, world)
            column, why = judge(content, world)
        tally[column] += 1
        if column in WRONG:
            wrong.append(f"{component} --seed {seed} --only {number}: {column}: {why}")
    return tally, wrong


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; 1 if anything was accepted or rejected that should not have been."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("components", nargs="*", help=f"of {', '.join(FORGERS)}; all by default")
    parser.add_argument("--count", type=int, default=1_000, help="per component (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of all forgeries (0)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one forgery")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.components) - set(FORGERS))
    if unknown:
        parser.error(f"no component {', '.join(unknown)}; there are {', '.join(FORGERS)}")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{'':10}{'forged':>8}" + "".join(f"{name:>9}" for name in COLUMNS) + f"{'seconds':>9}"
    )
    n_wrong = 0
    for component in options.components or FORGERS:
        begin = time.perf_counter()
        tally, wrong = run(component, options.count, options.seed, options.only)
        cells = "".join(f"{tally[name]:9,}" for name in COLUMNS)
        took = time.perf_counter() - begin
        console.print(f"{component:10}{sum(tally.values()):8,}{cells}{took:9.0f}")
        for line in wrong:
            console.print(f"  {line}")
        n_wrong += len(wrong)
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
