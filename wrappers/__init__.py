"""Gymnasium environments as tabular models."""

if __name__ != "bisim_abstract.wrappers":
    raise ImportError("import this package as bisim_abstract.wrappers, not as " + __name__)
