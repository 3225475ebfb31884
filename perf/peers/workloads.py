"""The workloads of the comparison, and the line that every runner prints; what all runners share.

This module must not know a peer, nor import anything that is not in the standard library.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Workload:
    """An environment, a network and PPO's settings; what is not here is the same in all of them."""

    env: str
    envs: int
    rollout: int
    epochs: int
    minibatch: int
    learning_rate: float
    clip: float
    entropy: float
    lstm: int = 0
    """Width of the LSTM behind the encoder; 0 for none."""

    @property
    def batch(self) -> int:
        """Steps that one update learns from."""
        return self.envs * self.rollout

    @property
    def minibatches(self) -> int:
        """Minibatches in one epoch."""
        return self.batch // self.minibatch

    @property
    def pictures(self) -> bool:
        """Whether it is an Atari game, and so takes the Nature CNN; the others take an MLP of 2x64 tanh."""
        return self.env == PONG


GAMMA, LAMBDA, VALUE, GRAD_NORM = 0.99, 0.95, 0.5, 0.5
HIDDEN = 64
PONG = "PongNoFrameskip-v4"

W1 = Workload(
    env="CartPole-v1", envs=32, rollout=128, epochs=4, minibatch=1024, learning_rate=3e-4, clip=0.2, entropy=0.01
)
W2 = Workload(env=PONG, envs=16, rollout=128, epochs=4, minibatch=512, learning_rate=2.5e-4, clip=0.1, entropy=0.01)
W3 = Workload(
    env="HalfCheetah-v5", envs=8, rollout=256, epochs=10, minibatch=64, learning_rate=3e-4, clip=0.2, entropy=0.0
)
WORKLOADS = {
    "w1": W1,
    "w2": W2,
    "w2e1": replace(W2, epochs=1),
    "w3": W3,
    "w3e1": replace(W3, epochs=1),
    "w5": replace(W2, lstm=256),
    "w5e1": replace(W2, lstm=256, epochs=1),
}


def parser(description: str, *names: str) -> argparse.ArgumentParser:
    """The command line of a runner that can do these workloads; it has one for the threads of a process."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("workload", choices=names)
    made.add_argument("--threads", type=int, default=1, help="threads that compute [1]")
    made.add_argument("--verbose", action="store_true", help="print mean rewards too, to see that it learns")
    return made


def use_threads(count: int) -> None:
    """Say how many threads may compute; to be called before torch or numpy is imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(count)


def report(steps: int) -> None:
    """Say that the optimiser has now finished with so many steps."""
    print("steps", steps, time.monotonic(), flush=True)
