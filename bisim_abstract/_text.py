"""Words for people."""

from __future__ import annotations


def counted(number: int, word: str) -> str:
    """A number with its noun: "1 state", "2,500 states"."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
