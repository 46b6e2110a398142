"""Value loss of state aggregation: exact metric, both arms of one build, and cheap baselines.

The paper: models with planted groups are clustered at thresholds between the distances within
and across groups, the aggregated model is solved, its greedy policy lifted, and the loss against
V* measured. First |S| = 30 with six groups at four thresholds and eight seeds; then |S| = 120 with
twelve groups, gamma 0.9, k' = 12 and eight seeds, beside random coverage, rewards alone, and a
sampled metric.

It leaves open: the generator, the noise, k' of the first study, what 0.25 to 0.9 of the way
between the bands means (the exact metric itself merges groups at 0.75, so it cannot be between the
largest distance within and the least across: here it is between the two means), what is embedded
(rewards cannot be: it says that these do not tell groups apart; here it is the exact metric, as in
its bound audit, and beside it value features, which need no metric), and what "sampled" means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bisim_abstract import Certificate
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._propose.retrieval import uniform_pairs
from bisim_abstract.parts import cluster_by_rewards, landmark_mds, single_build, value_features
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
from paper.planted import (
    GAMMA,
    GENERATOR,
    LOSS,
    SWEEPS,
    Checks,
    Truth,
    check_build,
    count,
    is_covered,
    planted_mdp,
    small,
    spread,
    truth_of,
)

SHARES = (0.25, 0.5, 0.75, 0.9)
PUBLISHED: dict[str, Any] = {
    "exact": (0.03, 0.03, 0.67, 1.63),
    "upper": (0.03, 0.03, 0.03, 0.94),
    "lower": (2.86, 2.86, 2.86, 2.86),
    "bias": 0.33,
    # |S| = 120: mean loss, its spread, clusters
    "exact metric": (0.022, 0.008, "12"),
    "ANN, upper arm": (0.022, 0.008, "12-14"),
    "ANN, lower freeze": (1.47, 0.55, "1"),
    "random coverage, upper arm": (0.017, 0.009, "25-46"),
    "rewards alone": (1.47, 0.55, "1"),
    "sampled, one sweep": (1.47, 0.55, "1"),
    "squeeze": "8/8",
    "mean clusters": 12.8,
}
INDEX = "LSH16"
DIM = 6  # of the paper's MDS
SMALL_NEIGHBOURS, NEIGHBOURS = 6, 12
EXACT, FEATURES = "MDS of the exact metric, operating", "value features, operating"
SOME = "MDS of the exact metric, any that gives the groups"


def run(options: Options) -> Result:
    """Both studies."""
    result = Result("downstream", "Downstream value loss of aggregation")
    seeds = range(options.seed, options.seed + (2 if options.quick else 8))
    checks: list[Checks] = []
    small_study(result, options, seeds, checks)
    large_study(result, options, seeds, checks)
    runs = len(checks)
    result.claims += [
        theorem("both arms enclose the metric on all pairs", sum(x.encloses for x in checks), runs),
        theorem(
            "the lower arm's error equals rho, its largest error on uncovered pairs",
            sum(x.lower_identity for x in checks),
            runs,
        ),
        theorem(
            "the upper arm's error equals its largest error on uncovered pairs",
            sum(x.upper_identity for x in checks),
            runs,
        ),
        theorem(
            "clusters of the upper arm refine the exact ones, these over covered pairs refine "
            "the lower arm's",
            sum(x.chain for x in checks),
            runs,
        ),
    ]
    result.choices += [
        GENERATOR,
        LOSS,
        "The paper's 'normalized' loss is taken to mean rewards normalised to [0, 1].",
        (
            "Retrieval uses the landmark MDS of the exact metric in R^6 and an LSH index of 16 "
            "planes (the paper cannot have embedded rewards, which by its own account separate "
            "nothing); value features, which need no metric, are shown beside it."
        ),
        f"k' is {SMALL_NEIGHBOURS} at |S| = 30, where the paper gives none.",
        (
            "Random coverage draws k' partners per state; with as many distinct pairs as the index "
            "retrieves, which was tried first, it gives 52-63 clusters."
        ),
        (
            "Thresholds of the first study lie so far from the mean distance within groups to the "
            "mean across; that of the second is the geometric mean of the largest within and the "
            "least across."
        ),
        (
            "The sampled metric backs up as many random pairs as the index retrieves, once, from "
            "one sampled successor per state and action under the reward distance; all others read "
            "the reward distance."
        ),
    ]
    return result


def build(truth: Truth, points: FloatArray, neighbours: int, seed: int) -> Certificate:
    """Algorithm 2 on given points, to convergence."""
    return single_build(
        truth.mdp, GAMMA, neighbours=neighbours, embedding=points, index=INDEX, sweeps=SWEEPS,
        seed=seed,
    )  # fmt: skip


def exact_points(truth: Truth, seed: int) -> FloatArray:
    """The exact metric by landmark MDS."""

    def distances(s: IntArray, t: IntArray) -> FloatArray:
        return truth.metric.bounds(s, t)[1]

    return np.asarray(landmark_mds(distances, truth.n, dim=DIM, seed=seed))


def small_study(result: Result, options: Options, seeds: range, checks: list[Checks]) -> None:
    """Four thresholds, three metrics."""
    losses: dict[str, list[list[float]]] = {"exact": [], "upper": [], "lower": []}
    counts: dict[str, list[list[int]]] = {"exact": [], "upper": [], "lower": []}
    biases = []
    for seed in seeds:
        truth = truth_of(*planted_mdp(30, 6, seed=seed))
        made = build(truth, exact_points(truth, seed), SMALL_NEIGHBOURS, seed)
        lower, upper = made.bounds(truth.first, truth.second)
        far = is_covered(made, truth.first, truth.second) & ~truth.is_within
        biases.append(float((upper - truth.above)[far].mean()))
        per_tau: list[dict[str, IntArray]] = []
        for share in SHARES:
            tau = truth.band_threshold(share)
            checks.append(check_build(made, truth, tau))
            per_tau.append(
                {
                    "exact": truth.linked(truth.above, tau),
                    "upper": made.partitions(tau)[1],
                    # What is frozen at the under-estimate links as well: the failure shown.
                    "lower": truth.linked(lower, tau),
                }
            )
        for name in losses:
            losses[name].append([truth.loss(x[name]) for x in per_tau])
            counts[name].append([count(x[name]) for x in per_tau])
    means = {name: np.mean(rows, axis=0) for name, rows in losses.items()}
    titles = {
        "exact": "exact metric",
        "upper": "ANN, upper arm",
        "lower": "ANN, lower freeze",
    }
    columns = [f"{kind} {share:g}" for share in SHARES for kind in ("paper", "ours", "clusters")]
    rows: list[tuple[Any, ...]] = []
    for name, title in titles.items():
        cells: list[Any] = []
        for k in range(len(SHARES)):
            seen = [x[k] for x in counts[name]]
            cells += [PUBLISHED[name][k], float(means[name][k]), spread(seen)]
        rows.append((title, *cells))
    result.tables.append(
        ResultTable(
            "downstream_30",
            f"|S| = 30, six groups: mean value loss by threshold, {len(seeds)} seeds",
            ("aggregated by", *columns),
            rows,
        )
    )
    scale = "the scale of losses depends on the unspecified generator"
    for k, share in enumerate(SHARES):
        for name, title in titles.items():
            if name == "lower" and share != 0.5:
                continue  # one figure at all thresholds
            text = f"|S| = 30, threshold {share:g}: loss of the {title}"
            published, ours = PUBLISHED[name][k], float(means[name][k])
            if published == 0.03:  # in units in which one cluster loses 2 to 3, this is nothing
                result.claims.append(small(text, published, ours))
            else:
                why = scale
                if name == "upper":
                    why = "here the upper arm separates the groups at this threshold still"
                result.claims.append(judged(text, published, ours, why=why))
    operating = np.abs(np.array(losses["upper"]) - np.array(losses["exact"]))[:, :2].mean()
    result.claims.append(
        Claim(
            "mean absolute difference between upper arm and exact metric at 0.25 and 0.5",
            "0.0",
            f"{operating:.2g}",
            REPRODUCED if operating <= 0.005 else DIFFERENT,
            "" if operating <= 0.005 else scale,
        )
    )
    worse = sum(
        int(u <= e + 1e-9)
        for us, es in zip(losses["upper"], losses["exact"], strict=True)
        for u, e in zip(us[2:], es[2:], strict=True)
    )
    total = 2 * len(seeds)
    result.claims.append(
        Claim(
            "beyond 0.5 the upper arm loses no more than the exact metric",
            "yes",
            f"{worse}/{total} runs",
            REPRODUCED if worse == total else CLOSE,
            "" if worse == total else "finer clusters need not lose less in every single run",
        )
    )
    merged = sum(int(x == 1) for rows_ in counts["lower"] for x in rows_)
    result.claims.append(
        Claim(
            "the frozen under-estimate merges everything into one cluster",
            "all",
            f"{merged}/{4 * len(seeds)}",
            REPRODUCED if merged == 4 * len(seeds) else CLOSE,
            "" if merged == 4 * len(seeds) else "at low thresholds some group stays apart",
        )
    )
    bias = float(np.mean(biases))
    result.claims.append(
        judged(
            "mean over-estimate of the upper arm on covered pairs across groups",
            PUBLISHED["bias"],
            bias,
            why="depends on D relative to the distances, hence on the generator; its sign is "
            "certain",
        )
    )
    draw(result, options, losses, titles)


def draw(
    result: Result,
    options: Options,
    losses: Mapping[str, list[list[float]]],
    titles: Mapping[str, str],
) -> None:
    """Losses by threshold, published and measured."""
    with figure(result, options.out, "downstream_30") as axes:
        colours = {"exact": "tab:gray", "upper": "tab:blue", "lower": "tab:red"}
        for name, rows in losses.items():
            mean, std = np.mean(rows, axis=0), np.std(rows, axis=0)
            axes.plot(SHARES, mean, "o-", color=colours[name], label=titles[name])
            low = np.maximum(mean - std, 0.0)
            axes.fill_between(SHARES, low, mean + std, color=colours[name], alpha=0.12, lw=0)
            axes.plot(SHARES, PUBLISHED[name], "x--", color=colours[name], alpha=0.6, lw=1)
        axes.plot([], [], "kx--", alpha=0.6, lw=1, label="published")
        axes.set_xlabel("threshold, from the mean distance within groups (0) to across (1)")
        axes.set_ylabel("mean value loss")
        axes.set_title("|S| = 30, six planted groups; bands are standard deviations over seeds")
        axes.set_xticks(SHARES)
        axes.grid(alpha=0.25)
        axes.set_ylim(-0.12, 4.0)
        axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper left")


def large_study(result: Result, options: Options, seeds: range, checks: list[Checks]) -> None:
    """One threshold, many baselines."""
    n, groups = (60, 6) if options.quick else (120, 12)
    found: dict[str, list[tuple[float, int]]] = {}
    agreed = dict.fromkeys((EXACT, SOME, FEATURES), 0)
    pure = 0
    for seed in seeds:
        truth = truth_of(*planted_mdp(n, groups, seed=seed))
        tau = truth.gap_threshold()
        rng = np.random.default_rng([seed, 120])
        made = build(truth, exact_points(truth, seed), NEIGHBOURS, seed)
        features = value_features(truth.mdp, GAMMA)
        other = build(truth, features.points(), NEIGHBOURS, seed)
        chance = random_build(truth, rng)
        for one in (made, other, chance):
            checks.append(check_build(one, truth, tau))
        agreed[EXACT] += np.array_equal(*made.partitions(tau))
        agreed[SOME] += any(x.n_clusters == groups for x in made.certified_thresholds())
        agreed[FEATURES] += np.array_equal(*other.partitions(tau))
        pure += np.array_equal(made.partitions(tau)[1], truth.linked(truth.above, tau))
        labels = {
            "exact metric": truth.linked(truth.above, tau),
            "ANN, upper arm": made.partitions(tau)[1],
            "ANN, lower freeze": truth.linked(made.bounds(truth.first, truth.second)[0], tau),
            "random coverage, upper arm": chance.partitions(tau)[1],
            "rewards alone": cluster_by_rewards(truth.mdp, tau),
            "sampled, one sweep": truth.linked(sampled(truth, made.n_covered, rng), tau),
            "upper arm, value features": other.partitions(tau)[1],
        }
        for name, clusters in labels.items():
            found.setdefault(name, []).append((truth.loss(clusters), count(clusters)))
    rows: list[tuple[Any, ...]] = []
    for name, pairs in found.items():
        published = PUBLISHED.get(name, (None, None, None))
        losses = [x for x, _ in pairs]
        rows.append(
            (
                name, published[0], float(np.mean(losses)), published[1], float(np.std(losses)),
                published[2], spread([x for _, x in pairs]),
            )
        )  # fmt: skip
    result.tables.append(
        ResultTable(
            "downstream_120",
            f"|S| = {n}, {groups} groups, k' = {NEIGHBOURS}, {len(seeds)} seeds",
            (
                "aggregated by", "paper loss", "ours", "paper ±", "ours ±", "paper clusters",
                "ours clusters",
            ),
            rows,
        )
    )  # fmt: skip
    claim_large(result, rows, agreed, pure, len(seeds), n)


def claim_large(
    result: Result,
    rows: list[tuple[Any, ...]],
    agreed: Mapping[str, int],
    pure: int,
    runs: int,
    n: int,
) -> None:
    """Verdicts of the second study."""
    by_name = {row[0]: row for row in rows}
    scale = "the scale of losses depends on the unspecified generator; ours spread widely"
    for name, row in by_name.items():
        if row[1] is None:
            continue
        text = f"|S| = {n}: loss, {name}"
        if row[1] < 0.1:
            result.claims.append(small(text, row[1], row[2], spread=row[3]))
        else:
            result.claims.append(judged(text, row[1], row[2], why=scale))
    ours = by_name["random coverage, upper arm"][6]
    low, high = (int(x) for x in (ours.split("-") * 2)[:2])
    result.claims.append(
        Claim(
            f"|S| = {n}: random coverage splits true groups",
            "25-46 clusters",
            f"{ours} clusters",
            REPRODUCED if low >= 20 and high <= 56 else CLOSE,
            "" if low >= 20 and high <= 56 else "fewer states, or other coverage",
        )
    )
    for name in ("ANN, lower freeze", "rewards alone", "sampled, one sweep"):
        ours = by_name[name][6]
        result.claims.append(
            Claim(
                f"|S| = {n}: clusters, {name}",
                "1",
                ours,
                REPRODUCED if ours == "1" else CLOSE,
                "" if ours == "1" else "a group with unusual rewards stays apart in some seeds",
            )
        )
    result.claims.append(
        Claim(
            f"|S| = {n}: the upper arm recovers the exact clustering",
            "12-14 clusters for 12",
            f"equal in {pure}/{runs} seeds, {by_name['ANN, upper arm'][6]} clusters",
            REPRODUCED if pure >= 0.5 * runs else CLOSE,
            "" if pure >= 0.5 * runs else "LSH leaves members of a group without a link",
        )
    )
    result.tables.append(
        ResultTable(
            "downstream_squeeze",
            f"|S| = {n}: seeds in which both arms agree over covered pairs",
            ("retrieval, threshold", "paper", "ours", "seeds"),
            [
                (name, PUBLISHED["squeeze"] if name == EXACT else None, held, runs)
                for name, held in agreed.items()
            ],
        )
    )
    held = agreed[EXACT]
    result.claims.append(
        Claim(
            f"|S| = {n}: both arms agree over covered pairs at the operating threshold",
            PUBLISHED["squeeze"],
            f"{held}/{runs}; at some threshold that gives the groups {agreed[SOME]}/{runs}",
            REPRODUCED if held == runs else DIFFERENT,
            ""
            if held == runs
            else "covered pairs across groups read frozen under-estimates at their successors, so "
            "that the lower arm links some of the nearest groups unless the threshold is low",
        )
    )


def random_build(truth: Truth, rng: np.random.Generator) -> Certificate:
    """The same arms over k' partners per state, drawn at random."""
    arms = Arms(truth.mdp, GAMMA, lower_start="reward", upper_start="constant")
    arms.cover(*uniform_pairs(truth.n, per_state=NEIGHBOURS, seed=rng))
    made = 0
    while made < SWEEPS:
        made += 1
        if max(arms.sweep()) == 0.0:
            break
    return Certificate.of(arms, tau=None, stop="swept", run={"sweeps": made})


def sampled(truth: Truth, pairs: int, rng: np.random.Generator) -> FloatArray:
    """One backup of random pairs from single sampled successors; rewards elsewhere."""
    mdp = truth.mdp
    n, n_actions = mdp.n_states, mdp.n_actions
    after = np.array(
        [[rng.choice(x, p=p / p.sum()) for x, p in (mdp.successors(s, a) for a in range(n_actions))]
         for s in range(n)]
    )  # fmt: skip
    table = np.abs(mdp.rewards[:, None] - mdp.rewards[None]).max(axis=2)
    distances = table[truth.first, truth.second]
    chosen = rng.choice(truth.first.size, pairs, replace=False)
    s, t = truth.first[chosen], truth.second[chosen]
    rewards = np.abs(mdp.rewards[s] - mdp.rewards[t])
    distances[chosen] = (rewards + GAMMA * table[after[s], after[t]]).max(axis=1)
    return np.asarray(distances)
