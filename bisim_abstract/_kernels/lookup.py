"""Where the ground costs of a backup stand: pairs of states to places in a table of values.

An open-addressing hash table over pair keys `s * n + t` with s <= t. Place 0 belongs to pairs of
equal states; the covered pairs come next, in order; pairs that are read but not covered (the
frontier) follow in the order in which they are first met. Where states are blocks, two members
of a block of several are a pair like any other.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import inner, kernel
from bisim_abstract._base.types import AnyIntArray, BoolArray, IntArray


@inner
def slot_kernel(key: int, slots: IntArray) -> int:
    """The slot that holds `key`, or the empty one (-1) where it belongs."""
    mask = np.uint64(slots.size - 1)
    x = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    at = (x ^ (x >> np.uint64(29))) & mask
    while slots[at] != -1 and slots[at] != key:
        at = (at + np.uint64(1)) & mask
    return int(at)


@kernel
def insert_kernel(keys: IntArray, base: int, slots: IntArray, places: IntArray) -> None:
    """Give `keys` the places base, base + 1, ... In/out: slots and places (a power of two)."""
    for k in range(keys.size):
        at = slot_kernel(keys[k], slots)
        slots[at] = keys[k]
        places[at] = base + k


@kernel
def locate_kernel(
    begin: int,
    end: int,
    first: IntArray,
    second: IntArray,
    indptr: IntArray,
    indices: IntArray,
    n_states: int,
    available: BoolArray,
    sets: IntArray,
    is_lax: bool,
    is_point: BoolArray,
    slots: IntArray,
    places: IntArray,
    next_place: int,
    frontier: IntArray,
    offset: IntArray,
    positions: AnyIntArray,
) -> int:
    """Find the place of every ground cost that the pairs begin..end read.

    In: first, second (pairs); available (n_states, actions) and sets (n_states), which actions a
    block has; is_lax: every two actions of a pair are compared, or by name only, as always those
    of a block with itself; is_point (n_states), whether a block has a single member; next_place,
    the first free place.
    In/out: slots, places: pairs met for the first time are added to them.
    Out: frontier: keys of the pairs added, in order; offset (end - begin + 1) and positions:
    for each pair, two actions that are compared, and cell of the two supports its place.
    Returns the number of pairs added.
    """
    n_actions = available.shape[1]
    added = 0
    cell = 0
    for at in range(begin, end):
        offset[at - begin] = cell
        s, t = first[at], second[at]
        if not is_lax and sets[s] != sets[t]:
            continue
        for k in range(n_actions * n_actions if is_lax and s != t else n_actions):
            a, b = (k // n_actions, k % n_actions) if is_lax and s != t else (k, k)
            if not available[s, a] or not available[t, b]:
                continue
            p, q = s * n_actions + a, t * n_actions + b
            for i in range(indptr[p], indptr[p + 1]):
                x = indices[i]
                for j in range(indptr[q], indptr[q + 1]):
                    y = indices[j]
                    place = 0
                    if x != y or not is_point[x]:
                        key = x * n_states + y if x < y else y * n_states + x
                        slot = slot_kernel(key, slots)
                        if slots[slot] == -1:
                            slots[slot] = key
                            places[slot] = next_place + added
                            frontier[added] = key
                            added += 1
                        place = places[slot]
                    positions[cell] = place
                    cell += 1
    offset[end - begin] = cell
    return added


@kernel
def find_kernel(
    begin: int,
    end: int,
    first: IntArray,
    second: IntArray,
    indptr: IntArray,
    indices: IntArray,
    n_states: int,
    available: BoolArray,
    sets: IntArray,
    is_lax: bool,
    is_point: BoolArray,
    slots: IntArray,
    places: IntArray,
    offset: IntArray,
    positions: AnyIntArray,
) -> None:
    """The same once all pairs have been met: the table is only read, and may be shared.

    In: as for `locate_kernel`. Out: offset and positions.
    """
    n_actions = available.shape[1]
    cell = 0
    for at in range(begin, end):
        offset[at - begin] = cell
        s, t = first[at], second[at]
        if not is_lax and sets[s] != sets[t]:
            continue
        for k in range(n_actions * n_actions if is_lax and s != t else n_actions):
            a, b = (k // n_actions, k % n_actions) if is_lax and s != t else (k, k)
            if not available[s, a] or not available[t, b]:
                continue
            p, q = s * n_actions + a, t * n_actions + b
            for i in range(indptr[p], indptr[p + 1]):
                x = indices[i]
                for j in range(indptr[q], indptr[q + 1]):
                    y = indices[j]
                    place = 0
                    if x != y or not is_point[x]:
                        key = x * n_states + y if x < y else y * n_states + x
                        place = places[slot_kernel(key, slots)]
                    positions[cell] = place
                    cell += 1
    offset[end - begin] = cell
