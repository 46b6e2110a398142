"""Partition refinement: the coarsest partition stable under rewards and lifted rows.

A state's signature is a 128-bit hash of its rewards and, per action, of the probability mass
it sends to each block; where actions need not correspond by their names, of the set of what its
actions pay and do. Only states with a successor whose block was renamed are looked at
again (or all states, where that is quicker), and a block that splits keeps its name for the
largest part. So a state is renamed at most log2(n) times, and the total work is near-linear in
the number of transitions.

Hashes need no trust: `deviation_kernel` compares every action of every member with that of its
representative that it corresponds to, and returns what they differ by.
"""

from __future__ import annotations

import numpy as np

from bisim_abstract._base.jit import inlined, inner, kernel
from bisim_abstract._base.rounding import EPS
from bisim_abstract._base.types import FloatArray, IntArray, UIntArray

DESCENT = 12  # steps in search of a centre
FEW = 8  # entries of a centre that all may stay
SPARES = 8  # shares of a centre that are tried as what can be done without
COMMON = 0.75  # what members need not have in common, over two radii, where that is worth it
WIDER = 1.35  # how much larger a radius may then be
SPARSE = 1.02  # how much larger a radius may be, so that a centre has fewer entries
SEARCHED = 12  # blocks of a row that are looked through one by one; more are looked up
MANY = 4  # one in so many states renamed: all are looked at again
RUN = 64  # states that are compared with a representative before its next action is read


@inner
def mix_kernel(x: np.uint64, salt: np.uint64) -> np.uint64:
    """Scramble 64 bits (the finaliser of SplitMix64, salted)."""
    x = (x + salt) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inner
def lift_row_kernel(
    row: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    block: IntArray,
    slot: IntArray,
    touched: IntArray,
    hi: FloatArray,
    lo: FloatArray,
) -> tuple[int, float, float, bool]:
    """Sum a row by block, in double-double arithmetic.

    Scratch: slot (blocks), all zero on entry and on return. Out: touched (first entries), the
    blocks that are reached, and hi and lo, their sums. Returns their number, the row's sum as
    (hi, lo), and whether nothing was rounded away. Two-sum is exact, and so is the first addition
    to `lo`; later ones may round, far below the last bit of `hi`, and are tested for it. So sums
    do not depend on the order of their terms unless they need more than 106 bits.
    """
    count = 0
    total_hi = 0.0
    total_lo = 0.0
    exact = True
    for k in range(indptr[row], indptr[row + 1]):
        x = probs[k]
        b = block[indices[k]]
        # Most rows reach few blocks: these stay in the nearest memory, and slots are not read.
        at = 0
        if count < SEARCHED:
            while at < count and touched[at] != b:
                at += 1
        else:
            at = slot[b] - 1 if slot[b] > 0 else count
        if at == count:
            touched[at] = b
            hi[at] = x
            lo[at] = 0.0
            count += 1
            if count >= SEARCHED:
                for i in range(at if count > SEARCHED else 0, count):
                    slot[touched[i]] = i + 1
        else:
            s = hi[at] + x
            part = s - hi[at]
            err = (hi[at] - (s - part)) + (x - part)
            new_lo = lo[at] + err
            if new_lo - lo[at] != err or new_lo - err != lo[at]:
                exact = False
            hi[at] = s
            lo[at] = new_lo
        s = total_hi + x
        part = s - total_hi
        err = (total_hi - (s - part)) + (x - part)
        new_lo = total_lo + err
        if new_lo - total_lo != err or new_lo - err != total_lo:
            exact = False
        total_hi = s
        total_lo = new_lo
    # Renormalise, so that equal sums have equal parts.
    for k in range(count):
        s = hi[k] + lo[k]
        lo[k] = lo[k] - (s - hi[k])
        hi[k] = s
        if count >= SEARCHED:
            slot[touched[k]] = 0
    s = total_hi + total_lo
    total_lo = total_lo - (s - total_hi)
    return count, s, total_lo, exact


@inner
def ratio_kernel(hi: float, lo: float, total_hi: float, total_lo: float) -> float:
    """The quotient of two double-doubles, rounded to a float; exactly 1 for equal ones.

    The remainder hi - q·total is found with one Veltkamp-split product, so the correction is
    right to second order and the result is the rounded quotient but for near-ties.
    """
    q = hi / total_hi
    c = 134217729.0 * q
    q_big = c - (c - q)
    q_small = q - q_big
    c = 134217729.0 * total_hi
    t_big = c - (c - total_hi)
    t_small = total_hi - t_big
    product = q * total_hi
    error = ((q_big * t_big - product) + q_big * t_small + q_small * t_big) + q_small * t_small
    rest = (hi - product) - error + lo - q * total_lo
    return q + rest / total_hi


@inner
def reward_signature_kernel(s: int, reward_key: IntArray) -> tuple[np.uint64, np.uint64]:
    """128-bit hash of what state s pays. In: reward_key (n, A), int64."""
    h1 = np.uint64(0)
    h2 = np.uint64(0)
    for a in range(reward_key.shape[1]):
        salt = np.uint64(2 * a + 1)
        key = np.uint64(reward_key[s, a])
        h1 += mix_kernel(key, salt * np.uint64(0xD6E8FEB86659FD93))
        h2 += mix_kernel(key, salt * np.uint64(0xA0761D6478BD642F))
    return h1, h2


@inner
def find_kernel(h1: np.uint64, h2: np.uint64, own: UIntArray, place: IntArray) -> np.uint64:
    """Where in `place` a signature is, or belongs.

    In: own (2, signatures), those met so far; place (a power of two, at least twice as many), the
    number of one of them, from 1 on, or 0.
    """
    mask = np.uint64(place.size - 1)
    at = h1 & mask
    while place[at] > 0 and (own[0, place[at] - 1] != h1 or own[1, place[at] - 1] != h2):
        at = (at + np.uint64(1)) & mask
    return at


@inner
def thing_kernel(
    action: int,
    reward_key: np.uint64,
    w1: np.uint64,
    w2: np.uint64,
    count: int,
    things: UIntArray,
    does: IntArray,
    place: IntArray,
) -> tuple[np.uint64, np.uint64, int]:
    """Note what an action does, if no other has done it before.

    In: w1, w2: the hash of where it leads; count, how many things there were. In/out: things,
    does and place, as in `things_kernel`. Returns what it adds to the hash of all things, and
    how many there are now.
    """
    w1 += mix_kernel(reward_key, np.uint64(0xD6E8FEB86659FD93))
    w2 += mix_kernel(reward_key, np.uint64(0xA0761D6478BD642F))
    at = find_kernel(w1, w2, things, place)
    if place[at] > 0:
        does[action] = place[at] - 1
        return np.uint64(0), np.uint64(0), count
    things[0, count] = w1
    things[1, count] = w2
    does[action] = count
    place[at] = count + 1
    # Each half depends on both, as the sum is over things, not over their parts.
    both = w1 + w2 * np.uint64(0x9FB21C651E98DF25)
    twisted = w2 + w1 * np.uint64(0xC2B2AE3D27D4EB4F)
    h1 = mix_kernel(both, np.uint64(0xE7037ED1A0B428DB))
    h2 = mix_kernel(twisted, np.uint64(0x8EBC6AF09C88C6E3))
    return h1, h2, count + 1


@inlined
def row_signature_kernel(
    s: int,
    begin: int,
    end: int,
    is_lax: bool,
    n_actions: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    scale: float,
    block: IntArray,
    slot: IntArray,
    touched: IntArray,
    hi: FloatArray,
    lo: FloatArray,
    bits: FloatArray,
    word: UIntArray,
) -> tuple[np.uint64, np.uint64]:
    """128-bit hash of where actions begin..end of state s lead under the current blocks.

    In: is_lax: it does not matter which actions they are; scale: masses are rounded to multiples
    of 1/scale, or kept as floats for scale 0.
    Scratch: slot (blocks), zero; touched, hi, lo (widest row); bits (1) and word, the same memory
    seen as an integer.
    """
    h1 = np.uint64(0)
    h2 = np.uint64(0)
    for a in range(begin, end):
        salt = np.uint64(1) if is_lax else np.uint64(2 * a + 1)
        count, total_hi, total_lo, _ = lift_row_kernel(
            s * n_actions + a, indptr, indices, probs, block, slot, touched, hi, lo
        )
        for k in range(count):
            mass = 1.0
            if count > 1:
                mass = ratio_kernel(hi[k], lo[k], total_hi, total_lo)
            if scale > 0.0:
                mass = np.rint(mass * scale)
            if mass == 0.0:
                continue
            bits[0] = mass
            b = np.uint64(touched[k])
            here = mix_kernel(word[0], salt) + b * np.uint64(0x9FB21C651E98DF25)
            # A sum over blocks: it does not depend on their order.
            h1 += mix_kernel(here, np.uint64(0xE7037ED1A0B428DB))
            h2 += mix_kernel(here, np.uint64(0x8EBC6AF09C88C6E3) + salt)
    return h1, h2


@inner
def things_kernel(
    s: int,
    has_rows: bool,
    reward_key: IntArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    scale: float,
    block: IntArray,
    slot: IntArray,
    touched: IntArray,
    hi: FloatArray,
    lo: FloatArray,
    bits: FloatArray,
    word: UIntArray,
    things: UIntArray,
    does: IntArray,
    place: IntArray,
) -> tuple[np.uint64, np.uint64, int]:
    """128-bit hash of the different things that state s can do, and their number.

    In: has_rows: whether it counts where actions lead, not only what they pay.
    Out: things (2, actions), first entries: a signature of each, in the order of actions; does
    (actions), which of them each action does; place, as in `find_kernel`. Scratch: as in
    `row_signature_kernel`.
    """
    n_actions = reward_key.shape[1]
    place[:] = 0
    h1 = np.uint64(0)
    h2 = np.uint64(0)
    count = 0
    for a in range(n_actions):
        w1 = np.uint64(0)
        w2 = np.uint64(0)
        if has_rows:
            w1, w2 = row_signature_kernel(
                s,
                a,
                a + 1,
                True,
                n_actions,
                indptr,
                indices,
                probs,
                scale,
                block,
                slot,
                touched,
                hi,
                lo,
                bits,
                word,
            )
        key = np.uint64(reward_key[s, a])
        w1, w2, count = thing_kernel(a, key, w1, w2, count, things, does, place)
        h1 += w1
        h2 += w2
    return h1, h2, count


@inner
def places_kernel(n_actions: int) -> IntArray:
    """Room to look up the signatures of a state's actions, all zero."""
    size = 2
    while size < 2 * n_actions:
        size *= 2
    return np.zeros(size, np.int64)


@inner
def sort_kernel(values: IntArray, begin: int, end: int) -> None:
    """Sort values[begin:end] in place: Shell's method, quick to compile and good on short rows."""
    gap = 1
    while gap < (end - begin) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(begin + gap, end):
            value = values[i]
            j = i
            while j >= begin + gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@inner
def predecessors_kernel(
    indptr: IntArray, indices: IntArray, n_states: int, n_actions: int, ptr: IntArray
) -> IntArray:
    """For every state the states that may lead to it; those of t begin at ptr[t].

    Out: ptr (n_states + 1).
    """
    last = np.zeros(n_states, np.int64)  # the state met last as a predecessor, plus one
    ptr[:] = 0
    for s in range(n_states):
        for k in range(indptr[s * n_actions], indptr[(s + 1) * n_actions]):
            t = indices[k]
            if last[t] != s + 1:
                last[t] = s + 1
                ptr[t] += 1
    total = 0
    for t in range(n_states):
        total += ptr[t]
        ptr[t] = total  # where the predecessors of t end
        last[t] = n_states
    ptr[n_states] = total
    states = np.empty(total, np.int64)
    # Backwards, filling each list from its end, so that lists are in order and ptr says where
    # they begin.
    for s in range(n_states - 1, -1, -1):
        for k in range(indptr[s * n_actions], indptr[(s + 1) * n_actions]):
            t = indices[k]
            if last[t] != s:
                last[t] = s
                ptr[t] -= 1
                states[ptr[t]] = s
    return states


@kernel
def refine_kernel(
    n_actions: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    reward_key: IntArray,
    scale: float,
    is_lax: bool,
    block: IntArray,
    bits: FloatArray,
    word: UIntArray,
) -> int:
    """Refine the partition `block` (n), numbered from 0, until it is stable.

    In: is_lax: states are alike if they can do the same things, whatever actions are called and
    however many do the same. Scratch: bits (1), and word, the same memory seen as an integer.
    Returns the number of blocks. Blocks lie next to each other in `member`; dirty states are
    swapped to the front of their block, so that a block is never searched as a whole.
    """
    n = block.size
    widest = 0
    for row in range(n * n_actions):
        widest = max(widest, indptr[row + 1] - indptr[row])
    slot = np.zeros(n, np.int64)
    touched, hi, lo = np.empty(widest, np.int64), np.empty(widest), np.empty(widest)
    sig1, sig2 = np.empty(n, np.uint64), np.empty(n, np.uint64)
    things, does = np.empty((2, n_actions), np.uint64), np.empty(n_actions, np.int64)
    places = places_kernel(n_actions)
    ptr = np.zeros(n + 1, np.int64)
    preds = touched  # found once a round needs them

    # Members of each block.
    n_blocks = 0
    first, size = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    for s in range(n):
        n_blocks = max(n_blocks, block[s] + 1)
        size[block[s]] += 1
    marked = np.zeros(n, np.int64)  # dirty states at the front of each block
    for b in range(n_blocks):
        first[b + 1] = first[b] + size[b]
    member, place = np.empty(n, np.int64), np.empty(n, np.int64)
    dirty, next_dirty = np.empty(n, np.int64), np.empty(n, np.int64)
    is_dirty = np.zeros(n, np.bool_)
    for s in range(n):
        place[s] = first[block[s]] + marked[block[s]]
        member[place[s]] = s
        marked[block[s]] += 1
        dirty[s] = s
    marked[:] = 0

    # Of the block that is being split: a hash table of the signatures met, and its parts.
    n_slots = 2
    while n_slots < 2 * n:
        n_slots *= 2
    slots = np.empty(n_slots, np.int64)
    part, lead, count = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    name, fill = np.empty(n, np.int64), np.empty(n, np.int64)

    active, renamed = np.empty(n, np.int64), np.empty(n, np.int64)
    n_dirty = n
    is_first = True
    while n_dirty > 0:
        n_active = 0
        for k in range(n_dirty):
            s = dirty[k]
            is_dirty[s] = False
            b = block[s]
            if size[b] == 1:
                continue
            h1, h2 = np.uint64(0), np.uint64(0)
            if is_lax:
                h1, h2, _ = things_kernel(
                    s,
                    n_blocks > 1,
                    reward_key,
                    indptr,
                    indices,
                    probs,
                    scale,
                    block,
                    slot,
                    touched,
                    hi,
                    lo,
                    bits,
                    word,
                    things,
                    does,
                    places,
                )
            elif is_first:  # later on, the states of a block pay the same under each action
                h1, h2 = reward_signature_kernel(s, reward_key)
            if n_blocks > 1 and not is_lax:  # else all mass stays in the one block
                w1, w2 = row_signature_kernel(
                    s,
                    0,
                    n_actions,
                    False,
                    n_actions,
                    indptr,
                    indices,
                    probs,
                    scale,
                    block,
                    slot,
                    touched,
                    hi,
                    lo,
                    bits,
                    word,
                )
                h1 += w1
                h2 += w2
            sig1[s] = h1
            sig2[s] = h2
            if marked[b] == 0:
                active[n_active] = b
                n_active += 1
            front = first[b] + marked[b]
            other = member[front]
            member[place[s]] = other
            place[other] = place[s]
            member[front] = s
            place[s] = front
            marked[b] += 1

        n_renamed = 0
        for k in range(n_active):
            b = active[k]
            begin, n_marked, n_all = first[b], marked[b], size[b]
            marked[b] = 0
            rest = n_all - n_marked  # these have one signature: the first of them stands for all
            n_slots = 2
            while n_slots < 2 * n_marked + 2:
                n_slots *= 2
            n_slots = min(n_slots, slots.size)
            for q in range(n_slots):
                slots[q] = -1
            mask = np.uint64(n_slots - 1)
            n_parts = 0
            for i in range(min(n_marked + 1, n_all)):
                s = member[begin + i]
                at = sig1[s] & mask
                while slots[at] >= 0:
                    other = lead[slots[at]]
                    if sig1[other] == sig1[s] and sig2[other] == sig2[s]:
                        break
                    at = (at + np.uint64(1)) & mask
                if slots[at] < 0:
                    slots[at] = n_parts
                    lead[n_parts] = s
                    count[n_parts] = 0
                    n_parts += 1
                part[i] = slots[at]
                count[part[i]] += 1 if i < n_marked else rest
            if n_parts == 1:
                continue
            # The largest part keeps the name. The rest stays where it is, at the end, and so the
            # marked states of its part go right before it; the other parts come first.
            last = part[n_marked] if rest > 0 else n_parts - 1
            keeps = last
            at_part = begin
            for i in range(n_parts):
                if count[i] > count[keeps]:
                    keeps = i
                fill[i] = at_part
                if i != last:
                    at_part += count[i]
            fill[last] = at_part
            for i in range(n_parts):
                name[i] = b
                if i != keeps:
                    name[i] = n_blocks
                    n_blocks += 1
                first[name[i]] = fill[i]
                size[name[i]] = count[i]
            for i in range(n_marked):
                next_dirty[i] = member[begin + i]  # free until this round ends
            for i in range(n_all):
                at_state = begin + i
                s = member[at_state]
                own = last
                if i < n_marked:
                    s = next_dirty[i]
                    own = part[i]
                    at_state = fill[own]
                    fill[own] += 1
                elif last == keeps:
                    break
                member[at_state] = s
                place[s] = at_state
                if own != keeps:
                    block[s] = name[own]
                    renamed[n_renamed] = s
                    n_renamed += 1
        if n_blocks == n or n_renamed == 0:
            break
        n_dirty = 0
        if is_first or MANY * n_renamed > n:
            # Signatures without rewards are to take the place of those with them; or nearly all
            # states lead to a renamed one. Those that do not get the signature that they had.
            is_first = False
            for s in range(n):
                if size[block[s]] > 1:
                    next_dirty[n_dirty] = s
                    n_dirty += 1
            n_renamed = 0
        elif ptr[n] == 0:
            preds = predecessors_kernel(indptr, indices, n, n_actions, ptr)
        for k in range(n_renamed):
            t = renamed[k]
            for q in range(ptr[t], ptr[t + 1]):
                s = preds[q]
                if not is_dirty[s] and size[block[s]] > 1:
                    is_dirty[s] = True
                    next_dirty[n_dirty] = s
                    n_dirty += 1
        dirty, next_dirty = next_dirty, dirty
    return n_blocks


@kernel
def naming_kernel(
    begin: int,
    end: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    reward_key: IntArray,
    scale: float,
    block: IntArray,
    representative: IntArray,
    widest: int,
    bits: FloatArray,
    word: UIntArray,
    out: IntArray,
) -> int:
    """What the actions of states begin..end are called in their blocks, into `out` (n, actions).

    Actions with one signature have one name; names are numbered by the actions of the block's
    representative. In: as in `refine_kernel` and `deviation_kernel`.
    Returns a state whose actions are not those of its representative, or -1.
    """
    n_actions = reward_key.shape[1]
    slot = np.zeros(representative.size, np.int64)
    touched, hi, lo = np.empty(widest, np.int64), np.empty(widest), np.empty(widest)
    things, does = np.empty((2, n_actions), np.uint64), np.empty(n_actions, np.int64)
    place = places_kernel(n_actions)
    theirs, their_place, count = things.copy(), place.copy(), 0
    known = -1  # the block whose representative these three are of
    for s in range(begin, end):
        is_new = block[s] != known
        known = block[s]
        # The representative of a block that has just been met, if it is another state, and s.
        for x in (representative[known] if is_new else s, s):
            _, _, n_things = things_kernel(
                x,
                True,
                reward_key,
                indptr,
                indices,
                probs,
                scale,
                block,
                slot,
                touched,
                hi,
                lo,
                bits,
                word,
                things,
                does,
                place,
            )
            if is_new:
                count, is_new = n_things, False
                theirs[:], their_place[:] = things, place
            if x == s:
                break
        if n_things != count:
            return s
        for a in range(n_actions):
            w1, w2 = things[0, does[a]], things[1, does[a]]
            out[s, a] = their_place[find_kernel(w1, w2, theirs, their_place)] - 1
            if out[s, a] < 0:
                return s
    return -1


@kernel
def deviation_kernel(
    begin: int,
    end: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    block: IntArray,
    representative: IntArray,
    chosen: IntArray,
    renaming: IntArray,
    widest: int,
) -> tuple[float, float]:
    """Bound how much states begin..end differ from the representatives of their blocks.

    In: representative (blocks); chosen (blocks, actions): the representative's action that stands
    for each name; renaming (n, actions): the names of actions, -1 for those that do not count, or
    (0, actions) where all are called what they are; widest: the longest row. Returns (reward gap,
    total variation), the largest over states and actions: the exact difference between what an
    action pays and what the representative's action of that name pays is at most the first, the
    exact total variation distance between their lifted, normalised rows at most the second. Both
    are exactly 0 where equality is exact: rewards equal, and lifted sums and row sums equal
    without any rounding, or all mass in one and the same block.

    Otherwise each lifted mass is a quotient of sums known far beyond float precision, rounded
    once: off by less than 2·EPS relative, hence by less than 4·EPS in total for both rows;
    the sum of their differences rounds by (count + 2)·EPS relative, and masses sum to one.
    """
    n_actions = rewards.shape[1]
    by_name = renaming.shape[0] == 0
    slot, where = np.zeros(representative.size, np.int64), np.zeros(representative.size, np.int64)
    touched, hi, lo = np.empty(widest, np.int64), np.empty(widest), np.empty(widest)
    touched2, hi2, lo2 = np.empty(widest, np.int64), np.empty(widest), np.empty(widest)
    reward_gap = 0.0
    variation = 0.0
    stop = begin
    while stop < end:
        # Neighbours often have one representative, whose rows are then lifted once for all.
        start = stop
        c = block[start]
        r = representative[c]
        while stop < min(end, start + RUN) and block[stop] == c:
            stop += 1
        if stop == start + 1 and start == r and by_name:
            continue
        for name in range(n_actions):
            b = chosen[c, name]
            if b < 0:  # the block has fewer names
                continue
            count2 = -1  # not lifted yet
            th2, tl2, exact2 = 0.0, 0.0, False
            for at in range(stop - start if by_name else (stop - start) * n_actions):
                s, a = start + at, name
                if not by_name:
                    s, a = start + at // n_actions, at % n_actions
                    if renaming[s, a] != name:
                        continue
                if s == r and a == b:
                    continue
                if count2 < 0:
                    count2, th2, tl2, exact2 = lift_row_kernel(
                        r * n_actions + b, indptr, indices, probs, block, slot, touched2, hi2, lo2
                    )
                    for k in range(count2):
                        where[touched2[k]] = k + 1
                if rewards[s, a] != rewards[r, b]:
                    gap = abs(rewards[s, a] - rewards[r, b])
                    reward_gap = max(reward_gap, gap * (1.0 + 2.0 * EPS) + 5e-324)
                count, th, tl, exact = lift_row_kernel(
                    s * n_actions + a, indptr, indices, probs, block, slot, touched, hi, lo
                )
                same = count == 1 and count2 == 1 and touched[0] == touched2[0]
                if not same and exact and exact2 and count == count2 and th == th2 and tl == tl2:
                    same = True
                    for k in range(count):
                        i = where[touched[k]] - 1
                        if i < 0 or hi[k] != hi2[i] or lo[k] != lo2[i]:
                            same = False
                if not same:
                    total = 0.0
                    for k in range(count):
                        p = ratio_kernel(hi[k], lo[k], th, tl)
                        i = where[touched[k]] - 1
                        q = ratio_kernel(hi2[i], lo2[i], th2, tl2) if i >= 0 else 0.0
                        total += max(p - q, 0.0)
                    bound = total * (1.0 + (count + 8) * EPS) + 8.0 * EPS
                    variation = max(variation, min(bound, 1.0))
            for k in range(max(count2, 0)):
                where[touched2[k]] = 0
    return reward_gap, variation


@kernel
def lift_rows_kernel(
    rows: IntArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    block: IntArray,
    n_blocks: int,
    out_indptr: IntArray,
    out_indices: IntArray,
    out_probs: FloatArray,
) -> bool:
    """Sum the given rows by block, each sum rounded once.

    Out: out_indptr (rows + 1), out_indices and out_probs (first entries), blocks increasing
    within a row. Returns whether every sum was exact.
    """
    widest = 0
    for k in range(rows.size):
        widest = max(widest, indptr[rows[k] + 1] - indptr[rows[k]])
    slot, mass = np.zeros(n_blocks, np.int64), np.empty(n_blocks)
    touched, hi, lo = np.empty(widest, np.int64), np.empty(widest), np.empty(widest)
    at = 0
    exact = True
    out_indptr[0] = 0
    for k in range(rows.size):
        count, _, _, is_exact = lift_row_kernel(
            rows[k], indptr, indices, probs, block, slot, touched, hi, lo
        )
        for i in range(count):
            mass[touched[i]] = hi[i]
            exact = exact and is_exact and lo[i] == 0.0
        sort_kernel(touched, 0, count)
        for i in range(count):
            out_indices[at] = touched[i]
            out_probs[at] = mass[touched[i]]
            at += 1
        out_indptr[k + 1] = at
    return exact


@kernel
def reach_kernel(
    begin: int,
    end: int,
    rows: IntArray,
    starts: IntArray,
    n_blocks: int,
    indptr: IntArray,
    indices: IntArray,
    block: IntArray,
    out: IntArray,
) -> None:
    """How many blocks the rows of each of the groups begin..end reach.

    In: rows, those of one group after another, a group being an action of a block; starts
    (groups + 1), where each begins. Out: out (groups).
    """
    mark = np.zeros(n_blocks, np.int64)  # the group that reached a block last, plus one
    for group in range(begin, end):
        count = 0
        for k in range(starts[group], starts[group + 1]):
            row = rows[k]
            for q in range(indptr[row], indptr[row + 1]):
                b = block[indices[q]]
                if mark[b] != group + 1:
                    mark[b] = group + 1
                    count += 1
        out[group] = count


@inner
def lift_members_kernel(
    members: IntArray,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    block: IntArray,
    slot: IntArray,
    touched: IntArray,
    hi: FloatArray,
    lo: FloatArray,
    first_hi: FloatArray,
    first_lo: FloatArray,
    ends: IntArray,
    columns: IntArray,
    masses: FloatArray,
) -> tuple[bool, bool]:
    """Rows summed by block, one after another.

    Out: columns and masses (first entries): blocks, and what is sent there, off by less than 2·EPS
    relative; ends (members + 1): where rows end; first_hi, first_lo (blocks): the sums of the
    first row, which the caller clears. Scratch: slot (blocks), zero; touched, hi, lo (widest row).
    Returns whether all rows are equal without any rounding, or send all mass to one and the same
    block; and whether the sums of the first are floats.
    """
    is_same = True
    is_exact = True
    first_count = 0
    first_th = 0.0
    first_tl = 0.0
    at = 0
    ends[0] = 0
    for k in range(members.size):
        count, th, tl, exact = lift_row_kernel(
            members[k], indptr, indices, probs, block, slot, touched, hi, lo
        )
        if k == 0:
            first_count, first_th, first_tl, is_exact = count, th, tl, exact
        elif not exact or count != first_count or th != first_th or tl != first_tl:
            is_same = is_same and count == 1 and first_count == 1
        for i in range(count):
            b = touched[i]
            columns[at] = b
            masses[at] = ratio_kernel(hi[i], lo[i], th, tl)
            at += 1
            if k == 0:
                first_hi[b] = hi[i]
                first_lo[b] = lo[i]
                is_exact = is_exact and lo[i] == 0.0
            elif first_count == 1:
                is_same = is_same and first_hi[b] != 0.0
            else:
                is_same = is_same and hi[i] == first_hi[b] and lo[i] == first_lo[b]
        ends[k + 1] = at
    return is_same, is_exact


@inner
def farthest_kernel(
    count: int, ends: IntArray, columns: IntArray, masses: FloatArray, centre: FloatArray
) -> tuple[float, int]:
    """How far rows are from a centre in total variation, at most, and which one it is.

    In: `count` rows by `ends`, columns and masses; the centre by column.
    """
    most = -1.0
    which = 0
    for k in range(count):
        off = 0.0
        for i in range(ends[k], ends[k + 1]):
            off += max(masses[i] - centre[columns[i]], 0.0)
        if off > most:
            most = off
            which = k
    return most, which


@inner
def search_centre_kernel(
    count: int,
    union: int,
    ends: IntArray,
    columns: IntArray,
    masses: FloatArray,
    least: FloatArray,
    most: FloatArray,
    seen: IntArray,
    centre: FloatArray,
) -> None:
    """A distribution that no row is far from: a guess, whose radius is bounded elsewhere.

    In: rows as in `farthest_kernel`. Out: centre (union). Scratch: least, most, seen (union).
    The mean serves where members differ in where small shares of their mass go, the mid-range
    where a few differ from all others; from the better one, steps towards the farthest row that
    become ever shorter, as for the smallest ball that encloses points. Entries may be 0.
    """
    for j in range(union):
        centre[j] = 0.0
        least[j] = np.inf
        most[j] = 0.0
        seen[j] = 0
    for i in range(ends[count]):
        j = columns[i]
        centre[j] += masses[i]
        least[j] = min(least[j], masses[i])
        most[j] = max(most[j], masses[i])
        seen[j] += 1
    total = 0.0
    for j in range(union):
        centre[j] /= count
        if seen[j] < count:
            least[j] = 0.0
        total += 0.5 * (least[j] + most[j])
    trial = least  # read entry by entry before it is written
    for j in range(union):
        trial[j] = 0.5 * (least[j] + most[j]) / total
    radius, which = farthest_kernel(count, ends, columns, masses, centre)
    other, another = farthest_kernel(count, ends, columns, masses, trial)
    if other < radius:
        radius, which = other, another
        centre[:union] = trial[:union]
    else:
        trial[:union] = centre[:union]
    for k in range(DESCENT):
        step = 1.0 / (k + 4.0)
        for j in range(union):
            trial[j] *= 1.0 - step
        for i in range(ends[which], ends[which + 1]):
            trial[columns[i]] += step * masses[i]
        other, which = farthest_kernel(count, ends, columns, masses, trial)
        if other < radius:
            radius = other
            centre[:union] = trial[:union]
    # What a few members send somewhere is in the radius almost as a whole, whether the centre has
    # its share of it or not; and every entry takes time in every transport.
    cut = radius
    for _ in range(3 if union > FEW else 0):
        total = 0.0
        for j in range(union):
            trial[j] = 0.0 if seen[j] < count and centre[j] < cut else centre[j]
            total += trial[j]
        if total > 0.5:
            for j in range(union):
                trial[j] /= total
            other, which = farthest_kernel(count, ends, columns, masses, trial)
            if other <= SPARSE * radius:
                centre[:union] = trial[:union]
                break
        cut *= 0.25
    # What all members have in common, if that is almost everything: two of them then differ by
    # what one has besides, not by two radii, which is worth a radius that is a little larger.
    for j in range(union):
        trial[j] = np.inf if seen[j] == count else 0.0
    for i in range(ends[count]):
        trial[columns[i]] = min(trial[columns[i]], masses[i])
    total = 0.0
    for j in range(union):
        total += trial[j]
    if 1.0 - total < COMMON * 2.0 * radius and total > 0.5:
        for j in range(union):
            trial[j] /= total
        other, which = farthest_kernel(count, ends, columns, masses, trial)
        if other <= WIDER * radius:
            centre[:union] = trial[:union]


@inner
def shortage_kernel(
    begin: int, end: int, columns: IntArray, masses: FloatArray, centre: FloatArray, keep: float
) -> float:
    """Σ (keep·centre - row)⁺ for the row begin..end; the centre sums to one."""
    short, met = 0.0, 0.0
    for i in range(begin, end):
        mine = centre[columns[i]]
        met += mine
        short += max(keep * mine - masses[i], 0.0)
    return short + keep * max(1.0 - met, 0.0)


@inner
def search_spare_kernel(
    count: int,
    ends: IntArray,
    columns: IntArray,
    masses: FloatArray,
    centre: FloatArray,
    radius: float,
) -> float:
    """A share s of the centre that can be done without, so that rows lack little of the rest.

    In: rows as in `farthest_kernel`. With t(s) the largest Σ ((1 - s)·centre - row)⁺, two members
    differ by no more than s + 2·t(s) of their mass; s + 2·t(s) is convex in s, and 2·radius at 0. A
    guess: what members lack is bounded elsewhere.
    """
    best, spare = 2.0 * radius, 0.0
    for k in range(1, SPARES + 1):
        trial = 2.0 * radius * k / SPARES
        short = 0.0
        for m in range(count):
            short = max(
                short, shortage_kernel(ends[m], ends[m + 1], columns, masses, centre, 1.0 - trial)
            )
            if trial + 2.0 * short >= best:
                break
        if trial + 2.0 * short < best:
            best, spare = trial + 2.0 * short, trial
    return spare


@kernel
def centre_kernel(
    begin: int,
    end: int,
    rows: IntArray,
    starts: IntArray,
    n_blocks: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    extra: FloatArray,
    block: IntArray,
    widest: int,
    room: int,
    out_indptr: IntArray,
    out_indices: IntArray,
    out_probs: FloatArray,
    radius: FloatArray,
    spare: FloatArray,
    short: FloatArray,
) -> None:
    """Centre rows and radii of the groups of rows begin..end.

    In: rows, starts as in `reach_kernel`; extra (rows), added to each row's distance;
    widest, the longest row; room, the most entries that the rows of one of these groups have;
    out_indptr from the counts of `reach_kernel`.
    Out: out_indices, out_probs: centre rows over blocks; radius (groups): the exact total
    variation distance between any lifted row of a group and the centre (its stored entries over
    their exact sum) is at most that, `extra` included; spare, short (groups): in exact
    arithmetic Σ ((1 - spare)·centre - row)⁺ is at most short for every row, `extra` included.

    Where all lifted rows are equal without any rounding and their sums are floats, the centre
    is that row and the radius 0; likewise where all mass goes to one block. Otherwise lifted
    masses carry less than 2·EPS relative error, centre masses less than (count + 2)·EPS (their
    sum is a plain one), and the sum of differences (count + 2)·EPS: as masses sum to one, the
    slack below covers all, whatever the centre is. What rows lack is summed over the entries of
    the row, and over the rest of the centre as 1 less what was met, which is off by
    (count + 4)·EPS; the factor 1 - spare adds two roundings: three times the slack covers it.
    """
    first_hi, first_lo = np.zeros(n_blocks), np.zeros(n_blocks)
    slot, place = np.zeros(n_blocks, np.int64), np.zeros(n_blocks, np.int64)
    touched, hi, lo = np.empty(widest, np.int64), np.empty(widest), np.empty(widest)
    columns, masses = np.empty(room, np.int64), np.empty(room)
    least, most = np.empty(n_blocks), np.empty(n_blocks)
    seen = np.empty(n_blocks, np.int64)
    largest_group = 0
    for c in range(begin, end):
        largest_group = max(largest_group, starts[c + 1] - starts[c])
    ends = np.empty(largest_group + 1, np.int64)
    for c in range(begin, end):
        members = rows[starts[c] : starts[c + 1]]
        at = out_indptr[c]
        union = out_indptr[c + 1] - at
        is_same, is_exact = lift_members_kernel(
            members,
            indptr,
            indices,
            probs,
            block,
            slot,
            touched,
            hi,
            lo,
            first_hi,
            first_lo,
            ends,
            columns,
            masses,
        )
        count = 0
        for i in range(ends[members.size]):
            b = columns[i]
            if place[b] == 0:
                place[b] = 1
                out_indices[at + count] = b
                count += 1
        sort_kernel(out_indices, at, at + union)
        for i in range(union):
            place[out_indices[at + i]] = i
        for i in range(ends[members.size]):
            columns[i] = place[columns[i]]
        centre = out_probs[at : at + union]
        is_rounded = not is_same or (union > 1 and not is_exact)
        if is_same and union == 1:
            centre[0] = 1.0
        elif not is_rounded:
            for i in range(union):
                centre[i] = first_hi[out_indices[at + i]]
        else:
            search_centre_kernel(
                members.size, union, ends, columns, masses, least, most, seen, centre
            )
            for _ in range(2):  # once so that it sums to one, once as the row is read
                total = 0.0
                for i in range(union):
                    total += centre[i]
                for i in range(union):
                    most[i] = centre[i] / total
                if abs(total - 1.0) > 1e-12:
                    centre[:] = most[:union]
        largest = 0.0
        for k in range(members.size):
            off = 0.0
            if is_rounded:
                for i in range(ends[k], ends[k + 1]):
                    off += max(masses[i] - most[columns[i]], 0.0)
                length = ends[k + 1] - ends[k]
                off = off * (1.0 + (length + 8) * EPS) + (2 * union + 16) * EPS
            if extra.size > 0:
                off = (off + extra[members[k]]) * (1.0 + 2.0 * EPS)
            largest = max(largest, off)
        radius[c] = min(largest, 1.0)
        without = 0.0
        if is_rounded and extra.size == 0 and 0.0 < largest < 0.25:
            without = search_spare_kernel(members.size, ends, columns, masses, most, largest)
        spare[c] = without
        short[c] = radius[c]
        if without > 0.0:
            largest = 0.0
            for k in range(members.size):
                off = shortage_kernel(ends[k], ends[k + 1], columns, masses, most, 1.0 - without)
                length = ends[k + 1] - ends[k]
                off = off * (1.0 + (length + 8) * EPS) + 3.0 * (2 * union + 16) * EPS
                largest = max(largest, off)
            short[c] = min(largest, 1.0)
        for i in range(union):
            b = out_indices[at + i]
            place[b] = 0
            first_hi[b] = 0.0
            first_lo[b] = 0.0


@kernel
def fit_kernel(
    begin: int,
    end: int,
    states: IntArray,
    candidates: IntArray,
    n_actions: int,
    indptr: IntArray,
    indices: IntArray,
    probs: FloatArray,
    rewards: FloatArray,
    block: IntArray,
    n_blocks: int,
    widest: int,
    median: FloatArray,
    mean_indptr: IntArray,
    mean_indices: IntArray,
    mean_probs: FloatArray,
    weight: float,
    out: FloatArray,
) -> None:
    """How well the states at begin..end fit blocks: |reward - median| + weight·TV, summed over a.

    A sum, not a maximum: one successor with a wrong label must not outweigh all else.

    In: states (m); candidates (m, k), blocks to compare each with; median (blocks, actions);
    mean rows over blocks, sorted. Out: out (m, k). Guides a proposal; nothing relies on it.
    """
    slot, sent = np.zeros(n_blocks, np.int64), np.zeros(n_blocks)
    touched, hi, lo = np.empty(widest, np.int64), np.empty(widest), np.empty(widest)
    for k in range(begin, end):
        s = states[k]
        for j in range(candidates.shape[1]):
            out[k, j] = 0.0
        for a in range(n_actions):
            count, th, _, _ = lift_row_kernel(
                s * n_actions + a, indptr, indices, probs, block, slot, touched, hi, lo
            )
            for i in range(count):
                sent[touched[i]] = hi[i]
            for j in range(candidates.shape[1]):
                c = candidates[k, j]
                shared = 0.0
                row = c * n_actions + a
                for q in range(mean_indptr[row], mean_indptr[row + 1]):
                    mass = sent[mean_indices[q]] / th
                    if mass > 0.0:
                        shared += min(mass, mean_probs[q])
                off = abs(rewards[s, a] - median[c, a]) + weight * max(0.0, 1.0 - shared)
                out[k, j] += off
            for i in range(count):
                sent[touched[i]] = 0.0
