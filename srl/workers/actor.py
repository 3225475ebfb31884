"""The actor: steps its rollouts, asks for their actions, and hands full segments over.

    takes            gives                 waits for                                    unblocked by
    act replies      act requests          the first of its rollouts to have a reply    policy worker
    train credits    segments              a credit, when a segment is full             trainer's publish

Environments write straight into the segment. Python's price is paid once per rollout and time step, whatever the number
of environments. The actor does not know what the policy is or where it runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from srl.metrics import Clock
from srl.streams.base import ActClient, Producer, Shapes, Slot, counted
from srl.streams.frames import Stacks
from srl.tree import Tree, copy_into, index, zeros


class Environments(Protocol):
    """A batch of environments, self-resetting on the step after an episode's end."""

    size: int
    scored: bool

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Seed every environment and write the first observations."""
        ...

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Step every environment and write what comes of it."""
        ...

    def close(self) -> None:
        """Give back what the environments hold."""
        ...


def texts_of(envs: Any) -> list[str]:
    """What has gone wrong with environments since the last call, where they can say so."""
    return [str(fault) for fault in envs.faults()] if hasattr(envs, "faults") else []


class Rollout:
    """A batch of environments in progress, and the segment it is writing."""

    def __init__(self, envs: Environments, shapes: Shapes, *, seed: int, chunk: int | None) -> None:
        rows = envs.size
        self.envs = envs
        self._chunk = chunk
        self._has_mask = shapes.mask is not None
        self._results = ("reward", "terminated", "truncated", *(("score", "game_over") if shapes.scored else ()))
        self._random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
        self._noise = np.zeros((0, rows, shapes.noise), np.float32)
        # What carries over from one segment to the next: the row that comes after the last one written.
        self._next: dict[str, Any] = {"obs": zeros(shapes.obs, rows), "first": np.ones(rows, bool)}
        if shapes.mask is not None:
            self._next["mask"] = zeros(shapes.mask, rows)
        self._valid = np.ones(rows, bool)
        self._state = zeros(shapes.state, rows)
        self._return = np.zeros(rows, np.float64)
        self._length = np.zeros(rows, np.int64)
        self._broken = np.zeros(rows, bool)
        self._any_broken = False
        self._broken_at: list[tuple[int, int]] = []
        self.slot: Slot | None = None
        self.t = 0
        self._stacks = Stacks(shapes.obs, rows)
        envs.reset(seed, self._next)

    def begin(self, slot: Slot) -> None:
        """Start a segment with the row that was left over from the last."""
        self.slot = slot
        self.t = 0
        # For all steps at once: that takes less time than to draw for each of them, and gives the same numbers.
        self._noise = self._random.random((len(slot.segment["reward"]), *self._noise.shape[1:]), np.float32)
        for name, leaf in self._next.items():
            copy_into(index(slot.segment[name], 0), leaf)
        slot.segment["valid"][0] = self._valid
        copy_into(slot.segment.get("before", {}), self._stacks.stacks)

    def request(self) -> dict[str, Any]:
        """What the policy needs to act on the current row."""
        segment, t = self._segment(), self.t
        self._store_state()
        request = {
            "obs": self._stacks.push(index(segment["obs"], t), segment["first"][t]),
            "first": segment["first"][t],
            "state": self._state,
            "noise": self._noise[t],
        }
        if self._has_mask:
            request["mask"] = index(segment["mask"], t)
        return request

    def _store_state(self) -> None:
        segment = self._segment()
        if self._state and (self.t % (self._chunk or len(segment["reward"]))) == 0:
            copy_into(index(segment["state"], self.t // (self._chunk or len(segment["reward"]))), self._state)

    def advance(self, reply: dict[str, Any], version: int) -> bool:
        """Write what the policy said, step the environments; True when the segment is full."""
        segment, t = self._segment(), self.t
        for name, leaf in reply.items():
            if isinstance(leaf, dict):
                if name != "state":
                    copy_into(index(segment[name], t), leaf)
            elif name != "version":
                segment[name][t] = leaf
        if self._state:
            copy_into(self._state, reply["state"])
        segment["version"][t] = version
        out = {name: index(segment[name], t + 1) for name in self._next}
        for name in self._results:
            out[name] = segment[name][t]
        out["broken"] = self._broken
        self.envs.step(index(segment["action"], t), out)
        self._any_broken = np.count_nonzero(self._broken) > 0
        if self._any_broken:
            self._broken_at += [(t, row) for row in np.flatnonzero(self._broken).tolist()]
        # The step of an invalid row was a reset, so the row after it is an episode's first.
        np.logical_not(segment["valid"][t], out=segment["first"][t + 1])
        np.logical_or(out["terminated"], out["truncated"], out=self._valid)
        np.logical_not(self._valid, out=self._valid)
        self.t += 1
        if self.t < len(segment["reward"]):
            segment["valid"][self.t] = self._valid
            return False
        return True

    def finish(self) -> Slot:
        """The full segment; its last row is kept for the next one."""
        slot, segment = self.slot, self._segment()
        assert slot is not None
        self._store_state()
        for name, leaf in self._next.items():
            copy_into(leaf, index(segment[name], self.t))
        self._count_episodes(segment)
        self.slot = None
        return slot

    def faults(self) -> list[str]:
        """What has gone wrong with the environments in this step."""
        return texts_of(self.envs) if self._any_broken else []

    def _count_episodes(self, segment: dict[str, Any]) -> None:
        """Write return and length of every episode at the row where it ended; carry the open ones over."""
        reward, over = counted(segment)
        rewards = np.cumsum(reward, axis=0, dtype=np.float64)
        steps = np.cumsum(segment["valid"], axis=0)
        since_return, since_length = -self._return, -self._length
        for b, t in zip(*np.nonzero(over.T), strict=True):
            segment["episode_return"][t, b] = rewards[t, b] - since_return[b]
            segment["episode_length"][t, b] = steps[t, b] - since_length[b]
            since_return[b], since_length[b] = rewards[t, b], steps[t, b]
        for t, b in self._broken_at:
            segment["episode_return"][t, b], segment["episode_length"][t, b] = 0, 0
        self._broken_at = []
        self._return, self._length = rewards[-1] - since_return, steps[-1] - since_length

    def state(self) -> dict[str, Any]:
        """How things stand between two segments, as plain data, but for the environments."""
        return {
            "next": self._next,
            "valid": self._valid,
            "state": self._state,
            "stacks": self._stacks.stacks,
            "return": self._return,
            "length": self._length,
            "random": json.dumps(self._random.bit_generator.state),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with a state; the environments must have been given theirs."""
        for mine, kept in ((self._next, "next"), (self._state, "state"), (self._stacks.stacks, "stacks")):
            copy_into(mine, state[kept])
        self._valid, self._return, self._length = (state[name].copy() for name in ("valid", "return", "length"))
        self._random.bit_generator.state = json.loads(state["random"])

    def _segment(self) -> dict[str, Any]:
        assert self.slot is not None
        return self.slot.segment

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


class Actor:
    """Keeps a ring of rollouts going: steps those whose reply is here while the others wait for theirs."""

    def __init__(
        self,
        rollouts: Sequence[Rollout],
        act: ActClient,
        train: Producer,
        *,
        act_lanes: Sequence[int],
        train_lanes: Sequence[int],
        keep: Callable[[int, int, Rollout], None],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self.clock = Clock()
        self._keep = keep
        self._tell = tell
        self._rollouts = rollouts
        self._act = act
        self._train = train
        self._by_act_lane = dict(zip(act_lanes, rollouts, strict=True))
        self._act_lane = dict(zip(map(id, rollouts), act_lanes, strict=True))
        self._by_train_lane = dict(zip(train_lanes, rollouts, strict=True))
        self._credits: dict[int, list[Slot]] = {lane: [] for lane in train_lanes}

    def step(self) -> bool:
        """Advance every rollout whose reply is here; start a segment wherever a credit allows it."""
        lanes = self._act.poll()
        for lane in lanes:
            self._advance(lane)
        idle = [lane for lane, rollout in self._by_train_lane.items() if rollout.slot is None]
        if idle or not lanes:
            for slot in self._train.take():
                self._credits[slot.lane].append(slot)
        started = self._start_segments(idle)
        return bool(lanes) or started

    def _advance(self, lane: int) -> None:
        rollout = self._by_act_lane[lane]
        reply, version = self._act.reply(lane)
        full = rollout.advance(reply, version)
        self.clock.lap("env")
        if texts := rollout.faults():
            self._tell({"kind": "faults", "texts": texts})
        if full:
            self._train.post(rollout.finish())
            self.clock.lap("send")
        else:
            self._act.refresh()
            self._act.send(lane, rollout.request())
            self.clock.lap("act")

    def _start_segments(self, idle: list[int]) -> bool:
        started = False
        for lane in idle:
            if self._credits[lane]:
                self._begin(lane, self._credits[lane].pop(0))
                started = True
        return started

    def _begin(self, lane: int, slot: Slot) -> None:
        rollout = self._by_train_lane[lane]
        if slot.mark >= 0:
            self._keep(lane, slot.mark, rollout)
            self._train.note(lane, slot.mark)
            self.clock.lap("checkpoint")
        rollout.begin(slot)
        self._act.refresh(slot.oldest)
        self._act.send(self._act_lane[id(rollout)], rollout.request())
        self.clock.lap("act")

    def command(self, message: dict[str, Any]) -> None:
        """Ask again what waits for a reply, in a new epoch, because who had it may be dead; or ask at other doors."""
        if message["do"] == "epoch":
            self._act.ask_again(message["epoch"])
        elif message["do"] == "doors":
            self._act.knock_at([(host, port) for host, port in message["doors"]])
        else:
            raise ValueError(f"an actor does not know how to {message['do']}")

    @property
    def waits(self) -> str:
        """What it waits for: a reply while any rollout has asked, otherwise a credit."""
        return "wait-act" if any(rollout.slot for rollout in self._rollouts) else "wait-credit"

    def fds(self) -> list[int]:
        """A reply, or a credit."""
        return [*self._act.fds(), *self._train.fds()]

    def close(self) -> None:
        """Close the environments."""
        for rollout in self._rollouts:
            rollout.close()
