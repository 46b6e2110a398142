"""Certificates are made here, of arms as they stand, and everything in them is derived once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bisim_abstract._abstract.value import ProvenValue
from bisim_abstract._base.types import IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.spanning import link_forests
from bisim_abstract._certificate.certificate import CONDITIONS, Certificate
from bisim_abstract._certificate.goal import Goal
from bisim_abstract._linkage.forests import Forest
from bisim_abstract._model.chains import UNDER_POLICY, is_under_policy


def make_certificate(
    arms: Arms,
    *,
    tau: float | None,
    stop: str,
    run: Mapping[str, Any],
    scope: str = "covered",
    goal: Goal | None = None,
    forests: tuple[Forest, Forest] | None = None,
    prove: Callable[[IntArray], ProvenValue] | None = None,
    relation: str | None = None,
) -> Certificate:
    """What two arms over pairs of states say now.

    Args:
        arms: Over pairs of states.
        tau: Threshold to cluster at, if any.
        stop: Why the run ended, in words.
        run: How it went, as JSON values.
        scope: "covered" or "all": the pairs that clusterings link.
        goal: What agents on the clusters are to keep.
        forests: Spanning forests of both arms in that scope, where they are at hand.
        relation: By which states are compared; that of the arms by default.
        prove: Makes the proof of what certified clusters are worth, if there is to be one.
    """
    mdp, estimate = arms.mdp, arms.mdp.estimate
    if is_under_policy(mdp):  # the fingerprint does not tell
        run = {**run, UNDER_POLICY: mdp.metadata[UNDER_POLICY]}
    if mdp.metadata.get(CONDITIONS):  # what statements about the environment assume
        run = {**run, CONDITIONS: mdp.metadata[CONDITIONS]}
    goal = Goal() if goal is None else goal
    clusters: dict[str, Any] = {}
    if tau is not None:
        if forests is None:
            forests = link_forests(scope, arms.ground, arms.covered)
        lower, upper = (forest.labels(tau) for forest in forests)
        clusters = {"tau": tau, "labels_lower": lower, "labels_upper": upper}
        if prove is not None and np.array_equal(lower, upper):
            clusters["value"] = prove(upper)
    made = Certificate(
        fingerprint=mdp.fingerprint,
        n_states=mdp.n_states,
        gamma=arms.gamma,
        rewards=mdp.rewards,
        available=mdp.available,
        relation=arms.relation.name if relation is None else relation,
        apart=arms.starts.diameter if arms.starts.has_apart else None,
        reward_radius=np.empty((0, 0)) if estimate is None else estimate.reward_radius,
        alpha=None if estimate is None else estimate.alpha,
        reward_range=None if estimate is None else estimate.reward_range,
        keys=arms.keys,
        lower=arms.lower,
        upper=arms.upper,
        levels=arms.ground.levels,
        features=arms.ground.features,
        action_values=arms.ground.action_values,
        lower_start=arms.starts.lower,
        upper_start=arms.starts.upper,
        scope=scope,
        guarantee=goal.guarantee,
        keep=goal.keep,
        max_loss=goal.max_loss,
        terminal_state=mdp.terminal_state,
        stop=stop,
        run=run,
        model=mdp,
        **clusters,
    )
    if forests is not None:  # of these very arms; nobody else has the object yet
        made.__dict__["forests"] = forests
    return made
