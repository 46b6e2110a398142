"""Relations: which states are alike, and how far apart states are.

A relation is one object, found by its name once (`find_relation`) and handed on. It says which
actions are compared, what rewards and functions tell of distances, and what people read. Hooks
take arrays, models and numbers; kernels take numbers. Nothing else asks for the name.
"""
