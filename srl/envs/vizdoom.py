"""VizDoom's scenarios as one EnvBatch, through its Gymnasium wrapper: VizdoomBasic-v1 and all its other ids.

    action -> 4 frames -> the screen as Doom draws it, 160 x 120 -> means of 2 x 2 -> [60, 80, 3]

Two things are put right. A scenario that runs out of time is truncated and not terminated, where the wrapper says both.
And the game has no state once an episode is over, for which the wrapper gives zeros: the final observation is the last
one that was seen, one step old, so that the value of a truncated episode is that of something real.

Doom leaves an empty folder `_vizdoom` where it runs. This module must not know who steps an EnvBatch. Nothing here
needs vizdoom before one of its scenarios is named.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from srl.envs.gym import GymBatch
from srl.errors import UserError, nearest
from srl.tree import Array, SpecTree, Tree

_ONLY_A_SCENARIO = re.compile(r"Vizdoom.*-v\d+")
_ENTRY_POINT = "vizdoom.gymnasium_wrapper"
_IMAGES = ("screen", "depth", "labels", "automap")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Which scenario is played, and how."""

    env_id: str
    """The id that VizDoom registers."""
    frame_skip: int = 4
    """Frames that one action lasts."""
    resolution: str = "160x120"
    """What Doom draws; the smaller, the faster."""
    shrink: int = 2
    """Each side of the pictures is divided by this; it must be a divisor of both."""
    max_buttons_pressed: int | None = None
    """Buttons held together at most; 0 makes each button an action of its own. None is as the id says."""
    doom_skill: int | None = None
    """Difficulty, from 1 to 5. None is as the scenario says."""
    render_mode: str | None = None
    """rgb_array to draw pictures, human for a window."""

    def __post_init__(self) -> None:
        for name in ("frame_skip", "shrink"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{self.env_id}: {name} is {value!r}; it must be a whole number of at least 1")
        known = [name[4:].lower() for name in importlib.import_module("vizdoom").ScreenResolution.__members__]
        if self.resolution not in known:
            hint = nearest(self.resolution, known) or f"; use one of {', '.join(known)}"
            raise UserError(f"{self.env_id}: Doom has no resolution {self.resolution!r}{hint}")
        if any(int(side) % self.shrink for side in self.resolution.split("x")):
            raise UserError(f"{self.env_id}: {self.resolution} cannot be shrunk by {self.shrink}; use a common divisor")


class Vizdoom:
    """Games of one scenario stepped one after another; the options are those of Scenario."""

    scored = False

    def __init__(self, num_envs: int, **options: Any) -> None:
        scenario = Scenario(**options)
        self._rows = GymBatch(partial(_build, scenario), num_envs, scenario.env_id)
        self.size = num_envs
        self.frames_per_step = scenario.frame_skip
        self.obs: SpecTree = self._rows.obs
        self.action: SpecTree = self._rows.action
        self.mask: SpecTree | None = self._rows.mask

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every game."""
        self._rows.reset(seed, out)

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every game whose episode goes on; reset the others."""
        self._rows.step(action, out)

    def render(self) -> Array | None:
        """The screen of game 0, when it was built to draw it."""
        return self._rows.render()

    def close(self) -> None:
        """End every game."""
        self._rows.close()


def _build(scenario: Scenario) -> gymnasium.Env[Any, Any]:
    given = {"max_buttons_pressed": scenario.max_buttons_pressed, "doom_skill": scenario.doom_skill}
    env: gymnasium.Env[Any, Any] = gymnasium.make(
        scenario.env_id,
        disable_env_checker=True,
        frame_skip=scenario.frame_skip,
        render_mode=scenario.render_mode,
        screen_resolution=f"RES_{scenario.resolution.upper()}",
        doom_config_path=os.devnull,  # otherwise every game writes its settings into the current folder
        **{name: value for name, value in given.items() if value is not None},
    )
    return Settled(env, scenario.shrink)


class Settled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A scenario with small pictures, and with ends that say what they are."""

    def __init__(self, env: gymnasium.Env[Any, Any], shrink: int) -> None:
        super().__init__(env)
        self._shrink = shrink
        self._seen: dict[str, Any] = {}
        parts: Any = env.observation_space
        self.observation_space = spaces.Dict(
            {name: _smaller(space, shrink) if name in _IMAGES else space for name, space in parts.items()}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._seen = self._small(obs)
        return self._seen, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Play an action."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            self._seen = self._small(obs)
        return self._seen, reward, terminated and not truncated, truncated, info

    def _small(self, obs: dict[str, Any]) -> dict[str, Any]:
        return {name: shrunk(part, self._shrink, name) if name in _IMAGES else part for name, part in obs.items()}


def _smaller(space: Any, shrink: int) -> spaces.Box:
    height, width, channels = space.shape
    return spaces.Box(0, 255, (height // shrink, width // shrink, channels), np.uint8)


def shrunk(image: Array, by: int, name: str = "screen") -> Array:
    """The means of blocks of by x by pixels; of labels, which are numbers of things, one pixel of each block."""
    if by == 1 or name == "labels":
        return image[::by, ::by]
    total = np.zeros((image.shape[0] // by, image.shape[1] // by, image.shape[2]), np.uint32)
    for row in range(by):
        for column in range(by):
            total += image[row::by, column::by]
    return (total // by**2).astype(np.uint8)


def register(env_id: str) -> None:
    """Let Gymnasium know the ids of all scenarios, if this one may be among them; then vizdoom must be installed."""
    if not env_id.lower().startswith("vizdoom"):
        return
    try:
        importlib.import_module(_ENTRY_POINT)
    except ImportError as error:
        if _ONLY_A_SCENARIO.fullmatch(env_id):
            raise UserError(f"{env_id} needs vizdoom; pip install 'srl[vizdoom]'") from error


def options_of(spec: EnvSpec) -> dict[str, Any] | None:
    """The options of Scenario that an id stands for; None where it is not one of VizDoom's."""
    return {"env_id": spec.id} if str(spec.entry_point).startswith(_ENTRY_POINT) else None
