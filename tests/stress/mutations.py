"""Mistakes put into the code on purpose, to see whether the tests notice them.

    python -m tests.stress.mutations [--only ID ...] [--jobs N] [--out table.json] [--check]

Each mutation replaces one piece of text by another: a rounding term dropped, a comparison
loosened, a factor or an argument forgotten. The text must occur exactly once in the code, in
whatever file, so that moving files changes nothing here; `--check` says where it does not. Every
worker has a copy of the tree, in which it makes one mistake at a time and runs the tests that
should see it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("bisim_abstract", "wrappers", "encoders")
SUBJECTS = ("core", "checker", "wrappers", "encoders", "rest")
TIMEOUT = 1200.0  # seconds; tests that hang have noticed something
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
# A mutant that never ran proves nothing about the tests.
BROKEN = re.compile(r"^E .*((?:Typing|Lowering|Name|UnboundLocal|Syntax)Error.*)", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """One mistake.

    Attributes:
        id: What it is called: the part it is in, and what is wrong.
        subject: One of SUBJECTS.
        old: Text that occurs once in the code.
        new: What takes its place.
        tests: Files or folders of tests that should see it, likely ones first.
    """

    id: str
    subject: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What became of it.

    Attributes:
        id: Of the mutation.
        subject: Of the mutation.
        status: "caught", "survived", or "broken" if the mutant does not even run.
        by: The first test that failed, or what is wrong with the mutant.
        seconds: How long the tests took.
    """

    id: str
    subject: str
    status: str
    by: str
    seconds: float


TRANSPORT = ("exact/test_transport.py", "bounds/test_arms.py")
ARMS = ("bounds/test_arms.py", "bounds/test_blocks.py")
BLOCKS = ("bounds/test_blocks.py",)
RELATIONS = ("bounds/test_relations.py", "prove/test_relations.py")
GROUND = ("bounds/test_ground.py", "bounds/test_arms.py")
METRIC = ("exact/test_metric.py",)
CLASSES = ("exact/test_classes.py", "exact/test_metric.py")
FEATURES = ("bounds/test_features.py",)
WITNESSES = ("bounds/test_witnesses.py",)
PLANNING = ("exact/test_planning.py", "abstract/test_value.py")
VALUE = ("abstract/test_value.py", "verify")
SCALE = ("abstract/test_scale.py",)
AGENTS = ("abstract/test_agents.py", "abstract/test_value.py")
EPISODES = ("abstract/test_episodes.py",)
ACTIONS = ("bounds/test_action_values.py", "prove/test_optimal.py")
ACTIONS_CHECKED = ("verify/test_action_values.py",)
APPROXIMATE = ("bounds/test_index_side.py",)
CHECKER = ("verify",)
VERIFIED = ("verify/test_agents.py", "verify/test_value.py")
SIZES = ("verify/test_sizes.py",)
TABULAR = ("wrappers/test_tabular.py", "wrappers")
ENCODERS = ("encoders",)
CHAINS = ("model/test_chains.py", "prove/test_under_policy.py")
EXPLICIT = ("model/test_explicit.py",)
UMB = ("model/test_umb.py",)
FORMULAS = ("encoders/test_formulas.py", "encoders/test_losses.py")

CORE: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    # -- transport -----------------------------------------------------------------------------
    (
        "transport: no rounding below",
        "lower = value - (m + n + 16) * EPS * size * (1.0 + 1e-9) - 1e-300 * top - TINY",
        "lower = value - 1e-300 * top - TINY",
        TRANSPORT,
    ),
    (
        "transport: missing mass is free",
        "upper = total * (1.0 + (m * n + 8) * EPS) + top * missing",
        "upper = total * (1.0 + (m * n + 8) * EPS)",
        TRANSPORT,
    ),
    (
        "transport: no rounding of masses",
        "missing = missing * (1.0 + 1e-9) + (m + n + 16) * EPS",
        "missing = missing * (1.0 + 1e-9)",
        TRANSPORT,
    ),
    (
        "transport: no rounding of a single coupling",
        "slack = (m * n + 8) * EPS",
        "slack = 0.0",
        ("exact/test_transport.py", "exact/test_metric.py"),
    ),
    (
        "transport: row sums without their tail",
        "total = hi + lo",
        "total = hi",
        TRANSPORT,
    ),
    # -- relations -----------------------------------------------------------------------------
    (
        "lax: matches of one side only",
        "lines = 2 * n_actions if is_lax else n_actions\n    size",
        "lines = n_actions\n    size",
        RELATIONS,
    ),
    (
        "lax: the first match is taken for the smallest",
        "if not is_last and np.isnan(known[a, b]) and least[a, b] >= smallest:",
        "if not is_last and smallest < np.inf:",
        RELATIONS,
    ),
    (
        "lax: cheapest cells count where mass travels free",
        "bottom, top = 0.0, max(top, reach)",
        "top = max(top, reach)",
        RELATIONS,
    ),
    (
        "lax: blocks match their actions with any of their own",
        "is_named = not is_lax or s == t",
        "is_named = not is_lax",
        RELATIONS,
    ),
    (
        "lax: the largest of rewards by action",
        "return float(high.max()) - float(low.min())\n\n    def arranged",
        "return float((high.max(axis=0) - low.min(axis=0)).max())\n\n    def arranged",
        RELATIONS,
    ),
    (
        "lax: features with signs that differ",
        "signs = np.where(np.arange(count) % 2 == 0, 1, -1)[:, None] * ones",
        "signs = rng.choice([-1, 1], size=(count, n_actions))",
        RELATIONS,
    ),
    (
        "lax: means as features",
        "return signs, np.zeros(count, np.int64)",
        "return signs, np.arange(count) % 2",
        RELATIONS,
    ),
    (
        "lax: rewards by action keep cells apart",
        "lows = [low.max(axis=1), low.min(axis=1)]",
        "lows = list(low.T)",
        RELATIONS,
    ),
    (
        "sets: states with different actions are compared by what they lack",
        "if not is_lax and sets[s] != sets[t]:\n            out",
        "if False:\n            out",
        RELATIONS,
    ),
    (
        "sets: different actions are no distance",
        "upper[differ] = self.diameter",
        "upper[differ] = self.diameter / 2.0",
        RELATIONS,
    ),
    (
        "renaming: intervals of the first row only",
        "high=np.maximum.reduceat(high, starts[:-1]).reshape(shape),",
        "high=high[starts[:-1]].reshape(shape),",
        RELATIONS,
    ),
    (
        "correspondence: without what follows",
        "found = (gap + gamma * out) * (1.0 + 16.0 * EPS) + TINY",
        "found = gap * (1.0 + 16.0 * EPS) + TINY",
        ("prove/test_relations.py",),
    ),
    (
        "correspondence: the model's own actions",
        "other = _called(renaming)[model, renaming[states, actions]]",
        "other = actions",
        ("prove/test_relations.py",),
    ),
    # -- arms ----------------------------------------------------------------------------------
    (
        "arms: no rounding below",
        "value = (gap + gamma * lower) * (1.0 - 4.0 * EPS) - TINY",
        "value = gap + gamma * lower",
        ARMS,
    ),
    (
        "arms: no rounding above",
        "value = (gap + gamma * upper) * (1.0 + 4.0 * EPS) + TINY",
        "value = gap + gamma * upper",
        ARMS,
    ),
    (
        "arms: one radius for two rows",
        "free = radius[s, a] + radius[t, b]\n    if free > 0.0:",
        "free = radius[s, a]\n    if free > 0.0:",
        ARMS,
    ),
    (
        "arms: the smaller spare",
        "without = max(spare[s, a], spare[t, b])\n        free",
        "without = min(spare[s, a], spare[t, b])\n        free",
        ARMS,
    ),
    (
        "arms: one short for two rows",
        "free = without + (short[s, a] + short[t, b])",
        "free = without + short[s, a]",
        ARMS,
    ),
    (
        "arms: the spare share is not left",
        "free = without + (short[s, a] + short[t, b])",
        "free = short[s, a] + short[t, b]",
        ARMS,
    ),
    (
        "blocks: what a row does not reach is not lacking",
        "return short + keep * max(1.0 - met, 0.0)",
        "return short",
        BLOCKS,
    ),
    (
        "blocks: no slack of what is short",
        "off = off * (1.0 + (length + 8) * EPS) + 3.0 * (2 * union + 16) * EPS",
        "off = off * 1.0",
        BLOCKS,
    ),
    (
        "arms: blocks have no diameter",
        "if cost[i * stride + i] > 0.0:",
        "if cost[i * stride + i] < 0.0:",
        ARMS,
    ),
    (
        "arms: estimates reach nothing else",
        "most = max(top, reach) if free > 0.0 else top",
        "most = top",
        ("bounds/test_blocks.py", "test_estimation.py"),
    ),
    (
        "arms: diameters without 1/(1 - gamma)",
        "most = float(local.max(initial=0.0)) / (1.0 - self.gamma) * (1.0 + 1e-12)",
        "most = float(local.max(initial=0.0)) * (1.0 + 1e-12)",
        BLOCKS,
    ),
    (
        "arms: diameters are not rounded up",
        "most = float(local.max(initial=0.0)) / (1.0 - self.gamma) * (1.0 + 1e-12)",
        "most = float(local.max(initial=0.0)) / (1.0 - self.gamma)",
        BLOCKS,
    ),
    (
        "arms: index-side error without 1/(1 - gamma)",
        "shift = eps_op / (1.0 - gamma) * (1.0 + 1e-12)",
        "shift = eps_op * (1.0 + 1e-12)",
        APPROXIMATE,
    ),
    (
        "arms: mass left out counted once",
        "eps_op = gamma * (eta + 2.0 * omitted * top) * (1.0 + 1e-12)",
        "eps_op = gamma * (eta + omitted * top) * (1.0 + 1e-12)",
        APPROXIMATE,
    ),
    # -- blocks --------------------------------------------------------------------------------
    (
        "blocks: radii without rounding",
        "off = off * (1.0 + (length + 8) * EPS) + (2 * union + 16) * EPS",
        "off = off * 1.0",
        BLOCKS,
    ),
    (
        "blocks: radii of the wrong side",
        "off += max(masses[i] - most[columns[i]], 0.0)",
        "off += max(most[columns[i]] - masses[i], 0.0)",
        BLOCKS,
    ),
    (
        "blocks: rows that differ in their tails are the same",
        "is_same = is_same and hi[i] == first_hi[b] and lo[i] == first_lo[b]",
        "is_same = is_same and hi[i] == first_hi[b]",
        BLOCKS,
    ),
    (
        "blocks: blocks of little mass are out of reach",
        "cell += 1\n            if c > top:",
        "cell += 1\n            if c > top and min(line, place_q[j]) >= 0:",
        BLOCKS,
    ),
    (
        "blocks: reward intervals are not rounded outward",
        "low = np.maximum(np.nextafter(rewards - radius, -np.inf), reward_range[0])",
        "low = np.maximum(rewards - radius, reward_range[0])",
        ("bounds/test_blocks.py", "test_estimation.py"),
    ),
    (
        "blocks: alike whatever their rows",
        "is_zero = (model.low == model.high).all(axis=1) & (model.radius == 0.0).all(axis=1)",
        "is_zero = (model.low == model.high).all(axis=1)",
        BLOCKS,
    ),
    # -- what uncovered pairs read -------------------------------------------------------------
    (
        "ground: the diameter is not rounded up",
        "far = span / (1.0 - gamma) * (1.0 + 16.0 * EPS + 16.0 * EPS / (1.0 - gamma))",
        "far = span / (1.0 - gamma)",
        GROUND,
    ),
    (
        "ground: reward gaps are not rounded down",
        'lower = gap * (1.0 - 4.0 * EPS) if self.lower == "reward" else np.zeros(s.shape)',
        'lower = gap if self.lower == "reward" else np.zeros(s.shape)',
        GROUND,
    ),
    (
        "ground: the upper start is not rounded up",
        "upper = (span + self.gamma * self.diameter) * (1.0 + 4.0 * EPS) + tiny",
        "upper = span + self.gamma * self.diameter + tiny",
        GROUND,
    ),
    # -- metric and classes --------------------------------------------------------------------
    (
        "metric: residuals without 1/(1 - gamma)",
        "return ((residual + 2.0 * e) / (1.0 - gamma) + distortion) * (1.0 + 16.0 * EPS)",
        "return ((residual + 2.0 * e) + distortion) * (1.0 + 16.0 * EPS)",
        METRIC,
    ),
    (
        "metric: no rounding of the shift",
        "return ((residual + 2.0 * e) / (1.0 - gamma) + distortion) * (1.0 + 16.0 * EPS)",
        "return residual / (1.0 - gamma) + distortion",
        METRIC,
    ),
    (
        "metric: no rounding of a residual",
        "least_lower = min(least_lower, (gap + gamma * lower) * (1.0 - 4.0 * EPS) - TINY)",
        "least_lower = min(least_lower, gap + gamma * lower)",
        METRIC,
    ),
    (
        "metric: no rounding without transport",
        "slack = 4.0 * EPS * best + 1e-315",
        "slack = 0.0",
        METRIC,
    ),
    (
        "classes: one reward gap for two states",
        "local = 2.0 * self.reward_gap + 2.0 * gamma * variation * diameter",
        "local = self.reward_gap + 2.0 * gamma * variation * diameter",
        CLASSES,
    ),
    (
        "classes: the quotient's rounding is forgotten",
        "variation = self.variation + self.lift_error",
        "variation = self.variation",
        CLASSES,
    ),
    (
        "classes: no rounding of a variation",
        "bound = total * (1.0 + (count + 8) * EPS) + 8.0 * EPS",
        "bound = total",
        CLASSES,
    ),
    (
        "classes: no rounding of a reward gap",
        "reward_gap = max(reward_gap, gap * (1.0 + 2.0 * EPS) + 5e-324)",
        "reward_gap = max(reward_gap, gap)",
        CLASSES,
    ),
    # -- features ------------------------------------------------------------------------------
    (
        "features: corrections without rounding",
        "corrections = (span + 2.0 * noise) / (1.0 - gamma) * UP",
        "corrections = span / (1.0 - gamma)",
        FEATURES,
    ),
    (
        "features: corrections without 1/(1 - gamma)",
        "corrections = (span + 2.0 * noise) / (1.0 - gamma) * UP",
        "corrections = (span + 2.0 * noise) * UP",
        FEATURES,
    ),
    (
        "features: an estimate's error on one side only",
        "corrections = (corrections + 2.0 * error / (1.0 - gamma) * UP) * UP",
        "corrections = (corrections + error / (1.0 - gamma) * UP) * UP",
        FEATURES,
    ),
    (
        "features: differences are not rounded down",
        "return np.maximum((difference * DOWN - correction) * DOWN, 0.0)",
        "return np.maximum(difference - correction, 0.0)",
        FEATURES,
    ),
    (
        "witnesses: without the features' corrections",
        "most = max(known, float(missing.max()) / (1.0 - gamma)) * slack",
        "most = float(missing.max()) / (1.0 - gamma) * slack",
        WITNESSES,
    ),
    (
        "witnesses: each by itself",
        "return (missing + gamma * most) * UP",
        "return np.maximum(missing / (1.0 - gamma), missing + gamma * known) * UP",
        WITNESSES,
    ),
    (
        "witnesses: the largest correction is not rounded up",
        "slack = 1.0 + 64.0 * EPS + 64.0 * EPS / (1.0 - gamma)",
        "slack = 1.0",
        WITNESSES,
    ),
    (
        "witnesses: without rounding",
        "return np.asarray((fresh.moved(values) + 2.0 * noise) * UP)",
        "return np.asarray(fresh.moved(values) * UP)",
        WITNESSES,
    ),
    (
        "witnesses: constants count for nothing, other differences neither",
        "span[k] = np.ptp(after - before)",
        "span[k] = np.abs(after - before).min()",
        WITNESSES,
    ),
    (
        "refinement: witnesses in place of those that bounds rest on",
        "if features.witnesses is not None or self._is_out_of_reach(tau):",
        "if self._is_out_of_reach(tau):",
        ("test_refinement.py",),
    ),
    # -- refinement ----------------------------------------------------------------------------
    (
        "refinement: solved bounds are not moved outward",
        "delta = (64.0 * EPS * arms.starts.diameter + rounding) / (1.0 - arms.gamma)",
        "delta = 0.0",
        ("test_outward.py",),
    ),
    (
        "refinement: thresholds below a block's diameter",
        "CertifiedInterval(max(x.low, floor), x.high, x.n_clusters)",
        "CertifiedInterval(x.low, x.high, x.n_clusters)",
        ("test_levels.py",),
    ),
    # -- planning and values -------------------------------------------------------------------
    (
        "planning: no rounding of residuals",
        "noise = (terms + 8) * EPS * size * (1.0 + 1e-9) + 1e-315",
        "noise = 1e-315",
        PLANNING,
    ),
    (
        "planning: no rounding of the shift",
        "pad = 8.0 * EPS * top",
        "pad = 0.0",
        PLANNING,
    ),
    (
        "planning: residuals without 1/(1 - gamma)",
        "shift_low, shift_high = low / (1.0 - gamma), high / (1.0 - gamma)",
        "shift_low, shift_high = low, high",
        PLANNING,
    ),
    (
        "planning: start values are not rounded",
        "slack = 8.0 * EPS * math.fsum(weights * np.maximum(np.abs(low), np.abs(high))) / total",
        "slack = 0.0",
        PLANNING,
    ),
    (
        "value: proofs without room for rounding",
        "shift = (away + MARGIN * noise) / (1.0 - gamma)",
        "shift = away / (1.0 - gamma)",
        VALUE,
    ),
    (
        "value: start values are not rounded",
        "pad = slack * EPS * math.fsum(weights * np.abs(picked)) / total",
        "pad = 0.0",
        VALUE,
    ),
    (
        "value: the share is not rounded down",
        "return min(1.0, share - 4.0 * EPS * abs(share))",
        "return min(1.0, share)",
        VALUE,
    ),
    (
        "value: losses are not rounded up",
        "return float(np.nextafter(difference, np.inf)) if difference > 0.0 else 0.0",
        "return max(difference, 0.0)",
        VALUE,
    ),
    (
        "value: true rows are the estimated ones",
        "np.maximum(x, level[rows]), begins) + radius * (best - level)",
        "x, begins)",
        VALUE,
    ),
    (
        "value: all members reach what some do",
        "is_common = np.diff(np.append(cut, keys.size)) == sizes[rows]",
        "is_common = np.diff(np.append(cut, keys.size)) <= sizes[rows]",
        VALUE,
    ),
    (
        "value: masses of clusters are not rounded",
        "error = (max_support + 4) * EPS\n    most",
        "error = 0.0\n    most",
        VALUE,
    ),
    (
        "value: brackets without rounding",
        "residual += (boxes.longest + 16) * EPS * size",
        "residual += 0.0 * size",
        VALUE,
    ),
    # -- the scale, agents and episodes --------------------------------------------------------
    (
        "scale: shares above the baseline by the lower bound",
        "gain = (high if policy >= base else low) - base",
        "gain = low - base",
        SCALE,
    ),
    (
        "scale: shares below the baseline by the upper bound",
        "gain = (high if policy >= base else low) - base",
        "gain = high - base",
        SCALE,
    ),
    (
        "scale: the lower bound of the baseline",
        "high, base = self.optimal[1], self.baseline[1]",
        "high, base = self.optimal[1], self.baseline[0]",
        SCALE,
    ),
    (
        "scale: a stake does not count",
        "if is_rounding and (self.is_nothing or lost <= OF_STAKE * (low - base)):",
        "if is_rounding:",
        SCALE,
    ),
    (
        "scale: constants hide losses",
        "return min(max(optimal[0], -optimal[1], 0.0), span / (1.0 - gamma))",
        "return max(optimal[0], -optimal[1], 0.0)",
        SCALE,
    ),
    (
        "scale: constants hide a stake",
        "return self._is_at_stake_below(NOTHING) and not gains",
        "return self._is_at_stake_below(NOTHING)",
        SCALE,
    ),
    (
        "scale: any score where the baseline is best",
        "return kept if math.isfinite(kept) else math.nan",
        "return kept if math.isfinite(kept) else 1.0",
        ("compare/test_learning.py",),
    ),
    (
        "baseline: random actions are left out",
        "for each in range(RANDOM, mdp.n_actions):\n        look()",
        "for each in (*range(mdp.n_actions), 0):\n        look()",
        ("abstract/test_baseline.py",),
    ),
    (
        "baseline: what a state lacks is its first action",
        "    weights = uniform_policy(mdp)\n    weights[has_it] = 0.0",
        "    weights = np.eye(mdp.n_actions)[mdp.first_actions]\n    weights[has_it] = 0.0",
        ("abstract/test_baseline.py",),
    ),
    (
        "agents: the best of a set",
        "return np.asarray(np.where(policy, q, np.inf).min(axis=1))",
        "return np.asarray(np.where(policy, q, -np.inf).max(axis=1))",
        AGENTS,
    ),
    (
        "agents: boxes are fixed points",
        "q + sign * (gamma * shift + room / 2.0)",
        "q + 0.0 * shift * room",
        AGENTS,
    ),
    (
        "agents: boxes without room for rounding",
        "q + sign * (gamma * shift + room / 2.0)",
        "q + sign * gamma * shift",
        AGENTS,
    ),
    (
        "agents: the best members count below",
        "pick = np.maximum if sign > 0.0 else np.minimum",
        "pick = np.maximum",
        AGENTS,
    ),
    (
        "agents: sure ones only",
        "used & (q_upper >= best[:, None])",
        "used & (q_lower >= best[:, None])",
        AGENTS,
    ),
    (
        "agents: the whole gap is margin",
        "(float(steps[high]) - room) / 2.0 - room",
        "float(steps[high]) - 2.0 * room",
        AGENTS,
    ),
    (
        "agents: the last gap is forgotten",
        "margin = math.inf if high == steps.size",
        "margin = math.inf if high >= steps.size - 1",
        AGENTS,
    ),
    (
        "agents: promises do not depend on where members lead",
        "sigma = spread.high[slot] - promised + gamma * apart",
        "sigma = spread.high[slot] - promised + 0.0 * apart",
        AGENTS,
    ),
    (
        "agents: the least promise of a member",
        "sigma = spread.high[slot] - promised + gamma * apart",
        "sigma = spread.low[slot] - promised + gamma * apart",
        AGENTS,
    ),
    (
        "agents: all members send what some do",
        "is_common = np.diff(np.append(cut, keys.size)) == sizes[rows]",
        "is_common = np.diff(np.append(cut, keys.size)) <= sizes[rows]",
        ("abstract/test_agents.py", "verify/test_agents.py"),
    ),
    (
        "agents: what members promise is not rounded",
        "members.rows(middle - half, -1.0)) + spread.noise",
        "members.rows(middle - half, -1.0))",
        ("abstract/test_agents.py", "verify/test_agents.py"),
    ),
    (
        "agents: half of what values can be",
        "middle, half = below / 2.0 + above / 2.0, (above - below) / 2.0",
        "middle, half = below / 2.0 + above / 2.0, (above - below) / 4.0",
        AGENTS,
    ),
    (
        "agents: dominated by some member",
        "gain = spread.high[ours] - spread.low[other]",
        "gain = spread.low[ours] - spread.low[other]",
        AGENTS,
    ),
    (
        "agents: dominated wherever members lead",
        "+ members.gamma * apart\n",
        "+ 0.0 * apart\n",
        AGENTS,
    ),
    (
        "agents: values are no more than promised",
        "floor = np.maximum(below[labels] - excess, known)",
        "floor = np.maximum(below[labels], known)",
        AGENTS,
    ),
    (
        "agents: raised by the best action",
        "backup(mdp, gamma, values, -1.0, allowed))",
        "backup(mdp, gamma, values, -1.0, None))",
        AGENTS,
    ),
    (
        "action values: once the radius below",
        "(gaps * DOWN - 2.0 * self.radius) * DOWN",
        "(gaps * DOWN - self.radius) * DOWN",
        ACTIONS,
    ),
    (
        "action values: once the radius above",
        "return (gaps * UP + 2.0 * self.radius) * UP + TINY",
        "return (gaps * UP + self.radius) * UP + TINY",
        ACTIONS,
    ),
    (
        "action values: only what backups exceed counts",
        "return max(float(above.max()), -float(below.min()), 0.0)",
        "return max(float(above.max()), 0.0)",
        ACTIONS,
    ),
    (
        "action values: nothing is lost by the grid",
        "    away = _away(mdp, gamma, middles, middles.max(axis=1))\n",
        "    away = 0.0\n",
        ACTIONS,
    ),
    (
        "action values: estimates are taken for models",
        "        return backed_up(mdp, gamma, values, sign)\n    return np.asarray(mdp.rewards",
        "        pass\n    return np.asarray(mdp.rewards",
        ACTIONS,
    ),
    (
        "points: boxes are left out that may hold the nearest",
        "if owners[child] != mine and gap < limit:",
        "if owners[child] != mine and gap < 0.5 * limit:",
        ACTIONS,
    ),
    (
        "points: equal hashes are equal points",
        "if not (np.array_equal(sets[one], sets[two]) and np.array_equal(points[one]",
        "if False and not (np.array_equal(sets[one], sets[two]) and np.array_equal(points[one]",
        ACTIONS,
    ),
    (
        "auto: the most clusters",
        "best = min(by_promise, key=rank)",
        "best = max(by_promise, key=rank)",
        ACTIONS,
    ),
    (
        "episodes: the most of a set ends",
        "returns, ends = (np.minimum.reduceat(each, begins) for each in (returns, ends))",
        "returns, ends = (np.maximum.reduceat(each, begins) for each in (returns, ends))",
        EPISODES,
    ),
    (
        "episodes: an end at the last step does not count",
        "for _ in range(horizon):\n        look()\n        ahead = kernel @ np.stack",
        "for _ in range(horizon - 1):\n        look()\n        ahead = kernel @ np.stack",
        EPISODES,
    ),
    (
        "episodes: nothing is rounded",
        "error = 2.0 * error + 16.0 * EPS",
        "error = 0.0 * error + 0.0 * EPS",
        EPISODES,
    ),
    (
        "episodes: the best start is the worst",
        "least = float(picked.min())",
        "least = float(picked.max())",
        EPISODES,
    ),
    (
        "episodes: ends that do not pay count",
        "return own.ended[0] < CLEARLY * best.ended[0] and returns_less",
        "return own.ended[0] < CLEARLY * best.ended[0]",
        EPISODES,
    ),
    (
        "goal: how many episodes end is not asked",
        "return found is not None and self.is_enough(found) and not found.ends_fewer",
        "return found is not None and self.is_enough(found)",
        ("certificate/test_frontier.py", "certificate/test_sentences.py"),
    ),
    # -- models of others, and chains ----------------------------------------------------------
    (
        "chains: mixtures of rows are not rounded",
        "return np.where(is_copied, 0.0, (2 * n_actions + 8) * EPS)",
        "return np.where(is_copied, 0.0, 0.0 * EPS)",
        CHAINS,
    ),
    (
        "chains: rounding does not reach upper backups",
        "return np.where(is_moved, farthest * off * ROUNDED_UP + TINY, 0.0)",
        "return np.zeros(off.shape)",
        CHAINS,
    ),
    (
        "explicit: a goal is left again",
        "            stays = stays | is_goal\n",
        "            stays = stays\n",
        EXPLICIT,
    ),
    (
        "explicit: costs are paid",
        "weights[name] = -weight if is_cost else weight",
        "weights[name] = weight",
        EXPLICIT,
    ),
    (
        "explicit: what branches pay is not averaged",
        "paid += mean(reward.branches)",
        "paid += 0.0 * mean(reward.branches)",
        EXPLICIT,
    ),
    (
        "explicit: states pay their first choice only",
        "paid += reward.states[owner]",
        "paid[self.choices[:-1]] += reward.states",
        EXPLICIT,
    ),
    (
        "classes: of several rewards the first counts",
        "vectors = (mdp.rewards + 0.0).reshape(-1, depth)",
        "vectors = (mdp.rewards + 0.0).reshape(-1, depth)[:, :1]",
        EXPLICIT,
    ),
    (
        "umb: numbers have no sign",
        'if kind == "int" and width < 64:',
        'if kind == "int" and width < 0:',
        UMB,
    ),
    (
        "umb: targets beyond the states",
        "if targets.size and targets.max() >= n:",
        "if targets.size and targets.max() > 99:",
        UMB,
    ),
    (
        "union: actions are compared by number whatever their names",
        "if names[0] is None or names[1] is None or names[0] == names[1]:",
        "if True:",
        ("compare/test_union.py",),
    ),
)

CHECKS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    # -- the ends of what floats are -----------------------------------------------------------
    (
        "read: conditions may be left out",
        "if type(condition) is str and condition not in stated:",
        "if type(condition) is str and condition in stated and not stated:",
        ("verify/test_honest.py",),
    ),
    (
        "goal: going nowhere is good enough",
        "if not found.kept >= LEAST_KEPT:\n            return False",
        "if found.kept != found.kept:\n            return False",
        ("certificate/test_frontier.py", "certificate/test_sentences.py"),
    ),
    (
        "sizes: a correction that is read nowhere makes the grain coarse",
        "read = spans[corrections < spans * (1.0 + 4.0 * EPS)]",
        "read = np.append(spans, corrections)",
        SIZES,
    ),
    (
        "sizes: any share of the diameter is rounding",
        "    return min(rounded, Fraction(CONFIRMED) * limit)",
        "    return Fraction(CONFIRMED) * limit",
        SIZES,
    ),
    (
        "sizes: pairs may be open by more than rounding",
        "if not missing[worst] <= room:",
        "if not missing[worst] <= CONFIRMED * float(limit):",
        SIZES,
    ),
    (
        "sizes: corrections may be open by more than rounding",
        "if missing > max(room, Fraction(0)):",
        "if missing > max(room, Fraction(1, 10**9)):",
        SIZES,
    ),
    (
        "sizes: radii are left open",
        "        if entries <= FEW:",
        "        if entries < 0:",
        SIZES,
    ),
    (
        "sizes: radii left open are not told",
        "        if radii.rows.size:\n            radii = self._decide_radii(level, radii)\n",
        "",
        SIZES,
    ),
    (
        "sizes: what is remembered has no remark",
        "            self._remarks += known.remarks\n",
        "",
        SIZES,
    ),
    (
        "sizes: starts may underflow",
        "            UNDERFLOW if self.diameter > 0.0 else 0.0,\n            below,",
        "            0.0,\n            below,",
        SIZES,
    ),
    (
        "sizes: a metric of any size is checked",
        "if limit > LARGEST or 0 < limit < SMALLEST:",
        "if limit > LARGEST:",
        SIZES,
    ),
    (
        "sizes: no specks in a cheap coupling",
        "                    more += specks * kappa\n                    if free",
        "                    if free",
        SIZES,
    ),
    (
        "sizes: specks are carried nowhere, below",
        "                more += specks * kappa\n                if not is_low:",
        "                if not is_low:",
        SIZES,
    ),
    (
        "sizes: specks are carried for certain, above",
        "less = max(0.0, less - specks * kappa)",
        "less = less + specks * kappa",
        SIZES,
    ),
    (
        "sizes: specks must be carried, below",
        "free + specks if is_low else 0.0",
        "free if is_low else 0.0",
        SIZES,
    ),
    (
        "sizes: radii rounded up to 1 leave nothing",
        "most[a, col] = (base + gamma * (8.0 * U * kappa)) * up + TINY",
        "most[a, col] = base * (1.0 + 2.0 * U)",
        SIZES,
    ),
    # -- clusters ------------------------------------------------------------------------------
    (
        "scope: pairs at the threshold are apart",
        "open_ = np.flatnonzero(~(below > limit))",
        "open_ = np.flatnonzero(~(below >= limit))",
        CHECKER,
    ),
    (
        "scope: block entries at the threshold are apart",
        "rest = rest[line[blocks[rest]] <= limit]",
        "rest = rest[line[blocks[rest]] < limit]",
        CHECKER,
    ),
    (
        "scope: boxes at the threshold are apart",
        "rest = rest[~(gap > limit)]",
        "rest = rest[~(gap >= limit)]",
        CHECKER,
    ),
    (
        "scope: boxes without rounding",
        "gap = gap - correction - 4.0 * EPS * (np.abs(gap) + correction)",
        "gap = gap - correction",
        CHECKER,
    ),
    (
        "scope: fractions at the threshold are apart",
        "if bound <= limit:",
        "if bound < limit:",
        CHECKER,
    ),
    (
        "scope: covered links end below the threshold",
        "_components(claims.n_states, *_links(states, values <= limit))",
        "_components(claims.n_states, *_links(states, values < limit))",
        CHECKER,
    ),
    (
        "scope: clusters of bounds that are not widened",
        "below, above = below_float(tau + widening), below_float(tau - widening)",
        "below, above = below_float(tau), below_float(tau)",
        CHECKER,
    ),
    (
        "scope: upper links end beyond the threshold",
        "one, two = _links(level, level.upper <= limit)",
        "one, two = _links(level, level.upper * (1.0 - 1e-9) <= limit)",
        CHECKER,
    ),
    # -- the whole -----------------------------------------------------------------------------
    (
        "verify: widening without 1/(1 - gamma)",
        "self._check_bounds(claims, levels, states, reader) / (1 - Fraction(claims.gamma))",
        "self._check_bounds(claims, levels, states, reader)",
        CHECKER,
    ),
    (
        "verify: the sample is the first pairs",
        "self._options.rng.choice(which.size, size=self._options.sample, replace=False)",
        "which[: self._options.sample]",
        CHECKER,
    ),
    (
        "verify: the sample is the first rows",
        "check_exact_radii(level, mdp, np.sort(rows).tolist())",
        "check_exact_radii(level, mdp, range(rows.size))",
        CHECKER,
    ),
    (
        "read: a state and itself are a pair",
        "is_pair = (keys >= 0) & (s < n) & (s < t)",
        "is_pair = (keys >= 0) & (s < n) & (s <= t)",
        CHECKER,
    ),
    (
        "read: members of a block are apart",
        "bad = np.flatnonzero((s == t) & (table.lower > 0.0))",
        "bad = np.flatnonzero((s == t) & (table.lower < 0.0))",
        CHECKER,
    ),
    # -- floats --------------------------------------------------------------------------------
    (
        "float: start values are safe as they are",
        "1.0 - 16.0 * EPS if is_safe else 1.0",
        "1.0 if is_safe else 1.0",
        CHECKER,
    ),
    (
        "float: what is open is not rounded up",
        "open_by = max(open_by, float(np.nextafter(missing[worst], np.inf)))",
        "open_by = max(open_by, float(missing[worst]))",
        CHECKER,
    ),
    (
        "float: raised radii have no grain",
        "grain += 2.0 * reader.diameter * (2.0 * most + 16.0 * EPS)",
        "grain += 0.0 * most",
        CHECKER,
    ),
    (
        "float: rounded reward intervals have no grain",
        "grain += 32.0 * EPS * (ends / (1.0 - claims.gamma) + reader.diameter)",
        "grain += 0.0 * ends",
        CHECKER,
    ),
    (
        "float: reward intervals at their ends",
        "(sign * bound > sign * end) | ((bound == end) & (sign * rest <= 0.0)) | is_beyond",
        "(sign * bound >= sign * end) | is_beyond",
        CHECKER,
    ),
    (
        "float: corrections without 1 - gamma",
        "have = Fraction(float(features.corrections[k])) * keep",
        "have = Fraction(float(features.corrections[k]))",
        CHECKER,
    ),
    (
        "float: witnesses without what others are off by",
        "carried = Fraction(claims.gamma) * Fraction(float(corrections.max()))",
        "carried = Fraction(0) * Fraction(float(corrections.max()))",
        CHECKER,
    ),
    (
        "float: witnesses with what features are off by alone",
        "carried = Fraction(claims.gamma) * Fraction(float(corrections.max()))",
        "carried = Fraction(claims.gamma) * Fraction(float(features.corrections.max()))",
        CHECKER,
    ),
    (
        "float: supports without their last part",
        "for first, last in spans(used.size, max(1, DISTANCES // mdp.n_states)):",
        "for first, last in spans(used.size, max(1, DISTANCES // mdp.n_states))[:1]:",
        CHECKER,
    ),
    (
        "float: potentials are not rounded",
        "rounding = 4.0 * EPS * (largest + float(farthest[k]))",
        "rounding = 0.0 * (largest + float(farthest[k]))",
        CHECKER,
    ),
    (
        "float: an estimate's error on one side only",
        "above = 2 * most * (1 + Fraction(4 * used.size + 64, 2**53))",
        "above = most * (1 + Fraction(4 * used.size + 64, 2**53))",
        CHECKER,
    ),
    (
        "float: an estimate's error is not rounded",
        "2 * most * (1 + Fraction(4 * used.size + 64, 2**53)) + Fraction(UNDERFLOW)",
        "2 * most",
        CHECKER,
    ),
    # -- kernels -------------------------------------------------------------------------------
    (
        "kernels: duals without rounding",
        "return max(0.0, value - ((5.0 * (n + m) + 16.0) * U * top + TINY))",
        "return max(0.0, value)",
        CHECKER,
    ),
    (
        "kernels: missing mass is free",
        "bound = value + lack * top + slack + TINY",
        "bound = value + slack + TINY",
        CHECKER,
    ),
    (
        "kernels: plans without rounding",
        "bound = value + lack * top + slack + TINY",
        "bound = value + lack * top",
        CHECKER,
    ),
    (
        "kernels: no rounding of a single coupling",
        "slack = value * (3.0 * (n + m) + 16.0) * U + TINY",
        "slack = 0.0",
        CHECKER,
    ),
    (
        "kernels: features are not rounded down",
        "best = max(best, v - c - 4.0 * U * (v + c))",
        "best = max(best, v - c)",
        CHECKER,
    ),
    (
        "kernels: backups below without rounding",
        "least[a, col] = max(least[a, col], (base + gamma * less) * down - TINY)",
        "least[a, col] = max(least[a, col], base + gamma * less)",
        CHECKER,
    ),
    (
        "kernels: backups above without rounding",
        "most[a, col] = (base + gamma * more) * up + TINY\n                if is_low and",
        "most[a, col] = base + gamma * more\n                if is_low and",
        CHECKER,
    ),
    (
        "kernels: one radius for two rows",
        "free = (radius[s, a] + radius[t, b]) * (1.0 + 2.0 * U)",
        "free = radius[s, a] * (1.0 + 2.0 * U)",
        CHECKER,
    ),
    (
        "kernels: one short for two rows",
        "free = (without + (short[s, a] + short[t, b])) * (1.0 + 4.0 * U)",
        "free = (without + short[s, a]) * (1.0 + 4.0 * U)",
        CHECKER,
    ),
    (
        "kernels: the smaller spare",
        "without = max(spare[s, a], spare[t, b])\n                n = drop",
        "without = min(spare[s, a], spare[t, b])\n                n = drop",
        CHECKER,
    ),
    (
        "kernels: what members lack is not looked at",
        "lack += max(0.0, keep * centre_masses[k] - here / total)",
        "lack += 0.0 * keep",
        CHECKER,
    ),
    (
        "kernels: estimates reach nothing else",
        "kappa = beyond if free > 0.0 else 0.0",
        "kappa = 0.0",
        CHECKER,
    ),
    (
        "kernels: radii without rounding",
        "slack = (3.0 * size + 16.0) * U",
        "slack = 0.0 * size",
        CHECKER,
    ),
    (
        "kernels: radii without those of the estimate",
        "most = (off + slack + extra) * (1.0 + 4.0 * U)",
        "most = (off + slack) * (1.0 + 4.0 * U)",
        CHECKER,
    ),
    (
        "kernels: residuals without rounding",
        "slack = (3.0 * (indptr[row + 1] - indptr[row]) + 16.0) * U * size",
        "slack = 0.0 * size",
        CHECKER,
    ),
    # -- fractions -----------------------------------------------------------------------------
    (
        "exact: corrections without 1 - gamma",
        "have = Fraction(float(features.corrections[k])) * (1 - gamma)",
        "have = Fraction(float(features.corrections[k]))",
        CHECKER,
    ),
    (
        "exact: witnesses without what others are off by",
        "have = Fraction(stored) - carried",
        "have = Fraction(stored)",
        CHECKER,
    ),
    (
        "exact: witnesses with what features are off by alone",
        "carried = gamma * Fraction(float(features.functions()[1].max()))",
        "carried = gamma * Fraction(float(features.corrections.max()))",
        CHECKER,
    ),
    (
        "exact: one radius for two rows",
        "free += Fraction(float(table.radius[second, other]))",
        "free += Fraction(0)",
        CHECKER,
    ),
    (
        "exact: estimates reach nothing else",
        "kappa = max(kappa, self.limit)",
        "kappa = max(kappa, Fraction(0))",
        CHECKER,
    ),
    (
        "exact: radii without those of the estimate",
        "away, lacks = min(Fraction(1), away + extra), min(Fraction(1), lacks + extra)",
        "lacks = min(Fraction(1), lacks + extra)",
        CHECKER,
    ),
    (
        "exact: what members lack is not looked at",
        "if lacks > Fraction(float(table.short[block, name])):",
        "if lacks > 2 + Fraction(float(table.short[block, name])):",
        CHECKER,
    ),
    (
        "exact: the spare share is not left",
        "return span + gamma * min(kappa, (1 - sigma) * least + rest * kappa)",
        "return span + gamma * min(kappa, (1 - sigma) * least + (rest - sigma) * kappa)",
        CHECKER,
    ),
    # -- values --------------------------------------------------------------------------------
    (
        "value: start values are not rounded",
        "pad = 6.0 * EPS * math.fsum(weights * np.abs(picked)) / total",
        "pad = 0.0",
        CHECKER,
    ),
    (
        "value: backups without rounding",
        "# the first NaN, if there is one\n    if not beyond[worst] + slack <= 0:",
        "# the first NaN, if there is one\n    if not beyond[worst] <= 0:",
        VERIFIED,
    ),
    (
        "value: true rows are the estimated ones",
        "(end + self.gamma * (sums + radius * (best - level)))",
        "(end + self.gamma * sums)",
        VERIFIED,
    ),
    (
        "value: radii of blocks whatever tells states apart",
        "if bool((labels[first][inverse] == labels).all()):",
        "if True:",
        CHECKER,
    ),
    (
        "value: losses as far as floats tell",
        "found = np.where(rest > 0.0, np.nextafter(found, np.inf), found)",
        "found = np.where(rest > 0.0, found, found)",
        VERIFIED,
    ),
    (
        "value: what is kept below the baseline",
        "gain = (best if own >= base_high else low) - base_high",
        "gain = best - base_high",
        VERIFIED,
    ),
    (
        "value: what is kept is measured from random actions",
        "ends = (best, least, base_low, base_high)",
        "ends = (best, least, base_low, mean(value.random_upper))",
        VERIFIED,
    ),
    (
        "value: the baseline is one action short",
        "for upper in value.constant_upper.T:",
        "for upper in value.constant_upper.T[1:]:",
        VERIFIED,
    ),
    (
        "value: one action for ever is not looked at",
        "in enumerate(value.constant_upper.T):",
        "in enumerate(value.constant_upper.T[:-1]):",
        VERIFIED,
    ),
    (
        "value: what rounding leaves open of a start loss is wrong",
        "(best[0] - own[1], best[1] - own[0]),",
        "(best[1] - own[0], best[1] - own[0]),",
        ("verify/test_value.py",),
    ),
    (
        "value: what rounding leaves open of a share is wrong",
        "(min(sure, 1), min(most, 1))",
        "(min(sure, 1), min(sure, 1))",
        ("verify/test_value.py",),
    ),
    (
        "value: any start loss is open",
        "(best[0] - own[1], best[1] - own[0]),",
        "(-math.inf, best[1] - own[0]),",
        ("verify/test_value.py",),
    ),
    (
        "value: any share is open",
        "(min(sure, 1), min(most, 1))",
        "(min(sure, 1), math.inf)",
        ("verify/test_value.py",),
    ),
    # -- agents and episodes -------------------------------------------------------------------
    (
        "arithmetic: nothing is rounded",
        "return (self.terms + more) * EPS * size + (TINY if size > 0.0 else 0.0)",
        "return 0.0 * (self.terms + more) * size",
        VERIFIED,
    ),
    (
        "agents: boxes hold for some member only",
        "end = np.maximum if side > 0 else np.minimum",
        "end = np.minimum if side > 0 else np.maximum",
        ("verify/test_agents.py",),
    ),
    (
        "agents: boxes without rounding",
        "slack = numbers.slack(numbers.size(ahead))",
        "slack = 0",
        ("verify/test_agents.py",),
    ),
    (
        "agents: the best of sets is rounded inward",
        "least = above(best, slack)",
        "least = np.nextafter(above(best, slack), np.inf)",
        ("verify/test_agents.py",),
    ),
    (
        "agents: the margin counts once",
        "slack = 2.0 * value.margin",
        "slack = value.margin",
        ("verify/test_agents.py",),
    ),
    (
        "agents: what is lost does not depend on where rows lead",
        "by_entries = by_entries + gamma * self._spread +",
        "by_entries = by_entries +",
        ("verify/test_agents.py",),
    ),
    (
        "agents: what is lost by entries is not rounded",
        "by_entries + gamma * self._spread + side * self._pads(slot)",
        "by_entries + gamma * self._spread",
        ("verify/test_agents.py",),
    ),
    (
        "agents: what is lost by sums is not rounded",
        "by_sums - (self._worth - reach) + side * self._pad",
        "by_sums - (self._worth - reach)",
        ("verify/test_agents.py",),
    ),
    (
        "agents: some row of another action is enough to beat one",
        "by_sums = most[one] - least[two]",
        "by_sums = most[one] - most[two]",
        ("verify/test_agents.py",),
    ),
    (
        "agents: values are no more than promised",
        "return -above(claims.excess, converging.floor)",
        "return converging.floor",
        ("verify/test_agents.py",),
    ),
    (
        "action values: the discount is forgotten",
        "room = (1 - Fraction(gamma)) * Fraction(claims.radius)",
        "room = Fraction(claims.radius)",
        ACTIONS_CHECKED,
    ),
    (
        "action values: only one side is checked",
        "for side in (1, -1):\n        beyond",
        "for side in (1,):\n        beyond",
        ACTIONS_CHECKED,
    ),
    (
        "action values: once the radius",
        "radius = 2 * Fraction(claims.actions.radius)",
        "radius = Fraction(claims.actions.radius)",
        ACTIONS_CHECKED,
    ),
    (
        "action values: what may be a link is none",
        "possible = np.nextafter(below_float((tau + radius) / (1 - ROUNDING)), np.inf)",
        "possible = np.nextafter(below_float((tau - radius) / (1 - ROUNDING)), np.inf)",
        ACTIONS_CHECKED,
    ),
    (
        "action values: action sets do not count",
        "for number in np.unique(sets).tolist():\n        states = np.flatnonzero(sets == nu",
        "for number in sets[:1].tolist():\n        states = np.flatnonzero(sets == sets + 0 * nu",
        ACTIONS_CHECKED,
    ),
    (
        "points: near boxes are near as a whole",
        "if most <= limit:  # rounding is monotone",
        "if least <= limit:  # rounding is monotone",
        ACTIONS_CHECKED,
    ),
    (
        "episodes: the optimal policy's are the policy's",
        'policies = {"policy": _lifted(value, value.policy), "optimal": value.optimal_policy}',
        'policies = {"policy": value.optimal_policy, "optimal": value.optimal_policy}',
        ("verify/test_agents.py",),
    ),
    (
        "episodes: the last step does not count",
        "for _ in range(horizon):\n        returns = np.minimum.reduceat",
        "for _ in range(horizon - 1):\n        returns = np.minimum.reduceat",
        ("verify/test_agents.py",),
    ),
    (
        "episodes: figures are not rounded",
        "spread = pad + 6.0 * EPS * math.fsum(weights * np.abs(picked)) / total",
        "spread = 0.0 * pad",
        ("verify/test_agents.py",),
    ),
    (
        "float: chains are what is stored",
        "off = gamma * reader.diameter * (1.0 + 64.0 * EPS) * table.off",
        "off = 0.0 * gamma * reader.diameter * (1.0 + 64.0 * EPS) * table.off",
        CHAINS,
    ),
    (
        "exact: chains are what is stored",
        "span += gamma * off * self.limit",
        "span += 0 * gamma * off * self.limit",
        CHAINS,
    ),
)

WRAPPERS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "tabular: ends of episodes are not compared",
        "if successor == after and end == done and math.isclose(r, reward, abs_tol=1e-12):",
        "if successor == after and math.isclose(r, reward, abs_tol=1e-12):",
        TABULAR,
    ),
    (
        "tabular: resets with any seed",
        "observation, info = self._seeds.reset(self.env, seed, options)",
        "observation, info = self.env.reset(seed=seed, options=options)",
        ("wrappers/test_starts.py", *TABULAR),
    ),
    (
        "tabular: starts anywhere",
        "if place.get(before) is None or mdp.start[place[before]] <= 0.0:",
        "if place.get(before) is None:",
        TABULAR,
    ),
    (
        "tabular: rewards of a given model are not compared",
        "if len(successors) == 1 and not math.isclose(",
        "if len(successors) == 0 and not math.isclose(",
        (*TABULAR, "test_distractor.py", "wrappers/test_starts.py"),
    ),
    (
        "enumerate: what is frozen is never followed",
        "if count < self._taken}",
        "if count < 0}",
        ("wrappers/test_starts.py",),
    ),
    (
        "enumerate: all seeds begin where the first does",
        "start = np.bincount(self._starts, minlength=len(ids)) / len(self._starts)",
        "start = np.eye(len(ids))[0]",
        ("wrappers/test_starts.py",),
    ),
    (
        "enumerate: other starts are not tried",
        "return done < self._asked + OTHER_SEEDS",
        "return done < self._asked",
        ("wrappers/test_starts.py",),
    ),
    (
        "enumerate: states that are not in the model are not told of",
        "if not (unknown or (elsewhere and self.n_seeds == 1)):",
        "if not (elsewhere and self.n_seeds == 1):",
        ("wrappers/test_starts.py",),
    ),
    (
        "enumerate: a seed that shows nothing new is the last",
        "is_open = done <= newest + max(QUIET if newest else OTHER_SEEDS, newest)",
        "is_open = done <= newest + 1",
        ("wrappers/test_starts.py",),
    ),
    (
        "source: what is held still is not compared",
        "codec.frozen_digest([name]).hex()[:16] != told:",
        "codec.frozen_digest([name]).hex()[:16] == b'':",
        ("wrappers/test_starts.py",),
    ),
    (
        "tabular: frozen attributes are never held",
        "is_held = not holding.is_needed or k >= checks",
        "is_held = not holding.is_needed",
        ("wrappers/test_starts.py",),
    ),
    (
        "tabular: the model of another seed is remembered",
        "plain = replace(reading, reachable_only=False, freeze=names, starts=None)",
        "plain = replace(reading, reachable_only=False, freeze=names, starts=None, seed=0)",
        TABULAR,
    ),
    (
        "enumerate: ends of episodes are not compared",
        "if one.is_end != other.is_end:",
        "if one.is_end and not other.is_end:",
        ("test_enumerate.py",),
    ),
    (
        "enumerate: one state more than allowed",
        "if number >= self._limit:",
        "if number > self._limit:",
        ("test_enumerate.py", "wrappers/test_tabular.py"),
    ),
    (
        "enumerate: what a tail leads to is not counted",
        "rows += branch.prob * tail.share if is_moved else 0.0",
        "rows += 0.0",
        ("wrappers/test_draws.py",),
    ),
    (
        "enumerate: what a tail pays is not counted",
        "self._tails[row] = rows, rewards + 2.0 * branch.prob * growth * tail.square",
        "self._tails[row] = rows, rewards",
        ("wrappers/test_draws.py",),
    ),
    (
        "enumerate: hidden states behind chance are not searched for",
        "return None if led is None else (led.script, led.prob, led.reward, led.is_end, mask)",
        "return None if led is None or self._branches else (led.reward, led.is_end, mask)",
        ("wrappers/test_hidden.py",),
    ),
    (
        "draws: uniform numbers have all the mass",
        "return math.prod(self._factors) * math.prod(each.width for each in self._uniforms)",
        "return math.prod(self._factors)",
        ("wrappers/test_draws.py",),
    ),
    (
        "abstracted: nobody is told what learners retain",
        'if goal.guarantee == "learner" or (share is not None and goal.is_enough(share)):',
        "if share is not None:",
        ("wrappers/test_abstracted.py",),
    ),
    (
        "abstracted: episodes last one step longer",
        "truncated = self._limit is not None and self._steps >= self._limit",
        "truncated = self._limit is not None and self._steps > self._limit",
        ("wrappers",),
    ),
    (
        "abstracted: resets with any seed",
        "seen, info = self._seeds.reset(self.env, seed, options)",
        "seen, info = self.env.reset(seed=seed, options=options)",
        ("wrappers/test_starts.py", "wrappers"),
    ),
    (
        "abstracted: the end is a state like others",
        "state = state_met(self.mdp, self._place, ident, self._source, is_end=True)",
        "state = state_met(self.mdp, self._place, ident, self._source, is_end=False)",
        ("wrappers",),
    ),
    (
        "abstracted: absorbing clusters of models are not ends",
        "self._is_end |= small.absorbing",
        "self._is_end |= False",
        ("test_model_env.py",),
    ),
    (
        "observing: agents act alike wherever states look alike",
        "if not np.array_equal(acts[kind], acts[other]):",
        "if False:",
        ("test_blackjack.py", "abstract/test_deploy.py"),
    ),
    (
        "blackjack: the dealer stands at 16",
        "BEST, STANDS = 21, 17",
        "BEST, STANDS = 21, 16",
        ("test_blackjack.py",),
    ),
    (
        "blackjack: a natural beats a natural",
        "if hand.is_natural and is_book and not has_natural:",
        "if hand.is_natural and is_book:",
        ("test_blackjack.py",),
    ),
    (
        "blackjack: drawn hands stay naturals",
        "        return Hand(total, has_ace)",
        "        return Hand(total, has_ace, self.is_natural)",
        ("test_blackjack.py",),
    ),
    (
        "model_env: the row of the next action",
        'row = self._present("step()") * rows.n_actions + act',
        'row = self._present("step()") * rows.n_actions + (act + 1) % rows.n_actions',
        ("test_model_env.py",),
    ),
    (
        "model_env: what enumerated models say of themselves",
        'return mdp.with_metadata(method="model", **about)',
        "return mdp.with_metadata(**about)",
        ("test_model_env.py",),
    ),
    (
        "distractor: backgrounds share the environment's stream",
        "self._rng = np.random.default_rng([seed, 1])",
        "self._rng = np.random.default_rng(seed)",
        ("test_distractor.py",),
    ),
    (
        "distractor: rows in the order of actions",
        "order = triples.swapaxes(1, 2).ravel()",
        "order = triples.ravel()",
        ("test_distractor.py",),
    ),
)

LEARNED: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "dbc: targets are not detached",
        "target = self.target(rewards, mean.detach(), width.detach(), n)",
        "target = self.target(rewards, mean, width, n)",
        FORMULAS,
    ),
    (
        "dbc: successors are not detached",
        "successors = self.phi(samples.after[both], samples)",
        "successors = torch.enable_grad()(self.phi)(samples.after[both], samples)",
        FORMULAS,
    ),
    (
        "dbc: pairs of any actions",
        "return mean_over(gap.square(), is_used) + models",
        "return mean_over(gap.square(), None) + models",
        FORMULAS,
    ),
    (
        "dbc: no discount",
        "return reward_gaps(rewards[:n], rewards[n:]) + self.gamma * moved",
        "return reward_gaps(rewards[:n], rewards[n:]) + moved",
        FORMULAS,
    ),
    (
        "mico: no target network",
        "after = self.slow(samples.after[both], samples)",
        "after = self.phi(samples.after[both], samples)",
        FORMULAS,
    ),
    (
        "mico: norms in the wrong unit",
        "return math.sqrt(scale)",
        "return scale",
        FORMULAS,
    ),
    (
        "action_max: too far costs less",
        "return torch.where(gap.detach() > 0.0, caution, 1.0) * gap.square()",
        "return torch.where(gap.detach() < 0.0, caution, 1.0) * gap.square()",
        FORMULAS,
    ),
    (
        "action_max: untried actions count",
        "is_told = known[:, :n, None] & known[:, None, n:]",
        "is_told = known[:, :n, None] | known[:, None, n:]",
        FORMULAS,
    ),
    (
        "samples: ended episodes go on",
        "after = np.append(np.where(data.terminated, end, after), np.full(stays, end))",
        "after = np.append(after, np.full(stays, end))",
        ENCODERS,
    ),
    (
        "base: distances in the wrong unit",
        'return np.asarray(out * self._shape["scale"]).reshape(shape)',
        "return np.asarray(out).reshape(shape)",
        ENCODERS,
    ),
    (
        "dbc: transport without standard deviations",
        "return lengths(torch.cat(x, dim=-1), torch.cat(y, dim=-1))",
        "return lengths(x[0], y[0])",
        FORMULAS,
    ),
    (
        "dbc: transport by L1 distances",
        "return lengths(torch.cat(x, dim=-1), torch.cat(y, dim=-1))",
        "return lengths(torch.cat(x, dim=-1), torch.cat(y, dim=-1), p=1.0)",
        FORMULAS,
    ),
    (
        "dbc: coordinates without standard deviations",
        "moved = moved + (x[1][..., :, None, :] - y[1][..., None, :, :]).square()",
        "moved = moved + 0.0 * x[1][..., :, None, :]",
        FORMULAS,
    ),
    (
        "dbc: coordinates by their squares",
        "return moved.sqrt().sum(dim=-1)",
        "return moved.sum(dim=-1)",
        FORMULAS,
    ),
    (
        "dbc: coordinates by default",
        'transport: str = "euclidean"',
        'transport: str = "coordinates"',
        FORMULAS,
    ),
    (
        "dbc: Euclidean distances of points",
        "return lengths(x, y, p=1.0)",
        "return lengths(x, y)",
        FORMULAS,
    ),
    (
        "dbc: likelihood without deviations' cost",
        "((mean - points) / width).square() + width.log()",
        "((mean - points) / width).square()",
        FORMULAS,
    ),
    (
        "dbc: likelihood without its half",
        "return 0.5 * ((mean - points) / width).square()",
        "return ((mean - points) / width).square()",
        FORMULAS,
    ),
    (
        "dbc: dynamics of the present",
        "successors = self.phi(samples.after[both], samples)",
        "successors = self.phi(samples.now[both], samples)",
        FORMULAS,
    ),
    (
        "dbc: no reward model",
        "return surprise.mean() + functional.mse_loss(told, rewards)",
        "return surprise.mean()",
        FORMULAS,
    ),
    (
        "dbc: always joint",
        "latent = z if self.is_joint else z.detach()",
        "latent = z",
        FORMULAS,
    ),
    (
        "dbc: never joint",
        "latent = z if self.is_joint else z.detach()",
        "latent = z.detach()",
        FORMULAS,
    ),
    (
        "dbc: as narrow as can be",
        "functional.softplus(width) + NARROWEST",
        "functional.softplus(width)",
        FORMULAS,
    ),
    (
        "losses: rewards without absolute values",
        "return (x[..., :, None] - y[..., None, :]).abs()",
        "return x[..., :, None] - y[..., None, :]",
        FORMULAS,
    ),
    (
        "losses: pairs the other way round",
        "return actions[:n, None] == actions[None, n:]",
        "return actions[:n, None] != actions[None, n:]",
        FORMULAS,
    ),
    (
        "losses: a mean over pairs that are not used",
        "return (losses * weight).sum() / weight.sum().clamp(min=1.0)",
        "return (losses * weight).mean()",
        FORMULAS,
    ),
    (
        "mico: norms are not halved",
        "return norms / 2.0 + beta * angles(x, y)",
        "return norms + beta * angles(x, y)",
        FORMULAS,
    ),
    (
        "mico: angles without beta",
        "return norms / 2.0 + beta * angles(x, y)",
        "return norms / 2.0 + angles(x, y)",
        FORMULAS,
    ),
    (
        "mico: norms are not squared",
        "norms = x.square().sum(dim=-1)[..., :, None] + y.square().sum(dim=-1)[..., None, :]",
        "norms = x.norm(dim=-1)[..., :, None] + y.norm(dim=-1)[..., None, :]",
        FORMULAS,
    ),
    (
        "mico: half an angle",
        "return 2.0 * torch.atan2(",
        "return torch.atan2(",
        FORMULAS,
    ),
    (
        "mico: the present's distance as a target",
        "after = self.slow(samples.after[both], samples)",
        "after = self.slow(samples.now[both], samples)",
        FORMULAS,
    ),
    (
        "mico: no discount",
        "return gaps + self.gamma * self.pairwise(after[:n], after[n:])",
        "return gaps + self.pairwise(after[:n], after[n:])",
        FORMULAS,
    ),
    (
        "mico: squares for Huber's loss",
        "functional.huber_loss(self.pairwise",
        "functional.mse_loss(self.pairwise",
        FORMULAS,
    ),
    (
        "mico: the target network never moves",
        "if (step + 1) % self.target_every == 0:",
        "if (step + 1) % self.target_every < 0:",
        FORMULAS,
    ),
    (
        "mico: the target network moves at every step",
        "if (step + 1) % self.target_every == 0:",
        "if (step + 1) % self.target_every >= 0:",
        FORMULAS,
    ),
    (
        "mico: the target network learns",
        "copy.deepcopy(self.phi).requires_grad_(False)",
        "copy.deepcopy(self.phi)",
        FORMULAS,
    ),
    (
        "mico: a beta without pi",
        "enough = 1.0 / (math.pi * (1.0 - self.gamma))",
        "enough = 1.0 / (1.0 - self.gamma)",
        FORMULAS,
    ),
    (
        "action_max: heads learn of the present",
        "after = self.phi(samples.after[both], samples)",
        "after = self.phi(samples.now[both], samples)",
        FORMULAS,
    ),
    (
        "action_max: no clamp",
        "return (gaps * is_told).amax(dim=0).clamp(max=self.farthest)",
        "return (gaps * is_told).amax(dim=0)",
        FORMULAS,
    ),
    (
        "action_max: no mask of untried actions",
        "return (gaps * is_told).amax(dim=0).clamp(max=self.farthest)",
        "return gaps.amax(dim=0).clamp(max=self.farthest)",
        FORMULAS,
    ),
    (
        "action_max: the mean of actions",
        "return (gaps * is_told).amax(dim=0).clamp(max=self.farthest)",
        "return (gaps * is_told).mean(dim=0).clamp(max=self.farthest)",
        FORMULAS,
    ),
    (
        "action_max: no discount",
        "gaps = gaps + self.gamma * lengths(after[:, :n], after[:, n:])",
        "gaps = gaps + lengths(after[:, :n], after[:, n:])",
        FORMULAS,
    ),
    (
        "action_max: transport by L1 distances",
        "gaps = gaps + self.gamma * lengths(after[:, :n], after[:, n:])",
        "gaps = gaps + self.gamma * lengths(after[:, :n], after[:, n:], p=1.0)",
        FORMULAS,
    ),
    (
        "action_max: the rarest successors are kept",
        "order = torch.argsort(place * (len(samples) + 1) - counts, stable=True)",
        "order = torch.argsort(place * (len(samples) + 1) + counts, stable=True)",
        FORMULAS,
    ),
    (
        "action_max: successors are not weighed",
        "weight = self.counts[at] * is_used",
        "weight = 1.0 * is_used",
        FORMULAS,
    ),
    (
        "action_max: successors of others count",
        "weight = self.counts[at] * is_used",
        "weight = self.counts[at]",
        FORMULAS,
    ),
    (
        "action_max: no deviations",
        "deviation = (weight * (points - mean[..., None, :]).abs()).sum(dim=-2)",
        "deviation = 0.0 * mean",
        FORMULAS,
    ),
    (
        "action_max: sums of rewards",
        "reward=(paid / total.clamp(min=1))",
        "reward=paid",
        FORMULAS,
    ),
    (
        "action_max: deviations move the mean",
        "spread = error.detach().abs() - deviation",
        "spread = error.abs() - deviation",
        FORMULAS,
    ),
    (
        "action_max: heads are not in the loss",
        "return cautious_squares(gap, self.caution).mean() + models",
        "return cautious_squares(gap, self.caution).mean()",
        FORMULAS,
    ),
    (
        "action_max: points start anywhere",
        "self.phi.table.weight.data += rewards",
        "self.phi.table.weight.data += 0.0 * rewards",
        FORMULAS,
    ),
    (
        "action_max: targets are not detached",
        "reward, after = told.reward.detach().T, told.after.detach().transpose(0, 1).contiguous()",
        "reward, after = told.reward.T, told.after.transpose(0, 1).contiguous()",
        FORMULAS,
    ),
    (
        "samples: rewards by their size",
        "scale = float(np.ptp(rewards)) or 1.0",
        "scale = float(np.abs(rewards).max()) or 1.0",
        FORMULAS,
    ),
    (
        "samples: the end pays",
        "rewards = np.append(rewards, np.zeros(stays))",
        "rewards = np.append(rewards, np.ones(stays))",
        ENCODERS,
    ),
    (
        "samples: observations lead to themselves",
        "now, after, n_rows = np.arange(n), np.arange(n, 2 * n), 2 * n",
        "now, after, n_rows = np.arange(n), np.arange(n), 2 * n",
        FORMULAS,
    ),
    (
        "nets: the end is measured like an observation",
        "seen = (pool if end is None else pool[:end]).double()",
        "seen = pool.double()",
        FORMULAS,
    ),
    (
        "nets: the end is looked at like an observation",
        "return torch.where((rows == samples.end)[..., None], self.end, found)",
        "return found",
        FORMULAS,
    ),
    (
        "nets: features are not standardised",
        "self.mlp((features - self.centre) / self.width)",
        "self.mlp(features - self.centre)",
        FORMULAS,
    ),
    (
        "base: a batch with itself",
        "rows, columns = drawn[step % DRAWN]",
        "rows = columns = drawn[step % DRAWN][0]",
        FORMULAS,
    ),
    (
        "base: one batch for many steps",
        "rows, columns = drawn[step % DRAWN]",
        "rows, columns = drawn[0]",
        FORMULAS,
    ),
    (
        "base: nothing after a step",
        "            learner.after_step(step)\n",
        "            assert step >= 0\n",
        FORMULAS,
    ),
    (
        "base: points in the wrong unit",
        "return (points * unit).astype(np.float32)",
        "return points.astype(np.float32)",
        FORMULAS,
    ),
    (
        "transitions: actions as the space numbers them",
        "step = (now, actions - first, rewards, after, terminated)",
        "step = (now, actions, rewards, after, terminated)",
        ("encoders/test_transitions.py",),
    ),
    (
        "transitions: running out of time is an end",
        "step = (now, actions - first, rewards, after, terminated)",
        "step = (now, actions - first, rewards, after, terminated | truncated)",
        ("encoders/test_transitions.py",),
    ),
    (
        "transitions: rewards of what comes after",
        "rewards=mdp.rewards[now, actions]",
        "rewards=mdp.rewards[after, actions]",
        ("encoders/test_transitions.py",),
    ),
    (
        "transitions: the end is drawn",
        "live = np.delete(np.arange(mdp.n_states), [] if terminal is None else terminal)",
        "live = np.arange(mdp.n_states)",
        ("encoders/test_transitions.py",),
    ),
    (
        "transitions: resets are steps",
        "valid = np.flatnonzero(~is_over)[: n - count]",
        "valid = np.arange(width)[: n - count]",
        ("test_transitions.py",),
    ),
    (
        "transitions: ended episodes are rolled out",
        "is_over = place == terminal\n",
        "is_over = place < 0\n",
        ("test_transitions.py",),
    ),
)

REST: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "estimation: frequencies are not rounded",
        "radius * (1.0 + 1e-12) + 8.0 * EPS, radius), 1.0)",
        "radius * (1.0 + 1e-12), radius), 1.0)",
        ("model/test_estimation.py",),
    ),
    (
        "estimation: ranges of any width",
        "    if high - low > WIDEST:",
        "    if high < low:",
        ("model/test_estimation.py",),
    ),
    (
        "estimation: Hoeffding without log 2",
        "hoeffding = width * np.sqrt((np.log(2.0) - log_part) / (2.0 * n))",
        "hoeffding = width * np.sqrt(-log_part / (2.0 * n))",
        ("test_estimation.py",),
    ),
    (
        "estimation: Bernstein for one side",
        "logs = np.log(4.0) - log_part",
        "logs = np.log(2.0) - log_part",
        ("test_estimation.py",),
    ),
    (
        "estimation: no union over numbers of visits",
        "log_part = np.log(delta) - np.log(n * (n + 1.0)) - np.log(2.0)",
        "log_part = np.log(delta) - np.log(n) - np.log(2.0)",
        ("test_estimation.py",),
    ),
    (
        "estimation: no union over rows",
        "delta = alpha / max(int(is_live.sum()), 1)",
        "delta = alpha",
        ("test_estimation.py",),
    ),
    (
        "estimation: sets of outcomes without their number",
        "level = (sets + np.log(k - 1.0) - np.log(delta) + np.log(2.0 * np.sqrt(n))) / n",
        "level = (np.log(k - 1.0) - np.log(delta) + np.log(2.0 * np.sqrt(n))) / n",
        ("test_estimation.py",),
    ),
    (
        "estimation: rows at one number of visits",
        "level = (sets + np.log(k - 1.0) - np.log(delta) + np.log(2.0 * np.sqrt(n))) / n",
        "level = (sets + np.log(k - 1.0) - np.log(delta)) / n",
        ("test_estimation.py",),
    ),
    (
        "estimation: radii of blocks for all that is asked",
        "return self.row_radius if (is_same & is_apart).any() else self.block_radius",
        "return self.block_radius",
        ("test_estimation.py",),
    ),
    (
        "estimation: blocks are proposed from what is counted",
        "mine.append(self._gather(count, plan))",
        "mine = mine or [*known]\n            mine.append(self._gather(count, plan))",
        ("app/test_estimating.py",),
    ),
    (
        "files: changed models are read",
        "if mdp.fingerprint != stored:",
        "if not stored:",
        ("model/test_files.py",),
    ),
    (
        "retrieval: the state itself takes a neighbour's place",
        "hits = np.full((sizes.size, min(k + 1, sizes.size)), -1)",
        "hits = np.full((sizes.size, min(k, sizes.size)), -1)",
        ("test_retrieval.py",),
    ),
    (
        "retrieval: states are their own partners",
        "return s, (s + as_generator(seed).integers(1, max(n, 2), size=s.size)) % n",
        "return s, (s + as_generator(seed).integers(0, max(n, 2), size=s.size)) % n",
        ("test_retrieval.py",),
    ),
    (
        "proposals: any gap splits a block",
        "if gap >= np.log(ratio) and np.bincount(found).min() >= SPLIT_SIZE:",
        "if np.bincount(found).min() >= SPLIT_SIZE:",
        ("propose/test_partitions.py",),
    ),
    (
        "proposals: a better fit by whatever little",
        "better = found[np.arange(doubtful.size), best] < STAYS * own[doubtful]",
        "better = found[np.arange(doubtful.size), best] <= own[doubtful]",
        ("propose/test_partitions.py",),
    ),
    (
        "linking: cells hang together nowhere",
        "nearest = np.where(cells.sizes > 1, 0.0, np.inf)",
        "nearest = np.where(cells.sizes > 1, np.inf, np.inf)",
        ("bounds/test_spanning.py",),
    ),
    (
        "linking: reward gaps are not rounded down",
        "values = np.maximum(gap, 0.0) * (1.0 - 4.0 * EPS)",
        "values = np.maximum(gap, 0.0)",
        ("bounds/test_spanning.py",),
    ),
    (
        "atomic: an error leaves a file behind",
        "finally:\n        unfinished.unlink(missing_ok=True)",
        "finally:\n        unfinished.exists()",
        ("model/test_files.py", "test_concurrency.py"),
    ),
    (
        "atomic: living writers lose their files",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(file, fcntl.LOCK_UN)",
        ("model/test_files.py", "test_concurrency.py"),
    ),
    (
        "manifest: altered files are passed over",
        "elif file_digest(path) != self.files[name].sha256:",
        "elif not file_digest(path):",
        ("app/runs/test_manifest.py",),
    ),
    (
        "manifest: files from elsewhere are passed over",
        "if is_there:\n                    yield",
        "if is_there and is_resumed:\n                    yield",
        ("app/runs/test_manifest.py",),
    ),
    (
        "manifest: a file is named before it is listed",
        "self.save()\n        os.replace(path, target)",
        "os.replace(path, target)\n        self.save()",
        ("app/runs/test_manifest.py",),
    ),
    (
        "manifest: what a kill left is not found",
        "if path is not None and path.name != name:",
        "if path is not None and path.name == name:",
        ("app/runs/test_manifest.py",),
    ),
    (
        "manifest: what was computed from another file stays",
        "each not in self.files or self.files[each].sha256 != digest",
        "each not in self.files",
        ("app/runs/test_manifest.py",),
    ),
    (
        "manifest: its own digest is not looked at",
        'if document.pop("digest") != value_digest(document):',
        'if not document.pop("digest"):',
        ("app/runs/test_manifest.py",),
    ),
    (
        "manifest: the settings are not looked at",
        '["config"]) != manifest.settings:',
        '["config"]) == "":',
        ("app/runs/test_manifest.py",),
    ),
    (
        "lock: two may hold it",
        "fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        ("base/test_lock.py",),
    ),
    (
        "lock: children keep it",
        "os.close(number)  # this copy alone",
        "os.fstat(number)  # this copy alone",
        ("base/test_lock.py",),
    ),
    (
        "umb: names look like numbers of others",
        "return name if is_allowed and not is_numbered else",
        "return name if is_allowed else",
        ("model/test_umb.py",),
    ),
    (
        "partition: intervals of different clusterings are one",
        "if found and found[-1].high == low and counts[k] == before:",
        "if found and found[-1].high == low:",
        ("linkage/test_thresholds.py",),
    ),
)

MUTATIONS = tuple(
    Mutation(f"{subject}/{name}", subject, old, new, tests)
    for subject, table in zip(SUBJECTS, (CORE, CHECKS, WRAPPERS, LEARNED, REST), strict=True)
    for name, old, new, tests in table
)


# -- where the text is -------------------------------------------------------------------------


def source_files(root: Path) -> list[Path]:
    """All code, each file once: links between the folders are not followed."""
    found = []
    for name in SOURCES:
        for folder, _, files in os.walk(root / name):
            found += [Path(folder) / file for file in files if file.endswith(".py")]
    return sorted(found)


def home_of(mutation: Mutation, root: Path) -> Path:
    """The one file that has the old text.

    Raises:
        LookupError: If none has it, or it occurs more than once.
    """
    counts = {path: path.read_text().count(mutation.old) for path in source_files(root)}
    homes = [path for path, count in counts.items() if count]
    if len(homes) != 1 or counts[homes[0]] != 1:
        where = ", ".join(f"{path.relative_to(root)} ({counts[path]})" for path in homes)
        raise LookupError(f"{mutation.id}: the text must occur once, it is in {where or 'no file'}")
    return homes[0]


def tests_of(mutation: Mutation, root: Path) -> list[str]:
    """Paths of its tests, files or folders below that of tests.

    Raises:
        LookupError: If there is no such file or folder.
    """
    found: list[str] = []
    for name in mutation.tests:
        paths = sorted((root / "tests").rglob(name))
        if len(paths) != 1:
            raise LookupError(f"{mutation.id}: {len(paths)} places of tests are called {name}")
        found += [str(path.relative_to(root)) for path in paths]
    return found


def problems(mutations: Iterable[Mutation], root: Path) -> list[str]:
    """What keeps mutations from being made."""
    found = []
    for mutation in mutations:
        try:
            text = home_of(mutation, root).read_text()
            ast.parse(text.replace(mutation.old, mutation.new))
            tests_of(mutation, root)
        except (LookupError, SyntaxError) as error:
            found.append(str(error))
    return found


# -- making them -------------------------------------------------------------------------------


class Worker:
    """A copy of the tree, in which one mistake at a time is made.

    Args:
        folder: Where the copy is put.
        root: What is copied.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self.tree = folder / "tree"
        self._warm, self._cache = folder / "warm", folder / "cache"
        # Times of files are kept: compiled kernels are known by them.
        shutil.copytree(root, self.tree, symlinks=True, ignore=LEFT_OUT)
        self._warm.mkdir()
        self._run([sys.executable, "-m", "bisim_abstract", "compile"], self._warm)

    def judge(self, mutation: Mutation) -> Result:
        """Make the mistake, run its tests, and undo it."""
        path = home_of(mutation, self.tree)
        text, times = path.read_text(), path.stat()
        shutil.rmtree(self._cache, ignore_errors=True)
        if "_jit" in text:  # kernels of other files may have this one's code in theirs
            self._cache.mkdir()
        else:
            shutil.copytree(self._warm, self._cache)
        begin = time.perf_counter()
        path.write_text(text.replace(mutation.old, mutation.new))
        try:
            status, by = self._status(mutation, path)
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)
        seconds = round(time.perf_counter() - begin, 1)
        return Result(mutation.id, mutation.subject, status, by, seconds)

    def _status(self, mutation: Mutation, path: Path) -> tuple[str, str]:
        parts = path.relative_to(self.tree).with_suffix("").parts
        own = parts if parts[0] == "bisim_abstract" else ("bisim_abstract", *parts)
        name = ".".join(own).removesuffix(".__init__")
        code, out = self._run([sys.executable, "-c", f"import {name}"], self._cache)
        if code:
            return "broken", out.strip().splitlines()[-1]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-m", "not slow", *tests_of(mutation, self.tree)]
        code, out = self._run(command, self._cache)
        if code == 0:
            return "survived", ""
        if BROKEN.search(out):
            return "broken", BROKEN.findall(out)[0][:80]
        first = re.search(r"^(?:FAILED|ERROR) (\S+)", out, flags=re.MULTILINE)
        if first is None:
            return ("caught", "hung") if code < 0 else ("broken", f"pytest ended with {code}")
        return "caught", first[1].removeprefix("tests/").split("[")[0]

    def failing(self, tests: set[str]) -> set[str]:
        """Which of these fail without any mistake."""
        shutil.rmtree(self._cache, ignore_errors=True)
        shutil.copytree(self._warm, self._cache)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        _, out = self._run([*command, *(f"tests/{test}" for test in sorted(tests))], self._cache)
        return {name for name in tests if re.search(rf"^(FAILED|ERROR) tests/{name}\b", out, re.M)}

    def _run(self, command: list[str], cache: Path) -> tuple[int, str]:
        """The exit code and what was printed; -1 if it took too long."""
        env = {**os.environ, "PYTHONPATH": str(self.tree), "NUMBA_CACHE_DIR": str(cache)}
        env["OPENBLAS_NUM_THREADS"] = "1"  # workers share the cores
        env.setdefault("HYPOTHESIS_PROFILE", "many")  # as `make test-slow` has it
        try:
            done = subprocess.run(
                command,
                cwd=self.tree,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            out = error.stdout or b""
            return -1, out if isinstance(out, str) else out.decode(errors="replace")
        return done.returncode, done.stdout


def run(
    mutations: list[Mutation], *, jobs: int, root: Path, told: Callable[[Result], None]
) -> list[Result]:
    """Judge all of them, so many at a time; in the order given."""
    lock, workers = threading.Lock(), threading.local()
    made: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:

        def judge(mutation: Mutation) -> Result:
            if not hasattr(workers, "own"):
                workers.own = Worker(Path(tempfile.mkdtemp(dir=folder)), root)
                made.append(workers.own)
            found: Result = workers.own.judge(mutation)
            with lock:
                told(found)
            return found

        with ThreadPoolExecutor(jobs) as pool:
            results = list(pool.map(judge, mutations))
        # A test that fails in any case has noticed nothing.
        seen = {r.by for r in results if r.status == "caught" and "::" in r.by}
        vain = made[0].failing(seen) if seen else set()
    return [replace(r, status="broken") if r.by in vain else r for r in results]


def totals(results: list[Result]) -> str:
    """A table for people: how many of each subject were caught, and which were not."""
    lines = [f"{'subject':<10}{'caught':>8}{'survived':>10}{'broken':>8}"]
    for subject in (*SUBJECTS, "all"):
        own = [r.status for r in results if subject in (r.subject, "all")]
        if own:
            counts = [own.count(status) for status in ("caught", "survived", "broken")]
            lines.append(f"{subject:<10}{counts[0]:>8}{counts[1]:>10}{counts[2]:>8}")
    lines += [f"{r.status}: {r.id} {r.by}".rstrip() for r in results if r.status != "caught"]
    return "\n".join(lines)


def main() -> int:
    """Run what is asked for; 0 if everything was caught."""
    parser = argparse.ArgumentParser(description="Do the tests notice mistakes?")
    parser.add_argument("--only", nargs="+", metavar="ID", help="ids, or how they begin")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    parser.add_argument("--check", action="store_true", help="only say which cannot be made")
    asked = parser.parse_args()
    chosen = [m for m in MUTATIONS if not asked.only or m.id.startswith(tuple(asked.only))]
    wrong = problems(chosen, ROOT)
    if wrong or asked.check:
        say("\n".join(wrong) or f"all {len(chosen)} mutations can be made")
        return int(bool(wrong))
    found: list[Result] = []

    def told(result: Result) -> None:
        found.append(result)
        say(f"{result.seconds:7.1f} s  {result.status:<9} {result.id}  {result.by}".rstrip())
        if asked.out is not None:  # whatever interrupts it, what is known is kept
            asked.out.write_text(json.dumps([asdict(r) for r in found], indent=1) + "\n")

    results = run(chosen, jobs=asked.jobs, root=ROOT, told=told)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    say(totals(results))
    return int(any(r.status != "caught" for r in results))


def say(text: str) -> None:
    """A line for whoever waits."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
