"""From a model to a certificate: `certify`, and `single_build`, the paper's Algorithm 2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bisim_abstract._base.resources import HERE, Resources
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._prove.blocks import Blocks
from bisim_abstract._prove.covering import SINGLE_BUILD, Covering
from bisim_abstract._prove.driver import prove
from bisim_abstract._prove.options import Options

__all__ = ["certify", "single_build"]


def certify(
    mdp: TabularMDP,
    gamma: float,
    *,
    relation: str = "plain",
    keep: float | None = None,
    max_loss: float | None = None,
    guarantee: str = "solver",
    tau: float | str | None = None,
    n_clusters: int | None = None,
    tol: float | None = None,
    method: Blocks | Covering | None = None,
    max_rounds: int = 100,
    max_seconds: float | None = None,
    max_backups: int | None = None,
    seed: int = 0,
    resources: Resources = HERE,
    checkpoint: str | Path | None = None,
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> Certificate:
    """Bounds on how far states are apart, until both arms agree on useful clusters.

    By default the threshold is chosen by value: the coarsest certified one on whose clusters any
    agent that solves the small environment is *proven* to retain 95% of the achievable return,
    and, where the environment has a time limit, to end about as many episodes as the best policy.
    The certificate's `value` holds the proof, its `verdict` summarises it.

    With `Blocks` (the default) the certified clustering is that of the metric itself, over all
    pairs of states; with `Covering` it is the clustering over the pairs that were looked at. With
    `relation="optimal"` it is that of optimal action values, over all pairs.

    Either ends when the goal is reached or a budget is. Ctrl-C ends it too. What was reached so
    far is returned, with clusters and their value if these can be proven in a second or so; else
    `stop` says so, and `certified_thresholds` and `frontier` of the certificate derive them. A
    second Ctrl-C gives all of it up.

    Args:
        mdp: The model. If it was estimated from samples, its confidence radii enter all bounds,
            which then hold for the true model with probability 1 - alpha.
        gamma: The discount, in [0, 1).
        relation: "plain" compares states action by action; those with different actions are as
            far apart as can be. "lax" compares every action with the one of the other state
            that is most like it: states are alike if they are after renaming actions, as a
            corridor and its mirror image. The certificate's `value.renaming` then says what
            each action of a state is called in its cluster. "optimal" compares optimal values of
            actions: far fewer clusters where rewards are sparse, for this reward at this gamma
            only. "auto" tries all of them, and takes the fewest clusters that reach the goal among
            the relations that finish. Each runs as it would by itself; with `max_seconds` each has
            the time that those before it left, the quickest search first.
        keep: Share of the achievable return to retain, 0.95 by default: 0 is the baseline (the
            better of random actions and of any one action for ever), 1 the optimal value, both
            from the start distribution. Give one goal only: this or one of `max_loss`, `tau`,
            `n_clusters`, `tol`.
        max_loss: Look for the fewest clusters on which no state is proven to lose more.
        guarantee: Which agents `keep` and `max_loss` speak of. "solver": whoever solves the small
            environment, ties broken against it. "policy": the policy that comes with the
            certificate. "learner": one-step Q-learning on real steps that sees clusters.
        tau: Threshold at which the clusterings of both arms should agree. "auto" looks for the
            certified interval whose ends have the largest ratio, whatever it is worth.
        n_clusters: Look for a threshold that gives this many clusters, the end of episodes not
            counted.
        tol: Width of the bounds over all pairs to reach.
        method: `Blocks(...)`, the default, or `Covering(...)`, with their options. The relation
            "optimal" has a method of its own, without options.
        max_rounds: Budget of rounds; with blocks, of refinement steps.
        max_seconds: Budget of time, without that of compiling. The certificate is there after
            at most 1.2 times as long plus 1 s.
        max_backups: Budget of pair backups, both arms counted, block pairs included.
        seed: Seed of embeddings, indexes, partners and proposals.
        resources: Threads, workers and memory. The result does not depend on them.
        checkpoint: File that is written after every round. If it exists, the run goes on
            from it and ends as it would have without the interruption.
        callback: Called after every round or sweep.
        progress: Show a line also where there is no terminal, as in a notebook.

    Returns:
        The certificate, whether or not the goal was reached: its `stop` says why it ended.

    Raises:
        MemoryLimitError: If the tables would not fit, before they are made.

    Example:
        >>> from bisim_abstract.parts import grouped_mdp
        >>> mdp, groups = grouped_mdp(60, 5, noise=0.01, seed=0)
        >>> certificate = certify(mdp, 0.9)
        >>> certificate.is_certified, certificate.n_clusters, certificate.value.kept > 0.95
        (True, 4, True)
        >>> certify(mdp, 0.9, tau="auto").n_clusters
        5
    """
    options = Options(
        relation=relation,
        keep=keep,
        max_loss=max_loss,
        guarantee=guarantee,
        tau=tau,
        n_clusters=n_clusters,
        tol=tol,
        method=method,  # type: ignore[arg-type]  # None is that of the relation
        max_rounds=max_rounds,
        max_seconds=max_seconds,
        max_backups=max_backups,
        seed=seed,
    )
    return prove(
        mdp,
        gamma,
        options,
        resources=resources,
        checkpoint=checkpoint,
        callback=callback,
        progress=progress,
    )


def single_build(
    mdp: TabularMDP,
    gamma: float,
    *,
    tau: float | None = None,
    seed: int = 0,
    resources: Resources = HERE,
    callback: ProgressCallback | None = None,
    progress: bool = False,
    **covering: Any,
) -> Certificate:
    """One embedding, one index, one covered set, and synchronous sweeps (Algorithm 2).

    A covering of one round, by default with an exact index, no uniform partners, 100 sweeps and
    the paper's constant start above.

    Args:
        mdp: The model.
        gamma: The discount, in [0, 1).
        tau: Threshold to cluster at.
        seed: Seed of embedding and index.
        resources: Threads, workers and memory. The result does not depend on them.
        callback: Called after every sweep.
        progress: Show a line also where there is no terminal, as in a notebook.
        **covering: Options of `Covering` that are to be different.

    Example:
        >>> from bisim_abstract.parts import sparse_mdp
        >>> single_build(sparse_mdp(30, seed=0), 0.9, neighbours=4).n_covered > 30
        True
    """
    return certify(
        mdp,
        gamma,
        tau=tau,
        method=replace(SINGLE_BUILD, **covering),
        max_rounds=1,
        seed=seed,
        resources=resources,
        callback=callback,
        progress=progress,
    )
