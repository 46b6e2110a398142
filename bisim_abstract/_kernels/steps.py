"""Steps of many copies of a model at once."""

from __future__ import annotations

from bisim_abstract._base.jit import inner, kernel
from bisim_abstract._base.types import BoolArray, FloatArray, IntArray


@inner
def passed_kernel(sums: FloatArray, begin: int, end: int, uniform: float) -> int:
    """The first of sums[begin:end], which rise, above a share of the last one.

    As `bisect.bisect_right`: never an entry that adds nothing, if `uniform` is below 1.
    """
    x = uniform * sums[end - 1]
    while begin < end:
        middle = (begin + end) // 2
        if x < sums[middle]:
            end = middle
        else:
            begin = middle + 1
    return begin


@kernel
def steps_kernel(
    states: IntArray,
    actions: IntArray,
    begins: BoolArray,
    uniforms: FloatArray,
    cursors: IntArray,
    indptr: IntArray,
    indices: IntArray,
    sums: FloatArray,
    rewards: FloatArray,
    start_sums: FloatArray,
    paid: FloatArray,
) -> None:
    """Move every copy by one step; those that begin an episode go to a first state instead.

    In: actions, begins (copies); uniforms, at `cursors` the next one of each copy; indptr, indices,
    sums, the running sums within each row; rewards (rows); start_sums (n_states). In and out:
    states, cursors (copies). Out: paid (copies), 0 where an episode begins.
    """
    n_states = start_sums.size
    n_actions = rewards.size // n_states
    for i in range(states.size):
        uniform = uniforms[cursors[i]]
        cursors[i] += 1
        if begins[i]:
            states[i] = passed_kernel(start_sums, 0, n_states, uniform)
            paid[i] = 0.0
        else:
            row = states[i] * n_actions + actions[i]
            found = passed_kernel(sums, indptr[row], indptr[row + 1], uniform)
            states[i] = indices[found]
            paid[i] = rewards[row]
