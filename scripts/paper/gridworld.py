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

import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from bisim_abstract import (
    Certificate,
    TabularMDP,
    Values,
    certify,
    prove_value,
    value_iteration,
    value_loss,
    verify,
)
from bisim_abstract._base.types import IntArray
from bisim_abstract.encoders import (
    DBCEncoder,
    Transitions,
    collect_transitions,
    sample_transitions,
)
from bisim_abstract.parts import cluster_by_rewards, compare_clusterings, single_build
from bisim_abstract.wrappers import extract_mdp
from paper.common import (
    CLOSE,
    DIFFERENT,
    REPRODUCED,
    Claim,
    Options,
    Result,
    ResultTable,
    figure,
    judged,
    theorem,
)
from paper.planted import GAMMA, NOISE, count, planted_mdp, refines, spread

PUBLISHED: dict[str, Any] = {
    "clusters": "254-284",
    "loss": 2.27,
    "reward loss": 3.18,
    "reward clusters": 1,
    "improvement": 0.286,
    "work": 0.128,
    "seconds": 1200.0,
    "value": 8.5,
}
NEIGHBOURS, SWEEPS = 20, 8
MODELS = 6  # drawn anew, to see how much losses vary
INDEX = "LSH64"
ROOMS, SHARED = "RoomsGrid", "shared successors"
PLAIN, MATCHED = "as published", "equal actions"
KINDS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    MATCHED: {"pairs": "same_action", "transport": "coordinates"},
}


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
    found: Certificate
    seconds: float
    verdict: str
    checked: float

    @property
    def tau(self) -> float:
        """The threshold: in the certified interval that is widest by ratio."""
        assert self.found.tau is not None
        return self.found.tau

    def loss(self, labels: IntArray) -> tuple[float, float]:
        """Mean and largest value loss of planning on clusters; the latter from below."""
        row = compare_clusterings(self.mdp, {"": labels}, GAMMA, optimal=self.optimal)[0]
        return row.loss.mean, row.loss.sup_lower


def run(options: Options) -> Result:
    """Both models: the paper's build, and ours."""
    result = Result("gridworld", "Gridworld of 2,500 states")
    size = Size(20, 5, 10_000, 150, 1) if options.quick else Size(50, 10, 150_000, 2_000, 2)
    worlds = [world(name, size, options.seed) for name in (ROOMS, SHARED)]
    rows: list[tuple[Any, ...]] = []
    refined = enclosed = 0
    drawn: dict[tuple[str, str], IntArray] = {}
    swept: list[tuple[Any, ...]] = []
    for one in worlds:
        for seed in range(options.seed, options.seed + size.seeds):
            data = transitions(one, size, seed)
            for kind in KINDS if one.name == SHARED else (PLAIN,):
                row, made, is_enclosed = build(one, size, data, kind, seed)
                rows.append(row)
                labels = made.partitions(one.tau)[1]
                refined += refines(labels, one.found.labels_upper)
                enclosed += is_enclosed
                if (one.name, kind) not in drawn:
                    drawn[one.name, kind] = labels
                    swept += thresholds(one, kind, made)
    n = worlds[0].mdp.n_states
    result.tables += tables(rows, size, n)
    result.tables.append(
        ResultTable(
            "gridworld_thresholds",
            "The upper arm of the first seed at other thresholds; last, where it has as many "
            "clusters as published",
            (
                "model", "encoder", "threshold", "paper clusters", "clusters", "rooms merged",
                "paper loss", "loss",
            ),
            swept,
        )
    )  # fmt: skip
    certificates(result, worlds)
    draw(result, options, worlds, drawn, size)
    result.claims += [
        theorem("the upper arm stays above every certified lower bound", enclosed, len(rows)),
        theorem("clusters of the upper arm refine the exact (certified) ones", refined, len(rows)),
    ]
    claims(result, [x for x in rows if x[0] == SHARED], n, size, options)
    plain_claims(result, [x for x in rows if x[0] == ROOMS])
    late_claims(result, swept, rows)
    result.choices += [
        (
            f"RoomsGrid with its defaults (slip 0.2, noise 0.02); 'shared successors' with noise "
            f"{NOISE:g}, rewards rescaled to [0, 1], four successor cells per room and action in "
            "the next room in that direction (its own at the edge)."
        ),
        (
            "The threshold is the certificate's own: the geometric mean of the certified interval "
            "that separates the rooms."
        ),
        (
            "Visits are counted as the paper counts them, |S|·k' per sweep; distinct covered pairs "
            "are fewer."
        ),
        (
            f"DBC in R^8, {size.steps:,} steps of 128 x 128 pairs, LSH of 64 planes; upper start "
            "D. As published it compares transitions of any actions, and its neighbours are hardly "
            "better than chance; the variant compares transitions of equal actions."
        ),
        "Seconds of ours exclude gathering transitions, as the paper's seem to be of sweeps.",
    ]
    return result


def world(name: str, size: Size, seed: int) -> World:
    """A model with its certificate over all pairs, verified."""
    env: gym.Env[Any, Any] | None = None
    if name == ROOMS:
        env = gym.make(
            "bisim_abstract/RoomsGrid-v0", side=size.side, room_size=size.room, seed=seed
        )
        mdp, rooms = extract_mdp(env), np.asarray(env.get_wrapper_attr("rooms"))
    else:
        mdp, rooms = shared_model(size, seed)
    certify(mdp, GAMMA, max_pairs=1)  # compiles
    begin = time.perf_counter()
    found = certify(mdp, GAMMA, tau="auto")
    seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    verdict = verify(mdp, found).verdict
    checked = time.perf_counter() - begin
    best = value_iteration(mdp, GAMMA)
    return World(name, env, mdp, rooms, best, found, seconds, verdict, checked)


def _targets(size: Size) -> list[IntArray]:
    """The cells of the next room in each direction, by room and action."""
    per_side, cells = size.side // size.room, size.room**2
    pools = []
    for row in range(per_side):
        for column in range(per_side):
            for down, right in ((-1, 0), (0, 1), (1, 0), (0, -1)):
                to_row = min(max(row + down, 0), per_side - 1)
                to_column = min(max(column + right, 0), per_side - 1)
                pools.append((to_row * per_side + to_column) * cells + np.arange(cells))
    return pools


def transitions(one: World, size: Size, seed: int) -> Transitions:
    """Steps of the random policy."""
    if one.env is not None:
        return collect_transitions(one.env, size.transitions, seed=seed)
    return sample_transitions(one.mdp, size.transitions, seed=seed, states="rollout")


def build(
    one: World, size: Size, data: Transitions, kind: str, seed: int
) -> tuple[tuple[Any, ...], Certificate, bool]:
    """The paper's run: a row of the table, the build, and whether its upper arm is one."""
    mdp, n = one.mdp, one.mdp.n_states
    begin = time.perf_counter()
    encoder = DBCEncoder(dim=8, gamma=GAMMA, steps=size.steps, seed=seed, **KINDS[kind]).fit(data)
    training = time.perf_counter() - begin
    begin = time.perf_counter()
    made = single_build(
        mdp, GAMMA, neighbours=NEIGHBOURS, embedding=encoder.encode(np.arange(n)), index=INDEX,
        arms="upper", sweeps=SWEEPS, seed=seed,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    labels = made.partitions(one.tau)[1]
    rewards = cluster_by_rewards(mdp, one.tau)
    s, t = np.divmod(made.keys, n)
    # Uncovered pairs read D, an upper bound by definition: only covered ones can be wrong.
    is_enclosed = bool((made.upper >= one.found.bounds(s, t)[0]).all())
    row = (
        one.name, kind, seed, one.tau, PUBLISHED["work"], SWEEPS * NEIGHBOURS * 2 / (n - 1),
        made.coverage, float((one.rooms[s] == one.rooms[t]).mean()), PUBLISHED["clusters"],
        count(labels), PUBLISHED["loss"], one.loss(labels)[0], PUBLISHED["reward clusters"],
        count(rewards), PUBLISHED["reward loss"], one.loss(rewards)[0], PUBLISHED["value"],
        float(one.optimal.upper.mean()), PUBLISHED["seconds"], seconds, training,
    )  # fmt: skip
    return row, made, is_enclosed


def thresholds(one: World, kind: str, made: Certificate) -> list[tuple[Any, ...]]:
    """Clusters and losses of an upper arm from the operating threshold to just below D.

    The last one is where it has as many clusters as published, in proportion to the states.
    """
    top, n = made.ground.starts.diameter, made.n_states
    links = made.forests[1].weights
    wanted = min(n - round(269 / 2500 * n), links.size)
    shares = (0.0, 0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
    rows = []
    for tau in [one.tau + x * (top - one.tau) for x in shares] + [float(links[wanted - 1])]:
        labels = made.partitions(tau)[1]
        mixed = not refines(labels, one.rooms)
        rows.append(
            (
                one.name, kind, tau, PUBLISHED["clusters"], count(labels), mixed,
                PUBLISHED["loss"], one.loss(labels)[0],
            )
        )  # fmt: skip
    return rows


def tables(rows: list[tuple[Any, ...]], size: Size, n: int) -> list[ResultTable]:
    """The runs in two tables: what they looked at, and what came out."""
    columns = (
        "model", "encoder", "seed", "threshold", "paper visits / sweep", "visits / sweep",
        "pairs covered", "same room", "paper clusters", "clusters", "paper loss", "loss",
        "paper clusters, rewards", "clusters, rewards", "paper loss, rewards", "loss, rewards",
        "paper mean V*", "mean V*", "paper seconds", "sweep seconds", "training seconds",
    )  # fmt: skip
    title = f"{n:,} states, k' = {NEIGHBOURS}, {SWEEPS} sweeps of the upper arm"
    learned = f"DBC trained in {size.steps:,} steps on {size.transitions:,} transitions"
    picked = {
        "gridworld_builds": (f"{title}; {learned}", (0, 1, 2, 3, 4, 5, 6, 7, 18, 19, 20)),
        "gridworld_losses": (f"{title}: clusters and losses", (0, 1, 2, *range(8, 18))),
    }
    return [
        ResultTable(
            name, text, tuple(columns[k] for k in at), [tuple(row[k] for k in at) for row in rows]
        )
        for name, (text, at) in picked.items()
    ]


def certificates(result: Result, worlds: list[World]) -> None:
    """Our certificates, beside the published run."""
    rows: list[tuple[Any, ...]] = []
    bounded = verified = 0
    for one in worlds:
        labels = one.found.labels_upper
        value = one.found.value or prove_value(one.mdp, labels, GAMMA)
        loss = value_loss(one.mdp, GAMMA, value.lifted_policy, optimal=one.optimal)
        bounded += loss.sup_lower <= value.loss
        verified += one.verdict == "verified"
        rows.append(
            (
                one.name, PUBLISHED["clusters"], count(labels),
                bool(refines(labels, one.rooms) and refines(one.rooms, labels)), one.found.scope,
                one.verdict, PUBLISHED["loss"], one.loss(labels)[0], value.loss, one.found.coverage,
                PUBLISHED["seconds"], one.seconds, one.checked,
            )
        )  # fmt: skip
    result.tables.append(
        ResultTable(
            "gridworld_certificates",
            "Beyond the paper: certificates over all pairs, without any encoder",
            (
                "model", "paper clusters", "ours", "are the rooms", "scope", "verdict",
                "paper loss", "ours loss", "proven worst loss", "pairs looked at", "paper seconds",
                "seconds to certify", "seconds to verify",
            ),
            rows,
        )
    )  # fmt: skip
    result.claims += [
        theorem("certificates over all pairs are verified", verified, len(worlds)),
        theorem("proven losses are above the losses", bounded, len(worlds)),
    ]


def other_models(size: Size, seed: int) -> tuple[list[float], list[float]]:
    """Mean V*, and the loss of a single cluster, of several models with shared successors."""
    values, losses = [], []
    for k in range(seed, seed + MODELS):
        mdp, _ = shared_model(size, k)
        best = value_iteration(mdp, GAMMA)
        one = np.zeros(mdp.n_states, np.int64)
        row = compare_clusterings(mdp, {"": one}, GAMMA, optimal=best)[0]
        values.append(float(best.upper.mean()))
        losses.append(row.loss.mean)
    return values, losses


def shared_model(size: Size, seed: int) -> tuple[TabularMDP, IntArray]:
    """Rooms whose cells share their successors up to noise."""
    rooms = (size.side // size.room) ** 2
    return planted_mdp(size.side**2, rooms, 4, targets=_targets(size), seed=seed)


def claims(
    result: Result, rows: list[tuple[Any, ...]], n: int, size: Size, options: Options
) -> None:
    """The published figures, on the model with shared successors."""
    values, losses = other_models(size, options.seed)
    models = f"mean of {MODELS} models"
    scale = "the rewards of rooms, on which the scale depends, are not published"
    merged = {x[13] for x in rows}
    rewards = rows[0][15]
    result.claims += [
        judged(
            f"{SWEEPS} sweeps at k' = {NEIGHBOURS}, as a share of the visits of one full sweep",
            PUBLISHED["work"],
            rows[0][5],
            why=f"a smaller grid, of {n} states",
            in_abstract=True,
        ),
        judged(
            f"mean V* (shared successors, {models})",
            PUBLISHED["value"],
            float(np.mean(values)),
            why=scale,
        ),
        judged(
            f"mean value loss of one cluster, as of rewards alone (shared successors, {models}: "
            f"{min(losses):.2f} to {max(losses):.2f})",
            PUBLISHED["reward loss"],
            float(np.mean(losses)),
            why=f"{scale}; it varies much from model to model",
        ),
        Claim(
            "rewards alone merge everything at the same threshold (shared successors)",
            "1 cluster",
            f"{spread(list(merged))} cluster(s)",
            REPRODUCED if merged == {1} else CLOSE,
            "" if merged == {1} else "a room with unusual rewards stays apart",
        ),
        Claim(
            "the sweeps end within the published time",
            "about 1,200 s",
            "yes" if max(x[19] for x in rows) < 1200.0 else "no",
            REPRODUCED if max(x[19] for x in rows) < 1200.0 else DIFFERENT,
            "compiled transport; seconds are in the table",
        ),
    ]
    for kind in KINDS:
        own = [x for x in rows if x[1] == kind]
        clusters = [x[9] for x in own]
        loss = float(np.mean([x[11] for x in own]))
        better = 1.0 - loss / rewards
        is_near = all(0.5 * 254 <= x <= 2 * 284 for x in clusters)
        result.claims += [
            Claim(
                f"clusters of the upper arm (shared successors, DBC {kind})",
                PUBLISHED["clusters"],
                spread(clusters),
                CLOSE if is_near else DIFFERENT,
                "more than rooms, as published; how many depends on how often the embedding "
                "retrieves cells of the same room, shown in the table",
            ),
            judged(
                f"mean value loss of the upper arm (shared successors, DBC {kind})",
                PUBLISHED["loss"],
                loss,
                why="every cluster lies in one room (a theorem at a threshold that separates "
                "rooms), so planning loses almost nothing; a loss of 2.27, a quarter of V*, needs "
                "a threshold at which the exact metric itself merges rooms",
            ),
            Claim(
                f"improvement over rewards alone (shared successors, DBC {kind})",
                f"{PUBLISHED['improvement']:.1%}",
                f"{better:.1%}",
                REPRODUCED if abs(better - PUBLISHED["improvement"]) < 0.03 else DIFFERENT,
                "larger than published: see the loss of the upper arm" if better > 0.3 else scale,
                in_abstract=kind == PLAIN,
            ),
        ]


def plain_claims(result: Result, rows: list[tuple[Any, ...]]) -> None:
    """What the environment itself gives."""
    clusters = [x[9] for x in rows]
    result.claims.append(
        Claim(
            "clusters of the upper arm (RoomsGrid, successors not shared)",
            PUBLISHED["clusters"],
            spread(clusters),
            CLOSE if 25 < min(clusters) <= 1000 else DIFFERENT,
            "cells of a room move to different cells, so that eight sweeps from D leave the upper "
            "arm near gamma^8·D, far above any threshold between the bands: nothing merges",
        )
    )


def late_claims(result: Result, swept: list[tuple[Any, ...]], rows: list[tuple[Any, ...]]) -> None:
    """What if the threshold were such that the published number of clusters comes out."""
    for name in (ROOMS, SHARED):
        tau, found, mixed, loss = next(
            (x[2], x[4], x[5], x[7]) for x in reversed(swept) if x[:2] == (name, PLAIN)
        )
        rewards = next(x[15] for x in rows if x[0] == name)
        result.claims.append(
            judged(
                f"improvement over one cluster at the threshold {tau:.3g} that gives {found} "
                f"clusters ({name}, DBC as published)",
                PUBLISHED["improvement"],
                1.0 - loss / rewards,
                why="so near D the clusters "
                + ("mix rooms" if mixed else "are still pure")
                + "; rewards, index and training are not published",
            )
        )


def draw(
    result: Result,
    options: Options,
    worlds: list[World],
    drawn: dict[tuple[str, str], IntArray],
    size: Size,
) -> None:
    """Sizes of clusters of the builds and of the certificate."""
    with figure(result, options.out, "gridworld_clusters") as axes:
        lines = {f"{name}, DBC {kind}": labels for (name, kind), labels in drawn.items()}
        lines["certificate over all pairs (both)"] = worlds[0].found.labels_upper
        for k, (title, labels) in enumerate(lines.items()):
            sizes = np.sort(np.bincount(labels))[::-1]
            axes.step(
                np.arange(1, sizes.size + 1), sizes, color=f"C{k}", where="post", lw=2,
                label=f"{title}: {sizes.size:,} clusters",
            )  # fmt: skip
        axes.axhline(size.room**2, color="k", ls=":", lw=1)
        axes.text(1, size.room**2 * 1.12, "cells of a room", fontsize=9)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(0.8, size.room**2 * 20)
        axes.set_xlabel("cluster, by size")
        axes.set_ylabel("states in it")
        axes.set_title(f"Upper arm after {SWEEPS} sweeps at k' = {NEIGHBOURS}, and all pairs")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9, loc="upper right")
