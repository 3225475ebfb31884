"""Pong for peers that step one environment after another with Gymnasium 0.29, in the terms of all others.

The wrappers are Gymnasium's, but for the stack of frames: Gymnasium's puts off the copying to whoever reads a stack,
and that costs more than a copy.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import workloads
from gymnasium import wrappers

STACK = 4


def pong() -> Any:
    """A game: each action lasts 4 frames, the maximum of the last 2 is seen in grey 84x84, with the 3 before it."""
    from ale_py.registration import register_v0_v4_envs

    # ale-py does this by itself for newer versions of Gymnasium only.
    if workloads.PONG not in gymnasium.registry:
        register_v0_v4_envs()
    game = wrappers.RecordEpisodeStatistics(gymnasium.make(workloads.PONG))
    return Stack(wrappers.AtariPreprocessing(game, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True))


class Stack(gymnasium.Wrapper):
    """The last frames of a game as one array; rewards are clipped to their sign."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (STACK, *env.observation_space.shape), np.uint8)
        self.frames = np.zeros(self.observation_space.shape, np.uint8)

    def reset(self, **how: Any) -> tuple[np.ndarray, dict[str, Any]]:
        frame, info = self.env.reset(**how)
        self.frames[:] = frame
        return self.frames.copy(), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        self.frames[:-1] = self.frames[1:]
        self.frames[-1] = frame
        return self.frames.copy(), float(np.sign(reward)), terminated, truncated, info
