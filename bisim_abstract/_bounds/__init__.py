"""All certified numbers.

Tables of pairs, blocks, value features, what a pair reads that is in no table, and the arms, which
alone move a bound. Each number claims one inequality, lower <= T(lower) or upper >= T(upper), from
which enclosure follows.
"""
