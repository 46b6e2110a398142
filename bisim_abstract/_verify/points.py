"""Single linkage of points at one threshold, by code of the verifier's own.

Two points are linked if no coordinate differs by more than the threshold. Boxes of points are
compared instead of points: too far as a whole, near as a whole, or known to be connected already,
no pair of them needs to be inspected.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import inner, kernel
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray

FEW = 16  # points of a box that is not divided


def linked_points(points: FloatArray, limit: float) -> IntArray:
    """(n) numbers that are equal for points which are connected by links of at most a limit.

    A difference of two coordinates is rounded once: the caller's limit must allow for that.
    """
    n = points.shape[0]
    owner = np.arange(n)
    if limit < 0.0 or n == 1:
        return owner
    points = np.ascontiguousarray(points)
    order, spans, children, low, high = _divided(points)
    is_joined = np.zeros(spans.shape[0], np.bool_)
    link_kernel(points, limit, order, spans, children, low, high, is_joined, owner)
    return owner


def _divided(
    points: FloatArray,
) -> tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray]:
    """Points in order, boxes as parts of that order, their halves (-1: none) and corners."""
    order = np.arange(points.shape[0])
    spans, children, corners = [(0, order.size)], [], []
    for begin, end in spans:  # grows on the way
        part = order[begin:end]
        own = points[part]
        low, high = own.min(axis=0), own.max(axis=0)
        corners.append((low, high))
        axis = int((high - low).argmax())
        if end - begin <= FEW or high[axis] == low[axis]:
            children.append((-1, -1))
            continue
        half = (end - begin) // 2
        order[begin:end] = part[np.argpartition(own[:, axis], half)]
        children.append((len(spans), len(spans) + 1))
        spans += [(begin, begin + half), (begin + half, end)]
    low, high = (np.array([corner[k] for corner in corners]) for k in range(2))
    return order, np.array(spans), np.array(children), low, high


@inner
def _owner(owner: IntArray, i: int) -> int:
    while owner[i] != i:
        owner[i] = owner[owner[i]]
        i = owner[i]
    return i


@inner
def _join(owner: IntArray, i: int, j: int) -> None:
    i, j = _owner(owner, i), _owner(owner, j)
    owner[max(i, j)] = min(i, j)


@inner
def _is_one(
    node: int,
    order: IntArray,
    spans: IntArray,
    children: IntArray,
    is_joined: BoolArray,
    owner: IntArray,
) -> bool:
    """Whether all points of a box are known to be connected."""
    if is_joined[node]:
        return True
    mine = _owner(owner, order[spans[node, 0]])
    if children[node, 0] < 0:
        for at in range(spans[node, 0] + 1, spans[node, 1]):
            if _owner(owner, order[at]) != mine:
                return False
    else:
        left, right = children[node]
        if not is_joined[left] or not is_joined[right]:
            return False
        if _owner(owner, order[spans[right, 0]]) != mine:
            return False
    is_joined[node] = True
    return True


@inner
def _last(node: int, spans: IntArray, low: FloatArray, high: FloatArray) -> int:
    """Where the different points of an undivided box end: after the first, if all are equal."""
    for k in range(low.shape[1]):
        if high[node, k] > low[node, k]:
            return int(spans[node, 1])
    return int(spans[node, 0]) + 1


@kernel
def link_kernel(
    points: FloatArray,
    limit: float,
    order: IntArray,
    spans: IntArray,
    children: IntArray,
    low: FloatArray,
    high: FloatArray,
    is_joined: BoolArray,
    owner: IntArray,
) -> None:
    """Connect all points that links of at most `limit` connect.

    In: points (n, d), at least two; boxes as `_divided` gives them. Scratch: is_joined (boxes), all
    False. In and out: owner (n), every point its own; then the least point of its component.
    """
    d = points.shape[1]
    stack = [(0, 0)]
    while stack:
        one, two = stack.pop()
        if _is_one(one, order, spans, children, is_joined, owner):
            if one == two:
                continue
            if _is_one(two, order, spans, children, is_joined, owner):
                i, j = order[spans[one, 0]], order[spans[two, 0]]
                if _owner(owner, i) == _owner(owner, j):
                    continue
        least = most = 0.0
        for k in range(d):
            least = max(least, low[one, k] - high[two, k], low[two, k] - high[one, k])
            most = max(most, high[one, k] - low[two, k], high[two, k] - low[one, k])
        if least > limit:
            continue
        if most <= limit:  # rounding is monotone: no computed difference is larger
            i = order[spans[one, 0]]
            for node in (one, two):
                for at in range(spans[node, 0], spans[node, 1]):
                    _join(owner, i, order[at])
            continue
        if children[one, 0] < 0 and children[two, 0] < 0:
            # Equal points, of which there may be many, were connected when their box met itself.
            for at in range(spans[one, 0], _last(one, spans, low, high)):
                for other in range(spans[two, 0], _last(two, spans, low, high)):
                    i, j = order[at], order[other]
                    gap = 0.0
                    for k in range(d):
                        gap = max(gap, abs(points[i, k] - points[j, k]))
                    if gap <= limit:
                        _join(owner, i, j)
        elif one == two:
            left, right = children[one]
            stack.append((left, right))
            stack.append((left, left))
            stack.append((right, right))
        elif children[two, 0] < 0 or (
            children[one, 0] >= 0 and spans[one, 1] - spans[one, 0] > spans[two, 1] - spans[two, 0]
        ):
            for child in children[one]:
                stack.append((child, two))
        else:
            for child in children[two]:
                stack.append((one, child))
    for i in range(owner.size):
        owner[i] = _owner(owner, i)
