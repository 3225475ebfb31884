"""Atari games as one EnvBatch, stepped by ale-py's own vector environment.

    PongNoFrameskip-v4      the game as most papers train on it
    ALE/Pong-v5             the same with sticky actions: at each frame the last action repeats with probability 0.25

    action -> 4 frames, maximum of the last 2 -> grey, 84 x 84; a policy sees the last 4 of them, [84, 84, 4]

Learning sees rewards clipped to -1, 0 and 1, and, where `life_loss` is set, an episode for each life. What the game
itself says is beside it: `score`, and `game_over` where the whole game has ended.

A game cannot be held still while a lost life has its reset row, and need not be: in this row the game goes on with
FIRE, which starts the next life in many games, or with no action where it has none. What this step scores counts in
the score and is not learned from. Should it end the game, the next game begins in the row after it.

This module must not know who steps an EnvBatch. Nothing here needs ale-py before a game is named.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from srl.envs.gym import seeds
from srl.envs.spaces import spec_of_space
from srl.errors import UserError, nearest
from srl.tree import Array, Spec, SpecTree, Tree

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

_ONLY_A_GAME = re.compile(r"ALE/.*|.*NoFrameskip-v\d+")
_SCREEN = {"img_height": 210, "img_width": 160}


@dataclass(frozen=True, kw_only=True)
class Game:
    """Which game is played, and how; where ale-py has the option too, by the same name."""

    game: str
    """The game's name as ale-py has it: pong, space_invaders."""
    frameskip: int = 4
    """Frames that one action lasts."""
    stack: int = 4
    """Of how many steps a policy sees the screen at once: 2, 4 or 8."""
    repeat_action_probability: float = 0.0
    """Sticky actions: how probable it is that a frame repeats the last action instead."""
    noop_max: int = 30
    """A game starts after at most so many frames without action, how many is random."""
    max_num_frames_per_episode: int = 108_000
    """Frames after which a game is truncated, those of its start not counted."""
    full_action_space: bool = False
    """All 18 actions, instead of those that mean something in this game."""
    fire_reset: bool = True
    """Press FIRE to start a game, and to go on after a lost life, in games that have it."""
    life_loss: bool = False
    """A lost life is an end of an episode for learning; scores are still of whole games."""
    clip_rewards: bool = True
    """Learn from the sign of rewards, so that one learning rate fits all games; scores are never clipped."""
    threads: int = 1
    """Threads that step the games; more than one only pays where cores would be idle."""
    render_mode: str | None = None
    """rgb_array to draw pictures."""

    def __post_init__(self) -> None:
        from ale_py import roms

        known = roms.get_all_rom_ids()
        if self.game not in known:
            raise UserError(f"no Atari game is called {self.game!r}{nearest(self.game, known)}")
        if self.stack not in (2, 4, 8):
            raise UserError(f"Atari: stack is {self.stack!r}; it can be 2, 4 or 8")
        for name in ("frameskip", "max_num_frames_per_episode", "threads"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UserError(f"Atari: {name} is {value!r}; it must be a whole number of at least 1")
        if self.render_mode not in (None, "rgb_array"):
            raise UserError("Atari games open no window; record a video: srl play RUN --video FILE")


class Atari:
    """Games of one kind stepped together; the options are those of Game."""

    scored = True

    def __init__(self, num_envs: int, **options: Any) -> None:
        game = Game(**options)
        self.size = num_envs
        self.frames_per_step = game.frameskip
        self._life_loss, self._clip = game.life_loss, game.clip_rewards
        self._vector = _vector(game, num_envs)
        # Pictures in colour come from the same games played once more: same seeds, same actions, same course.
        self._colour = _vector(game, num_envs, grayscale=False, **_SCREEN) if game.render_mode else None
        self._shown: Array | None = None
        spaces: Any = self._vector  # Gymnasium types its spaces only in part
        side = spaces.single_observation_space.shape[1:]
        self.obs: SpecTree = Spec(side, "uint8", low=0.0, high=255.0, stack=game.stack)
        self.action: SpecTree = spec_of_space(spaces.single_action_space, f"{game.game}: action")
        self.mask: SpecTree | None = None
        self._go_on = _fire(self._vector) if game.fire_reset else 0
        self._start_over(np.zeros(num_envs, np.int32))

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start a game in every row."""
        obs, info = self._reset(seed=np.array(seeds(seed, self.size)))
        out["obs"][...] = obs[:, 0]
        self._start_over(info["lives"])

    def _start_over(self, lives: Array) -> None:
        self._lives = lives
        self._over = np.zeros(self.size, bool)
        self._lost = np.zeros(self.size, bool)

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every row whose episode goes on; the other rows go on to the next life or game."""
        assert not isinstance(action, dict)
        between = self._lost
        obs, score, terminated, truncated, info = self._play(np.where(between, self._go_on, action))
        over = terminated | truncated
        out["obs"][...] = obs[:, 0]
        out["score"][:], out["game_over"][:] = score, over
        lost = self._lost_lives(info["lives"]) & ~(over | between | self._over)
        out["reward"][:] = np.sign(score) if self._clip else score
        out["terminated"][:], out["truncated"][:] = terminated | lost, truncated
        for name in ("reward", "terminated", "truncated"):
            out[name][between] = 0
        self._lost, self._over = lost, over & ~between
        if (over & between).any():
            self._begin(over & between, out)

    def _lost_lives(self, lives: Array) -> Array:
        before, self._lives = self._lives, lives
        # Some games show 0 lives for a while before they end; that is the end, and not another life.
        return (lives < before) & (lives > 0) if self._life_loss else np.zeros(self.size, bool)

    def _begin(self, rows: Array, out: dict[str, Any]) -> None:
        """Start the next game now, in rows whose game ended where its end cannot be shown."""
        obs, info = self._reset(options={"reset_mask": rows})
        out["obs"][rows] = obs[rows, 0]
        self._lives = info["lives"]

    def _reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        if self._colour is not None:
            self._shown = self._colour.reset(**how)[0]
        return self._vector.reset(**how)

    def _play(self, action: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        if self._colour is not None:
            self._shown = self._colour.step(action)[0]
        return self._vector.step(action)

    def render(self) -> Array | None:
        """The screen of row 0, when the games were built to draw it."""
        return None if self._shown is None else self._shown[0, -1]

    def close(self) -> None:
        """Close the games."""
        self._vector.close()
        if self._colour is not None:
            self._colour.close()


def _vector(game: Game, size: int, **screen: Any) -> AtariVectorEnv:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        game.game,
        size,
        num_threads=game.threads,
        stack_num=1,
        frameskip=game.frameskip,
        repeat_action_probability=game.repeat_action_probability,
        noop_max=game.noop_max,
        max_num_frames_per_episode=game.max_num_frames_per_episode,
        full_action_space=game.full_action_space,
        use_fire_reset=game.fire_reset,
        reward_clipping=False,
        **screen,
    )


def _fire(vector: AtariVectorEnv) -> int:
    """The number of the action FIRE, or of doing nothing in a game without it."""
    names = [action.name for action in vector.ale.get_action_set()]
    return names.index("FIRE") if "FIRE" in names else 0


def register(env_id: str) -> None:
    """Let Gymnasium know the ids of all games, if ale-py is installed; for an id that can only be a game it must be."""
    try:
        importlib.import_module("ale_py")
    except ImportError as error:
        if _ONLY_A_GAME.fullmatch(env_id):
            raise UserError(f"{env_id} needs ale-py; pip install 'srl[atari]'") from error


def options_of(spec: EnvSpec) -> dict[str, Any] | None:
    """The options of Game that an id stands for; None where it is not one of those above."""
    if spec.entry_point != "ale_py.env:AtariEnv" or _ONLY_A_GAME.fullmatch(spec.id) is None:
        return None
    # The frames that an action lasts are counted here, also where the id leaves them to a wrapper.
    return {name: value for name, value in spec.kwargs.items() if name != "frameskip"}


def without_unprepared(specs: Iterable[EnvSpec]) -> list[str]:
    """The ids of these, less those that give a game's bare screen at random intervals."""
    return [spec.id for spec in specs if spec.entry_point != "ale_py.env:AtariEnv" or options_of(spec) is not None]
