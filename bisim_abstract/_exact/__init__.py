"""Exact answers: transport plans, bisimulation classes, the metric of all pairs, values.

Iterate as one likes, untrusted; prove afterwards, by one application of the operator, whose
residual bounds the distance from the fixed point.
"""
