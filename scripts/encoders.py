"""Learned embeddings as proposals: how good they are, and what certificates they lead to.

    python scripts/encoders.py            RoomsGrid and Taxi, a few minutes
    python scripts/encoders.py --quick    small budgets, to see that it runs
    python scripts/encoders.py rooms
    python scripts/encoders.py distances  the table of docs/reference/encoders.md

On RoomsGrid every encoder proposes blocks by itself (nothing else may), and the certificate over
all pairs shows what they were worth. On Taxi the paper's single build runs at three budgets; it
abstains, and the raw embedding, clustered at the same threshold, collapses. Last, every learned
distance is held against the bisimulation metric and against the one that it is trained for.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.table import Table

from bisim_abstract import (
    Blocks,
    MetricBounds,
    Reading,
    TabularMDP,
    bisimulation_metric,
    certify,
    evaluate_embedding,
    mico_distance,
    verify,
)
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._linkage.forests import spanning_forest
from bisim_abstract.encoders import (
    ActionMaxEncoder,
    DBCEncoder,
    Encoder,
    MICoEncoder,
    RandomEmbedding,
    RewardEmbedding,
    collect_transitions,
)
from bisim_abstract.parts import MicoBounds, retrieve_pairs, single_build
from bisim_abstract.wrappers import RoomsGridEnv, extract_mdp

GAMMA = 0.9
console = Console(width=130, highlight=False)


@dataclass(frozen=True)
class Options:
    """How much to do."""

    steps: int
    transitions: int
    seed: int


def encoders(options: Options) -> dict[str, Encoder]:
    """The encoders to compare, by name."""
    common: dict[str, Any] = {
        "dim": 8,
        "gamma": GAMMA,
        "steps": options.steps,
        "seed": options.seed,
    }
    return {
        "DBC, as published": DBCEncoder(**common),
        "DBC, equal actions": DBCEncoder(**common, pairs="same_action", transport="coordinates"),
        "MICo, as published": MICoEncoder(**common),
        "MICo, equal actions": MICoEncoder(**common, pairs="same_action"),
        "action-aware": ActionMaxEncoder(**common),
    }


def compare_rooms(options: Options) -> None:
    """Every embedding as the only source of blocks on RoomsGrid."""
    env = RoomsGridEnv()
    mdp = env.to_mdp()
    truth = certify(mdp, GAMMA, tau="auto")
    verify(mdp, truth).raise_if_rejected()
    begin = time.perf_counter()
    data = collect_transitions(
        "bisim_abstract/RoomsGrid-v0", options.transitions, seed=options.seed
    )
    gathering = time.perf_counter() - begin
    table = Table(
        title=f"RoomsGrid, 2,500 states, {options.transitions:,} transitions gathered in "
        f"{gathering:.1f} s",
        title_justify="left",
    )
    for k, header in enumerate(
        (
            "embedding",
            "trained",
            "same room",
            "ranks",
            "proven wrong",
            "blocks from it alone",
            "work",
            "work with others",
        )
    ):
        table.add_column(header, justify="left" if k == 0 else "right")
    learned: dict[str, Encoder | RewardEmbedding | RandomEmbedding] = {**encoders(options)}
    learned["rewards"] = RewardEmbedding(mdp)
    learned["random"] = RandomEmbedding(mdp.n_states, seed=options.seed)
    for name, encoder in learned.items():
        begin = time.perf_counter()
        if isinstance(encoder, Encoder):
            encoder.fit(data)
        trained = time.perf_counter() - begin
        points = encoder.encode(np.arange(mdp.n_states))
        s, t = retrieve_pairs(points, k=10, seed=options.seed)
        quality = evaluate_embedding(truth, encoder, seed=options.seed)
        alone, beside = Blocks(embedding=points, propose=["embedding"]), Blocks(embedding=points)
        found = certify(mdp, GAMMA, tau="auto", seed=options.seed, method=alone)
        verify(mdp, found).raise_if_rejected()
        count = found.n_clusters if found.is_certified else 0
        helped = certify(mdp, GAMMA, tau="auto", seed=options.seed, method=beside)
        table.add_row(
            name,
            f"{trained:.1f} s" if isinstance(encoder, Encoder) else "-",
            f"{(env.rooms[s] == env.rooms[t]).mean():.1%}",
            f"{quality.rank_correlation:.2f}",
            f"{quality.outside:.0%}",
            f"certified, {count} clusters" if count else "abstains",
            f"{found.run['backups']:,}" if count else "-",
            f"{helped.run['backups']:,}" if helped.is_certified else "-",
        )
    console.print(table)
    console.print(
        "  same room: of the ten nearest neighbours. work: backups of pairs and block pairs until "
        "certified;\n  with others: where classes, rewards and value features may also propose.\n"
    )


def compare_taxi(options: Options) -> None:
    """The paper's single build on Taxi, next to the raw embedding's clustering."""
    name = "Taxi-v3" if "Taxi-v3" in gym.registry else "Taxi-v4"
    mdp = extract_mdp(
        gym.make(name), reading=Reading(terminal="table")
    )  # as the paper follows the table
    metric = bisimulation_metric(mdp, GAMMA)
    tau = 0.25 * float(metric.class_upper.max())
    exact = exact_labels(metric, tau)
    data = collect_transitions(name, options.transitions, seed=options.seed)
    table = Table(
        title=f"{name}, one build per budget k', tau = {tau:.1f} (a quarter of the diameter); "
        f"the exact metric gives {exact.max() + 1} clusters",
        title_justify="left",
    )
    for k, header in enumerate(
        ("encoder", "k'", "covered", "paper", "verdict", "raw embedding", "intervals valid")
    ):
        table.add_column(header, justify="left" if k == 0 else "right")
    published = {20: "5%", 40: "-", 80: "20%"}
    for title, encoder in encoders(options).items():
        encoder.fit(data)
        states = np.arange(mdp.n_states)
        points = encoder.encode(states)
        raw = raw_clusters(encoder, mdp.n_states, tau)
        for k in (20, 40, 80):
            found = single_build(
                mdp, GAMMA, tau=tau, neighbours=k, embedding=points, index="LSH16",
                lower_start="reward", upper_start="constant", seed=options.seed,
            )  # fmt: skip
            verify(mdp, found).raise_if_rejected()
            lower, upper = found.bounds(states[:, None], states)
            below, above = metric.bounds(states[:, None], states)
            is_valid = bool((lower <= above).all() and (upper >= below).all())
            if not refines(found.labels_upper, exact):
                raise AssertionError("a merge that the exact metric does not support")
            clusters = int(found.labels_upper.max()) + 1
            verdict = "agrees" if found.is_certified else "abstains"
            table.add_row(
                title if k == 20 else "", str(k), f"{found.coverage:.1%}", published[k],
                f"{verdict}, {clusters} supported", f"{raw} clusters", "yes" if is_valid else "NO",
            )  # fmt: skip
    console.print(table)
    console.print(
        "  the paper: coverage 5% to 20%, abstains; the raw embedding collapses to 1 cluster\n"
    )


def compare_distances(options: Options) -> None:
    """Learned distances beside the metric, and beside what each of them is trained for."""
    name = "Taxi-v3" if "Taxi-v3" in gym.registry else "Taxi-v4"
    models = {
        "RoomsGrid, 400 states": RoomsGridEnv(side=20, room_size=5).to_mdp(),
        "Taxi": extract_mdp(gym.make(name)),
    }
    for title, mdp in models.items():
        table = Table(title=f"{title}: learned distances", title_justify="left")
        heads = ("ranks", "mean error", "trained for", "ranks", "mean error")
        for k, header in enumerate(("encoder", *heads)):
            table.add_column(header, justify="left" if k in (0, 3) else "right")
        metric, seen = bisimulation_metric(mdp, GAMMA), sampled_mico(mdp)
        for kind, encoder in encoders(options).items():
            encoder.fit(mdp, n_transitions=options.transitions)
            if encoder.trained_for == "mico":
                loss = evaluate_embedding(seen, encoder, seed=options.seed)
            found = evaluate_embedding(metric, encoder, mdp=mdp, seed=options.seed)
            own = found.trained_for
            if own is None:
                raise AssertionError(f"{kind} does not say what it is trained for")
            table.add_row(
                kind, f"{found.rank_correlation:.2f}", f"{found.mean_error:.3g}",
                own.title, f"{own.rank_correlation:.2f}", f"{own.mean_error:.3g}",
            )  # fmt: skip
        console.print(table)
        console.print(
            f"  largest distances: metric {metric.diameter[1]:.3g}, on-policy metric "
            f"{bisimulation_metric(mdp.under_policy(uniform(mdp)), GAMMA).diameter[1]:.3g}, MICo's "
            f"{mico_distance(mdp, GAMMA, uniform(mdp)).upper.max():.3g}\n"
            "  MICo, as published, against what its loss sees, the mean of |r - r'| over actions: "
            f"ranks {loss.rank_correlation:.2f}, mean error {loss.mean_error:.3g} of at most "
            f"{seen.upper.max():.3g}\n"
        )


def sampled_mico(mdp: TabularMDP) -> MicoBounds:
    """MICo's distance if rewards are compared before they are averaged, as its loss does."""
    chain = mdp.under_policy(uniform(mdp)).kernel()
    weights, gaps = uniform(mdp), np.zeros((mdp.n_states, mdp.n_states))
    for a in range(mdp.n_actions):
        for b in range(mdp.n_actions):
            apart = np.abs(np.subtract.outer(mdp.rewards[:, a], mdp.rewards[:, b]))
            gaps += np.outer(weights[:, a], weights[:, b]) * apart
    table = gaps
    for _ in range(300):
        table = gaps + GAMMA * (chain @ (chain @ table).T)
    return MicoBounds(GAMMA, table, table, 0.0, 0.0, 300)


def uniform(mdp: TabularMDP) -> FloatArray:
    """Acting at random, as encoders gather their steps."""
    return np.asarray(mdp.available / mdp.available.sum(axis=1, keepdims=True))


def exact_labels(metric: MetricBounds, tau: float) -> IntArray:
    """The clustering of the exact metric."""
    s, t = np.triu_indices(metric.n_states, 1)
    return spanning_forest(metric.n_states, s, t, metric.bounds(s, t)[1]).labels(tau)


def raw_clusters(encoder: Encoder, n_states: int, tau: float) -> int:
    """Clusters of the learned distance itself, which nothing proves."""
    s, t = np.triu_indices(n_states, 1)
    distances: FloatArray = encoder.distance(s, t)
    return int(spanning_forest(n_states, s, t, distances).labels(tau).max()) + 1


def refines(fine: IntArray, coarse: IntArray) -> bool:
    """Whether every cluster of the first lies in one of the second."""
    both = np.unique(np.stack([fine, coarse]), axis=1)
    return bool(both.shape[1] == int(fine.max()) + 1)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="rooms, taxi, distances; all by default")
    parser.add_argument("--quick", action="store_true", help="small budgets")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    parts = (
        ("rooms", compare_rooms, 150_000),
        ("taxi", compare_taxi, 100_000),
        ("distances", compare_distances, 100_000),
    )
    unknown = set(arguments.parts) - {part for part, *_ in parts}
    if unknown:
        parser.error(f"no part {sorted(unknown)}; there are {', '.join(x for x, *_ in parts)}")
    steps = 200 if arguments.quick else 5_000
    for part, run, size in parts:
        if not arguments.parts or part in arguments.parts:
            run(Options(steps, size // (10 if arguments.quick else 1), arguments.seed))


if __name__ == "__main__":
    main()
