"""`write_report`: a certificate as one HTML file that opens offline and can be explored.

Words and tables are written here; figures (`figures`, `maps`) travel as JSON inside the page,
and the page's own script draws them. Everything that comes from outside is escaped, and the page
forbids itself every request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from bisim_abstract._abstract.episodes import EpisodeBounds
from bisim_abstract._abstract.value import (
    LEARNER_TERMS,
    LEAST_KEPT,
    ProvenShare,
    amount_text,
    kept_text,
    share_text,
)
from bisim_abstract._app import cluster_figures, figures, state_figures
from bisim_abstract._app.graph_figures import GraphFigure, graph_figure
from bisim_abstract._app.meaning import baseline_text, meaning, snippet
from bisim_abstract._app.page_parts import (
    Cell,
    Row,
    asset,
    between_text,
    bound_text,
    embed,
    escaped,
    flat_rows,
    is_duration,
    number_text,
    percent_text,
    seconds_text,
    section,
    table_html,
    tiles_html,
    titled,
)
from bisim_abstract._app.palette import style_sheet
from bisim_abstract._app.state_map import StateMap, state_map
from bisim_abstract._base.atomic import check_writable, replacing
from bisim_abstract._base.cached import cached_property
from bisim_abstract._base.labels import numbered
from bisim_abstract._base.progress import shown
from bisim_abstract._base.text import counted, plain_text, shortened, surely_text
from bisim_abstract._base.types import ProgressCallback
from bisim_abstract._base.untrusted import plain_values
from bisim_abstract._certificate.certificate import OF_POLICY, Certificate, bounded_by
from bisim_abstract._certificate.frontier import MAX_VALUED, Frontier, FrontierPoint
from bisim_abstract._certificate.goal import Numbers
from bisim_abstract._certificate.nearest import NearPair
from bisim_abstract._certificate.verdict import AGENTS, judge
from bisim_abstract._compare.embeddings import DISTANCES, EmbeddingFit, EmbeddingQuality
from bisim_abstract._compare.learning import Curve
from bisim_abstract._compare.losses import AbstractionLoss
from bisim_abstract._linkage.thresholds import CertifiedInterval, best_interval, middle
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract._propose.embedding import Embedding, as_points
from bisim_abstract._relations.base import Relation
from bisim_abstract._relations.table import find_relation
from bisim_abstract._verify.verify import Verification, check_counts
from bisim_abstract._version import __version__
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["write_report"]

MAX_DRAWN = 20_000  # states on the page
POSITIONS = 20_000  # along the axis of thresholds: twice as many steps are known exactly
MAX_INTERVALS = 2_000  # certified intervals on the page
MAX_PAIRS = 20_000  # pairs behind each histogram
MAX_LEAVES = 60  # more would not fit on a screen
MAX_RECORD = 300  # rows of the record
NEAREST = 5  # pairs of states that are explained where little is merged
MAX_RENAMED = 12  # clusters that are shown with their actions
MAX_COSTS = 8_000_000  # pairs of successors that are compared for that, some seconds
MARKS = {"useful": "✓", "poor": "!", "open": "✗"}  # of verdicts
# In this order; they are parts of one function.
SCRIPTS = ("data.js", "axes.js", "plots.js", "map.js", "clusters.js", "graph.js", "explorer.js")
LOSSES = ("largest loss", "mean loss", "loss at start", "retained", "certified bound")
AGENT = ("retained", "loss in any state", "loss at start")
# Agents of a guarantee, in a few words.
WHOM = {"policy": "its policy", "solver": "any solver", "learner": "any Q-learner"}
NEAR = ("distance", "by action", "from reward", "from future", "successors")


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
    quality: EmbeddingQuality | None = None,
    title: str | None = None,
    record: Mapping[str, Any] | None = None,
    bonds: Mapping[str, str] | None = None,
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
        verification: The result of `verify`, if there is one.
        places: Where to draw states; by default as `state_map` does.
        comparison: Rows of `compare_abstractions`.
        curves: Learning curves.
        embedding: Points (n_states, k), or an object with `encode`, to draw as well.
        quality: What `evaluate_embedding` found of it.
        title: Heading; by default the environment's name.
        record: Settings, seeds and the like, to be listed.
        bonds: SHA-256 of settings and files that the page is computed from, by name.
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
    _check_arguments(mdp, certificate, commands)
    check_writable(path)
    points = None if embedding is None else as_points(embedding, mdp.n_states)
    if places is None:
        places = state_map(mdp, embedding=points)
        if not places.is_grid:
            points = None  # the map shows them already
    state_figures.check_places(places, mdp.n_states)
    parts = (verification, places, points, tuple(comparison), tuple(curves), quality)
    with shown(callback, progress, on_terminal=False) as report:
        page = _Page(certificate, mdp, *parts, report)
    # These come from files that may be anybody's: a page is read as it is written.
    lines = tuple(plain_text(str(line)) for line in commands)
    told = dict(plain_values(record or {}))
    if bonds:
        told = {"computed from (SHA-256)": plain_values(bonds)} | told
    text = page.render(plain_text(_title(title, mdp)), told, lines, plain_values(bonds or {}))
    target = Path(path)
    with replacing(target) as file:
        # A lone surrogate in somebody's metadata is no reason to fail.
        file.write(text.encode("utf-8", "replace"))
    return target


def _check_arguments(mdp: TabularMDP, certificate: Certificate, commands: Sequence[str]) -> None:
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
        quality: EmbeddingQuality | None,
        report: ProgressCallback | None,
    ) -> None:
        self.certificate = certificate = _by_bounds(certificate)
        self.mdp, self.verification = mdp, verification
        self.verdict, self.quality = judge(certificate, verification), quality
        self.comparison, self.curves = comparison, figures.curve_lines(curves)
        self.measure = figures.curves_label(curves)
        end = certificate.terminal_state
        self.places = state_figures.places_figure(places, end, most=MAX_DRAWN)
        self.cloud = None
        if points is not None:
            self.cloud = state_figures.embedding_figure(points.astype(np.float64))
        profile = figures.profile_figure(certificate, positions=POSITIONS)
        self.intervals = profile.intervals
        self.tau = _first_tau(certificate, profile.intervals)
        listed = figures.widest_intervals(profile.intervals, self.tau, MAX_INTERVALS)
        self.profile = replace(profile, intervals=listed)
        self.frontier = _trace_values(certificate, mdp, profile.intervals, report)
        self.n_lower, self.n_upper = (
            int(forest.count_live(self.tau, end)) for forest in certificate.forests
        )

    @property
    def relation(self) -> Relation:
        """Which states are alike."""
        return find_relation(self.certificate.relation)

    @property
    def is_rejected(self) -> bool:
        """Whether a check found that the certificate does not hold."""
        return self.verification is not None and not self.verification.is_valid

    @cached_property
    def graph(self) -> GraphFigure | None:
        """The model over clusters, if there is one that fits."""
        return None if self.is_rejected else graph_figure(self.certificate, self.mdp, self.places)

    @cached_property
    def tree(self) -> figures.TreeFigure | None:
        """Certified merges, if there are any that fit."""
        states = self.places.states
        tree = figures.tree_figure(
            self.certificate, max_leaves=MAX_LEAVES, states=states, names=self.mdp.names
        )
        return tree if 2 <= tree.interval.n_clusters <= MAX_LEAVES else None

    # -- the page --------------------------------------------------------------------------

    def render(
        self,
        title: str,
        record: Mapping[str, Any] | None,
        commands: Sequence[str],
        bonds: Mapping[str, str],
    ) -> str:
        """The whole file."""
        check, checked = self.check()
        tiles = list(self.tiles())
        return Template(asset("page.html")).substitute(
            title=escaped(title),
            style=style_sheet() + asset("report.css"),
            script="".join(asset(name) for name in SCRIPTS),
            data=embed(self.data()),
            about=escaped(plain_text(self.about(title))),
            level=self.verdict.level,
            mark=MARKS[self.verdict.level],
            verdict=escaped(plain_text(self.verdict.sentence)),
            conditions=escaped(self.conditions()),
            check=check,
            checked=escaped(plain_text(checked)),
            times=self.times() + _bonds(bonds),
            leading=tiles_html(self.leading()),
            columns="4" if len(tiles) <= 8 else "5",  # two rows, both nearly full
            tiles=tiles_html(tiles),
            caption=escaped(plain_text(self.places.caption)),
            panels=self.panels(),
            clusters=escaped(self.values_note()),
            profile=escaped(self.profile_note()),
            frontier=escaped(self.frontier_note()),
            agents=self.agents(),
            graph=self.graph_section(),
            little=self.renamed() + self.little(),
            coverage=escaped(self.coverage()),
            merges=self.merges(),
            comparison=self.table() + self.fit(),
            pair=self.pair(),
            close=escaped(self.relation.closeness),
            metric=escaped(self.relation.metric),
            meaning=self.meaning(),
            snippet=escaped(snippet(self.certificate, self.mdp, record)),
            reservations="".join(f"<p>{escaped(line)}</p>" for line in self.reservations()),
            remedies=self.remedies(),
            commands=_commands(commands),
            record=self.record(record),
            version=escaped(__version__),
        )

    def data(self) -> Any:
        """What the page's script reads."""
        certificate, states, cloud = self.certificate, self.places.states, self.cloud
        rng = np.random.default_rng(0)
        forests = [state_figures.page_forest(forest, states) for forest in certificate.forests]
        data: dict[str, Any] = {
            "n_live": certificate.n_live,
            "end": certificate.terminal_state,
            "scope": certificate.scope,
            "tau": self.tau,
            "forests": dict(zip(("lower", "upper"), forests, strict=True)),
            "profile": self.profile,
            "frontier": figures.frontier_figure(certificate, self.frontier),
            "map": state_figures.page_places(self.places, self.mdp.state_ids, self.mdp.names),
            "widths": figures.widths_figure(certificate, sample=MAX_PAIRS, rng=rng),
            "tree": self.tree,
            "curves": self.curves,
            "measure": self.measure,
            "embedding": None,
            "states": None,
            "separations": None,
            "graph": None,
        }
        if not self.is_rejected:
            data["states"] = cluster_figures.states_figure(certificate, self.mdp, states)
            data["graph"] = self.graph
            data["separations"] = cluster_figures.separations_figure(certificate, self.mdp, states)
        if cloud is not None:  # y grows downwards there
            data["embedding"] = state_figures.unit_square(cloud.x[states], -cloud.y[states])
        return figures.as_json(data)

    # -- words -----------------------------------------------------------------------------

    def conditions(self) -> str:
        """Under what conditions the verdict holds."""
        certificate = self.certificate
        parts = []
        if certificate.tau is not None:
            parts.append(f"Threshold tau {number_text(certificate.tau)}")
        if certificate.scope == "covered":
            share = percent_text(certificate.coverage)
            parts.append(f"covered pairs only, {share} of all: others may still link clusters")
        else:
            parts.append("all pairs of states")
        if self.relation.adjective:
            parts.append(f"alike {self.relation.alike}")
        if certificate.is_under_policy:
            parts.append("of the given policy")
        if certificate.alpha:
            parts.append(f"with probability at least {surely_text(certificate.alpha)}")
        text = "; ".join(parts)
        return text[0].upper() + text[1:]

    def check(self) -> tuple[str, str]:
        """Whether the independent check agreed, in one word and in a sentence."""
        check = self.verification
        if check is None:
            return "none", "Not checked independently in this report"
        if not check.is_valid:
            return "bad", f"Rejected by the independent check: {check.problem}"
        parts = [f"{check.mode} arithmetic", *check_counts(check)]
        word = "spot-checked" if check.verdict == "sampled" else "verified"
        return "good", f"All claims {word} by independent code ({', '.join(parts)})"

    def times(self) -> str:
        """How long it took, as a paragraph, with the time that compiling took once set apart."""
        run, check = self.certificate.run, self.verification
        durations = [(run.get("seconds"), "to certify")]
        compiled = [run.get("compile_seconds")]
        if check is not None:
            durations.append((check.seconds, "to verify"))
            compiled.append(check.compile_seconds)
        # Records come from files: what is no number of seconds is left out.
        measured = [(float(x), what) for x, what in durations if is_duration(x)]
        text = ", ".join(f"{seconds_text(x)} {what}" for x, what in measured)
        spent = math.fsum(float(x) for x in compiled if is_duration(x))
        if spent >= 0.05:
            text += "; " if text else ""
            text += f"{seconds_text(spent)} went into compiling the solvers, once"
        return f'<p class="times" id="times">{escaped(text)}</p>' if text else ""

    def about(self, title: str) -> str:
        """The model in one line."""
        mdp, certificate, parts = self.mdp, self.certificate, []
        env = mdp.metadata.get("env")
        if isinstance(env, str) and env and env != title:
            parts.append(env)
        if mdp.terminal_state is not None:
            parts.append("episodes end in one added state")
        if mdp.is_sampled:
            parts.append("model estimated from samples")
        if certificate.is_under_policy:
            parts.append("chain of a given policy")
        parts.append(f"model {mdp.fingerprint[:12]}")
        return " · ".join(parts)

    def clusters(self, count: int) -> str:
        """Clusters as they are counted everywhere."""
        return figures.live_clusters(self.certificate, count)

    def leading(self) -> Iterator[tuple[str, str]]:
        """The figures that matter most: kept share, loss, and number of clusters."""
        certificate = self.certificate
        value, tau = certificate.value, certificate.tau
        share = None if value is None else value.share(certificate.guarantee)
        unknown = "not computed" if certificate.is_certified else "not certified"
        kept, loss = unknown, unknown
        if value is not None and share is not None:
            kept, loss = _kept(share.kept), f"≤\N{NO-BREAK SPACE}{amount_text(share.loss)}"
            if value.is_settled:
                kept = "nothing to decide"  # all of nothing is no share
        whom = WHOM[certificate.guarantee]
        yield f"achievable return retained by {whom}, proven", kept
        yield f"loss of {whom} in any state, proven", loss
        text = figures.clusters_of_states(certificate, self.n_upper)
        number, _, words = text.partition(" ")
        if tau is None:
            number = "undecided"
        elif self.n_lower != self.n_upper:
            number = f"{_short(self.n_lower)} to {_short(self.n_upper)}"
        yield words, number

    def agents(self) -> str:
        """The section of what each kind of agent is proven to get, or nothing."""
        value, goal = self.certificate.value, self.certificate.goal
        if value is None or self.is_rejected or not self.certificate.is_certified:
            return ""
        rows: list[Row] = []
        episodes, learner = value.episodes, value.learner
        named: list[tuple[str, str, ProvenShare | None]] = [
            ("policy", "the policy that comes with it", value.share("policy")),
            ("solver", "any agent that solves the small environment", value.solver),
            ("learner", "any one-step Q-learner on real steps", learner),
            (
                "",
                "such a learner whose values converge",
                None if learner is None else learner.converged,
            ),
        ]
        has_ends = episodes is not None and episodes.optimal.ended is not None
        for guarantee, name, share in named:
            if share is None:
                continue
            cells = [
                Cell(_kept(share.kept)),
                *(
                    Cell(f"≤\N{NO-BREAK SPACE}{amount_text(x)}")
                    for x in (share.loss, share.start_loss)
                ),
            ]
            if episodes is not None:
                seen = episodes.of(guarantee) if guarantee else None
                cells.append(Cell(_episodes(seen, has_ends=has_ends)))
            chip = '<span class="chip">requested</span>' if guarantee == goal.guarantee else ""
            rows.append((f"{escaped(name)} {chip}", cells, guarantee == goal.guarantee))
        head: tuple[str, ...] = ("agent", *AGENT)
        if episodes is not None:
            what = "episodes that end" if has_ends else "return"
            head += (f"{what} in {episodes.horizon:,} steps",)
            best = _episodes(episodes.optimal, has_ends=has_ends)
            rows.append(("the best policy", [*map(Cell, ("100%", "0", "0")), Cell(best)], False))
        text = (
            "Proven at least, and at most for losses. Of the achievable return from the start, 0% "
            f"is the baseline, {baseline_text(value, self.mdp)}, worth "
            f"{number_text(value.baseline_start[1])}; 100% is the best policy, worth "
            f"{number_text(value.optimal_start[0])}. "
        )
        margin = value.solver.margin_text()
        if margin:
            text += f"A solver retains {margin.removeprefix('; ')}. "
        if learner is not None:
            text += f"The rows of a learner hold if {LEARNER_TERMS}."
        elif goal.guarantee != "learner":
            text += "Nothing was computed of learners on real steps."
        table = table_html("losses agents", head, rows)
        return section("agents", "What an agent will get", text.strip(), table)

    def tiles(self) -> Iterator[tuple[str, str]]:
        """Further figures."""
        certificate, mdp, n = self.certificate, self.mdp, self.certificate.n_states
        if certificate.is_certified:
            yield "compression", f"{number_text(certificate.n_live / self.n_upper)}×"
        yield "actions", f"{mdp.n_actions:,}"
        yield "transitions", f"{mdp.nnz:,}"
        yield "pairs of states", _short(n * (n - 1) // 2)
        if self.relation.has_arms:
            yield "pairs covered", percent_text(certificate.coverage)
        yield "widest bound gap", bound_text(certificate.global_width, is_upper=True)
        yield "discount γ", f"{certificate.gamma:g}"
        if certificate.tau is not None:
            yield "threshold tau", number_text(certificate.tau)

    def panels(self) -> str:
        """What the panels of the map are, as a list by their numbers."""
        titles = [shortened(panel[-1], state_figures.MAX_NAME) for panel in self.places.panels]
        items = "".join(f"<li>{escaped(plain_text(title))}</li>" for title in titles)
        return f'<ol class="panels">{items}</ol>' if items else ""

    def values_note(self) -> str:
        """Where the values come from that are listed with states."""
        certificate = self.certificate
        if self.is_rejected or certificate.value is None or certificate.tau is None:
            return ""
        tau = number_text(certificate.tau)
        return (
            "Values of states are proven bounds, and the plan is the one that was made on the "
            f"clusters at the certificate's threshold, tau {tau}."
        )

    def profile_note(self) -> str:
        """How complete the profile is."""
        profile = self.profile
        text = f"{counted(profile.n_intervals, 'certified range')} of tau (shaded)."
        if len(profile.intervals) < profile.n_intervals:
            text += f" This page lists {len(profile.intervals):,}: the widest, and the one chosen."
        return text

    def frontier_note(self) -> str:
        """What the points of the frontier are, and what was left out."""
        done, total = len(self.frontier.points), self.frontier.n_thresholds
        if not done:
            text = "No certified clustering was evaluated."
        elif self.frontier.is_complete:
            text = "All certified ranges of tau were evaluated."
        else:
            text = f"{done:,} of {counted(total, 'certified range')} of tau evaluated."
        if self.certificate.n_states > MAX_VALUED:
            text += " In a model of this size, only the certificate's own is."
        elif done:
            text += " Each point is proven; the certificate holds the proof of its own only."
        return text

    def graph_section(self) -> str:
        """The section of the model over clusters, or nothing."""
        graph = self.graph
        if graph is None:
            return ""
        text = (
            f"The model of {self.clusters(self.certificate.n_clusters)}. A circle is a cluster, "
            "with the number of its first state; rings are where episodes begin. Arrows are where "
            "actions lead, on average over the states of a cluster, the likelier the wider; those "
            "of the plan stand out."
        )
        if len(graph.arrows) < graph.n_arrows:
            text += f" Of {graph.n_arrows:,} arrows the {len(graph.arrows):,} likeliest are drawn."
        choices = [("plan", "the plan")] if any(n.plan is not None for n in graph.nodes) else []
        choices += [("all", "all actions"), *((f"{a}", x) for a, x in enumerate(graph.actions))]
        options = "".join(f'<option value="{v}">{escaped(words)}</option>' for v, words in choices)
        body = (
            '<div class="choosers"><label for="graph-action">Arrows of</label> '
            f'<select id="graph-action">{options}</select></div>'
            '<div class="graph"><div class="plot" id="graph" role="group" '
            'aria-label="Clusters and where actions lead"></div>'
            '<div id="graph-node" aria-live="polite"></div></div>'
        )
        return section("quotient", "The small model", text, body)

    def renamed(self) -> str:
        """The section of which action is which, where actions of clusters are matched."""
        certificate = self.certificate
        if not self.relation.matches_actions or certificate.value is None:
            return ""
        title = "Which action is which"
        if certificate.n_states > MAX_VALUED:
            text = "In a model of this size, use certificate.correspondence(mdp)."
            return section("renamed", title, text)
        found = certificate.correspondence(self.mdp)
        if not found.is_renamed:
            text = (
                "Actions of the states of a cluster correspond by their own names, and are proven "
                f"to differ by at most {bound_text(found.widest, is_upper=True)}."
            )
            return section("renamed", title, text)
        rows: list[Row] = []
        for cluster in np.argsort(-np.bincount(found.labels), kind="stable").tolist():
            model, members = int(found.models[cluster]), np.flatnonzero(found.labels == cluster)
            for state in members[members != model].tolist():
                pairs = found.of(state)
                if any(a != b for a, b in pairs.items()):
                    most = bound_text(float(found.difference[members].max()), is_upper=True)
                    actions = self.mdp.names.actions
                    cells = [
                        self.cell("{}", model),
                        Cell(found.text(state), title="" if actions is None else _numbers(pairs)),
                        Cell(most),
                    ]
                    rows.append((titled(self.cell("{}", state)), cells, False))
                    break  # one state of each cluster
        text = (
            "States of a cluster are alike after renaming actions. Here is one state of each "
            "cluster that needs it: what its actions are in the cluster's first state, and what "
            "any actions of one name in this cluster are proven to differ by at most from those of "
            "that state, at once and in all that follows."
        )
        head = ("state", "as state", "actions", "in its cluster at most")
        return section("renamed", title, text, table_html("losses near", head, rows[:MAX_RENAMED]))

    def little(self) -> str:
        """The section of the closest states that stay apart, where little is merged."""
        if not self.certificate.merges_little:
            return ""
        costs = self.mdp.n_actions * self.mdp.max_support**2  # of one pair, at most
        most = min(NEAREST, MAX_COSTS // costs)
        pairs = self.certificate.nearest(most, self.mdp)
        if not pairs:
            text = "Too many successors to compare them here: use certificate.nearest(5, mdp)."
            return "" if most else section("little", "Why little is merged", text)
        clusters = figures.clusters_of_states(self.certificate, self.certificate.n_clusters)
        text = (
            f"{clusters}: most states stay apart. "
            "Here are the closest states of different clusters: how far they are apart, under "
            "which action, and how much of that is a difference of rewards at once and how much "
            "comes from the states that follow"
        )
        has_successors = any(pair.successors for pair in pairs)
        text += ", with the pairs of successors that matter most." if has_successors else "."
        if self.certificate.advice:
            text += f" To merge more: {self.certificate.advice}."
        table = table_html(
            "losses near",
            ("states", *(NEAR if has_successors else NEAR[:-1])),
            [self.near_row(pair, has_successors=has_successors) for pair in pairs],
        )
        return section("little", "Why little is merged", text, table)

    def near_row(self, pair: NearPair, *, has_successors: bool) -> Row:
        """One row of that section."""
        met = [(s, t, f"{share:.0%}") for s, t, share in pair.successors if share >= 0.005]
        pattern = "; ".join(f"{{}} and {{}} ({share})" for _, _, share in met)
        successors = self.cell(pattern or "–", *(state for s, t, _ in met for state in (s, t)))
        distance = between_text(pair.lower, pair.upper)
        cells = [Cell(text) for text in (distance, pair.action_text(), *pair.parts)]
        head = titled(self.cell("{} and {}", pair.first, pair.second))
        return head, [*cells, successors] if has_successors else cells, False

    def cell(self, pattern: str, *states: int) -> Cell:
        """A cell that tells of states, by short names; the pointer shows the whole ones."""
        short, whole = (
            pattern.format(*(self.state(state, most=most) for state in states))
            for most in (figures.SHORT, None)
        )
        return Cell(short, title="" if whole == short else whole)

    def state(self, state: int, *, most: int | None = None) -> str:
        """A state for people: its number, with its id where that is another one, and its name."""
        if state == self.mdp.terminal_state:
            return "the end"
        # Ids of enumerated states are digests, which say nothing to people.
        is_short = abs(int(self.mdp.state_ids[state])) <= state_figures.WHOLE
        return self.mdp.state_text(state, most=most, with_id=is_short)

    def coverage(self) -> str:
        """What the histogram is over."""
        certificate = self.certificate
        total = certificate.n_states * (certificate.n_states - 1) // 2
        if not self.relation.has_arms:
            return f"{counted(total, 'pair')}, all bounded {bounded_by(certificate.action_values)}."
        text = (
            f"Covered, with bounds of their own: {certificate.n_covered:,} of "
            f"{counted(total, 'pair')} ({percent_text(certificate.coverage)})."
        )
        if certificate.n_covered < total:
            text += " All others are bounded through blocks of states, value features and rewards."
        return text

    def merges(self) -> str:
        """The section of the dendrogram, or why there is none."""
        tree = self.tree
        if tree is None:
            text = "No certified range has between 2 and 60 clusters, so there is nothing to draw."
            return f'<p class="empty">{text}</p>'
        text = (
            f"Leaves are the {self.clusters(tree.interval.n_clusters)} certified at tau "
            f"{number_text(tree.interval.low)}. Lines are certified clusters; a band spans the "
            "thresholds between which the lines that reach it are proven to merge."
        )
        merging = [node for node in tree.nodes if node.children]
        if len(merging) == 1 and len(merging[0].children) == len(tree.leaves):
            low = bound_text(merging[0].start, is_upper=False)
            high = bound_text(merging[0].begin, is_upper=True)
            text += (
                f" Here all of them merge in one band, between tau {low} and {high}: nothing is "
                "certified in between, so that in what order they merge is not known."
            )
        elif not merging:
            text += " None of them is proven to merge with another."
        if tree.finer:
            text += f" {counted(len(tree.finer), 'finer certified range')} left out, for space."
        return (
            f'<p class="note">{escaped(text)}</p>'
            '<div class="plot" id="tree" role="img" '
            f'aria-label="Tree of certified merges, {len(tree.leaves)} leaves"></div>'
        )

    def table(self) -> str:
        """The section of value losses, or nothing."""
        if not self.comparison:
            return ""
        head = ("clustering", "clusters", *LOSSES)
        rows: list[Row] = []
        for row in figures.loss_rows(self.comparison):
            mark = '<span class="chip">certified</span>' if row.is_certified else ""
            name = "" if row.is_certified and row.name == "certified" else escaped(row.name)
            bars = [
                Cell(number_text(v), bar) for v, bar in zip(row.losses, row.shares, strict=True)
            ]
            bound = "–" if row.bound is None else amount_text(row.bound)
            cells = [Cell(f"{row.n_clusters:,}"), *bars, Cell(_kept(row.kept)), Cell(bound)]
            rows.append((f"{name} {mark}", cells, row.is_certified))
        text = (
            "A policy is planned on the clusters, carried back to the states, and compared with "
            "the optimum there. Losses are at most as given, retained shares of the achievable "
            "return at least. The last column is what the certificate itself proves."
        )
        table = table_html("losses", head, rows)
        return section("comparison", "What planning on clusters loses", text, table)

    def fit(self) -> str:
        """The section of how well the embedding imitates distances, or nothing."""
        quality = self.quality
        if quality is None:
            return ""
        certificate, own = self.certificate, quality.trained_for
        chip = '<span class="chip">trained for it</span>'
        title = self.relation.metric
        if certificate.is_under_policy and self.relation.has_arms:
            title = DISTANCES["on_policy"]  # of one action, which cannot be renamed
        # Where it is trained for the certificate's own distance, both are the same figures.
        is_own = own is not None and own.title == title and own.mean_error == quality.mean_error
        fits: list[tuple[str, EmbeddingQuality | EmbeddingFit, str]]
        fits = [(title, quality, chip if is_own else "")]
        if own is not None and not is_own:
            fits.append((own.title, own, chip))
        rows: list[Row] = []
        for title, found, mark in fits:
            cells = [
                Cell(f"{round(found.rank_correlation, 2) + 0.0:.2f}"),  # never a negative zero
                Cell(number_text(found.mean_error)),
                Cell(number_text(found.distortion)),
                Cell(percent_text(found.outside)),
            ]
            rows.append((f"{escaped(title)} {mark}", cells, False))
        text = (
            f"The embedding's own distances of {counted(quality.n_pairs, 'pair')} beside proven "
            "bounds on the distance named. Encoders are trained for different ones, and a good fit "
            "to one says little of another. Nothing that is proven depends on the embedding."
        )
        head = ("distance", "rank correlation", "mean error", "largest error", "outside the bounds")
        return section("fit", "What the embedding imitates", text, table_html("losses", head, rows))

    def pair(self) -> str:
        """Learning curves and the embedding, side by side if there are both."""
        parts = []
        if self.curves:
            seeds = max(line.seeds for line in self.curves)
            text = f"Across: steps in the environment. Up: {self.measure}. "
            text += "One agent each." if seeds == 1 else "Median over seeds; bands are their range."
            if all(np.nanmax(line.high, initial=0.0) < 0.005 for line in self.curves):
                text += " None of these agents got above 0 in so many steps."
            parts.append(section("learning", "Learning", text, _CURVES))
        if self.cloud is not None:
            text = (
                f"Across: {self.cloud.axes[0]}; up: {self.cloud.axes[1]}; in the colours of the "
                "map. An embedding proposes; it proves nothing."
            )
            parts.append(section("cloud", "Embedding", text, _EMBEDDING))
        return f'<div class="pair">{"".join(parts)}</div>' if parts else ""

    def meaning(self) -> str:
        """What the environment's states, plan and values have to do with all this."""
        lines = meaning(self.certificate, self.mdp, is_rejected=self.is_rejected)
        return "".join(f"<p>{escaped(line)}</p>" for line in lines)

    def reservations(self) -> Iterator[str]:
        """What else the verdict depends on, in plain words."""
        certificate = self.certificate
        if certificate.scope == "covered":
            yield (
                "This certificate speaks of covered pairs only. A pair that was not covered may "
                "still link two of its clusters."
            )
        if certificate.is_under_policy:
            yield f"This certificate {OF_POLICY}."
        if certificate.alpha == 0.0:
            yield (
                "The rows of the chain are mixtures, which are rounded. All bounds hold for the "
                "exact mixtures: they include that rounding."
            )
        elif certificate.alpha is not None:
            yield (
                "The model was estimated from samples. With probability at least "
                f"{surely_text(certificate.alpha)} over the samples, all bounds hold for the "
                "true model."
            )
        if self.relation.caution:
            yield self.relation.caution
        if certificate.apart is not None:
            renamed = "; after renaming actions they need not be (relation lax)"
            yield (
                "Not all states have the same actions. Those with different ones are as far apart "
                f"as can be, {number_text(certificate.apart)}{renamed * self.relation.has_arms}."
            )
        if certificate.terminal_state is not None:
            yield "The end of episodes is no cluster and is not counted as one."

    def remedies(self) -> str:
        """What to do where nothing useful is certified; nothing otherwise."""
        certificate, n = self.certificate, self.certificate.n_live
        is_all = certificate.scope == "all"
        if self.verdict.level == "useful":
            text = "To hear of all pairs, run certify with method=Blocks(), its default."
            return "" if is_all else f"<h3>What to try</h3><p>{text}</p>"
        lines = []
        if self.verification is not None and not self.verification.is_valid:
            lines.append("Do not use this certificate: what it claims does not follow.")
        good = self.frontier.coarsest()
        if good is not None and good.n_clusters < n:
            lines.append(
                f"Take tau {_inside(good)}: {self.clusters(good.n_clusters)}, on which "
                f"{AGENTS[certificate.guarantee]} {kept_text(good.kept)}."
            )
        elif any(1 < interval.n_clusters < n for interval in self.intervals):
            lines.append(
                "Choose a threshold in a shaded range: the buttons above go from one to the next."
            )
        value = certificate.value
        found = None if value is None else Numbers.of(value, certificate.guarantee)
        if found is None and certificate.is_certified:
            lines.append("Prove what agents retain on it: certificate.with_value(mdp).")
        elif found is not None and not certificate.goal.is_enough(found):
            if found.kept >= LEAST_KEPT:
                lines.append("Request less: certify(mdp, gamma, keep=...) takes any share.")
            if certificate.guarantee == "learner":
                lines.append('Request it of solvers: certify(mdp, gamma, guarantee="solver").')
        if certificate.tau is not None and not certificate.is_certified:
            lines.append("Leave out the threshold: certify then looks for a useful one itself.")
        if not is_all:
            lines.append("Certify over all pairs: certify(mdp, gamma, method=Blocks()).")
        if self.relation.has_arms:
            lines += [
                "Allow more pairs (max_pairs of the method) or more time (max_seconds).",
                "Propose better blocks: an embedding of states, or a partition of your own.",
            ]
        elif certificate.action_values is None:
            lines.append("Allow more time (max_seconds).")
        lines.append("Accept it: a model whose states all differ has no smaller one to be found.")
        stop = f" This run ended because: {certificate.stop}." if certificate.stop else ""
        items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
        return f"<h3>What to try</h3><p>{escaped(plain_text(stop.strip()))}</p><ul>{items}</ul>"

    def record(self, record: Mapping[str, Any] | None) -> str:
        """Everything known about how this came about, as rows of a table."""
        certificate, mdp = self.certificate, self.mdp
        entries: dict[str, Any] = {} if record is None else dict(record)
        entries["certificate"] = {
            "tau": certificate.tau,
            "scope": certificate.scope,
            "relation": certificate.relation,
            "alpha": certificate.alpha,
            "stop": certificate.stop,
            "fingerprint of the model": certificate.fingerprint,
            "run": dict(certificate.run),
        }
        entries["model"] = dict(mdp.metadata)
        if self.verification is not None:
            names = ("verdict", "mode", "widening")
            entries["verification"] = {k: getattr(self.verification, k) for k in names}
        # Metadata and runs come from files, too.
        rows = list(flat_rows(plain_values(entries)))
        left = len(rows) - MAX_RECORD
        body = "".join(
            f'<tr><th scope="row">{escaped(name)}</th><td>{escaped(value)}</td></tr>'
            for name, value in rows[:MAX_RECORD]
        )
        if left > 0:
            more = "1 more entry" if left == 1 else f"{left:,} more entries"
            body += f'<tr><th scope="row">and</th><td>{more}</td></tr>'
        return body


_CURVES = """
<div class="plot" id="curves" role="img" aria-label="Learning curves"></div>
<ul class="legend" id="curves-legend"></ul>"""

_EMBEDDING = """
<div class="canvas"><canvas id="embedding" role="img" aria-label="Embedded states in the colours
of their clusters"></canvas></div>"""


def _first_tau(certificate: Certificate, intervals: Sequence[CertifiedInterval]) -> float:
    """Where the slider stands at first: at the certificate's threshold or a telling one."""
    if certificate.tau is not None:
        return certificate.tau
    best = best_interval(list(intervals), certificate.n_live)
    if best is not None:
        return middle(best)
    # Nothing useful is certified: begin where the lower arm has merged half of what it merges.
    weights = certificate.forests[0].weights
    positive = weights[weights > 0.0]
    return float(positive[positive.size // 2]) if positive.size else 0.0


def _trace_values(
    certificate: Certificate,
    mdp: TabularMDP,
    intervals: Sequence[CertifiedInterval],
    report: ProgressCallback | None,
) -> Frontier:
    """What agents retain at certified thresholds; of a large model, at its own only."""
    if certificate.n_states <= MAX_VALUED:
        return certificate.frontier(mdp, callback=report)
    own, tau, goal = certificate.value, certificate.tau, certificate.goal
    points: list[FrontierPoint] = []
    if own is not None and tau is not None:
        numbers = Numbers.of(own, goal.guarantee)
        points = [
            FrontierPoint(x.low, x.high, x.n_clusters, **numbers._asdict())
            for x in intervals
            if numbers is not None and x.low <= tau < x.high
        ]
    has_end = certificate.terminal_state is not None
    return Frontier(tuple(points), len(intervals), has_end, goal)


def _by_bounds(certificate: Certificate) -> Certificate:
    """The same with the clusters that its bounds give; labels in a file may be others."""
    tau = certificate.tau
    if tau is None:
        return certificate
    given = (certificate.labels_lower, certificate.labels_upper)
    own = zip(given, certificate.partitions(tau), strict=True)
    is_same = all(np.array_equal(numbered(x), numbered(y)) for x, y in own)
    return certificate if is_same else certificate.at(tau)


def _title(title: str | None, mdp: TabularMDP) -> str:
    if title is not None:
        return str(title)
    for name in ("env", "file"):
        known = mdp.metadata.get(name)
        if isinstance(known, str) and known:
            return known
    return f"A model of {counted(mdp.n_states, 'state')}"


def _numbers(pairs: Mapping[int, int]) -> str:
    """Which action is which, by their numbers."""
    return ", ".join(f"{a} as {b}" for a, b in pairs.items())


def _bonds(bonds: Mapping[str, str]) -> str:
    """What the verdict was computed from, as a paragraph; the record has all digits."""
    if not bonds:
        return ""
    text = ", ".join(f"{name} {digest[:12]}…" for name, digest in bonds.items())
    return f'<p class="times" id="bonds">Computed from {escaped(text)} (SHA-256)</p>'


def _commands(commands: Sequence[str]) -> str:
    if not commands:
        return ""
    return (
        '<div class="commands"><button type="button" class="copy" id="copy" data-copies="commands">'
        "Copy</button>"
        f'<pre id="commands">{escaped(chr(10).join(commands))}</pre></div>'
    )


def _kept(share: float) -> str:
    """A share that is proven to be kept, in as few characters as will do."""
    text = share_text(-math.inf if math.isnan(share) else share)  # rows come from files
    return text.replace("at least ", "≥\N{NO-BREAK SPACE}")


def _episodes(bounds: EpisodeBounds | None, *, has_ends: bool) -> str:
    """The share of episodes that end, or their return where none ends, rounded down."""
    if bounds is None:
        return "–"
    if not has_ends or bounds.ended is None:
        return bound_text(bounds.mean_return[0], is_upper=False)
    low = bounds.ended[0]
    return "100%" if low >= 1.0 - 1e-9 else percent_text(low)


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
