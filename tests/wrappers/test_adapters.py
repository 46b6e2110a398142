"""Classes of environments that are read by adapters."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from bisim_abstract import Reading, TabularMDP
from bisim_abstract.errors import ExtractionError, InvalidArgumentError
from bisim_abstract.wrappers import _adapters, extract_mdp, register_adapter
from bisim_abstract.wrappers._source import find_source


class Dial(gym.Env[Any, Any]):
    """A dial of five places, turned by chance, which tells nothing of itself."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        turn = 1 if self.np_random.random() < 0.75 else 0
        self.place = (self.place + (turn if action else -turn)) % 5
        return self.place, float(self.place == 3), self.place == 3, False, {}


class Knob(Dial):
    """Another that is derived from it."""


class DialTable:
    """What is known of dials."""

    right = 0.75

    def __init__(self, env: Any) -> None:
        self._env = env

    def to_mdp(self, *, terminal: str = "absorb") -> TabularMDP:
        def turn(place: int, action: int) -> Iterator[tuple[float, int, float, bool]]:
            after = (place + (1 if action else -1)) % 5
            yield self.right, after, float(after == 3), after == 3
            yield 1.0 - self.right, place, 0.0, False

        return TabularMDP.from_function(0, 2, turn)

    def state_id(self) -> int:
        return int(self._env.place)


class WrongTable(DialTable):
    """A table that does not know that dials turn left."""

    def state_id(self) -> int:
        return int(-self._env.place % 5)


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no adapter behind."""
    monkeypatch.setattr(_adapters, "_registered", {})
    yield
    _adapters._entries.cache_clear()
    _adapters.find_adapter.cache_clear()


@pytest.mark.parametrize("kind", [Dial, f"{Dial.__module__}.Dial"])
def test_registered_classes_and_those_derived_are_read(kind: type | str) -> None:
    assert find_source(Dial()) is None
    register_adapter(kind, DialTable)
    envs: list[gym.Env[Any, Any]] = [Dial(), gym.wrappers.TimeLimit(Knob(), 10)]
    for env in envs:
        mdp = extract_mdp(env)
        assert (mdp.n_states, mdp.terminal_state) == (5, 4)
        assert mdp.metadata["method"] == "self"
    # The nearest class decides, and None means that it does not fit.
    register_adapter(Knob, lambda env: None)
    assert find_source(Knob()) is None
    assert isinstance(find_source(Dial()), DialTable)


def test_adapters_are_not_believed() -> None:
    register_adapter(Dial, WrongTable)
    with pytest.raises(ExtractionError, match="contradicts its table"):
        extract_mdp(Dial())


def test_bad_adapters_are_refused() -> None:
    register_adapter(Dial, lambda env: 7)
    with pytest.raises(ExtractionError, match="adapter of Dial must return an object with to_mdp"):
        extract_mdp(Dial())
    with pytest.raises(InvalidArgumentError, match="adapter must be a function"):
        register_adapter(Dial, 7)  # type: ignore[arg-type]


def install(folder: Path, value: str) -> None:
    """A package with an adapter for dials."""
    info = folder / "dials-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dials\nVersion: 1.0\n")
    name = f"{Dial.__module__}.Dial"
    (info / "entry_points.txt").write_text(f"[{_adapters.GROUP}]\n{name} = {value}\n")
    _adapters._entries.cache_clear()
    _adapters.find_adapter.cache_clear()


def test_packages_add_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, f"{DialTable.__module__}:DialTable")
    assert isinstance(find_source(Dial()), DialTable)


def test_packages_that_are_broken_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "no_such_module_of_dials:Table")
    with pytest.raises(ExtractionError, match=r"adapter no_such_module_of_dials:Table for .*Dial"):
        extract_mdp(Dial())


# -- gym-classics ------------------------------------------------------------------------------


class Classic(gym.Env[Any, Any]):
    """What environments of gym-classics 1.0 have: a corridor with wind, whose states are tuples."""

    prob = 0.75

    def __init__(self) -> None:
        self._starts = ((1, "calm"), (2, "calm"))
        self.action_space = spaces.Discrete(2)
        self._decoder = dict(enumerate((place, "calm") for place in range(4)))
        self._encoder = {state: k for k, state in self._decoder.items()}
        self.observation_space = spaces.Discrete(4)
        self.state: Any = None

    def encode(self, state: Any) -> int:
        return self._encoder[state]

    def decode(self, ident: int) -> Any:
        return self._decoder[ident]

    def _outcome(self, state: Any, action: int, is_moved: bool) -> tuple[Any, float, bool, float]:
        place = state[0] + ((1, -1)[action] if is_moved else 0)
        done = place in (0, 3)
        after = state if done else (place, "calm")  # as there, an end stays where it was
        return after, float(place == 3), done, self.prob if is_moved else 1.0 - self.prob

    def _generate_transitions(self, state: Any, action: int) -> Iterator[Any]:
        for is_moved in (True, False):
            yield self._outcome(state, action, is_moved)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self._starts[self.np_random.choice(2)]
        return self.encode(self.state), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        is_moved = bool(self.np_random.random() < 0.75)
        self.state, reward, done, _ = self._outcome(self.state, action, is_moved)
        return self.encode(self.state), reward, done, False, {}


@pytest.fixture
def classic(monkeypatch: pytest.MonkeyPatch) -> type[Classic]:
    """A class that is derived from one of the name that gym-classics gives its own."""
    module = types.ModuleType("gym_classics.envs.abstract.base_env")
    base = type("BaseEnv", (Classic,), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return type("Corridor", (base,), {})


def test_gym_classics_is_read(classic: type[Classic]) -> None:
    mdp = extract_mdp(classic())
    assert (mdp.n_states, mdp.n_actions, mdp.terminal_state) == (3, 2, 2)
    assert mdp.state_ids.tolist() == [1, 2, -1]
    assert mdp.start.tolist() == [0.5, 0.5, 0.0]
    assert mdp.state_name(0) == "(1, 'calm')"
    # An end and a stay lead to the same state, as numbered there, and are kept apart.
    assert mdp.successors(1, 0)[0].tolist() == [1, 2]
    assert mdp.successors(1, 0)[1].tolist() == [0.25, 0.75]
    assert mdp.rewards[1].tolist() == [0.75, 0.0]
    literal = extract_mdp(classic(), reading=Reading(terminal="table"))
    assert literal.terminal_state is None
    assert literal.successors(1, 0)[0].tolist() == [1]
    np.testing.assert_array_equal(literal.rewards, mdp.rewards[:2])


def test_gym_classics_with_wrong_outcomes_is_refused(
    classic: type[Classic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classic, "prob", 1.5)
    with pytest.raises(ExtractionError, match="outcomes that Corridor lists are not an MDP: prob"):
        extract_mdp(classic())
    monkeypatch.setattr(Classic, "prob", 1.0)
    with pytest.raises(ExtractionError, match="contradicts its table"):
        extract_mdp(classic())


def test_outcomes_that_nearly_sum_to_1_are_refused_at_once(
    classic: type[Classic], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    plain = Classic._generate_transitions

    def rounded(self: Any, state: Any, action: int) -> Iterator[Any]:
        asked.append(state)
        for after, reward, done, prob in plain(self, state, action):
            yield after, reward, done, np.float32(prob * (1.0 - 6.6e-7))

    monkeypatch.setattr(Classic, "_generate_transitions", rounded)
    env = classic()
    with pytest.raises(ExtractionError, match=r"must sum to 1, got 0\.999999") as caught:
        extract_mdp(env)
    assert set(asked) == {(1, "calm")}  # nobody was asked about the second state
    space: dict[str, Any] = {"TabularMDP": TabularMDP, "env": env.unwrapped}
    exec(str(caught.value).partition("env = env.unwrapped: ")[2], space)
    mdp = space["mdp"]
    monkeypatch.setattr(Classic, "_generate_transitions", plain)
    true = extract_mdp(env)
    assert mdp.state_ids.tolist() == true.state_ids.tolist()
    np.testing.assert_allclose(mdp.probs, true.probs, atol=1e-6)
    np.testing.assert_allclose(mdp.rewards, true.rewards, atol=1e-6)
