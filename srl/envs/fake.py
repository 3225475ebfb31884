"""Small environments for tests, each with one property that can be checked exactly.

    Counting        observations that say where in which episode they belong
    NativeVector    the same as a vector environment, in any autoreset mode
    WritesInPlace   the same as an environment that writes into arrays, its own or those handed to it
    Recall          needs memory: no policy that sees only the present does better than chance
    Bandit          episodes of one step
    ConstantReward  never terminates, only truncates: its value is that of an endless stream of ones
    Masked          an illegal action raises
    Nested          every kind of leaf, in observations and in actions
    Raises, Slow    what their names say

They draw random numbers only from their own seeded generator. This module must not know who uses them.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from srl.tree import Array

Ends = Literal["terminated", "truncated", "both"]
Step = tuple[Any, float, bool, bool, dict[str, Any]]
COUNTING = spaces.Box(0, np.inf, (2,), np.float32)
ACTION_WEIGHT = 100


class Counting(gymnasium.Env[Any, Any]):
    """Observes [episode, step]; the reward of an action is the step it leads to plus 100 times the action."""

    def __init__(self, lengths: tuple[int, ...] = (5,), ends: tuple[Ends, ...] = ("terminated",)) -> None:
        self.observation_space = COUNTING
        self.action_space = spaces.Discrete(2)
        self._lengths = lengths
        self._ends = ends
        self._episode = -1
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode, or the first one when seeded."""
        super().reset(seed=seed)
        self._episode = 0 if seed is not None else self._episode + 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: int) -> Step:
        """Count; lengths and ends are taken in turn by the episodes."""
        length = self._lengths[self._episode % len(self._lengths)]
        ends = self._ends[self._episode % len(self._ends)]
        if self._step >= length:
            raise RuntimeError("stepped after the end of the episode")
        self._step += 1
        over = self._step == length
        reward = float(self._step + ACTION_WEIGHT * action)
        return self._observe(), reward, over and ends != "truncated", over and ends != "terminated", {}

    def _observe(self) -> Array:
        return np.array([self._episode, self._step], np.float32)


def turned(lengths: tuple[int, ...], i: int) -> tuple[int, ...]:
    """The lengths, beginning with number i."""
    return (*lengths[i % len(lengths) :], *lengths[: i % len(lengths)])


class NativeVector(VectorEnv[Any, Any, Any]):
    """Counting environments as a vector environment that resets as `mode` says; row i starts with length i."""

    def __init__(
        self,
        num_envs: int = 1,
        mode: str = "NextStep",
        lengths: tuple[int, ...] = (5,),
        ends: tuple[Ends, ...] = ("terminated",),
        final_obs: bool = True,
    ) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode(mode), "render_modes": []}
        self.single_observation_space = COUNTING
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(COUNTING, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._mode = AutoresetMode(mode)
        self._final_obs = final_obs
        self._envs = [Counting(turned(lengths, i), ends) for i in range(num_envs)]
        self._ended = np.zeros(num_envs, bool)
        self._obs = np.zeros((num_envs, 2), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every row, or in those of options["reset_mask"]."""
        super().reset(seed=seed)
        rows = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for i in np.flatnonzero(rows):
            self._obs[i] = self._envs[i].reset(seed=seed)[0]
        self._ended[rows] = False
        # The same array every time: whoever keeps it must copy it.
        return self._obs, {}

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every row, and reset as the mode says."""
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            raise RuntimeError("stepped after the end of an episode that was not reset")
        reward, flags = np.zeros(self.num_envs), np.zeros((2, self.num_envs), bool)
        resetting = self._ended.copy()
        for i, env in enumerate(self._envs):
            if resetting[i]:
                self._obs[i] = env.reset()[0]
            else:
                self._obs[i], reward[i], flags[0, i], flags[1, i], _ = env.step(int(actions[i]))
        ended = flags[0] | flags[1]
        info = self._reset_now(ended) if self._mode is AutoresetMode.SAME_STEP else {}
        self._ended = ended & (self._mode is not AutoresetMode.SAME_STEP)
        return self._obs, reward, flags[0], flags[1], info

    def _reset_now(self, ended: Array) -> dict[str, Any]:
        final = self._obs.copy()
        for i in np.flatnonzero(ended):
            self._obs[i] = self._envs[i].reset()[0]
        return {"final_obs": final, "_final_obs": ended} if self._final_obs and ended.any() else {}


class WritesInPlace:
    """Counting environments that write into arrays and say nothing else; row i starts with length i."""

    def __init__(
        self,
        num_envs: int = 1,
        lengths: tuple[int, ...] = (5,),
        ends: tuple[Ends, ...] = ("terminated",),
        buffers_move: bool = False,
    ) -> None:
        self.num_agents = num_envs
        self.single_observation_space, self.single_action_space = COUNTING, spaces.Discrete(2)
        self.buffers_move = buffers_move
        self.observations = np.zeros((num_envs, 2), np.float32)
        self.rewards = np.zeros(num_envs, np.float32)
        self.terminals, self.truncations = np.zeros((2, num_envs), bool)
        self.masks = np.ones(num_envs, bool)
        self._envs = [Counting(turned(lengths, i), ends) for i in range(num_envs)]
        # What C code keeps: the memory it was given first, whatever the attributes say later.
        self._given = (self.observations, self.rewards, self.terminals, self.truncations)

    def _arrays(self) -> tuple[Array, Array, Array, Array]:
        return (self.observations, self.rewards, self.terminals, self.truncations) if self.buffers_move else self._given

    def reset(self, seed: int | None = None) -> tuple[Any, list[Any]]:
        """Begin an episode in every row."""
        obs, *_ = self._arrays()
        for i, env in enumerate(self._envs):
            obs[i] = env.reset(seed=seed)[0]
        return obs, []

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, list[Any]]:
        """Step every row; one that ends begins its next episode at once."""
        obs, rewards, terminals, truncations = self._arrays()
        for i, env in enumerate(self._envs):
            obs[i], rewards[i], terminals[i], truncations[i], _ = env.step(int(actions[i]))
            if terminals[i] or truncations[i]:
                obs[i] = env.reset()[0]
        return obs, rewards, terminals, truncations, []

    def render(self) -> None:
        """There is nothing to draw."""

    def close(self) -> None:
        """Nothing is held."""


class Recall(gymnasium.Env[Any, Any]):
    """Shows a cue in the first observation and asks for it in the last: [cue of -1, 0 or 1, whether it asks now]."""

    def __init__(self, length: int = 8) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length = length
        self._cue = 0
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw a cue and show it."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(2))
        self._step = 0
        return np.array([2 * self._cue - 1, self._length == 1], np.float32), {}

    def step(self, action: int) -> Step:
        """Reward 1 when the last action of the episode names the cue."""
        self._step += 1
        over = self._step == self._length
        obs = np.array([0, self._step == self._length - 1], np.float32)
        return obs, float(over and action == self._cue), over, False, {}


class Bandit(gymnasium.Env[Any, Any]):
    """One step per episode: reward 1 for choosing the arm that the observation shows."""

    def __init__(self, arms: int = 2) -> None:
        self.observation_space = spaces.Discrete(arms)
        self.action_space = spaces.Discrete(arms)
        self._arms = arms
        self._arm = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the good arm."""
        super().reset(seed=seed)
        self._arm = int(self.np_random.integers(self._arms))
        return self._arm, {}

    def step(self, action: int) -> Step:
        """Pay, and end."""
        return self._arm, float(action == self._arm), True, False, {}


class ConstantReward(gymnasium.Env[Any, Any]):
    """Reward 1 at every step, a constant observation, and nothing but truncation."""

    def __init__(self, length: int = 50) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length = length
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin again."""
        super().reset(seed=seed)
        self._step = 0
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> Step:
        """Pay 1."""
        self._step += 1
        return np.ones(1, np.float32), 1.0, False, self._step == self._length, {}


class Raises(ConstantReward):
    """Raises in its step number `after`, counted over all episodes."""

    def __init__(self, after: int = 3) -> None:
        super().__init__()
        self._left = after

    def step(self, action: int) -> Step:
        """Pay 1, or raise."""
        self._left -= 1
        if self._left <= 0:
            raise RuntimeError("this environment was told to raise")
        return super().step(action)


class Slow(ConstantReward):
    """Sleeps for `seconds` in every step."""

    def __init__(self, seconds: float = 0.01) -> None:
        super().__init__()
        self._seconds = seconds

    def step(self, action: int) -> Step:
        """Sleep, then pay 1."""
        time.sleep(self._seconds)
        return super().step(action)


class Masked(gymnasium.Env[Any, Any]):
    """Only some actions are legal at each step, and the others raise; the final state has no legal action at all."""

    def __init__(self, where: Literal["info", "obs"] = "info", choices: int = 4, length: int = 6) -> None:
        seen = spaces.Box(0, 1, (choices,), np.float32)
        self._in_obs = where == "obs"
        parts: dict[str, Any] = {"seen": seen, "action_mask": spaces.MultiBinary(choices)}
        self.observation_space = spaces.Dict(parts) if self._in_obs else seen
        self.action_space = spaces.Discrete(choices)
        self._length = length
        self._step = 0
        self._legal = np.ones(choices, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with some actions legal."""
        super().reset(seed=seed)
        self._step = 0
        return self._observe()

    def step(self, action: int) -> Step:
        """Reward 1 for a legal action."""
        if not self._legal[action]:
            raise ValueError(f"action {action} is illegal; legal are {np.flatnonzero(self._legal).tolist()}")
        self._step += 1
        obs, info = self._observe()
        return obs, 1.0, self._step == self._length, False, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        if self._step == self._length:
            self._legal = np.zeros_like(self._legal)
        else:
            self._legal = self.np_random.integers(0, 2, len(self._legal), np.int8)
            self._legal[self.np_random.integers(len(self._legal))] = 1
        seen, mask = self._legal.astype(np.float32), self._legal.copy()
        return ({"seen": seen, "action_mask": mask}, {}) if self._in_obs else (seen, {"action_mask": mask})


def _every_kind(width: int) -> spaces.Dict:
    return spaces.Dict(
        {
            "arm": spaces.Box(-2, 2, (width,), np.float64),
            "gear": spaces.Discrete(3, start=-1),
            "keys": spaces.MultiBinary(4),
            "pair": spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Box(0, 1, (2, 1), np.float32)}))),
            "slots": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [2, 3]])),
        }
    )


class Nested(gymnasium.Env[Any, Any]):
    """Every kind of leaf and nesting, in observations and in actions; an action outside its space raises."""

    def __init__(self, length: int = 4) -> None:
        image = spaces.Box(0, 255, (3, 4, 4), np.uint8)
        self.observation_space = spaces.Dict({**_every_kind(2).spaces, "image": image})
        self.action_space = _every_kind(3)
        self.last: tuple[Any, Any] = ({}, None)
        """The last observation given, and the last action taken."""
        self._length = length
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin with a random observation."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._step = 0
        self.last = (self.observation_space.sample(), None)
        return self.last[0], {}

    def step(self, action: Any) -> Step:
        """Reward 1, a random observation."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not in {self.action_space}")
        self._step += 1
        self.last = (self.observation_space.sample(), action)
        return self.last[0], 1.0, self._step == self._length, False, {}
