"""CartPole that misbehaves: each step goes wrong in some way with a probability of its own.

    raises      an exception                  nans        an observation that is not finite
    hangs       sleeps for an hour            shapes      an observation of the wrong shape
    stops       stops its own process         exits       ends its own process
    aborts      SIGABRT                       segfaults   reads memory that is not there

All is drawn from a generator seeded with the episodes. What is done is written to a file first, a line each, so that a
test can count what was injected, whatever dies of it. This module must not know who uses it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

KINDS = ("raises", "hangs", "stops", "aborts", "segfaults", "exits", "nans", "shapes")


class FaultyCartPole(CartPoleEnv):
    """CartPole with the probabilities of its faults; `log` is the file that counts them."""

    def __init__(self, log: str | None = None, limit: int = 500, resets: float = 0.0, **probabilities: float) -> None:
        super().__init__()
        unknown = probabilities.keys() - set(KINDS)
        if unknown:
            raise TypeError(f"unexpected keyword argument {sorted(unknown)[0]!r}; it can be one of {', '.join(KINDS)}")
        self._log = log
        self._limit = limit
        self._steps = 0
        self._resets = resets
        self._kinds = list(probabilities)
        self._until = np.cumsum(list(probabilities.values()))
        self._chance = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; `resets` is the probability that this raises, but for seed 0, which looks for masks."""
        if seed is not None:
            self._chance = np.random.default_rng([seed, 1])
        self._steps = 0
        if self._chance.random() < self._resets and seed != 0:
            self._note("resets")
            raise RuntimeError("this reset was told to raise")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, Any, dict[str, Any]]:
        """Play an action, unless something happens."""
        chosen = int(np.searchsorted(self._until, self._chance.random(), side="right")) if self._kinds else 0
        obs, reward, terminated, truncated, info = super().step(action)
        self._steps += 1
        if chosen < len(self._kinds):
            kind = self._kinds[chosen]
            self._note(kind)
            obs = self._misbehave(kind, obs)
        return obs, reward, terminated, truncated or self._steps >= self._limit, info

    def _note(self, kind: str) -> None:
        if self._log is not None:
            with Path(self._log).open("a") as file:
                file.write(f"{kind}\n")

    def _misbehave(self, kind: str, obs: Any) -> Any:
        if kind == "raises":
            raise RuntimeError("this step was told to raise")
        if kind == "hangs":
            time.sleep(3600)
        elif kind == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "aborts":
            os.abort()
        elif kind == "segfaults":
            ctypes.string_at(0)
        elif kind == "exits":
            os._exit(3)
        return np.full_like(obs, np.nan) if kind == "nans" else obs[:2]
