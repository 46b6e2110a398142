"""Indices: the same hits for any chunks, threads and processes."""

from __future__ import annotations

import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest

from bisim_abstract import Resources
from bisim_abstract._base import deadline
from bisim_abstract._base.parallel import Job, LocalBackend, Sweep
from bisim_abstract._propose import faiss_index
from bisim_abstract._propose.faiss_index import Index, Points, faiss_ready
from bisim_abstract.errors import MissingDependency

KINDS = ["Flat", "IVF32,Flat", "HNSW8", "LSH12", "PCA3,Flat"]


def cloud(n: int, seed: int = 0) -> Points:
    return np.random.default_rng(seed).normal(size=(n, 5)).astype(np.float32)


class Workers:
    """Threads that note what they were given."""

    def __init__(self, threads: int) -> None:
        self.jobs: list[Job] = []
        self._threads = LocalBackend(threads)

    def prepare(self, job: Job) -> Sweep:
        self.jobs.append(job)
        return self._threads.prepare(job)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("compared", "chunk"), [(1, 16), (2**18, 43), (2**19, 87)])
def test_hits_do_not_depend_on_chunks_and_threads(
    kind: str, compared: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, asked = cloud(1_200), cloud(500, seed=1)
    index = Index(points, kind, seed=3)
    whole = index.search(asked, 6, resources=Resources(threads=1))
    monkeypatch.setattr(faiss_index, "COMPARED", compared)
    workers = Workers(threads=4)
    found = index.search(asked, 6, resources=Resources(backend=workers))
    np.testing.assert_array_equal(found, whole)
    assert [job.chunk for job in workers.jobs] == [chunk]


@pytest.mark.parametrize("kind", KINDS)
def test_hits_of_an_index_that_was_sent(kind: str) -> None:
    points, asked = cloud(1_200), cloud(300, seed=1)
    index = Index(points, kind, seed=3)
    text = pickle.dumps(index)
    assert index.nbytes == index.packed.nbytes <= len(text) < index.nbytes + 2_000
    sent: Index = pickle.loads(text)
    assert "faiss_index" not in vars(sent)
    np.testing.assert_array_equal(sent.search(asked, 6), index.search(asked, 6))
    assert sent.nbytes == index.nbytes


def test_what_takes_a_moment_is_not_given_to_workers() -> None:
    workers = Workers(threads=2)
    points = cloud(300)
    Index(points, "Flat").search(points, 3, resources=Resources(backend=workers))
    assert not workers.jobs


def test_an_index_of_cells_visits_as_many_when_it_was_sent() -> None:
    points = cloud(2_000)
    index = Index(points, "IVF40,Flat", nprobe=40)
    sent: Index = pickle.loads(pickle.dumps(index))
    exact = Index(points, "Flat").search(points, 9)
    for each in (index, sent):
        np.testing.assert_array_equal(each.search(points, 9), exact)


def test_nobody_is_inside_while_others_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork waits for all that are inside, and those who ask wait for their threads."""
    monkeypatch.setattr(faiss_index, "COMPARED", 1)
    asking, seen = threading.get_ident(), []
    work = faiss_index._search_chunk

    def looked(*args: Any) -> None:
        seen.append(asking in faiss_index._inside._depths)
        work(*args)

    monkeypatch.setattr(faiss_index, "_search_chunk", looked)
    points = cloud(200)
    Index(points, "Flat").search(points, 3, resources=Resources(threads=2))
    assert seen == [False] * 13
    assert not faiss_index._inside._depths


def test_a_search_ends_when_its_time_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_index, "COMPARED", 1)
    points, looks = cloud(200), iter(range(100))
    index = Index(points, "Flat")
    with pytest.raises(deadline.OutOfTimeError), deadline.limited(lambda: 5.0 - next(looks)):
        index.search(points, 3, resources=Resources(threads=1))
    assert next(looks) == 6
    assert not faiss_index._inside._depths


def test_without_faiss_the_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with (
        pytest.raises(MissingDependency, match=r"clone .*: pip install -c constraints.txt faiss-"),
        faiss_ready(),
    ):
        pass
