"""The certified pipeline against a one-shot build.

The paper runs its Algorithm 1 as stated, from d_R and U, embedding the lower arm anew every E = 3
sweeps, in 32 configurations (|S| in {10, 18}, k' in {3, 6}, 8 seeds). It beats or matches the
one-shot variant in all of them (mean error 0.22 against 1.18), its coverage gap falls from 1.18 to
0.10, the error is max(rho_t, e_t) at every checkpoint, and the distortion falls from 0.61 to 0.20.

Left open: hyperplanes (here 6), the tolerance or number of rounds (here 10 rounds), and the start.
The text says d_R, but a one-shot error of 1.18 is that of an arm that starts from 0 (the paper's
own audit has 0.73 from d_R). Both starts are run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from bisim_abstract._base.types import FloatArray
from bisim_abstract.parts import distortion, landmark_mds, single_build
from paper import grid
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
from paper.grid import GAMMA, World

PUBLISHED = {
    "final error": 0.22,
    "one-shot error": 1.18,
    "first rho": 1.18,
    "final rho": 0.10,
    "first distortion": 0.61,
    "final distortion": 0.20,
}

SEEDS, ROUNDS, SWEEPS, PLANES = 8, 10, 3, 6
STARTS = ("reward", "zero")
TITLES = {"reward": "d_R", "zero": "0"}


@dataclass(frozen=True)
class Checkpoint:
    """The state after one round.

    Attributes:
        coverage: Share of pairs covered.
        error: Global error of the lower arm.
        rho: Coverage gap.
        covered: Covered error e_t.
        eta: Distortion of the embedding that the round used, against the exact metric.
        width: Mean width over all pairs.
    """

    coverage: float
    error: float
    rho: float
    covered: float
    eta: float
    width: float


@dataclass(frozen=True, eq=False)
class Traced:
    """One configuration.

    Attributes:
        start: Of the lower arm.
        n: Number of states.
        k: Neighbours per state and round.
        one_shot: Error of a single build over the first round's retrieved pairs.
        checkpoints: After each round.
        tracks: The error was max(rho_t, e_t) at every checkpoint.
        encloses: Both arms enclosed the metric at every checkpoint.
        is_monotone: Neither the arms nor rho_t nor coverage ever went back.
        one_shot_identity: The one-shot error equals its coverage gap.
        mean_eta: Distortion of the embedding of the mean reward difference over actions, which
            is not the paper's d_R.
    """

    start: str
    n: int
    k: int
    one_shot: float
    checkpoints: list[Checkpoint]
    tracks: bool
    encloses: bool
    is_monotone: bool
    one_shot_identity: bool
    mean_eta: float


def run(options: Options) -> Result:
    """Both starts, with a figure of errors over rounds."""
    result = Result("pipeline", "The pipeline against one shot")
    seeds = 1 if options.quick else SEEDS
    rounds = 5 if options.quick else ROUNDS
    traced = [
        trace(start, n, k, seed, rounds, options)
        for start in STARTS
        for n, k, seed in product(grid.SIZES, grid.BUDGETS, range(seeds))
    ]
    result.tables += [summary_table(traced), round_table(traced)]
    result.claims += theorem_claims(traced) + measured_claims(traced)
    result.choices += [
        (
            f"{rounds} rounds of {SWEEPS} sweeps with one uniform partner per state, {PLANES} "
            "hyperplanes; the paper's stopping tolerance is not given."
        ),
        (
            "The one-shot build is swept to its fixed point over the pairs that the first round "
            "of the pipeline retrieves, without its uniform partners."
        ),
        (
            "From 0 the one-shot build embeds d_R; the first round of the pipeline has only zeros "
            "to embed, and its neighbours are drawn by chance."
        ),
    ]
    draw(result, options, traced)
    return result


def trace(start: str, n: int, k: int, seed: int, rounds: int, options: Options) -> Traced:
    """Rounds of the pipeline, one by one, and the one-shot build."""
    world = grid.make_world(n, [options.seed, 4, seed, n, k])
    s, t = grid.all_pairs(n)
    key = int(np.random.default_rng([options.seed, 5, seed, n, k]).integers(2**31))
    one_shot, is_identity = build_once(world, start, k, key)
    tracks = encloses = is_monotone = True
    points = []
    lower, upper = world.start(start)[s, t], np.full(s.size, np.inf)
    table = world.start(start)  # what the first round embeds
    rho, coverage = np.inf, 0.0
    states = np.arange(n)
    for made, certificate in enumerate(
        grid.by_rounds(
            world.mdp,
            rounds,
            neighbours=k,
            sweeps_per_round=SWEEPS,
            index=f"LSH{PLANES}",
            lower_start=start,
            seed=key,
        )
    ):
        # The round's own embedding, from the same seed.
        eta = distortion_of(embed(table, [key, made]), world)
        old_lower, old_upper = lower, upper
        lower, upper = certificate.bounds(s, t)
        covered = grid.covered_by(certificate)
        arms = grid.make_arms(world, covered, lower_start=start)
        tol = 2.0 * world.gap + grid.start_rounding(arms)
        error = float(np.abs(world.truth[s, t] - lower).max())
        gap = grid.coverage_gap(world, covered, start)
        inside = float(np.abs(world.truth[covered] - certificate.lower).max())
        tracks &= abs(error - max(gap, inside)) <= tol
        encloses &= grid.encloses(world, lower, upper)
        is_monotone &= bool((lower >= old_lower - tol).all() and (upper <= old_upper).all())
        is_monotone &= gap <= rho and certificate.coverage >= coverage
        rho, coverage = gap, certificate.coverage
        table = certificate.bounds(states[:, None], states)[0]
        width = float((upper - lower).mean())
        points.append(Checkpoint(coverage, error, gap, inside, eta, width))
    differences = np.abs(world.mdp.rewards[:, None] - world.mdp.rewards).mean(axis=2)
    mean_eta = distortion_of(embed(differences, [key, 0]), world)
    return Traced(
        start, n, k, one_shot, points, tracks, encloses, is_monotone, is_identity, mean_eta
    )


def build_once(world: World, start: str, k: int, key: int) -> tuple[float, bool]:
    """A single build over the embedding of d_R: its error, and whether that is its rho."""
    # From d_R the build embeds its own start, and covers what the pipeline's first round does.
    points = embed(world.rewards, [key, 0]) if start == "zero" else None
    certificate = single_build(
        world.mdp,
        GAMMA,
        sweeps=1000,
        neighbours=k,
        embedding=points,
        dim=grid.DIM,
        index=f"LSH{PLANES}",
        lower_start=start,
        seed=key,
        threads=1,
    )
    s, t = grid.all_pairs(world.n)
    error = float(np.abs(world.truth[s, t] - certificate.bounds(s, t)[0]).max())
    covered = grid.covered_by(certificate)
    arms = grid.make_arms(world, covered, lower_start=start)
    arms.restore(certificate.keys, certificate.lower, certificate.upper, 0)
    rho = grid.coverage_gap(world, covered, start)
    return error, abs(error - rho) <= grid.tolerance(world, arms)


def embed(table: FloatArray, seed: list[int]) -> FloatArray:
    """Landmark scaling of a table, as the pipeline makes it."""
    return landmark_mds(
        lambda s, t: table[s, t], len(table), dim=grid.DIM, seed=np.random.default_rng(seed)
    )


def distortion_of(points: FloatArray, world: World) -> float:
    """Against the exact metric."""
    truth = world.truth
    return distortion(points, lambda s, t: truth[s, t], world.n)


# -- tables and claims -------------------------------------------------------------------------


def means(traced: Sequence[Traced], name: str) -> list[float]:
    """Mean of one figure after each round."""
    return [
        grid.mean(getattr(x.checkpoints[r], name) for x in traced)
        for r in range(len(traced[0].checkpoints))
    ]


def summary_table(traced: Sequence[Traced]) -> ResultTable:
    """First and last checkpoints beside the published means."""
    by_start = grid.grouped(traced, lambda x: x.start)
    rows: list[tuple[Any, ...]] = []

    def add(text: str, published: float, measure: str, place: int) -> None:
        rows.append((text, published, *(means(by_start[x], measure)[place] for x in STARTS)))

    one_shot = (grid.mean(x.one_shot for x in by_start[y]) for y in STARTS)
    rows.append(("one-shot error", PUBLISHED["one-shot error"], *one_shot))
    add("final error", PUBLISHED["final error"], "error", -1)
    add("rho after the first round", PUBLISHED["first rho"], "rho", 0)
    add("final rho", PUBLISHED["final rho"], "rho", -1)
    add("final covered error", float("nan"), "covered", -1)
    add("distortion of the first embedding", PUBLISHED["first distortion"], "eta", 0)
    add("distortion of the last embedding", PUBLISHED["final distortion"], "eta", -1)
    add("final coverage", 1.0, "coverage", -1)
    return ResultTable(
        "pipeline_summary",
        f"Means over {len(by_start['reward'])} configurations, {len(traced[0].checkpoints)} rounds",
        ("quantity", "published", *(f"from {TITLES[x]}" for x in STARTS)),
        rows,
    )


def round_table(traced: Sequence[Traced]) -> ResultTable:
    """Means after each round."""
    rows = []
    for start, of in grid.grouped(traced, lambda x: x.start).items():
        names = ("coverage", "error", "rho", "covered", "eta", "width")
        columns = [means(of, name) for name in names]
        for r, values in enumerate(zip(*columns, strict=True), 1):
            rows.append((TITLES[start], r, *values))
    return ResultTable(
        "pipeline_rounds",
        "After each round: means over configurations",
        ("start", "round", "coverage", "error", "rho", "covered error", "distortion", "width"),
        rows,
    )


def theorem_claims(traced: Sequence[Traced]) -> list[Claim]:
    """What must hold in every run."""
    count = len(traced)
    return [
        theorem(
            "Error is max(rho_t, e_t) at every checkpoint",
            sum(x.tracks for x in traced),
            count,
            published="32/32",
        ),
        theorem(
            "Both arms enclose the metric at every checkpoint",
            sum(x.encloses for x in traced),
            count,
            published="proved",
            in_abstract=True,
        ),
        theorem(
            "Arms only tighten and rho_t never grows",
            sum(x.is_monotone for x in traced),
            count,
            published="proved",
        ),
        theorem(
            "One-shot error equals its rho",
            sum(x.one_shot_identity for x in traced),
            count,
            published="proved",
        ),
    ]


def measured_claims(traced: Sequence[Traced]) -> list[Claim]:
    """What depends on models, rounds and the start."""
    claims = []
    for start, of in grid.grouped(traced, lambda x: x.start).items():
        wins = sum(x.checkpoints[-1].error <= x.one_shot for x in of)
        name = f"from {TITLES[start]}"
        rounds = len(of[0].checkpoints)
        why = "other random models"
        if start == "reward":
            why = (
                "the paper says d_R, but its 1.18 is the gap of an arm from 0: its own audit has "
                "0.73 from d_R"
            )
        claims += [
            Claim(
                f"Pipeline matches or beats one shot, {name}",
                "32/32",
                f"{wins}/{len(of)}",
                REPRODUCED if wins == len(of) else CLOSE if wins >= 0.9 * len(of) else DIFFERENT,
                "" if wins == len(of) else "unlucky coverage",
            ),
            judged(
                f"Mean one-shot error, {name}",
                PUBLISHED["one-shot error"],
                grid.mean(x.one_shot for x in of),
                why=why,
            ),
            judged(
                f"Mean final error, {name}",
                PUBLISHED["final error"],
                means(of, "error")[-1],
                why=f"depends on the number of rounds, {rounds} here, which is not published",
            ),
            judged(
                f"Mean final rho, {name}",
                PUBLISHED["final rho"],
                means(of, "rho")[-1],
                why=f"depends on the number of rounds, {rounds} here, which is not published",
            ),
        ]
        if start == "reward":
            claims += distortion_claims(of, means(of, "eta"))
            claims.append(transient_claim(of))
    return claims


def distortion_claims(traced: Sequence[Traced], eta: list[float]) -> list[Claim]:
    """Distortion over rounds, from d_R."""
    rises = [r + 1 for r in range(1, len(eta)) if eta[r] > eta[r - 1]]
    single = sum(
        any(b.eta > a.eta for a, b in zip(x.checkpoints, x.checkpoints[1:], strict=False))
        for x in traced
    )
    return [
        judged(
            "Distortion of the first embedding, of d_R",
            PUBLISHED["first distortion"],
            eta[0],
            why="d_R is within gamma times a transport cost of the metric, about 0.35 on these "
            "models; with the mean over actions in its place, as the audit suggests, it is "
            f"{grid.mean(x.mean_eta for x in traced):.2g}",
        ),
        judged(
            "Distortion of the last embedding",
            PUBLISHED["final distortion"],
            eta[-1],
            why="the scaling of the exact metric has about 0.15 on these models",
        ),
        Claim(
            "Mean distortion falls at every re-embedding",
            "monotonically",
            f"{eta[0]:.3g} to {eta[-1]:.3g}, rising in {len(rises)} of {len(eta) - 1} rounds",
            REPRODUCED if not rises else CLOSE if eta[-1] < eta[0] else DIFFERENT,
            ""
            if not rises
            else f"partly covered arms embed worse; it rises somewhere in "
            f"{single} of {len(traced)} single runs",
        ),
    ]


def transient_claim(traced: Sequence[Traced]) -> Claim:
    """Which of rho_t and e_t dominates at the end."""
    late = [x for x in traced if x.checkpoints[-1].covered > x.checkpoints[-1].rho]
    done = sum(x.checkpoints[-1].coverage == 1.0 for x in late)
    error, rho = means(traced, "error")[-1], means(traced, "rho")[-1]
    is_same = error > 1.5 * rho
    return Claim(
        "Late in the run the covered transient dominates (final error over final rho)",
        "0.22 / 0.10",
        f"{error:.3g} / {rho:.3g}; e_t > rho_t in {len(late)} of {len(traced)} runs",
        REPRODUCED if is_same else DIFFERENT,
        ""
        if is_same
        else "three sweeps at gamma = 0.7 shrink covered errors faster than coverage grows; of the "
        f"runs where e_t is the larger, {done} of {len(late)} have covered all pairs",
    )


def draw(result: Result, options: Options, traced: Sequence[Traced]) -> None:
    """Error, rho and covered error over rounds, for both starts."""
    colours = {"reward": "#2166ac", "zero": "#b2182b"}
    with figure(result, options.out, "pipeline_rounds") as axes:
        for start, of in grid.grouped(traced, lambda x: x.start).items():
            rounds = np.arange(1, len(of[0].checkpoints) + 1)
            colour, name = colours[start], f"from {TITLES[start]}"
            axes.plot(rounds, means(of, "error"), "o-", color=colour, label=f"error, {name}")
            axes.plot(rounds, means(of, "rho"), "x", ms=9, color=colour, label=f"ρₜ, {name}")
            axes.plot(
                rounds, means(of, "covered"), ":", color=colour, label=f"covered error eₜ, {name}"
            )
            once = grid.mean(x.one_shot for x in of)
            axes.plot(0, once, "s", color=colour, label=f"one shot, {name}")
        axes.plot(
            0,
            PUBLISHED["one-shot error"],
            "D",
            mfc="white",
            color="black",
            label="published: one shot, final error",
        )
        axes.plot(rounds[-1], PUBLISHED["final error"], "D", mfc="white", color="black")
        axes.set(
            xlabel="rounds of 3 sweeps (0: one shot, swept to its fixed point)",
            ylabel="mean error of the lower arm",
            ylim=(0, None),
        )
        axes.legend(fontsize=8, ncols=2)
        axes.grid(alpha=0.3)
