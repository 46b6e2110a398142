"""Checks a certificate by code that did not make it.

Its own reading, its own kernels, in floats or in fractions. Uses `_base` and `_model`, and nothing
else that runs.
"""
