"""Certificates over all pairs: blocks first, then what their bounds leave open.

One step after another tightens the bounds, and none loosens them:

1. blocks: partitions are proposed, repaired and bounded as block pairs; the best one is kept
   (if there are few states, all pairs follow at once, or come first where they are quick and
   values decide, so that there are many thresholds to choose from);
2. features: value functions keep states apart that blocks do not;
3. inside: pairs within blocks that are too wide are covered, and swept;
4. witnesses: functions made to tell blocks apart that are still too close;
5. across: pairs between blocks that may be too close are covered, and swept;
6. behind: so are pairs that the open ones of these read;
7. split: blocks that stay in the way are cut in two, as a further level;
8. all pairs, if these are few enough.

After every step the clusterings of both arms are compared. What they still disagree about at the
threshold decides where the next step looks. If the threshold is to be found, it is chosen by
what a policy over its clusters is proven to be worth: the coarsest certified one that is worth
enough; and while a clearly coarser one seems to be, though it is not certified yet, that is
where the next step looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from bisim_abstract._base.arrays import array_digest
from bisim_abstract._base.checks import check_int, check_real
from bisim_abstract._base.text import counted
from bisim_abstract._base.types import BoolArray, IntArray, Progress
from bisim_abstract._bounds.arms import Arms
from bisim_abstract._bounds.features import value_features
from bisim_abstract._bounds.spanning import Cells, common_refinement, find_cells, row_reader
from bisim_abstract._bounds.tell_apart import make_witnesses
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._exact.metric import bisimulation_metric
from bisim_abstract._prove.apart import pairs_ahead
from bisim_abstract._prove.cost import COVERING, FUNCTIONS, SWEEPING, Cost, round_of_witnesses
from bisim_abstract._prove.levels import Levels
from bisim_abstract._prove.making import make_certificate
from bisim_abstract._prove.standing import Standing, go_on
from bisim_abstract._prove.sweeping import (
    CHECK_EVERY,
    JUMP_AFTER,
    Purse,
    Sweeper,
    moved_outward,
    sweeps_needed,
)
from bisim_abstract._prove.target import Target
from bisim_abstract._prove.work import Pause

if TYPE_CHECKING:
    from bisim_abstract._prove.blocks import Blocks
    from bisim_abstract._prove.options import Options

MOST_DIFFERENCES = 300_000_000  # of functions between states and blocks, in a round of witnesses
SPLITS = 2  # rounds of splitting
ROUNDS = 1_000  # of witnesses, at most
AT_ONCE = 4.0  # seconds: all pairs are solved for at once rather than narrowed down to
LONG = 2.0  # seconds: before sweeping for longer, it is looked at what this can reach at best
QUICK_CELLS = 10_000_000  # ground costs of all pairs up to which these come first
CHASE = 8_000_000  # backups of pairs in one step towards a threshold that seems worth it


class Refinement:
    """A run over all pairs, one step at a time.

    Args:
        table: Arms over pairs of states, nothing covered.
        method: How to look for blocks.
        options: What to reach.

    Attributes:
        table: The arms over pairs of states and what these read.
        target: What to reach.
        standing: What they certify now.
        done: Number of steps made.
        log: What each of them did.
    """

    unit = "step"

    def __init__(self, table: Arms, method: Blocks, options: Options) -> None:
        self.table = table
        self.target = Target.of(options, table)
        self.done = 0
        self.log: list[str] = []
        self._method, self._seed = method, options.seed
        self._labels, self._points = method.read(table.n)
        self._resources = table.resources
        self.standing = Standing(
            table,
            self.target,
            method.max_pairs,
            Cost.of(table.mdp, options.max_seconds, table.relation),
        )
        self._levels = Levels(
            self.standing,
            labels=self._labels,
            points=self._points,
            sources=tuple(method.propose),
            seed=options.seed,
        )
        pairs = (self._inside, self._witnesses, self._across, self._behind)
        self._plan: tuple[Callable[[], str], ...] = (
            self._quick_pairs,
            self._levels.choose,
            self._few_pairs,
            self._features,
            *pairs,
            *((self._levels.split, *pairs) * SPLITS),
            self._all_pairs,
        )

    def step(self, pause: Pause) -> bool:
        """Make the next step; False if there is none left."""
        is_all_covered = self.table.n_covered == self.standing.n_pairs
        if self.done == len(self._plan) or (self.done and is_all_covered):
            return False
        self.standing.pause = pause
        try:
            text = self._plan[self.done]()
        except BaseException:  # cut short: bounds may have moved
            self.standing.forget()
            raise
        self.done += 1
        if text:  # else no bound has moved
            self.standing.forget()
            self.log.append(text)
        return True

    def settle(self) -> None:
        """After the last step, or an interruption: keep what an unfinished step has proven."""
        self.standing.pause = go_on  # nobody waits for a step any more
        text = self._levels.take()
        if text:
            self.log.append(text)
            self.standing.forget()

    def settings(self) -> Mapping[str, Any]:
        """The target decides where steps look, and the method what they may take."""
        method = self._method
        return asdict(self.target) | {
            "partition": array_digest(self._labels),
            "embedding": array_digest(self._points),
            "propose": list(method.propose),
            "max_pairs": method.max_pairs,
        }

    def record(self) -> Mapping[str, Any]:
        """How it went."""
        return {"steps": list(self.log), "estimated_seconds": self.standing.cost.spent}

    def resume(self, checkpoint: Certificate) -> None:
        """Go on from the certificate of an unfinished run."""
        run = checkpoint.run
        done = check_int("rounds", run["rounds"], low=0, high=len(self._plan))
        log = [str(text) for text in run["steps"]]
        spent = check_real("estimated_seconds", run["estimated_seconds"])
        for level in checkpoint.levels:
            self.table.add_level(level)
        if checkpoint.features is not None:
            self.table.set_features(checkpoint.features)
        self.table.restore(checkpoint.keys, checkpoint.lower, checkpoint.upper, run["backups"])
        self.done, self.log, self.standing.cost.spent = done, log, spent

    @property
    def backups(self) -> int:
        """Backups made so far, of pairs of states and of blocks."""
        return self.table.backups + self._levels.backups

    def reason(self) -> str:
        """Why the goal is reached; empty if it is not."""
        return self.standing.reason(self.done)

    def leftover(self) -> str:
        """Why there was nothing more to try."""
        return self.standing.leftover()

    def certificate(
        self, *, stop: str, run: Mapping[str, Any], is_final: bool, is_hasty: bool = False
    ) -> Certificate:
        """What is proven now; with a threshold and its value if nothing follows."""
        tau = None
        if is_hasty:  # at a threshold asked for, clusters without their value
            tau = None if self.standing.forests_at_hand is None else self.target.tau
        elif is_final:
            tau = self.standing.threshold()
        return make_certificate(
            self.table,
            tau=tau,
            stop=stop,
            run=run,
            scope=self._method.scope,
            goal=self.target.goal,
            forests=self.standing.forests_at_hand if tau is None else self.standing.forests,
            prove=None if is_hasty else self.standing.search.prove,
        )

    def _features(self) -> str:
        table = self.table
        if table.starts.diameter == 0.0:
            return ""  # rewards are all the same, and so are the states
        if table.ground.features is not None:
            return ""  # blocks needed them already
        self.standing.pause("computing value features", "")
        found = value_features(
            table.mdp,
            table.gamma,
            count=FUNCTIONS,
            relation=table.relation.name,
            resources=self._resources,
        )
        table.set_features(found)
        return f"{found.values.shape[0]} value features"

    def _inside(self) -> str:
        """Cover pairs within blocks that the upper arm cannot connect, small blocks first."""
        tau = self.standing.aim()
        if tau is None:
            return ""
        labels, is_wide, n_open = self._wide_blocks(tau)
        room, needed = self.standing.room, int(n_open[is_wide].sum())
        if not is_wide.any() or needed > room:
            return ""  # those left out would stay in the way
        instead = self._all_instead(needed)
        if instead is not None:
            return instead
        if self.standing.sweep_seconds(needed, SWEEPING) > LONG and self.standing.is_stuck:
            return ""
        # Where the threshold is still to be found, others may be in the way of a better one.
        order = np.lexsort((n_open, ~is_wide))
        order = order[(n_open > 0)[order] & (is_wide | self.target.is_free)[order]]
        wide = order[np.cumsum(n_open[order]) <= room]
        members_of = np.argsort(labels, kind="stable")
        begins = np.concatenate([[0], np.cumsum(np.bincount(labels))])
        first, second = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for block in wide.tolist():
            members = members_of[begins[block] : begins[block + 1]]
            i, j = np.triu_indices(members.size, 1)
            first.append(members[i])
            second.append(members[j])
        instead = self._all_instead(sum(x.size for x in first))
        if instead is not None:
            return instead
        added = self._cover(np.concatenate(first), np.concatenate(second))
        if added == 0:
            return ""
        self._sweep_pairs(tau, "inside blocks", is_lower=False)
        return f"{counted(added, 'pair')} inside {counted(wide.size, 'block')}"

    def _wide_blocks(self, tau: float) -> tuple[IntArray, BoolArray, IntArray]:
        """Blocks, which of them the upper arm cannot connect, and their pairs not covered yet."""
        labels = common_refinement(self.table.n, self.table.ground.levels)
        above = self.standing.forests[1].labels(tau)
        parts = np.unique(np.stack([labels, above]), axis=1)[0]  # block of each part of a block
        sizes = np.bincount(labels)
        is_wide = np.bincount(parts, minlength=sizes.size) > 1
        first, second = self.table.pairs()
        inside = labels[first][labels[first] == labels[second]]
        covered = np.bincount(inside, minlength=sizes.size)
        return labels, is_wide, sizes * (sizes - 1) // 2 - covered

    def _is_out_of_reach(self, tau: float) -> bool:
        """Whether a threshold that was asked for leaves blocks open that cannot be looked into.

        Then it does not help to keep clusters apart.
        """
        if self.target.is_free:
            return False
        _, is_wide, n_open = self._wide_blocks(tau)
        return int(n_open[is_wide].sum()) > self.standing.room

    def _cover(self, first: IntArray, second: IntArray) -> int:
        """Cover pairs, and note what that takes; how many of them were new."""
        added = self.table.cover(first, second)
        self.standing.cost.spend(self.standing.sweep_seconds(added, COVERING))
        return added

    def _across(self) -> str:
        """Cover pairs that may be linked although the upper arm keeps them apart."""
        tau = self.standing.aim_apart()
        if tau is None or self._is_out_of_reach(tau):
            return ""
        s, t = self._open_pairs(tau, self.standing.room)
        instead = self._all_instead(2 * s.size)  # of both arms
        if instead is not None:
            return instead
        added = self._cover(s, t) if s.size else 0
        if added == 0:
            return ""
        self._sweep_pairs(tau, "across blocks", is_lower=True)
        return f"{counted(added, 'pair')} across blocks"

    def _behind(self) -> str:
        """Cover what the backups of open pairs read, where that is not covered itself."""
        tau, table = self.standing.aim_apart(), self.table
        if tau is None or self._is_out_of_reach(tau):
            return ""
        above = self.standing.forests[1].labels(tau)
        s, t = table.pairs()
        is_open = (above[s] != above[t]) & (table.lower <= tau)
        room = self.standing.room
        lengths = np.diff(table.mdp.indptr).reshape(table.n, -1)
        if int((lengths[s[is_open]] * lengths[t[is_open]]).sum()) > 20 * room:
            return ""
        first, second = np.divmod(pairs_ahead(table, table.keys[is_open]), table.n)
        apart = above[first] != above[second]
        first, second = first[apart], second[apart]
        if first.size == 0 or first.size > room:
            return ""
        added = self._cover(first, second)
        if added == 0:
            return ""
        self._sweep_pairs(tau, "behind open pairs", is_lower=True, is_upper=False)
        return f"{counted(added, 'pair')} behind open ones"

    def _all_instead(self, n_pairs: int) -> str | None:
        """Solve for all pairs where that is quicker than sweeping some; None if it is not.

        Nothing is done if even that is too long for what speaks for it.
        """
        # Until a start has shrunk to a thousandth.
        sweeps = min(sweeps_needed(self.table.gamma, 1e-3), 2 * JUMP_AFTER)  # and jumps
        is_longer = self.standing.sweep_seconds(n_pairs, sweeps) > self.standing.all_seconds()
        if self.table.mdp.is_sampled or not is_longer:
            return None
        if self.standing.too_long():
            return ""
        return None if self.standing.too_many() else self._all_pairs()

    def _open_pairs(self, tau: float, room: int) -> tuple[IntArray, IntArray]:
        """Uncovered pairs in different clusters of the upper arm that may be within tau."""
        table = self.table
        above = self.standing.forests[1].labels(tau)
        cells = find_cells(table.n, table.ground)
        read = row_reader(table.n, table.ground, cells)
        order = np.argsort(cells.labels, kind="stable")
        begins = np.concatenate([[0], np.cumsum(cells.sizes)])
        none = np.empty(0, np.int64)
        found: list[tuple[IntArray, IntArray]] = []
        total = seen = 0
        for cell in range(cells.first.size):
            near = read(cell) <= tau
            near[:cell] = False
            s = order[begins[cell] : begins[cell + 1]]
            t = order[near[cells.labels[order]]]
            seen += s.size * t.size
            if seen > 20 * (room + table.n_covered):
                return none, none
            for block in np.array_split(s, 1 + s.size * t.size // 1_000_000):
                x, y = (z.ravel() for z in np.meshgrid(block, t, indexing="ij"))
                use = (above[x] != above[y]) & ((cells.labels[y] != cell) | (x < y))
                x, y = x[use], y[use]
                close = table.bounds(x, y)[0] <= tau
                found.append((x[close], y[close]))
                total += int(close.sum())
                if total > room:
                    return none, none
        if not found:
            return none, none
        return np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])

    def _sweep_pairs(
        self, tau: float, where: str, *, is_lower: bool, is_upper: bool = True
    ) -> None:
        table = self.table
        limit, begin = sweeps_needed(table.gamma), table.backups
        what = f"sweeping {counted(table.n_covered, 'pair')} {where}"
        little = 1e-4 * max(tau, self.target.resolution)
        sweeper = Sweeper(
            table,
            lower=is_lower,
            upper=is_upper,
            tol=1e-2 * little,
            pause=lambda detail: self.standing.pause(what, detail),
            purse=Purse(self.standing.cost, self.standing.cost.backup),
        )
        for sweep in range(1, limit + 1):
            if self.target.is_by_value and table.backups - begin > CHASE:
                break  # this threshold was only a hope
            if not sweeper.is_affordable:
                break
            moved = sweeper.sweep()
            self.standing.pause(what, f"sweep {sweep}, moved {moved:.2g}")
            if moved <= little or sweeper.is_settled:
                break
            if sweep % CHECK_EVERY == 0 and self.target.tol is None:
                self.standing.forget()
                if self.target.is_by_value:
                    if any(x.low <= tau < x.high for x in self.standing.intervals):
                        break
                elif self.target.is_met(self.standing.intervals):
                    break

    def _witnesses(self) -> str:
        """Functions that tell apart blocks which radii keep their own bounds from telling apart.

        Made once: others would take their place, and by then bounds of covered pairs rest on them.
        """
        tau, table = self.standing.aim_apart(), self.table
        features = table.ground.features
        if tau is None or features is None or table.mdp.is_sampled or not table.ground.levels:
            return ""
        if not table.relation.has_witnesses:
            return ""
        if features.witnesses is not None or self._is_out_of_reach(tau):
            return ""
        model = max((level.model for level in table.ground.levels), key=lambda x: x.n_blocks)
        first, second, is_open = self._close_blocks(tau, model.labels)
        if not is_open:
            return ""
        room = max(MOST_DIFFERENCES // (table.n * model.n_blocks) - features.values.shape[0], 1)
        first, second = first[:room], second[:room]
        seconds = round_of_witnesses(table.n, model.n_blocks, first.size)
        cost, rounds = self.standing.cost, int(np.clip(10.0 / (1.0 - table.gamma), 50, ROUNDS))
        if not cost.is_given:
            rounds = min(rounds, int(cost.left / seconds))
        if rounds == 0:
            return ""

        def tell(progress: Progress) -> None:
            cost.spend(seconds)
            what = f"telling {counted(first.size, 'pair')} of blocks apart"
            self.standing.pause(what, progress.detail)

        made = make_witnesses(
            table.mdp,
            table.gamma,
            features,
            model,
            first,
            second,
            tol=0.01 * tau,
            max_rounds=rounds,
            resources=self._resources,
            callback=tell,
        )
        table.set_features(features.with_witnesses(made))
        return "1 witness" if made.count == 1 else f"{made.count:,} witnesses"

    def _close_blocks(self, tau: float, labels: IntArray) -> tuple[IntArray, IntArray, bool]:
        """Pairs of blocks, the closest first, and whether some may be within tau and should not.

        All of them, as far as there is room: what tells far blocks apart is what transports
        between the close ones read.
        """
        table = self.table
        above = self.standing.forests[1].labels(tau)
        cells = Cells.of(labels * (int(above.max()) + 1) + above)
        read = row_reader(table.n, table.ground, cells)
        block, cluster = labels[cells.first], above[cells.first]
        count = int(labels.max()) + 1
        gaps = np.full((count, count), np.inf)
        is_open = False
        for cell in range(cells.first.size):
            values = read(cell)
            np.minimum.at(gaps[block[cell]], block, values)
            is_open = is_open or bool((values[cluster != cluster[cell]] <= tau).any())
        first, second = np.triu_indices(count, 1)
        order = np.argsort(np.minimum(gaps[first, second], gaps[second, first]), kind="stable")
        return first[order], second[order], is_open

    def _quick_pairs(self) -> str:
        """All pairs at once, if that is quick and all thresholds are of interest."""
        is_quick = self.standing.pair_costs() <= QUICK_CELLS
        return self._all_pairs() if self.target.is_by_value and is_quick else ""

    def _few_pairs(self) -> str:
        """All pairs already, if they are few."""
        return self._all_pairs() if self.standing.all_seconds() <= AT_ONCE else ""

    def _all_pairs(self) -> str:
        """Every pair by itself: the exact metric."""
        table = self.table
        if table.n_covered == self.standing.n_pairs or self.standing.too_many():
            return ""
        table.cover_all()
        if table.mdp.is_sampled:  # what is solved for knows of rounding, not of such radii
            self._sweep_pairs(self.target.resolution, "one by one", is_lower=True)
        else:
            self.standing.cost.spend(self.standing.all_seconds())
            pause = self.standing.pause
            found = bisimulation_metric(
                table.mdp,
                table.gamma,
                relation=table.relation.name,
                max_sweeps=self.standing.most_sweeps(),
                resources=self._resources,
                callback=lambda progress: pause("solving for all pairs", progress.detail),
            )
            table.tighten(*moved_outward(table, *found.bounds(*table.pairs())))
        return f"all {counted(table.n_covered, 'pair')}"
