"""Compiled kernels: njit functions over plain arrays, and nothing else.

No validation, no objects, no printing. Kernels release the interpreter lock and are never
parallel inside: drivers cut the work into fixed chunks and hand them to Python threads
(`bisim_abstract._base.parallel`). So results cannot depend on the number of threads, no OpenMP
runtime is started, and a process may fork after using them.

Reading order: `transport` (small exact optimal transport and the Bellman-type backup built on
it), `lookup` (what pairs read), `pairgraph` (deterministic models), `refine` (partitions),
`features` (value functions).
"""
