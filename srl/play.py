"""Trained policies at play: evaluated for a number, shown in a window, or recorded as a video."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from srl.envs.base import EnvBatch, make
from srl.errors import UserError
from srl.experiment import Actors, only
from srl.runs import Run
from srl.settings import trusting
from srl.trained import Trained, load_run
from srl.workers.evaluator import Episodes, play, steps_of

ROWS = 10
"""Environments that are evaluated side by side."""


def evaluate(run: Run, options: Any) -> Iterator[str]:
    """Play so many episodes and say what they brought."""
    trained, actors = _loaded(run, options)
    rows = min(ROWS, options.episodes)
    envs = _built(actors, rows, None)
    try:
        played = play(
            trained.policy, envs, trained.shapes, episodes=options.episodes, seed=options.seed, explore=options.sample
        )
    finally:
        envs.close()
    returns = played.returns
    yield (
        f"mean reward {np.mean(returns):.2f} +- {np.std(returns):.2f} over {len(returns)} episodes "
        f"(min {min(returns):.1f}, max {max(returns):.1f}), mean length {np.mean(played.lengths):.1f}"
    )
    yield f"weights of version {trained.meta['version']}, {trained.meta['steps']:,} steps"


def show(run: Run, options: Any) -> Iterator[str]:
    """Play in a window, or into a video file."""
    trained, actors = _loaded(run, options)
    envs = _built(actors, 1, "rgb_array" if options.video else "human")
    try:
        pictures = _pictures(trained, envs, options)
        if options.video:
            count = _record(options.video, pictures, _rate(envs))
            yield f"recorded {count:,} pictures in {options.video}"
        else:
            for _ in pictures:
                pass
    finally:
        envs.close()


def _loaded(run: Run, options: Any) -> tuple[Trained, Actors]:
    experiment = run.experiment(trusting(*options.trust))
    return load_run(run, options.checkpoint, trust=options.trust), only(experiment.actors)[1]


def _built(actors: Actors, rows: int, render_mode: str | None) -> EnvBatch:
    return make(actors.env, rows, actors.env_kwargs, render_mode)


def _pictures(trained: Trained, envs: EnvBatch, options: Any) -> Iterator[Any]:
    played = Episodes(1, options.episodes)
    steps = steps_of(trained.policy, envs, trained.shapes, played, seed=options.seed, explore=options.sample)
    for _ in steps:
        yield envs.render() if options.video else None


def _rate(envs: EnvBatch) -> float:
    return float(getattr(envs, "render_fps", 30))


def _record(path: Path, pictures: Iterator[Any], rate: float) -> int:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise UserError("recording needs imageio-ffmpeg; pip install 'srl[play]'") from error
    first = next(pictures)
    if first is None:
        raise UserError("this environment draws no pictures; it needs render_mode 'rgb_array'")
    height, width = first.shape[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=int(rate), macro_block_size=2)
    writer.send(None)
    count = 0
    try:
        for picture in _chained(first, pictures):
            writer.send(np.ascontiguousarray(picture[:, :, :3]))
            count += 1
    finally:
        writer.close()
    return count


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
