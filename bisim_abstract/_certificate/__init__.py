"""The result: `Certificate`, bounds with everything needed to check them.

With it live the questions that can be put to it: thresholds, frontier, nearest pairs, verdict. A
noun: it imports neither the arms that make it nor the plots that draw it.
"""
