"""Learned embeddings, used only as proposals: nothing here is trusted by a proof."""

if __name__ != "bisim_abstract.encoders":
    raise ImportError(
        f"import this package as bisim_abstract.encoders, not as {__name__}: "
        "a second copy of its classes would not be recognised by the first"
    )

__all__: list[str] = []
