"""The gridworld of 2,500 states: one build at a fixed budget, then a certificate over all pairs.

The paper: a 50 x 50 grid of 25 planted rooms, whose states share base rewards and transition
structure up to noise; a DBC-style embedding into R^8 from 150,000 random-policy transitions, two
seeds; k' = 20 and eight sweeps of the upper arm, that is 12.8% of the visits of one sweep over all
pairs, in about 1,200 s: 254 to 284 clusters, mean value loss 2.27 against 3.18 of rewards alone.

It leaves open the rewards, the noise, the threshold, and whether the cells of a room share their
successors. Two models stand for it here. "RoomsGrid" is the toolkit's environment: a cell moves to
the same cell of the next room, so that two cells of a room have different successors, and eight
sweeps from D cannot bring the upper arm below about gamma^8·D, whatever the index: at a threshold
between the bands it merges nothing. "Shared successors" lets the cells of a room move to the same
few cells of the next room, as the published clusters imply.

At a threshold that separates the rooms the clusters of the upper arm are pure, so that planning on
them loses next to nothing, however many they are. The published loss, a quarter of V*, comes with
the published number of clusters only at a threshold just below D, where clusters mix rooms; the
table of thresholds shows it. That is a conjecture about the paper, not something it says.

Beyond the paper, `certify` bounds all pairs of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from bisim_abstract import Blocks, Certificate, TabularMDP, Values, certify, value_iteration
from bisim_abstract.encoders import DBCEncoder, Transitions, collect_transitions, sample_transitions
from bisim_abstract.parts import cluster_by_rewards, single_build
from bisim_abstract.wrappers import extract_mdp
from paper.engine import Claim, Near, Options, Result, Row, Rows, Theorem, mean, spread, timed
from paper.inside import IntArray
from paper.planted import GAMMA, NOISE, Certified, count, mean_loss, planted_mdp, refines

CLUSTERS, LOSS, SECONDS, VALUE = (254, 284), 2.27, 1200.0, 8.5  # published
REWARD_CLUSTERS, REWARD_LOSS, IMPROVEMENT, WORK = 1, 3.18, 0.286, 0.128
SHOWN_CLUSTERS = "254-284"
NEIGHBOURS, SWEEPS = 20, 8
MODELS = 6  # drawn anew, to see how much losses vary
INDEX = "LSH64"
ROOMS, SHARED = "RoomsGrid", "shared successors"
PLAIN, MATCHED = "as published", "equal actions"
KINDS: dict[str, Row] = {
    PLAIN: {},
    MATCHED: {"pairs": "same_action", "transport": "coordinates"},
}
TABLES = {  # columns of a build: what was looked at, and what came out
    "builds": """model; encoder; seed; threshold; paper visits / sweep; visits / sweep;
    pairs covered; same room; paper seconds; sweep seconds; training seconds""",
    "losses": """model; encoder; seed; paper clusters; clusters; paper loss; loss;
    paper clusters, rewards; clusters, rewards; paper loss, rewards; loss, rewards; paper mean V*;
    mean V*""",
}

# fmt: off
THEOREMS = (
    Theorem("certificates over all pairs are verified", measure="verified"),
    Theorem("proven losses are above the losses", measure="bounded"),
    Theorem("the upper arm stays above every certified lower bound", measure="is_enclosed"),
    Theorem("clusters of the upper arm refine the exact (certified) ones", measure="is_refined"),
)
# fmt: on
LARGER = "larger than published: see the loss of the upper arm"
COMPILED = "compiled transport; seconds are in the table"
SCALE = "the rewards of rooms, on which the scale depends, are not published"
# fmt: off
CLAIMS = (
    Near(f"{SWEEPS} sweeps at k' = {NEIGHBOURS}, as a share of the visits of one full sweep", WORK,
        "work", "a smaller grid, of {n} states", in_abstract=True),
    Near(f"mean V* (shared successors, mean of {MODELS} models)", VALUE, "value", SCALE),
    Near("mean value loss of one cluster, as of rewards alone (shared successors, mean of "
        f"{MODELS} models: {{least_loss:.2f}} to {{most_loss:.2f}})", REWARD_LOSS, "one cluster",
        f"{SCALE}; it varies much from model to model"),
    Claim("rewards alone merge everything at the same threshold (shared successors)", "1 cluster",
        "all merged", "a room with unusual rewards stays apart", shown="{merged} cluster(s)",
        nearly=True),
    Claim("the sweeps end within the published time", "about 1,200 s", "in time", COMPILED,
        note=COMPILED),
)
KIND_CLAIMS = (
    Claim("clusters of the upper arm (shared successors, DBC {kind})", SHOWN_CLUSTERS,
        "same clusters",
        "more than rooms, as published; how many depends on how often the embedding retrieves "
        "cells of the same room, shown in the table", shown="{clusters}", nearly="near clusters"),
    Near("mean value loss of the upper arm (shared successors, DBC {kind})", LOSS, "loss",
        "every cluster lies in one room (a theorem at a threshold that separates rooms), so "
        "planning loses almost nothing; a loss of 2.27, a quarter of V*, needs a threshold at "
        "which the exact metric itself merges rooms"),
)
IMPROVES = Near("improvement over rewards alone (shared successors, DBC {kind})", IMPROVEMENT,
    "better", "{reason}", shown="{:.1%}", tight=0.03, loose=0.03, absolute=True,
    note="{reason}")
ROOMS_CLAIM = Claim("clusters of the upper arm (RoomsGrid, successors not shared)", SHOWN_CLUSTERS,
    "same clusters",
    "cells of a room move to different cells, so that eight sweeps from D leave the "
    "upper arm near gamma^8·D, far above any threshold between the bands: nothing "
    "merges", shown="{clusters}", nearly="some clusters")
LATE_CLAIM = Near("improvement over one cluster at the threshold {threshold:.3g} that gives "
    "{clusters} clusters ({model}, DBC as published)", IMPROVEMENT, "improvement",
    "so near D the clusters {mixed}; rewards, index and training are not published")
# fmt: on
CHOICES = f"""
- RoomsGrid with its defaults (slip 0.2, noise 0.02); 'shared successors' with noise {NOISE:g},
  rewards rescaled to [0, 1], four successor cells per room and action in the next room in that
  direction (its own at the edge).
- The threshold is the certificate's own: the geometric mean of the certified interval that
  separates the rooms.
- Visits are counted as the paper counts them, |S|·k' per sweep; distinct covered pairs are fewer.
- DBC in R^8, {{steps:,}} steps of 128 x 128 pairs, LSH of 64 planes; upper start D. As published it
  compares transitions of any actions, and its neighbours are hardly better than chance; the variant
  compares transitions of equal actions.
- Seconds of ours exclude gathering transitions, as the paper's seem to be of sweeps.
"""


@dataclass(frozen=True)
class Size:
    """How large a grid, and how long encoders learn."""

    side: int
    room: int
    transitions: int
    steps: int
    seeds: int


@dataclass(frozen=True)
class World:
    """A model, its optimal values, and its certificate over all pairs."""

    name: str
    env: gym.Env[Any, Any] | None
    mdp: TabularMDP
    rooms: IntArray
    optimal: Values
    ours: Certified

    @property
    def tau(self) -> float:
        """The threshold: in the certified interval that is widest by ratio."""
        assert self.ours.found.tau is not None
        return self.ours.found.tau

    def loss(self, labels: IntArray) -> float:
        """Mean value loss of planning on clusters."""
        return mean_loss(self.mdp, labels, self.optimal)


def run(options: Options) -> Result:
    """Both models: the paper's build, and ours."""
    result = Result("gridworld", "Gridworld of 2,500 states", options)
    size = options.pick(Size(20, 5, 10_000, 150, 1), Size(50, 10, 150_000, 2_000, 2))
    worlds = [world(name, size, options.seed) for name in (ROOMS, SHARED)]
    seeds = options.seeds(size.seeds, size.seeds)
    builds = Rows(x for one in worlds for seed in seeds for x in builds_of(one, size, seed))
    first = builds.where(seed=options.seed)
    swept = Rows(y for x in first for y in threshold_rows(x))
    n = worlds[0].mdp.n_states
    title = f"{n:,} states, k' = {NEIGHBOURS}, {SWEEPS} sweeps of the upper arm"
    learned = f"; DBC trained in {size.steps:,} steps on {size.transitions:,} transitions"
    for name, more in (("builds", learned), ("losses", ": clusters and losses")):
        result.add_table(f"gridworld_{name}", title + more, builds, TABLES[name])
    title = (
        "The upper arm of the first seed at other thresholds; last, where it has as many clusters "
    )
    result.add_table("gridworld_thresholds", title + "as published", swept)
    title = "Beyond the paper: certificates over all pairs, without any encoder"
    result.add_table("gridworld_certificates", title, [certificate_row(x) for x in worlds])
    draw(result, worlds[0], first, size)
    judge(result, worlds, builds, swept, size)
    result.choose(CHOICES.format(steps=size.steps))
    return result


def judge(result: Result, worlds: Sequence[World], builds: Rows, swept: Rows, size: Size) -> None:
    """Theorems, the published figures on shared successors, and what RoomsGrid itself gives."""
    proven = {
        "verified": [x.ours.verdict == "verified" for x in worlds],
        "bounded": [x.ours.loss <= x.ours.bound for x in worlds],
    }
    result.judge(THEOREMS, builds.columns() | proven)
    rooms, shared = (builds.where(model=name) for name in (ROOMS, SHARED))
    result.judge(CLAIMS, shared_figures(shared, size, result.options.seed))
    for kind in KINDS:
        figures = kind_figures(shared.where(encoder=kind), kind)
        better = figures["better"] = 1.0 - figures["loss"] / shared[0]["loss, rewards"]
        figures["reason"] = LARGER if better > 0.3 else SCALE
        result.judge([*KIND_CLAIMS, replace(IMPROVES, in_abstract=kind == PLAIN)], figures)
    result.judge([ROOMS_CLAIM], kind_figures(rooms, PLAIN))
    for own in (rooms, shared):
        late = swept.where(model=own[0]["model"], encoder=PLAIN)[-1]
        mixed = "mix rooms" if late["rooms merged"] else "are still pure"
        better = 1.0 - late["loss"] / own[0]["loss, rewards"]
        result.judge([LATE_CLAIM], late | {"mixed": mixed, "improvement": better})


# -- models ------------------------------------------------------------------------------------


def world(name: str, size: Size, seed: int) -> World:
    """A model with its certificate over all pairs, verified."""
    env: gym.Env[Any, Any] | None = None
    if name == ROOMS:
        shape: Row = {"side": size.side, "room_size": size.room}
        env = gym.make("bisim_abstract/RoomsGrid-v0", **shape, seed=seed)
        mdp, rooms = extract_mdp(env), np.asarray(env.get_wrapper_attr("rooms"))
    else:
        mdp, rooms = shared_model(size, seed)
    certify(mdp, GAMMA, method=Blocks(max_pairs=1))  # compiles
    optimal = value_iteration(mdp, GAMMA)
    return World(name, env, mdp, rooms, optimal, Certified.of(mdp, optimal, "auto"))


def shared_model(size: Size, seed: int) -> tuple[TabularMDP, IntArray]:
    """Rooms whose cells share their successors up to noise."""
    rooms = (size.side // size.room) ** 2
    return planted_mdp(size.side**2, rooms, 4, targets=targets(size), seed=seed)


def targets(size: Size) -> list[IntArray]:
    """The cells of the next room in each direction, by room and action."""
    per_side, cells = size.side // size.room, size.room**2
    pools = []
    for row, column_ in np.ndindex(per_side, per_side):
        for down, right in ((-1, 0), (0, 1), (1, 0), (0, -1)):
            to_row, to_column = np.clip((row + down, column_ + right), 0, per_side - 1)
            pools.append((to_row * per_side + to_column) * cells + np.arange(cells))
    return pools


def other_models(size: Size, seed: int) -> tuple[list[float], list[float]]:
    """Mean V*, and the loss of a single cluster, of several models with shared successors."""
    values, losses = [], []
    for k in range(seed, seed + MODELS):
        mdp, _ = shared_model(size, k)
        best = value_iteration(mdp, GAMMA)
        values.append(float(best.upper.mean()))
        losses.append(mean_loss(mdp, np.zeros(mdp.n_states, np.int64), best))
    return values, losses


# -- builds ------------------------------------------------------------------------------------


def builds_of(one: World, size: Size, seed: int) -> list[Row]:
    """The paper's runs on one model, by kind of encoder."""
    data = transitions(one, size, seed)
    kinds = KINDS if one.name == SHARED else (PLAIN,)
    return [build(one, size, data, kind, seed) for kind in kinds]


def transitions(one: World, size: Size, seed: int) -> Transitions:
    """Steps of the random policy."""
    if one.env is not None:
        return collect_transitions(one.env, size.transitions, seed=seed)
    return sample_transitions(one.mdp, size.transitions, seed=seed, states="rollout")


def build(one: World, size: Size, data: Transitions, kind: str, seed: int) -> Row:
    """The paper's run: columns of the tables, and whether its upper arm is one."""
    mdp, n = one.mdp, one.mdp.n_states
    untrained = DBCEncoder(dim=8, gamma=GAMMA, steps=size.steps, seed=seed, **KINDS[kind])
    encoder, training = timed(lambda: untrained.fit(data))
    settings: Row = {"neighbours": NEIGHBOURS, "index": INDEX, "sweeps": SWEEPS, "seed": seed}

    def upper_arm() -> Certificate:
        points = encoder.encode(np.arange(n))
        return single_build(mdp, GAMMA, embedding=points, arms="upper", **settings)

    made, seconds = timed(upper_arm)
    labels, rewards = made.partitions(one.tau)[1], cluster_by_rewards(mdp, one.tau)
    s, t = np.divmod(made.keys, n)
    return {
        "model": one.name,
        "encoder": kind,
        "seed": seed,
        "threshold": one.tau,
        "paper visits / sweep": WORK,
        "visits / sweep": SWEEPS * NEIGHBOURS * 2 / (n - 1),
        "pairs covered": made.coverage,
        "same room": float((one.rooms[s] == one.rooms[t]).mean()),
        "paper clusters": SHOWN_CLUSTERS,
        "clusters": count(labels),
        "paper loss": LOSS,
        "loss": one.loss(labels),
        "paper clusters, rewards": REWARD_CLUSTERS,
        "clusters, rewards": count(rewards),
        "paper loss, rewards": REWARD_LOSS,
        "loss, rewards": one.loss(rewards),
        "paper mean V*": VALUE,
        "mean V*": float(one.optimal.upper.mean()),
        "paper seconds": SECONDS,
        "sweep seconds": seconds,
        "training seconds": training,
        # Uncovered pairs read D, an upper bound by definition: only covered ones can be wrong.
        "is_enclosed": bool((made.upper >= one.ours.found.bounds(s, t)[0]).all()),
        "is_refined": refines(labels, one.ours.found.labels_upper),
        "labels": labels,
        "world": one,
        "made": made,
    }


def threshold_rows(row: Row) -> list[Row]:
    """Clusters and losses of an upper arm from the operating threshold to just below D.

    The last one is where it has as many clusters as published, in proportion to the states.
    """
    one, made = row["world"], row["made"]
    top, n = made.ground.starts.diameter, made.n_states
    links = made.forests[1].weights
    wanted = min(n - round(269 / 2500 * n), links.size)
    shares = (0.0, 0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
    taus = [one.tau + x * (top - one.tau) for x in shares] + [float(links[wanted - 1])]
    cuts = [made.partitions(tau)[1] for tau in taus]
    return [
        {
            "model": one.name,
            "encoder": row["encoder"],
            "threshold": tau,
            "paper clusters": SHOWN_CLUSTERS,
            "clusters": count(labels),
            "rooms merged": not refines(labels, one.rooms),
            "paper loss": LOSS,
            "loss": one.loss(labels),
        }
        for tau, labels in zip(taus, cuts, strict=True)
    ]


def certificate_row(one: World) -> Row:
    """Our certificate, beside the published run."""
    found = one.ours.found
    labels = found.labels_upper
    return {
        "model": one.name,
        "paper clusters": SHOWN_CLUSTERS,
        "ours": count(labels),
        "are the rooms": refines(labels, one.rooms) and refines(one.rooms, labels),
        "scope": found.scope,
        "verdict": one.ours.verdict,
        "paper loss": LOSS,
        "ours loss": one.loss(labels),
        "proven worst loss": one.ours.bound,
        "pairs looked at": found.coverage,
        "paper seconds": SECONDS,
        "seconds to certify": one.ours.seconds[0],
        "seconds to verify": one.ours.seconds[1],
    }


# -- figures of claims -------------------------------------------------------------------------


def shared_figures(shared: Rows, size: Size, seed: int) -> Row:
    """The published figures, on the model with shared successors."""
    values, losses = other_models(size, seed)
    merged = set(shared.column("clusters, rewards"))
    return {
        "n": size.side**2,
        "work": shared[0]["visits / sweep"],
        "value": mean(values),
        "one cluster": mean(losses),
        "least_loss": min(losses),
        "most_loss": max(losses),
        "merged": spread(merged),
        "all merged": merged == {1},
        "in time": max(shared.column("sweep seconds")) < SECONDS,
    }


def kind_figures(builds: Rows, kind: str) -> Row:
    """Clusters and losses of one kind of encoder."""
    clusters = builds.column("clusters")
    low, high = CLUSTERS
    return {
        "kind": kind,
        "clusters": spread(clusters),
        "same clusters": low <= min(clusters) and max(clusters) <= high,
        "near clusters": 0.5 * low <= min(clusters) and max(clusters) <= 2 * high,
        "some clusters": 25 < min(clusters) <= 1000,
        "loss": builds.mean("loss"),
    }


def draw(result: Result, rooms: World, builds: Rows, size: Size) -> None:
    """Sizes of clusters of the builds and of the certificate."""
    lines = {f"{x['model']}, DBC {x['encoder']}": x["labels"] for x in builds}
    lines["certificate over all pairs (both)"] = rooms.ours.found.labels_upper
    with result.figure(
        "gridworld_clusters",
        legend={"frameon": False, "fontsize": 9, "loc": "upper right"},
        grid={"alpha": 0.25},
        xscale="log",
        yscale="log",
        ylim=(0.8, size.room**2 * 20),
        xlabel="cluster, by size",
        ylabel="states in it",
        title=f"Upper arm after {SWEEPS} sweeps at k' = {NEIGHBOURS}, and all pairs",
    ) as axes:
        for title, labels in lines.items():
            sizes = np.sort(np.bincount(labels))[::-1]
            label = f"{title}: {sizes.size:,} clusters"
            axes.step(np.arange(1, sizes.size + 1), sizes, where="post", lw=2, label=label)
        axes.axhline(size.room**2, color="k", ls=":", lw=1)
        axes.text(1, size.room**2 * 1.12, "cells of a room", fontsize=9)
