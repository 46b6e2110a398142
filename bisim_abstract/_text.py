"""Words for people."""

from __future__ import annotations


def counted(number: int, word: str) -> str:
    """A number with its noun: "1 state", "2,500 states"."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def clusters_text(number: int, *, has_end: bool) -> str:
    """Clusters as they are counted everywhere: "25 clusters", "369 clusters and the end"."""
    return counted(number, "cluster") + (" and the end" if has_end else "")
