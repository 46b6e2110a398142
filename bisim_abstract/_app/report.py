"""`write_report`: a certificate as one HTML file that opens offline and can be explored.

Words and tables are written here; what is drawn (`_report_data`) travels as JSON inside the
page, and the page's own script draws it. Everything that comes from outside is escaped, and the
page forbids itself every request.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.value import amount_text, share_text
from bisim_abstract._app.palette import style_sheet
from bisim_abstract._app.report_data import (
    Drawn,
    Json,
    check_places,
    choose_drawn,
    draw_curves,
    draw_forest,
    draw_frontier,
    draw_map,
    draw_steps,
    draw_tree,
    draw_widths,
    first_tau,
    is_small,
    joined_at,
    kept_intervals,
    restrict,
    scatter,
    tau_range,
    trace_values,
)
from bisim_abstract._app.state_map import StateMap, state_map, two_widest
from bisim_abstract._base.atomic import replacing
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.progress import shown
from bisim_abstract._base.text import clusters_text, counted
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._certificate.frontier import Frontier, FrontierPoint
from bisim_abstract._certificate.nearest import NearPair
from bisim_abstract._certificate.verdict import Verdict, judge
from bisim_abstract._compare.learning import Curve
from bisim_abstract._compare.losses import AbstractionLoss
from bisim_abstract._linkage.thresholds import CertifiedInterval, middle
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._propose.embedding import Embedding, as_points
from bisim_abstract._verify.verify import Verification
from bisim_abstract._version import __version__
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["write_report"]

MAX_RECORD = 300  # rows of the record
MAX_TEXT = 2_000  # characters of one of its values
NEAREST = 5  # pairs of states that are shown where little is merged
MAX_COSTS = 8_000_000  # pairs of successors that are compared for that, some seconds
MARKS = {"useful": "✓", "poor": "!", "open": "✗"}  # of verdicts


def write_report(
    path: str | Path,
    mdp: TabularMDP,
    certificate: Certificate,
    *,
    verification: Verification | None = None,
    places: StateMap | None = None,
    comparison: Sequence[AbstractionLoss] = (),
    curves: Sequence[Curve] = (),
    embedding: Embedding | npt.ArrayLike | None = None,
    title: str | None = None,
    record: Mapping[str, Any] | None = None,
    commands: Sequence[str] = (),
    callback: ProgressCallback | None = None,
    progress: bool = False,
) -> Path:
    """Write a certificate and what belongs to it as one HTML file without outside parts.

    The file replaces an older one in one step. Of large models, an even sample of the states is
    drawn, and only the certificate's own threshold comes with a value; the page says so. Numbers
    of clusters and verdicts are those of all states.

    Args:
        path: The file; its folder must exist.
        mdp: The model.
        certificate: What to show, which speaks of that model.
        verification: What `verify` found, if it was asked.
        places: Where to draw states; by default as `state_map` does.
        comparison: Rows of `compare_abstractions`.
        curves: Learning curves.
        embedding: Points (n_states, k), or an object with `encode`, to draw as well.
        title: Heading; by default the environment's name.
        record: Settings, seeds and the like, to be listed.
        commands: Command lines that make this report again.
        callback: Called after every threshold that is evaluated for it, which takes longest.
        progress: Show a line of progress, on a terminal, in a notebook or in a log.

    Returns:
        The path of the file.

    Raises:
        InvalidArgumentError: If the certificate is of another model, or an argument does not
            fit the model.
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> from bisim_abstract import certify
        >>> from bisim_abstract.parts import grouped_mdp
        >>> mdp, _ = grouped_mdp(20, 4, seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = write_report(f"{folder}/report.html", mdp, certify(mdp, 0.9))
        ...     written.stat().st_size > 10_000
        True
    """
    call = "write_report(path, mdp, certificate)"
    check_mdp(mdp, call=call)
    if not isinstance(certificate, Certificate):
        raise InvalidArgumentError(
            f"certificate must be a Certificate, got {certificate!r}; the order is {call}"
        )
    if certificate.fingerprint != mdp.fingerprint:
        raise InvalidArgumentError("the certificate is of another model")
    if isinstance(commands, str):
        raise InvalidArgumentError(f"commands must be a list of command lines, got {commands!r}")
    points = None if embedding is None else as_points(embedding, mdp.n_states)
    if places is None:
        places = state_map(mdp, embedding=points)
        if not places.is_grid:
            points = None  # the map shows them already
    check_places(places, mdp.n_states)
    parts = (verification, places, points, tuple(comparison), tuple(curves))
    with shown(callback, progress, on_terminal=False) as report:
        page = _Page(certificate, mdp, *parts, report)
    text = page.render(_title(title, mdp), record, tuple(str(line) for line in commands))
    target = Path(path)
    with replacing(target) as file:
        # A lone surrogate in somebody's metadata is no reason to fail.
        file.write(text.encode("utf-8", "replace"))
    return target


class _Page:
    """One page in the making: the certificate, and what was derived from it once."""

    def __init__(
        self,
        certificate: Certificate,
        mdp: TabularMDP,
        verification: Verification | None,
        places: StateMap,
        points: npt.NDArray[np.float32] | None,
        comparison: tuple[AbstractionLoss, ...],
        curves: tuple[Curve, ...],
        report: ProgressCallback | None,
    ) -> None:
        certificate = _by_bounds(certificate)
        self.certificate, self.mdp, self.verification = certificate, mdp, verification
        self.verdict: Verdict = judge(certificate, verification)
        self.places, self.points = places, points
        self.comparison, self.curves = comparison, curves
        self.drawn: Drawn = choose_drawn(places, mdp.n_states)
        self.intervals: list[CertifiedInterval] = certificate.certified_thresholds()
        self.tau = first_tau(certificate, self.intervals)
        self.frontier: Frontier = trace_values(certificate, mdp, self.intervals, report)
        end = certificate.terminal_state
        self.n_lower, self.n_upper = (
            int(forest.count_live(self.tau, end)) for forest in certificate.forests
        )

    # -- the page --------------------------------------------------------------------------

    def render(self, title: str, record: Mapping[str, Any] | None, commands: Sequence[str]) -> str:
        """The whole file."""
        tree = draw_tree(self.certificate, self.intervals, self.drawn)
        check, checked = self.check()
        tiles = list(self.tiles())
        return Template(_asset("page.html")).substitute(
            title=_text(title),
            style=style_sheet() + _asset("report.css"),
            script=_asset("report.js"),
            data=embed(self.data(tree)),
            about=_text(self.about(title)),
            level=self.verdict.level,
            mark=MARKS[self.verdict.level],
            verdict=_text(self.verdict.sentence),
            conditions=_text(self.conditions()),
            check=check,
            checked=_text(checked),
            times=self.times(),
            leading=_tiles(self.leading()),
            columns="4" if len(tiles) <= 8 else "5",  # two rows, both nearly full
            tiles=_tiles(tiles),
            caption=_text(self.caption()),
            profile=_text(self.profile_note()),
            frontier=_text(self.frontier_note()),
            little=self.little(),
            coverage=_text(self.coverage()),
            merges=self.merges(tree),
            comparison=self.table(),
            pair=self.pair(),
            meaning="".join(f"<p>{_text(line)}</p>" for line in self.meaning()),
            remedies=self.remedies(),
            commands=_commands(commands),
            record=self.record(record),
            version=_text(__version__),
        )

    def data(self, tree: Json | None) -> Json:
        """What the page's script reads."""
        certificate, drawn = self.certificate, self.drawn
        intervals = kept_intervals(self.intervals, self.tau)
        ends = np.array([end for i in intervals for end in (i.low, i.high)], dtype=np.float64)
        is_whole = drawn.states.size == certificate.n_states
        arms = {}
        for name, forest in zip(("lower", "upper"), certificate.forests, strict=True):
            # The forest of all states gives the counts too.
            steps = None if is_whole else draw_steps(forest, ends)
            arms[name] = {
                "forest": draw_forest(restrict(forest, drawn.states)),
                "steps": steps,
                "joined": joined_at(forest, certificate.terminal_state),
            }
        cloud = None
        if self.points is not None:
            x, y = two_widest(np.asarray(self.points, dtype=np.float64))
            cloud = scatter(x[drawn.states], -y[drawn.states])
        return {
            "n_states": certificate.n_states,
            "n_live": certificate.n_live,
            "end": certificate.terminal_state,
            "scope": certificate.scope,
            "tau": self.tau,
            "range": tau_range(certificate.forests, self.tau),
            "arms": arms,
            "intervals": [
                [i.low, None if math.isinf(i.high) else i.high, i.n_clusters] for i in intervals
            ],
            "intervals_complete": len(intervals) == len(self.intervals),
            "frontier": draw_frontier(certificate, self.frontier),
            "map": draw_map(self.places, drawn, self.mdp.state_ids),
            "widths": draw_widths(certificate),
            "tree": tree,
            "curves": draw_curves(self.curves),
            "embedding": cloud,
        }

    # -- words -----------------------------------------------------------------------------

    def conditions(self) -> str:
        """Under what conditions the verdict holds."""
        certificate = self.certificate
        parts = []
        if certificate.tau is not None:
            parts.append(f"Threshold tau {_number(certificate.tau)}")
        if certificate.scope == "covered":
            share = _percent(certificate.coverage)
            parts.append(f"covered pairs only, {share} of all: others may still link clusters")
        else:
            parts.append("all pairs of states")
        if certificate.alpha is not None:
            parts.append(f"with probability at least {1.0 - certificate.alpha:.6g}")
        text = "; ".join(parts)
        return text[0].upper() + text[1:]

    def check(self) -> tuple[str, str]:
        """The same for what the independent checker said."""
        found = self.verification
        if found is None:
            return "none", "Not checked independently in this report"
        if not found.is_valid:
            return "bad", f"Rejected by the independent check: {found.problem}"
        parts = [f"{found.mode} arithmetic", counted(found.pairs_checked, "pair")]
        if found.levels_checked:
            parts.append(counted(found.levels_checked, "block level"))
        if found.features_checked:
            parts.append(counted(found.features_checked, "feature"))
        if found.values_checked:
            parts.append(counted(found.values_checked, "bound") + " on values")
        word = "spot-checked" if found.verdict == "sampled" else "verified"
        return "good", f"All claims {word} by independent code ({', '.join(parts)})"

    def times(self) -> str:
        """How long it took, as a paragraph; what compiled solvers, once, is told apart."""
        run, found = self.certificate.run, self.verification
        took = [(run.get("seconds"), "to certify")]
        compiled = [run.get("compile_seconds")]
        if found is not None:
            took.append((found.seconds, "to verify"))
            compiled.append(found.compile_seconds)
        # Records come from files: what is no number of seconds is not told.
        known = [(float(x), what) for x, what in took if _is_duration(x)]
        text = ", ".join(f"{_seconds(x)} {what}" for x, what in known)
        spent = math.fsum(float(x) for x in compiled if _is_duration(x))
        if spent >= 0.05:
            text += "; " if text else ""
            text += f"{_seconds(spent)} went into compiling the solvers, once"
        return f'<p class="times" id="times">{_text(text)}</p>' if text else ""

    def about(self, title: str) -> str:
        """The model in one line."""
        mdp, parts = self.mdp, []
        env = mdp.metadata.get("env")
        if isinstance(env, str) and env and env != title:
            parts.append(env)
        if mdp.terminal_state is not None:
            parts.append("episodes end in one added state")
        if mdp.estimate is not None:
            parts.append("model estimated from samples")
        parts.append(f"model {mdp.fingerprint[:12]}")
        return " · ".join(parts)

    def clusters(self, count: int) -> str:
        """Clusters as they are counted everywhere."""
        return clusters_text(count, has_end=self.certificate.terminal_state is not None)

    def leading(self) -> Iterator[tuple[str, str]]:
        """The figures that matter most: what is kept, what is lost, with how many clusters."""
        certificate = self.certificate
        value, tau = certificate.value, certificate.tau
        unknown = "not asked" if certificate.is_certified else "not certified"
        kept, loss = unknown, unknown
        if value is not None:
            kept, loss = _kept(value.kept), f"≤\N{NO-BREAK SPACE}{amount_text(value.loss)}"
        yield "start value kept, proven", kept
        yield "loss in any state, proven", loss
        number, _, words = self.clusters(self.n_upper).partition(" ")
        words += f" of {counted(certificate.n_live, 'state')}"
        if tau is None:
            number = "undecided"
        elif self.n_lower != self.n_upper:
            number = f"{_short(self.n_lower)} to {_short(self.n_upper)}"
        yield words, number

    def tiles(self) -> Iterator[tuple[str, str]]:
        """Further figures."""
        certificate, mdp, n = self.certificate, self.mdp, self.certificate.n_states
        if certificate.is_certified:
            yield "compression", f"{_number(certificate.n_live / self.n_upper)}×"
        yield "actions", f"{mdp.n_actions:,}"
        yield "transitions", f"{mdp.nnz:,}"
        yield "pairs of states", _short(n * (n - 1) // 2)
        yield "pairs covered", _percent(certificate.coverage)
        yield "widest bound gap", _number(certificate.global_width)
        yield "discount γ", f"{certificate.gamma:g}"
        if certificate.tau is not None:
            yield "threshold tau", _number(certificate.tau)

    def caption(self) -> str:
        """What the map shows."""
        words = [self.places.caption]
        n, shown = self.certificate.n_states, int(self.drawn.states.size)
        if self.drawn.stride > 1:
            side = self.drawn.stride
            words.append(
                f"To keep the page small, one state stands for each {side} by {side} squares: "
                f"{shown:,} of {n:,} are drawn."
            )
        elif shown < n:
            words.append(f"An even sample of {shown:,} of {n:,} states is drawn.")
        without = int((~self.places.has_place[self.drawn.states]).sum())
        if without and shown == n:
            is_end = without == 1 and self.mdp.terminal_state is not None
            words.append(
                "The end of episodes has no place on it."
                if is_end
                else f"{counted(without, 'state')} without a place not drawn."
            )
        if not self.places.is_grid:
            words.append("States at the same place cover each other.")
        return " ".join(words)

    def profile_note(self) -> str:
        """How complete the profile is."""
        count = len(self.intervals)
        text = f"{counted(count, 'certified range')} of tau (shaded)."
        kept = len(kept_intervals(self.intervals, self.tau))
        if kept < count:
            text += f" This page lists {kept:,}: the widest, and the one chosen."
        return text

    def frontier_note(self) -> str:
        """What the points of the frontier are, and what was left out."""
        done, every = len(self.frontier.points), self.frontier.n_thresholds
        if not done:
            text = "No certified clustering was evaluated."
        elif self.frontier.is_complete:
            text = "All certified ranges of tau were evaluated."
        else:
            text = f"{done:,} of {counted(every, 'certified range')} of tau evaluated."
        if not is_small(self.certificate):
            text += " In a model of this size, no other than the certificate's own is."
        elif done:
            text += " Each point is proven; the certificate holds the proof of its own only."
        return text

    def little(self) -> str:
        """The section of the closest states that stay apart, where little is merged."""
        if not self.certificate.merges_little:
            return ""
        costs = self.mdp.n_actions * self.mdp.max_support**2  # of one pair, at most
        most = min(NEAREST, MAX_COSTS // costs)
        pairs = self.certificate.nearest(most, self.mdp)
        if not pairs:
            text = "Too many successors to compare them here: ask certificate.nearest(5, mdp)."
            return Template(_TOO_MUCH).substitute(text=_text(text)) if not most else ""
        rows = "".join(self.near_row(pair) for pair in pairs)
        clusters = self.clusters(self.certificate.n_clusters)
        text = f"{clusters} of {counted(self.certificate.n_live, 'state')}: most states stay apart."
        return Template(_LITTLE).substitute(text=_text(text), rows=rows)

    def near_row(self, pair: NearPair) -> str:
        """One row of that section."""
        low, high = _number(pair.lower), _number(pair.upper)
        total = pair.reward + pair.future
        reward = f"{pair.reward / total:.0%}" if total > 0.0 else "–"
        future = f"{pair.future / total:.0%}" if total > 0.0 else "–"
        successors = "; ".join(
            f"{self.state(s)} and {self.state(t)} ({share:.0%})"
            for s, t, share in pair.successors
            if share >= 0.005
        )
        return (
            f'<tr><th scope="row">{_text(self.state(pair.first))} and '
            f"{_text(self.state(pair.second))}</th>"
            + _cell("distance", low if low == high else f"{low} to {high}")
            + _cell("by action", f"{pair.action}")
            + _cell("from reward", reward)
            + _cell("from future", future)
            + _cell("successors", successors or "–")
            + "</tr>"
        )

    def state(self, state: int) -> str:
        """A state for people: its number, and its id where that is another one."""
        if state == self.mdp.terminal_state:
            return "the end"
        own = int(self.mdp.state_ids[state])
        return f"{state}" if own == state else f"{state} (id {own})"

    def coverage(self) -> str:
        """What the histogram is over."""
        certificate = self.certificate
        total = certificate.n_states * (certificate.n_states - 1) // 2
        text = (
            f"Covered, with bounds of their own: {certificate.n_covered:,} of "
            f"{counted(total, 'pair')} ({_percent(certificate.coverage)})."
        )
        if certificate.n_covered < total:
            text += " All others are bounded through blocks of states, value features and rewards."
        return text

    def merges(self, tree: Json | None) -> str:
        """The section of the dendrogram, or why there is none."""
        if tree is None:
            text = "No certified range has between 2 and 60 clusters, so there is nothing to draw."
            return f'<p class="empty">{text}</p>'
        leaves = len(tree["leaves"])
        text = (
            f"Leaves are the {self.clusters(tree['clusters'])} certified at tau "
            f"{_number(tree['low'])}. Lines are certified clusters; a band spans the thresholds "
            "between which the lines on its left are proven to merge."
        )
        if tree["finer"]:
            text += f" {counted(tree['finer'], 'finer certified range')} left out, for space."
        return (
            f'<p class="note">{_text(text)}</p>'
            '<div class="plot" id="tree" role="img" '
            f'aria-label="Tree of certified merges, {leaves} leaves"></div>'
        )

    def table(self) -> str:
        """The section of value losses, or nothing."""
        if not self.comparison:
            return ""
        columns = ("sup", "mean", "start")
        tops = {
            name: max(
                (v for row in self.comparison if math.isfinite(v := getattr(row.loss, name))),
                default=0.0,
            )
            for name in columns
        }
        # Here, too, the end of episodes is none of the clusters.
        head = self.clusters(2).partition(" ")[2]
        body = []
        for row in self.comparison:
            mark = '<span class="chip">certified</span>' if row.is_certified else ""
            name = "" if row.is_certified and row.name == "certified" else _text(row.name)
            cells = [
                f'<th scope="row">{name} {mark}</th>',
                _cell(head, f"{row.n_clusters:,}"),
            ]
            names = ("largest loss", "mean loss", "loss at start")
            for column, label in zip(columns, names, strict=True):
                value = getattr(row.loss, column)
                share = value / tops[column] if tops[column] > 0.0 and math.isfinite(value) else 0.0
                cells.append(_cell(label, _number(value), bar=share))
            cells.append(_cell("value kept", _kept(row.loss.kept)))
            bound = "–" if row.bound is None else amount_text(row.bound)
            cells.append(_cell("certified bound", bound))
            kind = ' class="certified"' if row.is_certified else ""
            body.append(f"<tr{kind}>{''.join(cells)}</tr>")
        return Template(_COMPARISON).substitute(rows="".join(body), clusters=_text(head))

    def pair(self) -> str:
        """Learning curves and the embedding, side by side if there are both."""
        parts = []
        if self.curves:
            parts.append(_CURVES)
        if self.points is not None:
            parts.append(_EMBEDDING)
        return f'<div class="pair">{"".join(parts)}</div>' if parts else ""

    def meaning(self) -> Iterator[str]:
        """What the verdict says, in plain words."""
        certificate = self.certificate
        yield (
            "Two states are close if no sequence of actions tells them apart by much: that is the "
            "bisimulation metric. At a threshold tau, states are linked if they are at most tau "
            "apart, and clusters are what links connect."
        )
        yield (
            "Distances are not computed but enclosed, by two arms: the upper arm links only "
            "what is proven close, the lower arm separates only what is proven apart. Where "
            "both give the same number of clusters they are the same clusters, and those of the "
            "metric itself: certified. Elsewhere the truth lies between the two."
        )
        if certificate.scope == "covered":
            yield (
                "This certificate speaks of covered pairs only. A pair that was not covered may "
                "still link two of its clusters."
            )
        if certificate.alpha is not None:
            yield (
                "The model was estimated from samples. With probability at least "
                f"{1.0 - certificate.alpha:.6g} over the samples, all bounds hold for the "
                "true model."
            )
        yield (
            "Certified means that the clustering is right, not that it is useful. What it is worth "
            "has a proof of its own: a policy planned on the clusters, and bounds on what it is "
            "worth in every state. Of the start value, that of acting at random counts as 0% and "
            "the best there is as 100%; the largest loss is over all states, starts or not."
        )
        if certificate.terminal_state is not None:
            yield "The end of episodes is no cluster and is not counted as one."

    def remedies(self) -> str:
        """What to do where nothing useful is certified; nothing otherwise."""
        certificate, n = self.certificate, self.certificate.n_live
        is_all = certificate.scope == "all"
        if self.verdict.level == "useful":
            text = "To hear of all pairs, run certify with scope &quot;all&quot;."
            return "" if is_all else f"<h3>What to try</h3><p>{text}</p>"
        lines = []
        if self.verification is not None and not self.verification.is_valid:
            lines.append("Do not use this certificate: what it claims does not follow.")
        good = self.frontier.coarsest(certificate.keep)
        if good is not None and good.n_clusters < n:
            lines.append(
                f"Take tau {_inside(good)}: {self.clusters(good.n_clusters)}, on which planning "
                f"keeps {share_text(good.kept)} of the start value."
            )
        elif any(1 < interval.n_clusters < n for interval in self.intervals):
            lines.append(
                "Choose a threshold in a shaded range: the buttons above go from one to the next."
            )
        if certificate.value is None and certificate.is_certified:
            lines.append("Ask what it is worth: certificate.with_value(mdp).")
        elif certificate.value is not None and certificate.value.kept < certificate.keep:
            lines.append("Be content with less: certify(mdp, gamma, keep=...) takes any share.")
        if certificate.tau is not None and not certificate.is_certified:
            lines.append("Leave out the threshold: certify then looks for a useful one itself.")
        if not is_all:
            lines.append('Certify over all pairs: certify(mdp, gamma, scope="all").')
        lines += [
            "Allow more pairs (max_pairs) or more time (max_seconds).",
            "Propose better blocks: an embedding of states, or a partition of your own.",
            "Accept it: a model whose states all differ has no smaller one to be found.",
        ]
        stop = f" This run ended because: {certificate.stop}." if certificate.stop else ""
        items = "".join(f"<li>{_text(line)}</li>" for line in lines)
        return f"<h3>What to try</h3><p>{_text(stop.strip())}</p><ul>{items}</ul>"

    def record(self, record: Mapping[str, Any] | None) -> str:
        """Everything known about how this came about, as rows of a table."""
        certificate, mdp = self.certificate, self.mdp
        entries: dict[str, Any] = {} if record is None else dict(record)
        entries["certificate"] = {
            "tau": certificate.tau,
            "scope": certificate.scope,
            "alpha": certificate.alpha,
            "stop": certificate.stop,
            "fingerprint of the model": certificate.fingerprint,
            "run": dict(certificate.run),
        }
        entries["model"] = dict(mdp.metadata)
        if self.verification is not None:
            found = self.verification
            entries["verification"] = {
                "verdict": found.verdict,
                "mode": found.mode,
                "widening": found.widening,
            }
        rows = list(_flat(entries))
        left = len(rows) - MAX_RECORD
        body = "".join(
            f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>'
            for name, value in rows[:MAX_RECORD]
        )
        if left > 0:
            more = "1 more entry" if left == 1 else f"{left:,} more entries"
            body += f'<tr><th scope="row">and</th><td>{more}</td></tr>'
        return body


_COMPARISON = """
<section class="card" id="comparison"><h2>What planning on clusters loses</h2>
<p class="note">A policy is planned on the clusters, carried back to the states, and compared with
the optimum there. Losses are at most as given, the value kept at least. The last column is what
the certificate itself proves.</p>
<div class="scroll"><table class="losses"><thead><tr><th scope="col">clustering</th>
<th scope="col">$clusters</th><th scope="col">largest loss</th><th scope="col">mean loss</th>
<th scope="col">loss at start</th><th scope="col">value kept</th>
<th scope="col">certified bound</th></tr></thead><tbody>$rows</tbody></table></div></section>
"""

_LITTLE = """
<section class="card" id="little"><h2>Why little is merged</h2>
<p class="note">$text Here are the closest states of different clusters: how far they are apart,
under which action, and how much of that is a difference of rewards at once and how much comes
from the states that follow, with the pairs of successors that matter most.</p>
<div class="scroll"><table class="losses near"><thead><tr><th scope="col">states</th>
<th scope="col">distance</th><th scope="col">by action</th><th scope="col">from reward</th>
<th scope="col">from future</th><th scope="col">successors</th></tr></thead>
<tbody>$rows</tbody></table></div></section>
"""

_TOO_MUCH = """
<section class="card" id="little"><h2>Why little is merged</h2>
<p class="note">$text</p></section>
"""

_CURVES = """
<section class="card" id="learning"><h2>Learning</h2>
<p class="note">Median over seeds; the band is their range.</p>
<div class="plot" id="curves" role="img" aria-label="Learning curves"></div>
<ul class="legend" id="curves-legend"></ul></section>
"""

_EMBEDDING = """
<section class="card" id="cloud"><h2>Embedding</h2>
<p class="note">The two directions in which it varies most, in the colours of the map.
An embedding proposes; it proves nothing.</p>
<div class="canvas"><canvas id="embedding" role="img" aria-label="Embedded states in the colours
of their clusters"></canvas></div></section>
"""


def _by_bounds(certificate: Certificate) -> Certificate:
    """The same with the clusters that its bounds give; labels in a file may be others."""
    tau = certificate.tau
    if tau is None:
        return certificate
    given = (certificate.labels_lower, certificate.labels_upper)
    own = zip(given, certificate.partitions(tau), strict=True)
    is_same = all(np.array_equal(numbered(x), numbered(y)) for x, y in own)
    return certificate if is_same else certificate.at(tau)


def embed(data: Json) -> str:
    """JSON that can stand inside a script element whatever its strings say."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _asset(name: str) -> str:
    return files("bisim_abstract._app").joinpath("page", name).read_text(encoding="utf-8")


def _title(title: str | None, mdp: TabularMDP) -> str:
    if title is not None:
        return str(title)
    env = mdp.metadata.get("env")
    return env if isinstance(env, str) and env else f"A model of {counted(mdp.n_states, 'state')}"


def _text(value: str) -> str:
    return html.escape(value, quote=True)


def _cell(head: str, text: str, *, bar: float | None = None) -> str:
    style = "" if bar is None else f' class="bar" style="--share:{min(max(bar, 0.0), 1.0):.4f}"'
    return f'<td data-head="{_text(head)}"{style}>{_text(text)}</td>'


def _tiles(tiles: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f'<div class="tile"><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>'
        for name, value in tiles
    )


def _commands(commands: Sequence[str]) -> str:
    if not commands:
        return ""
    return (
        '<div class="commands"><button type="button" id="copy">Copy</button>'
        f'<pre id="commands">{_text(chr(10).join(commands))}</pre></div>'
    )


def _is_duration(value: Any) -> TypeGuard[float]:
    """Whether it is a number of seconds that was measured."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0.0 < value < math.inf


def _seconds(value: float) -> str:
    """A duration, to a tenth of a second where that says something."""
    return f"{value:,.1f} s" if value >= 0.05 else "under 0.1 s"


def _number(value: float) -> str:
    """Three or four digits that people read, and never more."""
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "unbounded"
    if 0.0 < abs(value) < 1e-300:
        return "almost 0"
    if value != 0.0 and not 1e-3 <= abs(value) < 1e7:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(share: float) -> str:
    """A percentage, rounded down; it says 0% or 100% only where it is so."""
    if math.isnan(share):
        return "not known"
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if 0.0 < share < 0.001:
        return "under 0.1%"
    return f"{math.floor(share * 1000.0 + 1e-9) / 1000.0:.1%}"


def _kept(share: float) -> str:
    """A share that is proven to be kept, rounded down; what is not above 0 proves nothing."""
    if not share > 0.0:
        return "nothing proven"
    return (
        "100%" if share >= 1.0 else f"≥\N{NO-BREAK SPACE}{math.floor(share * 1000.0) / 10.0:.1f}%"
    )


def _inside(point: FrontierPoint) -> str:
    """A threshold that gives a clustering, in as few digits as will do."""
    tau = middle(CertifiedInterval(point.low, point.high, point.n_clusters))
    text = f"{tau:.6g}"
    return text if point.low <= float(text) < point.high else repr(tau)


def _short(count: int) -> str:
    """A count in as few characters as will do: 3,123,750 is 3.12 million."""
    for size, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g} {word}" if count < 1000 * size else f"{count:.2e}"
    return f"{count:,}"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as rows of a name and a text."""
    if isinstance(value, Mapping) and len(value):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
        return
    if isinstance(value, list | tuple):
        text = ", ".join(str(entry) for entry in value) or "none"
    else:
        text = "none" if value is None or isinstance(value, Mapping) else str(value)
    yield name, text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
