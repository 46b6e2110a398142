"""An environment that counts its steps, as many do that people write."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Door(gym.Env[Any, Any]):
    """A key at the left end, a door at the right one, a guard who walks about, and a counter."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.MultiDiscrete([6, 2, 2])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.key, self.guard, self.steps = 2, 0, 0, 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.guard = 1 - self.guard
        self.place = min(max(self.place + (-1, 1)[action], 0), 5)
        self.key = max(self.key, int(self.place == 0))
        is_over = self.place == 5 and self.key == 1
        return self._seen(), float(is_over), is_over, False, {}

    def _seen(self) -> Any:
        return np.array([self.place, self.key, self.guard])
