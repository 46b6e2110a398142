"""`RoomsGrid`: a grid of rooms whose states are alike up to a noise level."""

from __future__ import annotations

import colorsys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from bisim_abstract._base.checks import check_choice, check_fraction, check_int, check_real
from bisim_abstract._base.memory import check_memory
from bisim_abstract._base.types import FloatArray, IntArray
from bisim_abstract._model.mdp import TabularMDP
from bisim_abstract._model.names import Names
from bisim_abstract.errors import InvalidArgumentError, MemoryLimitError
from bisim_abstract.wrappers._naming import grid_variables

ACTIONS = ("up", "right", "down", "left")
STEPS = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])  # (row, column) of each action
TABLE_LIMIT = 100_000  # states beyond which a Python-object P is refused
CELL_BYTES, MODEL_BYTES = 88, 1350  # what a cell takes here and in `to_mdp`, at the peak


class RoomsGridEnv(gym.Env[np.int64, np.int64]):
    """A side x side grid cut into square rooms; all cells of a room are nearly alike.

    An action moves to the same cell of the neighbouring room in that direction, or stays
    where the grid ends; with the slip probability it moves instead to a neighbouring cell of
    the same room, each being equally likely. Every room has base rewards, uniform in [0, 1]
    per action. Noise makes the cells of a room differ: `noise * U(0, 1)` is added to each
    reward, and a cell's slip is multiplied by `1 + noise * U(-1, 1)`. Episodes do not end by
    themselves; they start in any cell with equal probability.

    The planted rooms of the paper's 2500-state gridworld are the defaults: 25 rooms of 10 x 10.

    With `mirror`, the grid looks the same from all sides: it is turned and reflected into itself,
    rooms and directions alike. Base rewards are drawn once for all images of a room and a
    direction, and noise is drawn for each cell as before. What "up" does in a room is then what
    "left", or "down", does in its images. Action by action all rooms differ; once actions are
    renamed (`relation="lax"`), a room is like its images, of which there are up to eight: the 25
    rooms fall into 6 kinds (`twins`), as in an arena that is entered from any side.

    Args:
        side: Cells along a side of the grid; a multiple of `room_size`.
        room_size: Cells along a side of a room.
        slip: Probability of moving within the room instead.
        noise: How much the cells of a room differ.
        seed: Seed of rewards and noise: part of the model, unlike the seed of `reset`.
        render_mode: "ansi", "rgb_array" or None.
        mirror: Whether rooms are images of each other.

    Attributes:
        s: The present state, row * side + column.
        rooms: (n_states) the planted room of each state.
        twins: (n_states) the first of the rooms that are images of a state's own; that itself,
            unless `mirror`.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        side: int = 50,
        room_size: int = 10,
        slip: float = 0.2,
        noise: float = 0.02,
        seed: int = 0,
        render_mode: str | None = None,
        mirror: bool = False,
    ) -> None:
        if not isinstance(mirror, bool):
            raise InvalidArgumentError(f"mirror must be True or False, got {mirror!r}")
        self.mirror = mirror
        self.side = check_int("side", side, low=1)
        self.room_size = check_int("room_size", room_size, low=1)
        if self.side % self.room_size:
            raise InvalidArgumentError(
                f"side must be a multiple of room_size, got {side} and {room_size}"
            )
        self.slip = check_fraction("slip", slip)
        self.noise = check_real("noise", noise)
        if not 0.0 <= self.noise <= 1.0 or self.slip * (1.0 + self.noise) > 1.0:
            raise InvalidArgumentError(
                "noise must lie in [0, 1] and keep slip * (1 + noise) at most 1, got "
                f"noise {noise!r} and slip {slip!r}"
            )
        if render_mode is not None:
            check_choice("render_mode", render_mode, tuple(self.metadata["render_modes"]))
        self.render_mode = render_mode
        n = self.side**2
        self._check_room(CELL_BYTES, "a grid")
        self.observation_space = spaces.Discrete(n)
        self.action_space = spaces.Discrete(len(ACTIONS))

        rng = np.random.default_rng(check_int("seed", seed, low=0))
        per_side = self.side // self.room_size
        row, col = np.divmod(np.arange(n), self.side)
        self.rooms: IntArray = row // self.room_size * per_side + col // self.room_size
        base = rng.random((per_side**2, len(ACTIONS)))
        self.twins: IntArray = self.rooms
        if mirror:
            first = _first_images(per_side)
            base = base.ravel()[first]
            self.twins = (first.min(axis=1) // len(ACTIONS))[self.rooms]
        self._rewards: FloatArray = base[self.rooms] + self.noise * rng.random((n, len(ACTIONS)))
        self._slips: FloatArray = self.slip * (1.0 + self.noise * rng.uniform(-1.0, 1.0, n))
        if self.room_size == 1:
            self._slips[:] = 0.0  # a room of one cell has nowhere to slip to
        self.s = 0

    # -- acting ----------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start in a random cell."""
        super().reset(seed=seed)
        self.s = int(self.np_random.integers(self.side**2))
        return np.int64(self.s), {"room": int(self.rooms[self.s])}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Move, or slip."""
        act = check_int("action", action, low=0, high=len(ACTIONS) - 1)  # type: ignore[arg-type]
        reward = float(self._rewards[self.s, act])
        row, col = divmod(self.s, self.side)
        if self.np_random.random() < self._slips[self.s]:
            near = [
                (row + int(dr), col + int(dc))
                for dr, dc in STEPS
                if 0 <= row % self.room_size + dr < self.room_size
                and 0 <= col % self.room_size + dc < self.room_size
            ]
            row, col = near[int(self.np_random.integers(len(near)))]
        else:
            to_row, to_col = np.array((row, col)) + STEPS[act] * self.room_size
            if 0 <= to_row < self.side and 0 <= to_col < self.side:
                row, col = int(to_row), int(to_col)
        self.s = row * self.side + col
        return np.int64(self.s), reward, False, False, {"room": int(self.rooms[self.s])}

    # -- describing itself -----------------------------------------------------------------

    def state_id(self) -> int:
        """The present state."""
        return self.s

    @property
    def initial_state_distrib(self) -> FloatArray:
        """(n_states) uniform."""
        n = self.side**2
        return np.full(n, 1.0 / n)

    def to_mdp(self, *, terminal: str = "absorb") -> TabularMDP:
        """The model, built without Python objects: a million states in seconds.

        Args:
            terminal: Accepted for uniformity; no transition ends an episode, so that no
                absorbing state is needed either way.
        """
        check_choice("terminal", terminal, ("absorb", "table"))
        n, size, side = self.side**2, self.room_size, self.side
        digits = [["row", side], ["column", side]]
        self._check_room(MODEL_BYTES, "the model")
        row, col = np.divmod(np.arange(n), side)
        # Slots: the cell moved to, then the neighbours in the room in the order of STEPS.
        target = np.empty((n, len(ACTIONS), 5), np.int64)
        mass = np.zeros((n, len(ACTIONS), 5))
        inside = np.empty((n, 4), bool)
        for k, (dr, dc) in enumerate(STEPS):
            ok_row = (row % size + dr >= 0) & (row % size + dr < size)
            inside[:, k] = ok_row & (col % size + dc >= 0) & (col % size + dc < size)
            target[:, :, k + 1] = (np.arange(n) + dr * side + dc)[:, None]
            to_row, to_col = row + dr * size, col + dc * size
            moves = (to_row >= 0) & (to_row < side) & (to_col >= 0) & (to_col < side)
            target[:, k, 0] = np.where(moves, to_row * side + to_col, np.arange(n))
        share = self._slips / np.maximum(inside.sum(axis=1), 1)
        mass[:, :, 0] = (1.0 - self._slips)[:, None]
        mass[:, :, 1:] = np.where(inside, share[:, None], 0.0)[:, None, :]
        order = np.argsort(np.where(mass > 0.0, target, n), axis=2)
        target = np.take_along_axis(target, order, axis=2)
        mass = np.take_along_axis(mass, order, axis=2)
        used = mass > 0.0
        indptr = np.concatenate([[0], np.cumsum(used.sum(axis=2).ravel())])
        return TabularMDP(
            indptr=indptr,
            indices=target[used],
            probs=mass[used],
            rewards=self._rewards,
            start=self.initial_state_distrib,
            names=Names(actions=ACTIONS, variables=grid_variables(np.arange(n), digits)),
            metadata={
                "method": "self",
                "side": side,
                "room_size": size,
                **({"mirror": True} if self.mirror else {}),
                "digits": digits,
            },
        )

    @property
    def P(self) -> dict[int, dict[int, list[tuple[float, int, float, bool]]]]:  # noqa: N802
        """A Gymnasium table, made of Python objects at each access; small grids only."""
        if self.side**2 > TABLE_LIMIT:
            raise MemoryLimitError(
                f"a P table of {self.side**2:,} states would be millions of Python objects "
                f"(limit {TABLE_LIMIT:,} states); use to_mdp() or extract_mdp(env)"
            )
        mdp = self.to_mdp()
        table: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = {}
        for s in range(mdp.n_states):
            table[s] = {}
            for a in range(mdp.n_actions):
                successors, probs = mdp.successors(s, a)
                reward = float(mdp.rewards[s, a])
                table[s][a] = [
                    (p, t, reward, False)
                    for t, p in zip(successors.tolist(), probs.tolist(), strict=True)
                ]
        return table

    def _check_room(self, each: int, what: str) -> None:
        check_memory(
            each * self.side**2,
            what=f"{what} of {self.side:,} x {self.side:,} cells",
            instead="choose a smaller side",
        )

    # -- showing ---------------------------------------------------------------------------

    def render(self) -> str | np.ndarray[Any, Any] | None:  # type: ignore[override]
        """The grid with its rooms and the present cell, as text or as an image."""
        if self.render_mode == "ansi":
            return self._as_text()
        if self.render_mode == "rgb_array":
            return self._as_image()
        gym.logger.warn(
            "render() needs a render mode: gymnasium.make('bisim_abstract/RoomsGrid-v0', "
            "render_mode='ansi') or 'rgb_array'"
        )
        return None

    def _as_text(self) -> str:
        size = self.room_size
        cells = np.full((self.side, self.side), ".", dtype="<U1")
        cells[divmod(self.s, self.side)] = "@"
        rule = "+" + "+".join(["-" * size] * (self.side // size)) + "+"
        lines = [f"room {self.rooms[self.s]}, cell {divmod(self.s, self.side)}", rule]
        for r in range(self.side):
            parts = ["".join(cells[r, c : c + size]) for c in range(0, self.side, size)]
            lines.append("|" + "|".join(parts) + "|")
            if (r + 1) % size == 0:
                lines.append(rule)
        return "\n".join(lines) + "\n"

    def _as_image(self) -> np.ndarray[Any, Any]:
        pixels = max(1, 500 // self.side)
        palette = room_colours(int(self.rooms[-1]) + 1)
        image = palette[self.rooms].reshape(self.side, self.side, 3)
        image = image.repeat(pixels, axis=0).repeat(pixels, axis=1)
        if pixels >= 4:  # walls between rooms, where a cell is more than a dot
            step = self.room_size * pixels
            image[::step] = 60
            image[:, ::step] = 60
        row, col = (x * pixels for x in divmod(self.s, self.side))
        # The present cell is marked at least five pixels wide, however small cells are.
        pad = max(0, (5 - pixels) // 2)
        image[max(row - pad, 0) : row + pixels + pad, max(col - pad, 0) : col + pixels + pad] = (
            20,
            20,
            20,
        )
        return image


def _first_images(per_side: int) -> IntArray:
    """(rooms, actions) the first room and action, as one number, that each is an image of.

    The eight symmetries of a square move rooms about the centre of the grid, and directions
    likewise.
    """
    rooms = np.arange(per_side**2)
    place = np.stack(np.divmod(rooms, per_side), axis=1) * 2 - (per_side - 1)  # from the centre
    found = []
    for flip in (np.array([[1, 0], [0, 1]]), np.array([[1, 0], [0, -1]])):
        for turns in range(4):
            symmetry = np.linalg.matrix_power(np.array([[0, -1], [1, 0]]), turns) @ flip
            row, col = ((place @ symmetry.T + per_side - 1) // 2).T
            moved = STEPS @ symmetry.T
            action = (moved[:, None] == STEPS).all(axis=2).argmax(axis=1)
            found.append((row * per_side + col)[:, None] * len(ACTIONS) + action)
    return np.asarray(np.min(found, axis=0))


def room_colours(count: int) -> np.ndarray[Any, Any]:
    """(count, 3) uint8 pastel colours; neighbours in number differ clearly in hue."""
    hues = (np.arange(count) * 0.6180339887498949) % 1.0  # golden-ratio steps spread evenly
    rgb = [colorsys.hls_to_rgb(hue, 0.72 + 0.1 * (k % 2), 0.6) for k, hue in enumerate(hues)]
    return (np.array(rgb) * 255).astype(np.uint8)
