"""From numbers on pairs to clusters.

Spanning forests, thresholds at which two of them agree, and single linkage of points. Knows
weights and labels, and nothing of where they come from.
"""
