"""Words for people."""

from __future__ import annotations

import decimal
import difflib
from collections.abc import Iterable

from bisim_abstract.errors import without_controls as without_controls

SHORT = 60  # characters of a value in a message
PLACES = (6, 12)  # decimals of a probability: as many as people read, and what is near 1 gets


def plain_text(text: str) -> str:
    """The text on one line and without control characters, which must not reach a terminal.

    That of a file may move the cursor, colour what follows, or turn the direction of reading.
    """
    return without_controls(text, but="")


def shortened(text: str, most: int, *, mark: str = ", ") -> str:
    """A list in words in at most so many characters: whole entries, and dots for those left out.

    Args:
        text: The entries.
        most: Characters, at least 2.
        mark: What stands between entries; a single long one is cut wherever that may be.
    """
    if len(text) <= most:
        return text
    end = text.rfind(mark, 0, most - 1)
    return f"{text[:end]}{mark}…" if end > 0 else f"{text[: most - 1]}…"


def short(value: object) -> str:
    """What a value looks like, cut to a few words; never fails."""
    try:
        text = repr(value)
    except Exception:  # any repr of a malformed value may fail; a message must not
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= SHORT else text[: SHORT - 4] + " ..."


def surely_text(alpha: float) -> str:
    """A probability of 1 - alpha at least, rounded down, so that it is never said to be 1."""
    # As it was given: sums of several are rounded up in the last digit of a float.
    failing = decimal.Context(prec=15).create_decimal(repr(float(alpha)))
    places = min(max(PLACES[0], -failing.adjusted()), PLACES[1])
    unit = decimal.Decimal(1).scaleb(-places)
    with decimal.localcontext(prec=400):  # no float has more places
        sure = (1 - failing).quantize(unit, decimal.ROUND_FLOOR)
    return f"{sure:f}".rstrip("0").rstrip(".")


def counted(number: int, word: str) -> str:
    """A number with its noun: "1 state", "2,500 states"."""
    ending = "es" if word.endswith("s") else "s"
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}{ending}"


def clusters_text(number: int, *, has_end: bool, of: str = "") -> str:
    """Clusters as they are counted everywhere: "25 clusters (plus the terminal state)".

    Args:
        number: How many.
        has_end: Whether the model has a terminal state, which is not counted.
        of: What they are clusters of, such as "500 states".
    """
    whole = counted(number, "cluster") + (f" of {of}" if of else "")
    return whole + (" (plus the terminal state)" if has_end else "")


def there_are(number: int, word: str) -> str:
    """What there is: "there is 1 state", "there are 2,500 states"."""
    return f"there {'is' if number == 1 else 'are'} {counted(number, word)}"


def seconds_text(seconds: float, compile_seconds: float = 0.0) -> str:
    """How long something took, the time to compile solvers apart, which only the first call has."""
    text = f"{seconds:.1f} s"
    if compile_seconds < 0.05:  # would read 0.0
        return text
    from bisim_abstract._base.jit import is_kept  # loads numba, which has compiled already

    how_often = "once" if is_kept() else "in every process"
    return f"{text}, and {compile_seconds:.1f} s to compile the solvers, {how_often}"


def duration_text(seconds: float) -> str:
    """About how long something will take."""
    for size, unit in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2.0 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} seconds"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """An end of a sentence about a word that is not known: the nearest one that is, or empty."""
    # Dashes, which all options have, would make all of them look alike.
    names = {name.strip("-"): name for name in known}
    near = difflib.get_close_matches(word.strip("-"), names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""
