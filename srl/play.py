"""Trained policies at play: evaluated for a number, shown in a window, or recorded as a video."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from srl.envs.base import EnvBatch, make
from srl.errors import UserError
from srl.experiment import Actors, only
from srl.runs import Run
from srl.settings import demand_trust
from srl.trained import Trained, load
from srl.workers.evaluator import Episodes, play, steps_of

ROWS = 10
"""Environments that are evaluated side by side."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to play."""

    episodes: int = 1
    """Episodes to play."""
    seed: int = 0
    """Seed of the environments, and of the actions when they are sampled."""
    sample: bool = False
    """Sample actions instead of taking the most likely."""
    checkpoint: str | None = None
    """best, latest or a checkpoint's name; None takes the best where there is one, else the latest."""
    trust: tuple[str, ...] = ()
    """Modules outside srl that the run's settings may be imported from."""


@dataclass(frozen=True)
class Evaluation:
    """What the episodes brought."""

    returns: list[float]
    lengths: list[int]
    version: int
    steps: int

    @property
    def mean(self) -> float:
        """Mean reward of an episode."""
        return float(np.mean(self.returns))

    def __str__(self) -> str:
        returns = self.returns
        return (
            f"mean reward {self.mean:.2f} +- {np.std(returns):.2f} over {len(returns)} episodes "
            f"(min {min(returns):.1f}, max {max(returns):.1f}), mean length {np.mean(self.lengths):.1f}; "
            f"weights of version {self.version}, {self.steps:,} steps"
        )


def evaluation(run: Run, options: Options) -> Evaluation:
    """Play so many episodes and count."""
    trained, actors = _loaded(run, options)
    envs = make(actors.env, min(ROWS, options.episodes), actors.env_kwargs)
    try:
        played = play(
            trained.policy, envs, trained.shapes, episodes=options.episodes, seed=options.seed, explore=options.sample
        )
    finally:
        envs.close()
    return Evaluation(played.returns, played.lengths, trained.meta["version"], trained.meta["steps"])


def watch(run: Run, options: Options) -> None:
    """Play in a window."""
    trained, actors = _loaded(run, options)
    envs = make(actors.env, 1, actors.env_kwargs, "human")
    try:
        play(trained.policy, envs, trained.shapes, episodes=options.episodes, seed=options.seed, explore=options.sample)
    finally:
        envs.close()


def record(run: Run, options: Options, path: Path) -> int:
    """Play into a video file; the number of pictures in it."""
    trained, actors = _loaded(run, options)
    envs = make(actors.env, 1, actors.env_kwargs, "rgb_array")
    try:
        return _write(path, _pictures(trained, envs, options))
    finally:
        envs.close()


def _loaded(run: Run, options: Options) -> tuple[Trained, Actors]:
    # The batches are small: more threads would only wait for each other.
    torch.set_num_threads(1)
    actors = only(run.experiment(*options.trust).actors)[1]
    demand_trust(actors, *options.trust)
    return load(run.path, options.checkpoint, policy=actors.policy, trust=options.trust), actors


def _pictures(trained: Trained, envs: EnvBatch, options: Options) -> Iterator[Any]:
    played = Episodes(1, options.episodes)
    steps = steps_of(trained.policy, envs, trained.shapes, played, seed=options.seed, explore=options.sample)
    for _ in steps:
        yield envs.render()


def _write(path: Path, pictures: Iterator[Any]) -> int:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise UserError("recording needs imageio-ffmpeg; pip install 'srl[play]'") from error
    first = next(pictures)
    if first is None:
        raise UserError("this environment draws no pictures; it needs render_mode 'rgb_array'")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = imageio_ffmpeg.write_frames(str(path), (first.shape[1], first.shape[0]), fps=30, macro_block_size=2)
    writer.send(None)
    count = 0
    try:
        for count, picture in enumerate(chain([first], pictures), 1):  # noqa: B007 -- counted to the end
            writer.send(np.ascontiguousarray(picture[:, :, :3]))
    finally:
        writer.close()
    return count
