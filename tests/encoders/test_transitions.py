"""Transitions: what is recorded, what is left out, sampling from models, and files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from bisim_abstract import InvalidArgumentError, TabularMDP
from bisim_abstract._base.npz import write_npz
from bisim_abstract._model.space_rows import SpaceRows
from bisim_abstract.encoders import Transitions, collect_transitions, sample_transitions
from bisim_abstract.errors import FileFormatError
from bisim_abstract.parts import random_mdp, sparse_mdp


class Counter(gym.Env[Any, Any]):
    """Counts steps; ends for good in state 4, or by a limit of time."""

    def __init__(self, limit: int = 100, start: int = 0, is_box: bool = False) -> None:
        self.limit, self.is_box = limit, is_box
        self.observation_space = spaces.Discrete(5, start=start)
        if is_box:
            self.observation_space = spaces.Box(0.0, 4.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2, start=7)
        self.offset = start

    def seen(self) -> Any:
        if self.is_box:
            return np.array([self.s, 4 - self.s], np.float32)
        return np.int64(self.s + self.offset)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.s = self.t = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in (7, 8)
        self.s, self.t = self.s + 1, self.t + 1
        return self.seen(), float(self.s), self.s == 4, self.t >= self.limit, {}


def rows(data: Transitions) -> set[tuple[int, float, int, bool]]:
    columns = (data.states, data.rewards, data.next_states, data.terminated)
    return set(zip(*(x.tolist() for x in columns), strict=True))


def small(**changes: Any) -> Transitions:
    fields: dict[str, Any] = {
        "states": [0, 1],
        "actions": [0, 1],
        "rewards": [0.5, 1.0],
        "next_states": [1, 0],
        "terminated": [False, True],
        "n_actions": 2,
        "n_states": 2,
    }
    return Transitions(**(fields | changes))


# -- collecting --------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 3])
def test_steps_that_reset_are_left_out(start: int) -> None:
    data = collect_transitions(Counter(start=start), 41)
    assert len(data) == 41
    assert data.n_states == 5
    assert set(data.actions.tolist()) == {0, 1}
    truth = {(s, s + 1.0, s + 1, s == 3) for s in range(4)}
    assert rows(data) == truth


def test_running_out_of_time_is_no_end() -> None:
    data = collect_transitions(Counter(limit=2), 30)
    assert rows(data) == {(0, 1.0, 1, False), (1, 2.0, 2, False)}


def test_vectors_are_recorded() -> None:
    data = collect_transitions(Counter(is_box=True), 20)
    assert data.n_states is None
    assert data.states.dtype == np.float32
    assert (data.states.sum(axis=1) == 4.0).all()
    assert (data.next_states[:, 0] == data.states[:, 0] + 1.0).all()


def test_copies_are_independent_and_seeded() -> None:
    first, again, other = (collect_transitions("FrozenLake-v1", 300, seed=s) for s in (1, 1, 2))
    assert (first.states == again.states).all()
    assert (first.next_states == again.next_states).all()
    assert not (first.states == other.states).all()
    table: Any = gym.make("FrozenLake-v1").unwrapped.P  # type: ignore[attr-defined]
    for s, a, t, over in zip(
        first.states, first.actions, first.next_states, first.terminated, strict=True
    ):
        assert any(t == u and over == done for _, u, _, done in table[s][a])
    assert first.terminated.any()


def test_wrapped_environments_are_copied_and_left_alone() -> None:
    env = gym.make("CliffWalking-v1", max_episode_steps=5)
    env.reset(seed=0)
    before = env.unwrapped.s  # type: ignore[attr-defined]
    data = collect_transitions(env, 100, n_envs=3)
    assert env.unwrapped.s == before  # type: ignore[attr-defined]
    assert data.n_states == 48


def test_policies_are_followed_and_checked() -> None:
    data = collect_transitions(Counter(), 10, policy=lambda seen: np.full(len(seen), 8))
    assert (data.actions == 1).all()
    for bad in (lambda seen: [0] * len(seen), lambda seen: [0.5] * len(seen), lambda seen: 8):
        with pytest.raises(InvalidArgumentError, match="policy must return"):
            collect_transitions(Counter(), 10, policy=bad)


def test_other_spaces_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="got Text at observation; wrap it in gym"):
        collect_transitions(Told(spaces.Text(3), lambda k: "abc"), 10)
    part = spaces.Dict({"seen": spaces.Discrete(2), "mission": spaces.Text(3)})
    with pytest.raises(InvalidArgumentError, match=r"Text at observation\['mission'\].*Filter"):
        collect_transitions(Told(part, lambda k: {"seen": 0, "mission": "abc"}), 10)
    env = Counter()
    env.action_space = spaces.Box(0.0, 1.0, (1,))
    with pytest.raises(InvalidArgumentError, match="Discrete actions"):
        collect_transitions(env, 10)
    with pytest.raises(InvalidArgumentError, match="sample_transitions"):
        collect_transitions(sparse_mdp(4, seed=0), 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="no environment"):
        collect_transitions("NoSuch-v0", 10)


class Told(gym.Env[Any, Any]):
    """Counts from 0 to 5 and over again, and shows the count in any way it is told to."""

    def __init__(self, space: gym.Space[Any], show: Callable[[int], Any]) -> None:
        self.observation_space, self.show = space, show
        self.action_space = spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.k = 0
        return self.show(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.k = (self.k + 1) % 6
        return self.show(self.k), 1.0, False, False, {}


def box(k: int) -> Any:
    return np.array([[0.5 * k, -k]], np.float32)


DIGITS = spaces.MultiDiscrete([2, 3], start=[5, 0])
PAIR = spaces.Tuple((spaces.Discrete(2, start=4), spaces.Discrete(3)))
BITS = spaces.MultiBinary([1, 3])
NESTED = spaces.Dict({"b": PAIR, "a": spaces.MultiBinary(1)})  # a Dict sorts or keeps its keys
MIXED = spaces.Dict({"d": spaces.Discrete(6), "x": spaces.Box(-9.0, 9.0, (1, 2))})
SPACES: dict[str, tuple[gym.Space[Any], Callable[[int], Any], int | None]] = {
    "multi": (DIGITS, lambda k: np.array([5 + k // 3, k % 3]), 6),
    "tuple": (PAIR, lambda k: (4 + k // 3, k % 3), 6),
    "bits": (BITS, lambda k: np.array([[k // 4, k // 2 % 2, k % 2]], np.int8), 8),
    "nested": (NESTED, lambda k: {"a": np.zeros(1, np.int8), "b": (4 + k // 3, k % 3)}, 12),
    "mixed": (MIXED, lambda k: {"d": k, "x": box(k)}, None),
    "box": (spaces.Box(-9.0, 9.0, (1, 2)), box, None),
    "beyond": (spaces.MultiDiscrete([10**6, 6]), lambda k: np.array([3, k]), None),
}


@pytest.mark.parametrize("name", [name for name in SPACES if name != "beyond"])
def test_observations_of_many_kinds(name: str) -> None:
    space, show, n_states = SPACES[name]
    data = collect_transitions(Told(space, show), 30)
    assert data.n_states == n_states
    flat = np.array([spaces.flatten(space, show(k)) for k in range(6)], np.float32)
    if n_states is None:
        assert np.array_equal(data.states[:6], flat)
        assert np.array_equal(data.next_states[:5], flat[1:])
    else:
        # As many states as there are observations, one for each.
        assert len(set(data.states[:6].tolist())) == 6
        assert np.array_equal(data.states[:6], data.states[6:12])
        assert np.array_equal(data.states[1:], data.next_states[:-1])


@pytest.mark.parametrize("name", ["multi", "tuple", "bits"])
def test_states_are_the_numbers_that_digits_spell(name: str) -> None:
    space, show, _ = SPACES[name]
    assert collect_transitions(Told(space, show), 6).states.tolist() == list(range(6))


def test_too_many_numbers_become_vectors() -> None:
    found = SpaceRows(SPACES["beyond"][0])
    assert (found.n_states, found.width) == (None, 10**6 + 6)
    assert SpaceRows(spaces.Discrete(10**9)).n_states == 10**9


def test_observations_outside_their_space_are_refused() -> None:
    for show in (lambda k: (4, 3), lambda k: (3, 0)):
        with pytest.raises(InvalidArgumentError, match=r"of its space, got 3 at observation\["):
            collect_transitions(Told(PAIR, show), 5)


def test_copies_of_such_environments() -> None:
    data, again = (collect_transitions("Blackjack-v1", 400, n_envs=5, seed=3) for _ in range(2))
    assert data.n_states == 32 * 11 * 2
    assert np.array_equal(data.states, again.states)
    total, card, ace = np.unravel_index(data.states, (32, 11, 2))
    assert (total >= 4).all()
    assert ((card >= 1) & (card <= 10)).all()
    assert set(ace.tolist()) == {0, 1}
    sticks = data.actions == 0
    assert data.terminated[sticks].all()
    policy = collect_transitions("Blackjack-v1", 20, policy=lambda seen: (seen[0] < 17).astype(int))
    assert (policy.actions == (np.unravel_index(policy.states, (32, 11, 2))[0] < 17)).all()


def test_progress_is_told() -> None:
    heard: list[Any] = []
    collect_transitions("FrozenLake-v1", 1_000, n_envs=2, callback=heard.append)
    assert [x.stage for x in heard] == ["collecting"] * len(heard)
    assert len(heard) >= 5
    assert (heard[-1].done, heard[-1].total) == (1_000, 1_000)


# -- sampling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("states", ["uniform", "rollout"])
def test_samples_follow_the_rows(states: str) -> None:
    mdp = sparse_mdp(6, 2, seed=1)
    n = 60_000
    data = sample_transitions(mdp, n, seed=0, states=states)
    assert (data.rewards == mdp.rewards[data.states, data.actions]).all()
    counts = np.zeros((6, 2, 6))
    np.add.at(counts, (data.states, data.actions, data.next_states), 1.0)
    visits = counts.sum(axis=2)
    truth = mdp.kernel().toarray().reshape(6, 2, 6)
    assert ((counts > 0) <= (truth > 0)).all()
    seen = visits > 500
    error = np.abs(counts / np.maximum(visits, 1)[..., None] - truth)
    assert seen.any()
    assert error[seen].max() < 0.08
    if states == "uniform":
        assert np.abs(visits / n - 1 / 12).max() < 0.01


@pytest.mark.parametrize("states", ["uniform", "rollout"])
def test_the_end_is_reached_and_never_left(states: str) -> None:
    P = np.zeros((3, 1, 3))
    P[0, 0, 1] = P[1, 0, 2] = P[2, 0, 2] = 1.0
    mdp = TabularMDP.from_dense(P, [1.0, 2.0, 0.0], terminal_state=2, start=[0.5, 0.0, 0.5])
    data = sample_transitions(mdp, 500, states=states)
    assert rows(data) == {(0, 1.0, 1, False), (1, 2.0, 2, True)}
    assert data.terminal_state == 2


def test_rollouts_need_somewhere_to_start() -> None:
    P = np.zeros((2, 1, 2))
    P[:, 0, 1] = 1.0
    mdp = TabularMDP.from_dense(P, [1.0, 0.0], terminal_state=1, start=[0.0, 1.0])
    with pytest.raises(InvalidArgumentError, match="uniform"):
        sample_transitions(mdp, 5, states="rollout")


# -- checks and files --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": [0, 2]}, "states must lie"),
        ({"next_states": [0, -1]}, "next_states must lie"),
        ({"actions": [0, 2]}, "actions must lie"),
        ({"actions": [0]}, "actions must have shape"),
        ({"rewards": [0.0, np.nan]}, "rewards must be finite"),
        ({"terminated": [0, 1]}, "booleans"),
        ({"states": [[0], [1]]}, "shape"),
        ({"states": [0.5, 1.0]}, "whole numbers"),
        ({"terminal_state": 2}, "terminal_state"),
        ({"terminal_state": 1}, "drop these steps"),
        ({"n_states": None}, "shape"),
        ({"n_actions": 0}, "n_actions"),
    ],
)
def test_wrong_arrays_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        small(**changes)


def test_one_and_many() -> None:
    assert repr(small()) == "Transitions(2 steps of 2 states, 2 actions)"
    one = {"actions": [0], "rewards": [0.5], "terminated": [False], "n_actions": 1}
    assert repr(small(states=[0], next_states=[0], n_states=1, **one)) == (
        "Transitions(1 step of 1 state, 1 action)"
    )
    assert "1 step of 1 feature," in repr(
        small(states=[[0.5]], next_states=[[0.5]], n_states=None, **one)
    )


def test_arrays_are_read_only_copies() -> None:
    rewards = np.array([0.5, 1.0])
    data = small(rewards=rewards)
    rewards[0] = 9.0
    assert data.rewards[0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        data.rewards[0] = 1.0


@pytest.mark.parametrize("is_box", [False, True])
def test_files_bring_everything_back(is_box: bool, tmp_path: Path) -> None:
    data = collect_transitions(Counter(is_box=is_box), 30)
    path = tmp_path / "steps"
    data.save(path)
    back = Transitions.load(path)
    for name in Transitions.__dataclass_fields__:
        assert np.array_equal(getattr(back, name), getattr(data, name)), name


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.npz"
    small().save(path)
    whole = path.read_bytes()
    for content in (b"", b"PK", whole[: len(whole) // 2], b"\x80\x04K."):
        path.write_bytes(content)
        with pytest.raises(FileFormatError):
            Transitions.load(path)
    small().save(path)
    with zipfile.ZipFile(path) as archive:
        arrays = {name: np.load(archive.open(name)) for name in archive.namelist()}
    arrays = {name.removesuffix(".npy"): array for name, array in arrays.items()}
    changes: list[dict[str, Any]] = [
        {"actions": np.array([0, 5])},
        {"more": np.zeros(1)},
        {"header": np.frombuffer(b"[]", np.uint8)},
        {"header": np.frombuffer(b"{" * 9, np.uint8)},
        {"header": np.frombuffer(b"\xff\xfe", np.uint8)},
        {"states": np.array(["a", "b"])},
    ]
    for change in changes:
        write_npz(path, arrays | change)
        with pytest.raises(FileFormatError):
            Transitions.load(path)


def test_what_single_precision_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Found by fuzzing: the cast warned, and only then was the result refused."""
    huge = np.full((2, 1), 1e300)
    with pytest.raises(InvalidArgumentError, match="states must be finite"):
        Transitions(
            states=huge,
            actions=[0, 0],  # type: ignore[arg-type]
            rewards=[0.0, 0.0],  # type: ignore[arg-type]
            next_states=huge,
            terminated=[False, False],  # type: ignore[arg-type]
            n_actions=1,
        )


@pytest.mark.parametrize("states", ["uniform", "rollout"])
def test_actions_are_drawn_among_those_of_a_state(states: str) -> None:
    mask = np.array([[True, False, True], [False, True, False], [True, True, True]])
    mdp = random_mdp(3, 3, seed=0).with_available(mask)
    data = sample_transitions(mdp, 30_000, states=states)
    seen = np.asarray(data.states)
    assert mask[seen, data.actions].all()
    for s in range(3):
        count = np.bincount(data.actions[seen == s], minlength=3)
        np.testing.assert_allclose(count / count.sum(), mask[s] / mask[s].sum(), atol=0.03)
