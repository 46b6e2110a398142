# ruff: noqa: D102  # reset and step do what Gymnasium says
"""Ten small environments as people write them, who know Gymnasium and nothing of this package.

Nothing here imports the package. Each environment keeps its state in attributes of its own choice,
draws from `self.np_random`, and shows what its author found natural. `scripts/environments.py` and
`tests/wrappers/test_as_people_write.py` read them.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, float, bool, bool, dict[str, Any]]


class GridWorld(gym.Env[Any, Any]):
    """Dict observations: an agent walks to a target, both placed by `reset`."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._agent_location = np.array([-1, -1], dtype=np.int64)
        self._target_location = np.array([-1, -1], dtype=np.int64)
        place = spaces.Box(0, size - 1, shape=(2,), dtype=np.int64)
        self.observation_space = spaces.Dict({"agent": place, "target": place})
        self.action_space = spaces.Discrete(4)
        self._action_to_direction = {
            0: np.array([0, 1]),
            1: np.array([-1, 0]),
            2: np.array([0, -1]),
            3: np.array([1, 0]),
        }

    def _get_obs(self) -> dict[str, Any]:
        return {"agent": self._agent_location, "target": self._target_location}

    def _get_info(self) -> dict[str, Any]:
        return {"distance": float(np.abs(self._agent_location - self._target_location).sum())}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        self._agent_location = self.np_random.integers(0, self.size, size=2, dtype=np.int64)
        self._target_location = self._agent_location
        while np.array_equal(self._target_location, self._agent_location):
            self._target_location = self.np_random.integers(0, self.size, size=2, dtype=np.int64)
        return self._get_obs(), self._get_info()

    def step(self, action: Any) -> Step:
        direction = self._action_to_direction[int(action)]
        self._agent_location = np.clip(self._agent_location + direction, 0, self.size - 1)
        terminated = np.array_equal(self._agent_location, self._target_location)
        reward = 1.0 if terminated else -0.01
        return self._get_obs(), reward, terminated, False, self._get_info()


class Inventory(gym.Env[Any, Any]):
    """Poisson inventory: order every evening, sell by day, pay for what is kept."""

    def __init__(self, capacity: int = 10, demand_mean: float = 3.0) -> None:
        self.capacity = capacity
        self.demand_mean = demand_mean
        self.observation_space = spaces.Discrete(capacity + 1)
        self.action_space = spaces.Discrete(capacity + 1)
        self.inventory = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        self.inventory = self.capacity // 2
        return self.inventory, {}

    def step(self, action: Any) -> Step:
        ordered = min(int(action), self.capacity - self.inventory)
        on_hand = self.inventory + ordered
        demand = self.np_random.poisson(self.demand_mean)
        sold = min(on_hand, demand)
        self.inventory = on_hand - sold
        reward = 5.0 * sold - 2.0 * ordered - 0.5 * self.inventory
        return self.inventory, float(reward), False, False, {"demand": demand}


class PushYourLuck(gym.Env[Any, Any]):
    """Card game: draw treasures from a deck without replacement, or stop before the skull comes."""

    SKULL = 0

    def __init__(self, n_treasures: int = 6) -> None:
        self.cards = [self.SKULL, *range(1, n_treasures + 1)]
        self.observation_space = spaces.MultiBinary(n_treasures + 1)  # what is left in the deck
        self.action_space = spaces.Discrete(2)  # stop, draw
        self.deck: list[int] = []
        self.points = 0

    def _get_obs(self) -> Any:
        return np.array([card in self.deck for card in self.cards], dtype=np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        self.deck = list(self.cards)
        self.points = 0
        return self._get_obs(), {}

    def step(self, action: Any) -> Step:
        if action == 0:
            return self._get_obs(), float(self.points), True, False, {}
        card = int(self.np_random.choice(self.deck))
        self.deck.remove(card)
        if card == self.SKULL:
            return self._get_obs(), 0.0, True, False, {}
        self.points += card
        return self._get_obs(), 0.0, False, False, {}


class Elevator(gym.Env[Any, Any]):
    """Elevator: calls come at random floors; everybody who waits costs."""

    DOWN, UP, OPEN = range(3)

    def __init__(self, floors: int = 5, call_prob: float = 0.1) -> None:
        self.floors = floors
        self.call_prob = call_prob
        self.observation_space = spaces.Tuple((spaces.Discrete(floors), spaces.MultiBinary(floors)))
        self.action_space = spaces.Discrete(3)
        self.floor = 0
        self.calls = np.zeros(floors, dtype=bool)

    def _get_obs(self) -> Any:
        return self.floor, self.calls.astype(np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        self.floor = 0
        self.calls = np.zeros(self.floors, dtype=bool)
        return self._get_obs(), {}

    def step(self, action: Any) -> Step:
        if action == self.UP:
            self.floor = min(self.floor + 1, self.floors - 1)
        elif action == self.DOWN:
            self.floor = max(self.floor - 1, 0)
        else:
            self.calls[self.floor] = False
        reward = -float(self.calls.sum())
        for floor in range(self.floors):
            if self.np_random.random() < self.call_prob:
                self.calls[floor] = True
        return self._get_obs(), reward, False, False, {}


class Queue(gym.Env[Any, Any]):
    """Queue: a server chooses one of two queues; arrivals and services are random."""

    def __init__(self, room: int = 8) -> None:
        self.room = room
        self.arrival = [0.3, 0.4]
        self.service = [0.9, 0.6]
        self.cost = [3.0, 1.0]
        self.observation_space = spaces.Box(0, room, shape=(2,), dtype=np.int32)
        self.action_space = spaces.Discrete(2)
        self.lengths = np.zeros(2, dtype=np.int32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        self.lengths = np.zeros(2, dtype=np.int32)
        return self.lengths.copy(), {}

    def step(self, action: Any) -> Step:
        if self.lengths[action] > 0 and self.np_random.random() < self.service[action]:
            self.lengths[action] -= 1
        for k in range(2):
            arrived = self.np_random.binomial(1, self.arrival[k])
            self.lengths[k] = min(self.lengths[k] + arrived, self.room)
        reward = -float(np.dot(self.cost, self.lengths))
        return self.lengths.copy(), reward, False, False, {}


class SlipperyGrid(gym.Env[Any, Any]):
    """Slip by np_random: one move in five goes astray; a pit and a goal end the episode."""

    MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))

    def __init__(self, rows: int = 5, cols: int = 7, slip: float = 0.2) -> None:
        self.rows, self.cols, self.slip = rows, cols, slip
        self.goal = (rows - 1, cols - 1)
        self.pit = (rows // 2, cols // 2)
        self.observation_space = spaces.Discrete(rows * cols)
        self.action_space = spaces.Discrete(4)
        self.pos = (0, 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        self.pos = (0, 0)
        return 0, {}

    def step(self, action: Any) -> Step:
        if self.np_random.uniform() < self.slip:
            action = self.np_random.integers(4)
        down, right = self.MOVES[int(action)]
        row = max(0, min(self.rows - 1, self.pos[0] + down))
        col = max(0, min(self.cols - 1, self.pos[1] + right))
        self.pos = (row, col)
        reward = 10.0 if self.pos == self.goal else -10.0 if self.pos == self.pit else -1.0
        done = self.pos in (self.goal, self.pit)
        return row * self.cols + col, reward, done, False, {}


class KeyRoom(gym.Env[Any, Any]):
    """Key in hand: pick up the key, open the door in the wall, go to the exit."""

    MAP = (
        "#########",
        "#   #   #",
        "# K D  E#",
        "#   #   #",
        "#########",
    )

    def __init__(self) -> None:
        self.grid = np.array([list(row) for row in self.MAP])
        self.observation_space = spaces.MultiDiscrete([5, 9, 2, 2])
        self.action_space = spaces.Discrete(5)  # up, right, down, left, use
        self.agent = [1, 1]
        self.has_key = False
        self.door_open = False

    def _get_obs(self) -> Any:
        return np.array([*self.agent, self.has_key, self.door_open])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        self.agent = [1, 1]
        self.has_key = False
        self.door_open = False
        return self._get_obs(), {}

    def step(self, action: Any) -> Step:
        row, col = self.agent
        if action == 4:
            if self.grid[row, col] == "K":
                self.has_key = True
            elif self.has_key and self.grid[row, col + 1] == "D":
                self.door_open = True
        else:
            down, right = ((-1, 0), (0, 1), (1, 0), (0, -1))[int(action)]
            ahead = self.grid[row + down, col + right]
            if ahead != "#" and (ahead != "D" or self.door_open):
                self.agent = [row + down, col + right]
        done = bool(self.grid[self.agent[0], self.agent[1]] == "E")
        return self._get_obs(), 1.0 if done else 0.0, done, False, {}


class Maze(gym.Env[Any, Any]):
    """Random start: a maze that is entered at any free cell."""

    MAP = ("S..#....", ".#.#.##.", ".#...#..", ".####.#.", "......#G")

    def __init__(self) -> None:
        self.free = [
            (row, col)
            for row, line in enumerate(self.MAP)
            for col, mark in enumerate(line)
            if mark != "#"
        ]
        (self.goal,) = [(r, c) for r, c in self.free if self.MAP[r][c] == "G"]
        self.observation_space = spaces.MultiDiscrete([len(self.MAP), len(self.MAP[0])])
        self.action_space = spaces.Discrete(4)
        self.state = (0, 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        starts = [cell for cell in self.free if cell != self.goal]
        self.state = starts[self.np_random.integers(len(starts))]
        return np.array(self.state), {}

    def step(self, action: Any) -> Step:
        down, right = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}[int(action)]
        ahead = (self.state[0] + down, self.state[1] + right)
        if ahead in self.free:
            self.state = ahead
        done = self.state == self.goal
        return np.array(self.state), 0.0 if done else -1.0, done, False, {}


class Rover(gym.Env[Any, Any]):
    """Step counter: a rover collects two samples and comes home, within a hundred steps."""

    def __init__(self, size: int = 6, max_steps: int = 100) -> None:
        self.size = size
        self.max_steps = max_steps
        self.samples = ((0, size - 1), (size - 1, 2))
        self.observation_space = spaces.Dict(
            {
                "position": spaces.MultiDiscrete([size, size]),
                "collected": spaces.MultiBinary(2),
            }
        )
        self.action_space = spaces.Discrete(4)
        self.x = self.y = 0
        self.collected = [False, False]
        self.current_step = 0

    def _get_obs(self) -> dict[str, Any]:
        return {
            "position": np.array([self.x, self.y]),
            "collected": np.array(self.collected, dtype=np.int8),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        self.x = self.y = 0
        self.collected = [False, False]
        self.current_step = 0
        return self._get_obs(), {}

    def step(self, action: Any) -> Step:
        self.current_step += 1
        if action == 0:
            self.x = min(self.x + 1, self.size - 1)
        elif action == 1:
            self.x = max(self.x - 1, 0)
        elif action == 2:
            self.y = min(self.y + 1, self.size - 1)
        else:
            self.y = max(self.y - 1, 0)
        reward = -0.1
        for k, place in enumerate(self.samples):
            if (self.x, self.y) == place and not self.collected[k]:
                self.collected[k] = True
                reward += 1.0
        terminated = all(self.collected) and (self.x, self.y) == (0, 0)
        truncated = self.current_step >= self.max_steps
        return self._get_obs(), reward, terminated, truncated, {"step": self.current_step}


class Twins(gym.Env[Any, Any]):
    """Tuple actions: two robots move at once, and must not meet before both are at their ends."""

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.observation_space = spaces.MultiDiscrete([length, length])
        self.action_space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))
        self.left, self.right = 0, length - 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Reset:
        super().reset(seed=seed)
        self.left, self.right = 0, self.length - 1
        return np.array([self.left, self.right]), {}

    def step(self, action: Any) -> Step:
        first, second = action
        self.left = int(np.clip(self.left + first - 1, 0, self.length - 1))
        self.right = int(np.clip(self.right + second - 1, 0, self.length - 1))
        if self.left == self.right:
            return np.array([self.left, self.right]), -1.0, True, False, {}
        done = (self.left, self.right) == (self.length - 1, 0)
        return np.array([self.left, self.right]), 1.0 if done else -0.05, done, False, {}


OWN: dict[str, type[gym.Env[Any, Any]]] = {
    "dict observations": GridWorld,
    "Poisson inventory": Inventory,
    "card game": PushYourLuck,
    "elevator": Elevator,
    "queue": Queue,
    "slip by np_random": SlipperyGrid,
    "key in hand": KeyRoom,
    "random start": Maze,
    "step counter": Rover,
    "tuple actions": Twins,
}
