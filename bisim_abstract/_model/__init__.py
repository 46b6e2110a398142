"""The only trusted input: the model.

`TabularMDP`, immutable and validated once, and every way to get one without an environment
(tables, files, experience, generators), with what belongs to its states (observations, policies,
frames). A model does not know what will be proven of it.
"""
