"""Chance by recorded draws: what a step does for everything that it could have drawn.

While a step is enumerated, a stand-in takes the place of the environment's NumPy generators. Every
draw with finitely many outcomes is a decision; the step is repeated once for each sequence of
decisions, depth first, and has the exact probability of that sequence. A uniform number is decided
only as far as it is compared: its interval is split at the value. Draws without a bound, as a
Poisson number, are decided up to a value beyond which less than `TAIL` of the mass lies; what lies
beyond is tried at some larger values (`TailedDraw`) and enters the radii of the model.

What cannot be decided in this way is refused, with the name of the draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np

from bisim_abstract._base.types import FloatArray
from bisim_abstract.errors import StochasticEnvError

__all__ = ["Chance", "Recorder", "Script", "TailedDraw", "merged", "ways_out"]

Script: TypeAlias = tuple[tuple[int, int], ...]  # decisions: which outcome of how many

MOST_OUTCOMES = 4_096  # sequences of draws in one step
MOST_DECISIONS = 200  # draws of one sequence, those with one outcome not counted
TAIL = 2.0**-60  # mass beyond the largest outcome of a draw without a bound
MOST_VALUES = 1_024  # outcomes of one draw
NEAR_ONE = 2.0**-49  # sums of probabilities as near to 1 as this are 1 but for rounding
PROBES = (1, 2, 10, 1_000)  # multiples of the last outcome at which what lies beyond is tried
WAYS = (
    "choice, integers, binomial, poisson, geometric, shuffle, permutation, or random and compare "
    "with a number"
)


@dataclass(frozen=True, slots=True)
class TailedDraw:
    """A draw without a bound that had its last outcome, which stands for all that are larger.

    Attributes:
        name: Of the draw.
        place: Which decision it was.
        last: The outcome.
        share: Probability of what is larger, given that the draw is at least `last`.
        square: The same, each weighted by its square over that of `last`.
    """

    name: str
    place: int
    last: int
    share: float
    square: float

    def probes(self) -> list[int]:
        """Larger outcomes to try."""
        return [max(self.last, 1) * k + (k == 1) for k in PROBES]


def ways_out(names: Sequence[str], values: Sequence[object], n_actions: int) -> tuple[str, str]:
    """What to do about chance that is not enumerated, in order of worth, and three lines of code.

    Args:
        names: Of the attributes that make up a state.
        values: Of these, where an episode begins.
        n_actions: Number of actions.
    """
    ways = (
        f"In order of worth: draw from self.np_random by {WAYS}; describe the chances by a "
        "function, TabularMDP.from_function(start, actions, transitions); give the environment a "
        "P table; or use estimate_mdp on sampled transitions, which takes hundreds of thousands "
        "of steps for 36 states"
    )
    one = len(names) == 1
    example = (
        f"def transitions(state, action):  # state: {', '.join(names) or 'whatever tells it'}\n"
        "    return [(probability, next_state, reward, terminated), ...]\n"
        f"mdp = TabularMDP.from_function({values[0] if one else tuple(values)!r}, {n_actions}, "
        "transitions)"
    )
    return ways, example


class Chance:
    """The decisions of one step: those that are given are repeated, further ones are the first.

    Attributes:
        refusal: The error of a draw that cannot be decided, if there was one.
        names: Methods that decided something, of all steps.
        stands_in: What takes the place of generators.
    """

    def __init__(self, name: str, ways: Callable[[], tuple[str, str]]) -> None:
        self.refusal: StochasticEnvError | None = None
        self.names: set[str] = set()
        self.stands_in = Recorder(self)
        self._name, self._ways = name, ways
        self._where = ""
        self._script: Script = ()
        self._taken: list[tuple[int, int]] = []
        self._factors: list[float] = []
        self._uniforms: list[Uniform] = []
        self._tails: list[TailedDraw] = []
        self._probe: tuple[int, int] | None = None
        self._is_live = False
        self._sequences = 0

    def begin(
        self, script: Script, where: tuple[int, int], probe: tuple[int, int] | None = None
    ) -> None:
        """Get ready for a step.

        Args:
            script: The decisions to repeat.
            where: State and action.
            probe: The place of a draw without a bound, and what it is to give.
        """
        self._script, self._probe, self._where = script, probe, f"{where[0]}, action {where[1]}"
        self._taken, self._factors, self._uniforms, self._tails = [], [], [], []
        self.refusal, self._is_live = None, True

    def end(self) -> None:
        """Stop deciding; numbers that were drawn do not outlive the step.

        Raises:
            StochasticEnvError: If a draw was refused, also if the step went on all the same.
        """
        self._is_live = False
        if self.refusal is not None:
            self.refusal.__notes__ = self.refusal.__notes__[:1]  # not an error of the step's code
            raise self.refusal from None

    @property
    def taken(self) -> Script:
        """All decisions of the step."""
        return tuple(self._taken)

    @property
    def tails(self) -> tuple[TailedDraw, ...]:
        """Draws without a bound that had their last outcome."""
        return tuple(self._tails)

    @property
    def probability(self) -> float:
        """The probability of these decisions."""
        return math.prod(self._factors) * math.prod(each.width for each in self._uniforms)

    def result(self) -> tuple[Script, float, tuple[TailedDraw, ...], Script | None]:
        """Decisions of the step, their probability, tails, and the decisions to try next."""
        if not (self._taken or self._factors or self._uniforms or self._script):
            self._sequences = 1
            return (), 1.0, (), None  # as of most steps
        return self.taken, self.probability, self.tails, self.following()

    def following(self) -> Script | None:
        """The decisions to try next, depth first; None after the last ones."""
        self._sequences = self._sequences + 1 if self._script else 1
        taken = list(self._taken)
        while taken:
            chosen, count = taken.pop()
            if chosen + 1 < count:
                if self._sequences >= MOST_OUTCOMES:
                    self.refuse(
                        "",
                        f"have more than {MOST_OUTCOMES:,} sequences of outcomes in one step",
                        "draw less in one step, and if a loop draws until a number fits, draw "
                        "among what fits",
                    )
                return (*taken, (chosen + 1, count))
        return None

    def decide(self, count: int, name: str) -> int:
        """One of so many outcomes, all of them possible."""
        if not self._is_live:
            self.refuse(name, "is made outside of steps", "draw in step alone")
        if count == 1:
            return 0
        self.names.add(name)
        place = len(self._taken)
        if place >= MOST_DECISIONS:
            self.refuse(
                name,
                f"is one of more than {MOST_DECISIONS} draws in one step, as of a loop that draws "
                "until a number fits",
                "draw among what fits, as by self.np_random.choice(those_that_fit)",
            )
        chosen = 0
        if place < len(self._script):
            chosen, given = self._script[place]
            if given != count:
                self.refuse(
                    name,
                    f"had {given} outcomes and, after the same draws, {count}",
                    "let what is drawn depend on the state alone",
                )
        self._taken.append((chosen, count))
        return chosen

    def pick(self, weights: Sequence[float], name: str) -> int:
        """Which outcome a draw has; those of weight 0 do not occur."""
        possible = [k for k, weight in enumerate(weights) if weight > 0.0]
        if len(possible) > MOST_VALUES:
            self.refuse(
                name,
                f"has {len(possible):,} outcomes, more than {MOST_VALUES:,}",
                "draw among fewer",
            )
        k = possible[self.decide(len(possible), name)]
        self._factors.append(weights[k])
        return k

    def pick_evenly(self, count: int, name: str) -> int:
        """Which of equally likely outcomes a draw has."""
        if count > MOST_OUTCOMES:
            self.refuse(
                name,
                f"has {count:,} outcomes, more than {MOST_OUTCOMES:,}",
                "draw among fewer",
            )
        k = self.decide(count, name)
        self._factors.append(1.0 / count)
        return k

    def pick_from_tail(self, first: int, masses: FloatArray, name: str) -> int:
        """A whole number, `first` or more, of which the last mass is that of all that follow.

        Args:
            first: The least one.
            masses: Probabilities of it and those that follow, up to where they vanish.
            name: Of the draw.
        """
        beyond = np.append(np.cumsum(masses[::-1])[::-1][1:], 0.0)  # beyond each of them
        count = int(np.argmax(beyond <= TAIL)) + 1
        weights = [*masses[: count - 1].tolist(), float(masses[count - 1] + beyond[count - 1])]
        place = len(self._taken)
        k = self.pick(weights, name)
        last = first + count - 1
        if k < count - 1 or beyond[k] == 0.0:
            return first + k
        if self._probe is not None and self._probe[0] == place:
            return self._probe[1]
        values = first + np.arange(count, masses.size)
        square = float(masses[count:] @ (values / max(last, 1)) ** 2.0)
        share, square = beyond[k] / weights[k], square / weights[k]
        self._tails.append(TailedDraw(name, place, last, share, square))
        return last

    def uniform(self, low: float, high: float, name: str) -> Uniform:
        """A number between two, of which nothing is decided yet."""
        if not self._is_live:
            self.refuse(name, "is made outside of steps", "draw in step alone")
        found = Uniform(self, low, high, name)
        self._uniforms.append(found)
        return found

    def refuse(self, name: str, what: str, remedy: str) -> NoReturn:
        """Raise, and remember that it was.

        Args:
            name: Of the method that draws.
            what: What is wrong with it.
            remedy: What to do.
        """
        ways, example = self._ways()
        if self.refusal is None:
            self.refusal = StochasticEnvError(
                f"{self._name} is random in a way that is not enumerated: at state {self._where}, "
                f"{f'{name}()' if name else 'its draws'} {what}; {remedy}. {ways}"
            )
            self.refusal.add_note(example)
        raise self.refusal


# -- uniform numbers -------------------------------------------------------------------------------


def _refusing(operation: str) -> Callable[..., Any]:
    def method(self: Uniform, *_: object, **__: object) -> NoReturn:
        self.refuse(operation)

    return method


class Uniform:
    """A uniform number that can be compared, and nothing else.

    Comparing it with a value splits the interval in which it may still lie: which part it lies in
    is decided, with the parts' widths as weights. (That two reals are equal has probability 0.)
    """

    __array_priority__ = 1e6

    def __init__(self, chance: Chance, low: float, high: float, name: str) -> None:
        self._chance, self._low, self._high, self._name = chance, low, high, name
        self._begin, self._end = 0.0, 1.0  # as shares of the way from low to high

    @property
    def width(self) -> float:
        """The probability of what has been decided."""
        return self._end - self._begin

    def refuse(self, what: str) -> NoReturn:
        """Raise, for something that no comparison is."""
        self._chance.refuse(
            self._name,
            f"gives a real number that is not only compared, but {what}",
            "compare it, draw a whole number by integers or choice, or name in freeze an attribute "
            "that only keeps it",
        )

    def is_below(self, values: Any) -> Any:
        """Whether the number is below a value, or each of an array."""
        if isinstance(values, Uniform):
            self.refuse("compared with another one")
        given = np.asarray(values)
        if given.dtype.kind not in "biuf":
            self.refuse(f"compared with {type(values).__name__}")
        points = (given.astype(np.float64) - self._low) / (self._high - self._low)
        points = np.where(np.abs(points - 1.0) < NEAR_ONE, 1.0, points)
        inner = points[(points > self._begin) & (points < self._end)]
        if inner.size:
            edges = [self._begin, *np.unique(inner).tolist(), self._end]
            k = self._chance.decide(len(edges) - 1, self._name)
            self._begin, self._end = edges[k], edges[k + 1]
        found = self._end <= points
        return found if isinstance(values, np.ndarray) else bool(found)

    def __lt__(self, other: Any) -> Any:
        return self.is_below(other)

    __le__ = __lt__

    def __gt__(self, other: Any) -> Any:
        found = self.is_below(other)
        return ~found if isinstance(found, np.ndarray) else not found

    __ge__ = __gt__

    def __eq__(self, other: object) -> Any:
        return np.zeros(other.shape, bool) if isinstance(other, np.ndarray) else False

    def __ne__(self, other: object) -> Any:
        return np.ones(other.shape, bool) if isinstance(other, np.ndarray) else True

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        mirrored = {"greater": "less", "greater_equal": "less", "less": "greater"}
        mirrored |= {"less_equal": "greater", "equal": "equal", "not_equal": "not_equal"}
        name = ufunc.__name__
        if method != "__call__" or name not in mirrored or options:
            self.refuse(f"given to numpy.{name}")
        one, other = inputs
        if other is self:
            name, other = mirrored[name], one
        elif name.endswith("_equal") and name != "not_equal":
            name = name.removesuffix("_equal")
        operator = {"less": "__lt__", "greater": "__gt__", "equal": "__eq__"}.get(name, "__ne__")
        return getattr(self, operator)(other)

    def __array_function__(self, function: Any, _: Any, inputs: Any, options: Any) -> Any:
        is_known = function is np.searchsorted and not options.keys() - {"side"}
        if not (is_known and len(inputs) == 2 and inputs[1] is self and np.ndim(inputs[0]) == 1):
            self.refuse(f"given to numpy.{function.__name__}")
        return np.int64(np.count_nonzero(~self.is_below(np.asarray(inputs[0]))))

    def __copy__(self) -> Uniform:
        return self

    def __deepcopy__(self, _: object) -> Uniform:
        return self

    __hash__ = _refusing("hashed")
    __reduce_ex__ = _refusing("kept in the state")
    __array__ = _refusing("put into an array")
    __bool__ = _refusing("taken for a truth value")
    __str__ = __format__ = _refusing("written as text")
    __float__ = __int__ = __index__ = __complex__ = _refusing("converted to a plain number")
    __round__ = __trunc__ = __floor__ = __ceil__ = _refusing("rounded")
    __neg__ = __pos__ = __abs__ = _refusing("calculated with")
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refusing("calculated with")
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _refusing("calculated with")
    __mod__ = __rmod__ = __divmod__ = __rdivmod__ = _refusing("calculated with")
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refusing("calculated with")


# -- the generator ---------------------------------------------------------------------------------


class Recorder(np.random.Generator):
    """Takes the place of a generator: outcomes are decided by `Chance`.

    Arguments are checked, and results shaped, by a true generator.
    """

    def __init__(self, chance: Chance) -> None:
        super().__init__(np.random.PCG64(0))
        self._chance = chance
        self._shapes = np.random.default_rng(0)

    def integers(self, low: Any, high: Any = None, *args: Any, **options: Any) -> Any:
        """Every whole number in range, evenly."""
        shape = self._shapes.integers(low, high, *args, **options)
        is_closed = bool(options.get("endpoint", args[2] if len(args) > 2 else False))
        least, most = (0, low) if high is None else (low, high)

        def one(at: tuple[Any, ...]) -> int:
            first = int(at[0])
            return first + self._chance.pick_evenly(int(at[1]) + is_closed - first, "integers")

        return _filled(shape, one, least, most)

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Any:
        """Every element, with its probability."""
        shape = self._shapes.choice(a, size, replace, p, axis, shuffle)
        pool = np.arange(int(a)) if np.ndim(a) == 0 else np.asarray(a)
        count = pool.shape[axis]
        weights = np.ones(count) if p is None else np.asarray(p, np.float64)
        total = 1 if size is None else int(np.prod(size))
        if not replace and total > 1 and not shuffle:
            self._chance.refuse("choice", "does not shuffle what it takes", "leave shuffle out")
        if replace and p is None and pool.ndim == 1 and pool.dtype.kind in "biuSU":
            pool, times = np.unique(pool, return_counts=True)  # a deck has many cards of a kind
            weights = times.astype(np.float64)
        taken = []
        for _ in range(total):
            mass = math.fsum(weights.tolist())
            taken.append(self._chance.pick((weights / mass).tolist(), "choice"))
            if not replace:
                weights = weights.copy()
                weights[taken[-1]] = 0.0
        if size is None:
            return pool[taken[0]] if pool.ndim == 1 else pool.take(taken[0], axis)
        found: Any = pool.take(np.reshape(np.array(taken, np.int64), size), axis)
        return found.astype(shape.dtype, copy=False)

    def binomial(self, n: Any, p: Any, size: Any = None) -> Any:
        """Every number of successes."""
        shape = self._shapes.binomial(n, p, size)

        def one(at: tuple[Any, ...]) -> int:
            count, share = int(at[0]), float(at[1])
            if count >= MOST_VALUES:
                self._chance.refuse("binomial", f"has {count + 1:,} outcomes", "draw among fewer")
            weights = [
                math.comb(count, k) * share**k * (1.0 - share) ** (count - k)
                for k in range(count + 1)
            ]
            return self._chance.pick(weights, "binomial")

        return _filled(shape, one, n, p)

    def poisson(self, lam: Any = 1.0, size: Any = None) -> Any:
        """Every number up to a tiny tail."""
        shape = self._shapes.poisson(lam, size)

        def one(at: tuple[Any, ...]) -> int:
            mean = float(at[0])
            if mean > MOST_VALUES / 4:
                self._chance.refuse(
                    "poisson", f"has a mean of {mean:g}, and so too many outcomes", "draw fewer"
                )
            counts = np.arange(1.0, 2.0 * MOST_VALUES)
            masses = math.exp(-mean) * np.cumprod(np.append(1.0, mean / counts))
            return self._chance.pick_from_tail(0, masses, "poisson")

        return _filled(shape, one, lam)

    def geometric(self, p: Any, size: Any = None) -> Any:
        """Every number from 1 up to a tiny tail."""
        shape = self._shapes.geometric(p, size)

        def one(at: tuple[Any, ...]) -> int:
            share = float(at[0])
            if (1.0 - share) ** MOST_VALUES > TAIL:
                self._chance.refuse(
                    "geometric",
                    f"of {share:g} has too many outcomes",
                    "draw whether, not how often",
                )
            masses = share * (1.0 - share) ** np.arange(2.0 * MOST_VALUES)
            return self._chance.pick_from_tail(1, masses, "geometric")

        return _filled(shape, one, p)

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Numbers that are split at what they are compared with."""
        if out is not None:
            self._chance.refuse("random", "fills an array", "leave out= away")
        return self._real(self._shapes.random(size, dtype), 0.0, 1.0, "random")

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """As `random`, between two values."""
        shape = self._shapes.uniform(low, high, size)
        if np.ndim(low) or np.ndim(high):
            self._chance.refuse("uniform", "has several bounds", "compare random() instead")
        if not float(low) < float(high):
            self._chance.refuse("uniform", "has an empty range", "give low < high")
        return self._real(shape, float(low), float(high), "uniform")

    def permutation(self, x: Any, axis: int = 0) -> Any:
        """Every order of a few elements."""
        self._shapes.permutation(x, axis)
        given = np.arange(int(x)) if np.ndim(x) == 0 else np.asarray(x)
        return given.take(self._order(given.shape[axis], "permutation"), axis)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Every order of a few elements, in place."""
        if isinstance(x, np.ndarray):
            x[...] = x.take(self._order(x.shape[axis], "shuffle"), axis)
            return
        if axis:
            self._chance.refuse("shuffle", "is along an axis of a list", "give it an array")
        x[:] = [x[k] for k in self._order(len(x), "shuffle")]

    def _order(self, count: int, name: str) -> list[int]:
        """The k-th permutation, by its factorial digits."""
        if count > 20:  # far too many; and their number is no float for long
            self._chance.refuse(name, f"orders {count} elements", "draw one element by choice")
        rest, k = list(range(count)), self._chance.pick_evenly(math.factorial(count), name)
        found = []
        for left in range(count, 0, -1):
            place, k = divmod(k, math.factorial(left - 1))
            found.append(rest.pop(place))
        return found

    def _real(self, shape: Any, low: float, high: float, name: str) -> Any:
        if not isinstance(shape, np.ndarray):
            return self._chance.uniform(low, high, name)
        found = np.empty(shape.shape, object)
        for at in np.ndindex(shape.shape):
            found[at] = self._chance.uniform(low, high, name)
        return found

    def __reduce_ex__(self, _: object) -> NoReturn:
        self._chance.refuse("copy", "of a generator draws by itself", "draw from self.np_random")

    @property
    def bit_generator(self) -> Any:
        """Refused: what is made of bits has no outcomes to go through."""
        self._chance.refuse("bit_generator", "is asked for", "call methods of self.np_random")


def _filled(shape: Any, draw: Callable[[tuple[Any, ...]], int], *given: Any) -> Any:
    """Draws in the form of a result, one by one, each by its own arguments."""
    if not isinstance(shape, np.ndarray):
        return type(shape)(draw(given))
    found = np.empty_like(shape)
    columns = np.broadcast_arrays(found, *given)[1:]
    for at in np.ndindex(found.shape):
        found[at] = draw(tuple(column[at] for column in columns))
    return found


def _refuse_others() -> None:
    """Refuse, by its name, every method of a generator that is not decided above."""

    def refusal(name: str) -> Callable[..., NoReturn]:
        def method(self: Recorder, *_: object, **__: object) -> NoReturn:
            self._chance.refuse(
                name,
                "has no outcomes that can be gone through",
                "draw what matters of it by choice, with probabilities p",
            )

        return method

    for name in dir(np.random.Generator):
        if not name.startswith("_") and name not in vars(Recorder):
            setattr(Recorder, name, refusal(name))


_refuse_others()


def merged(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Sums of weights by key, with one rounding."""
    found: dict[int, list[float]] = {}
    for key, weight in pairs:
        found.setdefault(key, []).append(weight)
    return {key: math.fsum(weights) for key, weights in found.items()}
