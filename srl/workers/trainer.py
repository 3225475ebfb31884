"""The trainer: learns from batches of segments, publishes each new version, and gives credits back.

    takes                    gives                         waits for          unblocked by
    a batch of segments      params version + 1            enough segments    actors
                             credits, stats, checkpoints

It alone counts: steps, episodes, versions, lag, and when the run is finished, so that what a seed decides does not
depend on when anyone looked. Several trainers of a policy are ranks: each has its part of every batch, an update begins
when all have theirs, all count the same, and rank 0 publishes, reports, writes checkpoints and decides the end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from srl.errors import UserError
from srl.metrics import Clock
from srl.streams.base import Consumer, Slot
from srl.workers.base import Link
from srl.workers.loader import Loader
from srl.workers.ranks import Alone, Ranks, Vote
from srl.workers.tally import EPISODES_IN_MEAN, Lags, Tally, row_of, tally_of

DUE_SECONDS = 4.0
"""A checkpoint waits so long for the lanes to keep how they stand, and the end of a run for the update under way."""
GO_ON, CHECKPOINT, LAST = range(3)
"""What rank 0 says after an update."""


class Stop(Protocol):
    """When a run is finished; None where it does not matter."""

    @property
    def steps(self) -> int | None:
        """Steps trained on."""
        ...

    @property
    def reward(self) -> float | None:
        """Mean reward of the last 100 episodes."""
        ...

    @property
    def seconds(self) -> float | None:
        """Seconds of training."""
        ...


@dataclass
class Progress:
    """What a trainer has done so far; part of every checkpoint."""

    steps: int = 0
    version: int = 0
    episodes: int = 0
    best: float | None = None
    seconds: float = 0.0
    returns: deque[float] = field(default_factory=lambda: deque[float](maxlen=EPISODES_IN_MEAN))
    lengths: deque[int] = field(default_factory=lambda: deque[int](maxlen=EPISODES_IN_MEAN))

    @property
    def reward(self) -> float | None:
        """Mean reward of the last 100 episodes."""
        return float(np.mean(self.returns)) if self.returns else None

    def to_plain(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {**self.__dict__, "returns": list(self.returns), "lengths": list(self.lengths)}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Progress:
        """The progress a checkpoint holds."""
        windows = {name: deque(data[name], maxlen=EPISODES_IN_MEAN) for name in ("returns", "lengths")}
        fields: dict[str, Any] = {**data, **windows}
        return cls(**fields)


class Due:
    """A checkpoint to be written, the last one if there is a reason to stop; and since when it waits."""

    def __init__(self, reason: str | None) -> None:
        self.reason = reason
        self._since = time.monotonic()

    @property
    def overdue(self) -> bool:
        """Whether it has waited long enough for others."""
        return time.monotonic() > self._since + DUE_SECONDS


class Trainer:
    """Trains one policy from one stream."""

    def __init__(
        self,
        learner: Any,
        weights: Callable[[], dict[str, torch.Tensor]],
        consumer: Consumer,
        publish: Callable[[int, int, dict[str, torch.Tensor]], None],
        save: Callable[[dict[str, torch.Tensor], dict[str, Any], dict[str, Any]], str],
        link: Link,
        *,
        stop: Stop,
        log_every: int,
        checkpoint_every: int,
        checkpoint_seconds: float,
        frames_per_step: int,
        device: torch.device,
        progress: Progress,
        keep_lanes: bool,
        ranks: Ranks | Alone,
        loaded: str | None,
    ) -> None:
        self.clock = Clock()
        self._learner = learner
        self._weights = weights
        self._consumer = consumer
        self._publish = publish
        self._save = save
        self._link = link
        self._stop = stop
        self._log_every = log_every
        self._checkpoint_every = checkpoint_every
        self._checkpoint_seconds = checkpoint_seconds
        self._saved_at = time.monotonic()
        self._frames_per_step = frames_per_step
        self._loader = Loader(device)
        self._ahead: list[Slot] | None = None
        self._stats: dict[str, float] = {}
        self._lags, self._all_lags = Lags(), Lags()
        self._dropped = 0
        self._finished = False
        self._ranks = ranks
        self._vote: Vote | None = None
        self._slots: list[Slot] = []
        self._keep_lanes = keep_lanes
        self._loaded = loaded
        self._due: Due | None = None
        self._asked: Due | None = None
        self.progress = progress
        self._started = time.monotonic() - self.progress.seconds
        self._show(GO_ON)
        consumer.grant(self.progress.version)

    def step(self) -> bool:
        """One update, if a batch is here, or a checkpoint that is due."""
        if self._loaded is not None and (reason := self._reason_to_stop()):
            self._finish(reason, self._loaded)  # it had finished when it was saved
        self._loaded = None
        if self._due is not None:
            return self._checkpoint_due(self._due)
        if self._vote is None and not self._has_something_to_say():
            return False
        rows = self._heard()
        if rows is None:
            return False
        tally = tally_of(rows)
        if self._asked is None and tally.asked:
            self._asked = Due("interrupted")
        if tally.ready:
            self._update(tally)
        else:
            # A batch that would have made the end exact does not come.
            self._due, self._asked = self._asked, None
        return True

    def _has_something_to_say(self) -> bool:
        """Tell the other ranks that a batch is here, or that the end cannot wait for one."""
        version, asked = self.progress.version, self._asked
        if self._finished:
            # What comes now is taken in, so that it wakes nobody again and again.
            self._consumer.noted(version)
            return False
        slots = self._ahead or self._consumer.take(version)
        if slots is None and not (asked and asked.overdue):
            return False
        row = row_of(slots, version, asked=asked is not None, dropped=self._consumer.dropped)
        self._slots, self._vote = slots or [], self._ranks.gather(row)
        return True

    def _heard(self) -> np.ndarray[Any, Any] | None:
        """What all ranks have said; None while some have not."""
        rows = self._vote.result() if self._vote else None
        if rows is None:
            self._consumer.noted(self.progress.version)
        else:
            self._vote = None
        return rows

    def _update(self, tally: Tally) -> None:
        before = self.progress.steps
        batch = self._load(self._slots)
        self._load_ahead()
        progress = min(1.0, before / self._stop.steps) if self._stop.steps else 0.0
        self._count(tally)
        self._stats = self._numbers(self._learner.step(batch, progress))
        self.clock.lap("train")
        self._after_update(before)

    def _numbers(self, stats: Any) -> dict[str, float]:
        try:
            return {str(name): float(value) for name, value in stats.items()}
        except (AttributeError, TypeError, ValueError) as error:
            learner = type(self._learner).__name__
            raise TypeError(f"{learner}.step must return numbers by name, not {stats!r}") from error

    def _load(self, slots: list[Slot]) -> dict[str, Any]:
        batch = self._loader.load(slots)
        self._ahead = None
        self._consumer.release(slots)
        self.clock.lap("load")
        return batch

    def _load_ahead(self) -> None:
        """Where loading can go on beside training, begin with the next batch if it is here already."""
        if self._loader.overlaps:
            self._ahead = self._consumer.take(self.progress.version + 1)
            if self._ahead:
                self._loader.begin(self._ahead)

    def _count(self, tally: Tally) -> None:
        self._lags.add(tally)
        self._all_lags.add(tally)
        self._dropped = tally.dropped
        self.progress.steps += tally.steps
        self.progress.episodes += tally.episodes
        self.progress.returns.extend(tally.returns)
        self.progress.lengths.extend(tally.lengths)

    def _after_update(self, before: int) -> None:
        progress = self.progress
        progress.version += 1
        progress.seconds = time.monotonic() - self._started
        reward = progress.reward
        if reward is not None and len(progress.returns) == EPISODES_IN_MEAN:
            progress.best = reward if progress.best is None else max(progress.best, reward)
        reason = self._reason_to_stop()
        late = time.monotonic() > self._saved_at + self._checkpoint_seconds
        due = late or _crossed(before, progress.steps, self._checkpoint_every)
        # Clocks differ, so rank 0 decides.
        word = self._show(LAST if reason else CHECKPOINT if due else GO_ON)
        if word != GO_ON:
            self._due = Due((reason or "") if word == LAST else None)
        self._consumer.grant(progress.version, mark=self._due is not None and self._keep_lanes)
        self.clock.lap("publish")
        if reason or _crossed(before, progress.steps, self._log_every):
            self._report()

    def _show(self, word: int) -> int:
        """Make the weights the newest; only then may anyone lend what is to be acted with them. What rank 0 says."""
        shown = self.progress.version, self.progress.steps, self._weights()
        if self._ranks.rank == 0:
            self._publish(*shown)
        word = self._ranks.told(word)
        if self._ranks.rank:
            # Rank 0 must be free to send them to this host, so they are waited for only now.
            self._publish(*shown)
        return word

    def _reason_to_stop(self) -> str | None:
        stop, progress = self._stop, self.progress
        if stop.steps is not None and progress.steps >= stop.steps:
            return f"reached {progress.steps:,} steps"
        enough = len(progress.returns) == EPISODES_IN_MEAN
        if stop.reward is not None and enough and (progress.reward or 0.0) >= stop.reward:
            return f"reached a mean reward of {progress.reward:.1f}"
        if stop.seconds is not None and progress.seconds >= stop.seconds:
            return f"trained for {progress.seconds:.0f} s"
        return self._asked.reason if self._asked else None

    def _report(self) -> None:
        progress, lags = self.progress, self._lags
        self._lags = Lags()
        row: dict[str, Any] = {
            "time/total_timesteps": progress.steps,
            "time/seconds": round(progress.seconds, 3),
            "rollout/episodes": progress.episodes,
            "train/version": progress.version,
            "lag/mean": lags.mean,
            "lag/max": lags.max,
            "lag/dropped": self._dropped,
            **{f"train/{name}": value for name, value in self._stats.items()},
        }
        if progress.returns:
            row["rollout/ep_rew_mean"] = progress.reward
            row["rollout/ep_len_mean"] = float(np.mean(progress.lengths))
        if self._ranks.rank == 0:
            self._link.send({"kind": "progress", "row": row, "best": progress.best})

    def _checkpoint_due(self, due: Due) -> bool:
        """Write the checkpoint, once every lane has kept how it stands, or does not answer."""
        if self._vote is None:
            if not self._consumer.noted(self.progress.version) and not due.overdue:
                return False
            if self._ranks.rank:
                # Rank 0 takes up what all others have written by the time they say so.
                self._write(due)
            self._vote = self._ranks.gather(np.zeros(1))
        if self._heard() is None:
            return False
        self._due, self._saved_at = None, time.monotonic()
        if self._ranks.rank == 0:
            self._write(due)
        self._finished = due.reason is not None
        return True

    def _write(self, due: Due) -> None:
        try:
            digest = self._checkpoint()
        except UserError as error:
            if due.reason is not None:
                raise
            # The next one may find room; until then the last good one is there.
            self._link.send({"kind": "warning", "text": str(error)})
            return
        if due.reason is not None:
            self._finish(due.reason, digest)

    def _finish(self, reason: str, digest: str) -> None:
        self._finished = True
        if self._ranks.rank == 0:
            summary = {**self._summary(), "weights_sha256": digest}
            self._link.send({"kind": "finished", "reason": reason, "summary": summary})

    def _summary(self) -> dict[str, Any]:
        progress = self.progress
        return {
            "steps": progress.steps,
            "frames": progress.steps * self._frames_per_step,
            "seconds": round(progress.seconds, 3),
            "fps": round(progress.steps / progress.seconds, 1) if progress.seconds else 0.0,
            "episodes": progress.episodes,
            "ep_rew_mean": progress.reward,
            "best_ep_rew_mean": progress.best,
            "version": progress.version,
            "lag_mean": self._all_lags.mean,
            "lag_max": self._all_lags.max,
        }

    def _checkpoint(self) -> str:
        training = {
            "progress": self.progress.to_plain(),
            "learner": self._learner.state_dict(),
            "consumer": self._consumer.state(),
            "random": torch.get_rng_state(),
            "ranks": self._ranks.count,
        }
        meta = {"steps": self.progress.steps, "version": self.progress.version, "reward": self.progress.reward}
        meta["seconds"] = self.progress.seconds
        digest = self._save(self._weights(), meta, training)
        self.clock.lap("checkpoint")
        return digest

    def command(self, message: dict[str, Any]) -> None:
        """Stop after the update under way, because control was interrupted; or take back what a dead actor was lent."""
        if message["do"] == "reclaim":
            self._consumer.reclaim(message["actor"], self.progress.version)
            self._link.send({"kind": "reclaimed", "actor": message["actor"]})
        elif message["do"] == "join":
            self._consumer.join(message["actor"], self.progress.version)
        elif message["do"] == "finish":
            self._asked = Due(message["reason"])
        else:
            raise ValueError(f"a trainer does not know how to {message['do']}")

    @property
    def waits(self) -> str:
        """What it waits for: enough segments."""
        return "wait-data"

    def fds(self) -> list[int]:
        """A full segment, or the word of the last rank."""
        return [*self._consumer.fds(), *self._ranks.fds()]

    def close(self) -> None:
        """End what loads."""
        self._loader.close()


def _crossed(before: int, after: int, every: int) -> bool:
    return before // every != after // every
