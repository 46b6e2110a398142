"""Learned embeddings, used only as proposals: nothing here is trusted by a proof."""

if __name__ != "bisim_abstract.encoders":
    raise ImportError("import this package as bisim_abstract.encoders, not as " + __name__)

__all__: list[str] = []
