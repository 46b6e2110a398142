"""`write_clusters`: which state is in which certified cluster, as a file for other programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bisim_abstract._base.atomic import check_writable, write_pieces
from bisim_abstract._base.checks import check_suffix
from bisim_abstract._base.csv_text import csv_pieces
from bisim_abstract._base.types import IntArray
from bisim_abstract._certificate.certificate import Certificate
from bisim_abstract._model.export import as_json
from bisim_abstract._model.mdp import TabularMDP, check_mdp
from bisim_abstract.errors import InvalidArgumentError

__all__ = ["write_clusters"]

FORMAT = "bisim_abstract.Clusters"
VERSION = 1
STATES = 4_096  # whose lines are held at a time


def write_clusters(mdp: TabularMDP, certificate: Certificate, path: str | Path) -> Path:
    """Write the certified clusters, as a table or with their members, as the file's name ends.

    - `.csv`: one line per state: its number, id, variables or name, and cluster; if the
      certificate has a proven value, also bounds on the optimal value, and the action of the
      policy with a bound on its worth. These are the columns of `Certificate.to_columns`. Names
      that a spreadsheet would take for formulas have an apostrophe before them.
    - `.json`: what is certified (threshold, discount, relation, verdict, fingerprint of the model),
      and each cluster with its size, its representative, which is the first of its states, and all
      its members, by numbers and by names where there are any.

    The end of episodes is no cluster: a table gives it the number after the last one, and JSON
    tells it as `terminal_state`. Numbers read back exactly. The certificate is not checked here:
    that is what `verify` is for. The file replaces an older one in one step.

    Args:
        mdp: The model.
        certificate: A certificate of it.
        path: The file; its folder must exist.

    Returns:
        The path of the file.

    Raises:
        InvalidArgumentError: If the name ends in something else, or the model is another one.
        NotCertifiedError: If no clusters are certified.
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from bisim_abstract import certify
        >>> mdp = TabularMDP.from_dense(np.eye(2)[:, None, :], [1.0, 1.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_clusters(mdp, certify(mdp, 0.5), f"{folder}/clusters.json")
        ...     json.loads(path.read_text())["clusters"]
        [{'cluster': 0, 'size': 2, 'representative': 0, 'members': [0, 1]}]
    """
    call = "write_clusters(mdp, certificate, path)"
    check_mdp(mdp, call=call)
    if not isinstance(certificate, Certificate):
        raise InvalidArgumentError(
            f"certificate must be a Certificate, got {type(certificate).__name__}; the order is "
            f"{call}"
        )
    if certificate.fingerprint != mdp.fingerprint:
        raise InvalidArgumentError("the certificate is of another model than the one given")
    pieces = WRITERS[check_suffix("path", path, WRITERS)]
    _ = certificate.labels  # refuses what is not certified
    check_writable(path)
    write_pieces(path, pieces(mdp, certificate))
    return Path(path)


def _csv(mdp: TabularMDP, certificate: Certificate) -> Iterator[str]:
    # Variables are read from the model, as arrays would make floats of those that lack a value.
    others = certificate.to_columns(mdp.with_names(states={}))
    variables = mdp.names.columns(others)
    first = ["state", "id"]
    rest = [name for name in others if name not in first]

    def chunk(begin: int) -> Iterator[Sequence[Any]]:
        end = min(begin + STATES, mdp.n_states)
        parts = [others[name][begin:end].tolist() for name in first]
        parts += [variable.listed(begin, end) for variable in variables.values()]
        parts += [others[name][begin:end].tolist() for name in rest]
        return zip(*parts, strict=True)

    starts = range(0, mdp.n_states, STATES)
    return csv_pieces([*first, *variables, *rest], (chunk(begin) for begin in starts))


def _json(mdp: TabularMDP, certificate: Certificate) -> Iterator[str]:
    header = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": certificate.fingerprint,
        "gamma": certificate.gamma,
        "relation": certificate.relation,
        "scope": certificate.scope,
        "tau": certificate.tau,
        "alpha": certificate.alpha,
        "n_states": certificate.n_states,
        "terminal_state": certificate.terminal_state,
        "verdict": certificate.verdict.header(),
    }
    yield "{\n"
    for name, value in header.items():
        yield f"{json.dumps(name)}: {as_json(value)},\n"
    yield '"clusters": ['
    for cluster, members in enumerate(certificate.clusters):
        yield "\n" if cluster == 0 else ",\n"
        yield from _cluster(mdp, cluster, members)
    yield "\n]\n}\n"


def _cluster(mdp: TabularMDP, cluster: int, members: IntArray) -> Iterator[str]:
    """One cluster on one line; names of members are made some at a time."""
    first = int(members[0])
    entry = {"cluster": cluster, "size": members.size, "representative": first}
    entry_text = as_json(entry).removesuffix("}")
    yield f'{entry_text}, "members": {as_json(members.tolist())}'
    if mdp.names.variables:
        yield f', "name": {as_json(mdp.names.state(first))}, "names": ['
        for begin in range(0, members.size, STATES):
            part = members[begin : begin + STATES].tolist()
            texts = ", ".join(as_json(mdp.names.state(state)) for state in part)
            yield texts if begin == 0 else f", {texts}"
        yield "]"
    yield "}"


WRITERS: dict[str, Callable[[TabularMDP, Certificate], Iterator[str]]] = {
    ".csv": _csv,
    ".json": _json,
}
