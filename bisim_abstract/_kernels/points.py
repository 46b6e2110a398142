"""The minimum spanning tree of points under the largest difference of coordinates.

Boruvka's algorithm on a k-d tree: in each round every component looks for its nearest foreign
point, past boxes that are too far or lie in the component itself. Boxes are as tight as their
points, and split where these are widest, so that many coordinates which vary together cost little
more than few. Where they do not, nearly all pairs have to be compared: the work is counted, and
given up beyond a limit.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import inner, kernel
from bisim_abstract._base.types import FloatArray, IntArray

LEAF = 8  # points of a box that is not split
DEEPEST = 64  # of the tree: boxes are halved, so that 2**64 points would fit


@inner
def _halve(points: FloatArray, order: IntArray, begin: int, end: int, axis: int) -> None:
    """Put the lesser half of order[begin:end] first, by a coordinate (quickselect)."""
    middle = (begin + end) // 2
    low, high = begin, end - 1
    while low < high:
        a, b, c = points[order[low], axis], points[order[high], axis], 0.0
        c = points[order[(low + high) // 2], axis]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while points[order[i], axis] < pivot:
                i += 1
            while points[order[j], axis] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            break


@kernel
def tree_kernel(
    points: FloatArray,
    order: IntArray,
    begins: IntArray,
    ends: IntArray,
    low: FloatArray,
    high: FloatArray,
) -> None:
    """Boxes of points: those of node k are halved into nodes 2k + 1 and 2k + 2.

    In: points (n, d). In and out: order (n), all points by number at first, in the end those of a
    box next to each other. Out, per node: begins and ends in `order` (none where they are equal),
    low and high (nodes, d) corners.
    """
    n_nodes, d = low.shape
    ends[0] = order.size
    for node in range(n_nodes):
        begin, end = begins[node], ends[node]
        if begin == end:
            continue
        for k in range(d):
            low[node, k] = high[node, k] = points[order[begin], k]
        for i in range(begin + 1, end):
            for k in range(d):
                x = points[order[i], k]
                low[node, k] = min(low[node, k], x)
                high[node, k] = max(high[node, k], x)
        if end - begin <= LEAF or 2 * node + 2 >= n_nodes:
            continue
        axis = 0
        for k in range(d):
            if high[node, k] - low[node, k] > high[node, axis] - low[node, axis]:
                axis = k
        _halve(points, order, begin, end, axis)
        middle = (begin + end) // 2
        begins[2 * node + 1], ends[2 * node + 1] = begin, middle
        begins[2 * node + 2], ends[2 * node + 2] = middle, end


@inner
def _root(parent: IntArray, i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@inner
def _is_leaf(node: int, begins: IntArray, ends: IntArray) -> bool:
    return 2 * node + 2 >= begins.size or begins[2 * node + 2] == ends[2 * node + 2]


@inner
def _search(
    i: int,
    limit: float,
    points: FloatArray,
    order: IntArray,
    begins: IntArray,
    ends: IntArray,
    low: FloatArray,
    high: FloatArray,
    components: IntArray,
    owners: IntArray,
    stack: IntArray,
    gaps: FloatArray,
) -> tuple[float, int, int]:
    """The nearest point of another component, if it is nearer than a limit, and work done."""
    d = points.shape[1]
    mine, nearest, work = components[i], -1, 0
    top, stack[0], gaps[0] = 1, 0, 0.0
    while top:
        top -= 1
        node = stack[top]
        if gaps[top] >= limit:
            continue
        if _is_leaf(node, begins, ends):
            for at in range(begins[node], ends[node]):
                j = order[at]
                if components[j] == mine:
                    continue
                gap = 0.0
                for k in range(d):
                    work += 1
                    gap = max(gap, abs(points[i, k] - points[j, k]))
                    if gap >= limit:
                        break
                if gap < limit:
                    limit, nearest = gap, j
            continue
        near = far = 0.0
        left = 2 * node + 1
        for k in range(d):
            x = points[i, k]
            near = max(near, low[left, k] - x, x - high[left, k])
            far = max(far, low[left + 1, k] - x, x - high[left + 1, k])
        work += 2 * d
        # The nearer box is put last, to be opened first.
        first = left if near > far else left + 1
        for child in (first, 2 * left + 1 - first):
            gap = near if child == left else far
            if owners[child] != mine and gap < limit:
                stack[top], gaps[top] = child, gap
                top += 1
    return limit, nearest, work


@kernel
def boruvka_kernel(
    points: FloatArray,
    order: IntArray,
    begins: IntArray,
    ends: IntArray,
    low: FloatArray,
    high: FloatArray,
    most: int,
    parent: IntArray,
    components: IntArray,
    owners: IntArray,
    least: FloatArray,
    best: FloatArray,
    best_from: IntArray,
    best_to: IntArray,
    first: IntArray,
    second: IntArray,
    weights: FloatArray,
    count: int,
) -> tuple[int, int]:
    """One round: every component is joined with its nearest one.

    An edge that joins a component C with its nearest point crosses from all that C was joined with
    meanwhile to the rest: whatever was joined with C came by an edge of its own, not shorter than
    this one, and has none shorter than its own. So equal lengths do no harm.

    In: points and boxes, as of `tree_kernel`; most, the work that may be done, in comparisons of
    coordinates. In and out: parent (n), trees of components; least (n), no foreign point is nearer.
    Scratch: components, best, best_from and best_to (n), owners (nodes). Out: first, second and
    weights, of which `count` are there; how many there are then, and the work (more than `most` if
    it was given up).
    """
    n = order.size
    for i in range(n):
        components[i] = _root(parent, i)
        best[i] = np.inf
        best_from[i] = -1
    for node in range(begins.size - 1, -1, -1):
        if begins[node] == ends[node]:
            owners[node] = -1
        elif _is_leaf(node, begins, ends):
            owners[node] = components[order[begins[node]]]
            for at in range(begins[node] + 1, ends[node]):
                if components[order[at]] != owners[node]:
                    owners[node] = -1
        else:
            left = owners[2 * node + 1]
            owners[node] = left if left == owners[2 * node + 2] else -1
    stack, gaps = np.empty(2 * DEEPEST, np.int64), np.empty(2 * DEEPEST)
    work = 0
    for at in range(n):
        i = order[at]
        mine = components[i]
        if least[i] >= best[mine]:
            continue
        gap, j, more = _search(
            i,
            best[mine],
            points,
            order,
            begins,
            ends,
            low,
            high,
            components,
            owners,
            stack,
            gaps,
        )
        work += more
        if work > most:
            return count, work
        least[i] = gap
        if j >= 0:
            best[mine], best_from[mine], best_to[mine] = gap, i, j
    for at in range(n):
        if best_from[at] < 0:
            continue
        one, two = _root(parent, at), _root(parent, best_to[at])
        if one != two:
            parent[max(one, two)] = min(one, two)
            first[count], second[count] = best_from[at], best_to[at]
            weights[count] = best[at]
            count += 1
    return count, work
