"""The one constant that bounds on rounding errors are counted in.

Float64 rounds to nearest: an operation is off by at most EPS relative to its exact result, unless
that underflows. Each module says how many of them it meets, and what covers underflow there.
"""

from __future__ import annotations

EPS = 2.0**-53  # half the distance from 1.0 to the next float: the unit roundoff
