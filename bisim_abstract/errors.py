"""Every error this package raises on purpose.

::

    BisimError
    ├── InvalidArgumentError (ValueError)      an argument breaks a stated rule
    │   └── InvalidMDPError                    the numbers do not describe an MDP
    ├── ExtractionError (ValueError)           an environment cannot be tabulated faithfully
    │   ├── StochasticEnvError                 enumeration met chance it cannot go through
    │   └── StateLimitError                    enumeration met more states than allowed
    ├── FileFormatError (ValueError)           a file is not what it should be
    ├── VerificationError (ValueError)         a certificate claims what is not true
    ├── NotCertifiedError (ValueError)         an abstraction is asked for without its proof
    ├── MemoryLimitError (MemoryError)         the result would not fit
    └── MissingDependency (ImportError)        an optional package is not installed
"""

from __future__ import annotations

__all__ = [
    "BisimError",
    "ExtractionError",
    "FileFormatError",
    "InvalidArgumentError",
    "InvalidMDPError",
    "MemoryLimitError",
    "MissingDependency",
    "NotCertifiedError",
    "StateLimitError",
    "StochasticEnvError",
    "VerificationError",
]

SPACES = {ord(char): " " for char in "\n\t"}
# Characters of a message that are kept at its beginning and at its end, where the remedy is.
HEAD, TAIL = 700, 300


def without_controls(text: str, *, but: str = "\n\t") -> str:
    """The text with a mark in place of every character that is not for reading.

    Args:
        text: Any text.
        but: Characters that stay all the same.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in but else "\N{REPLACEMENT CHARACTER}" for char in text
    )


class BisimError(Exception):
    """Root of the tree: catch this to catch everything the package raises on purpose.

    Messages quote what files and arguments hold. Whatever that is, they have one line, about a
    thousand characters at most and no control characters: a terminal shows them and does nothing
    else.
    """

    def __init__(self, *args: object) -> None:
        # Line ends of others (a failed import tells a story) become spaces.
        super().__init__(
            *(
                without_controls(cut(each).translate(SPACES), but="")
                if isinstance(each, str)
                else each
                for each in args
            )
        )


def cut(text: str) -> str:
    """The text, or of a long one the beginning and the end."""
    return text if len(text) <= HEAD + TAIL + 5 else f"{text[:HEAD]} ... {text[-TAIL:]}"


class InvalidArgumentError(BisimError, ValueError):
    """An argument breaks a stated rule; the message names argument, rule and value."""


class InvalidMDPError(InvalidArgumentError):
    """The numbers given do not describe an MDP; the message names state, action and value."""


class ExtractionError(BisimError, ValueError):
    """An environment cannot be turned into a table that describes it faithfully."""


class StochasticEnvError(ExtractionError):
    """Enumeration met chance that it cannot go through, draw by draw."""


class StateLimitError(ExtractionError):
    """Enumeration met more states than the limit allows."""


class FileFormatError(BisimError, ValueError):
    """A file is missing parts, was changed, or is of another kind or version."""


class VerificationError(BisimError, ValueError):
    """A certificate claims something that is not true of the model, or could not be confirmed.

    Attributes:
        is_open: Whether rounding alone is the reason, so that exact arithmetic would decide.
    """

    def __init__(self, problem: str, *, is_open: bool = False) -> None:
        super().__init__(problem)
        self.is_open = is_open


class NotCertifiedError(BisimError, ValueError):
    """A certificate does not prove what is asked for; the message says what is missing."""


class MemoryLimitError(BisimError, MemoryError):
    """The result would not fit in memory; the message gives the size and the alternative."""


class MissingDependency(BisimError, ImportError):  # noqa: N818 - reads as what it says
    """An optional package is needed; the message gives the pip command."""
