"""A train stream driven in any order: several actors with several lanes each, and one trainer, in one process."""

from collections import deque

from srl.memory import Channel, Memory
from srl.streams.shm import CREDIT, FULL, Lane, Segments, ShmConsumer, ShmProducer

from .shapes import SMALL

ROLLOUT, ROWS = 2, 1


class Schedule:
    """Counts what happens to each credit while whoever drives it chooses the order."""

    def __init__(self, lanes_per_actor, *, batch, max_lag, late="wait"):
        self.owners = owners = [actor for actor, count in enumerate(lanes_per_actor) for _ in range(count)]
        lanes = [Lane(index, actor, ROWS) for index, actor in enumerate(owners)]
        segments = Segments(SMALL, ROLLOUT, ROWS, None)
        self.slots, self.batch, self.max_lag, self.version = (max_lag + 1) * batch, batch, max_lag, 0
        self.memory = Memory(self.slots * segments.layout.nbytes)
        self.credits = [Channel(CREDIT) for _ in lanes_per_actor]
        self.full = Channel(FULL)
        self.producers = [ShmProducer(segments, self.memory, granted, self.full) for granted in self.credits]
        self.consumer = ShmConsumer(
            segments, self.memory, lanes, self.credits, self.full, batch=batch, max_lag=max_lag, late=late
        )
        self.granted = [deque() for _ in lanes]
        self.started = {}
        self.posted = set()
        self.taken = []
        self.given = []
        self.consumer.grant(0)

    def close(self):
        for resource in (self.memory, self.full, *self.credits):
            resource.close()

    def receive(self, actor):
        """An actor looks for credits."""
        for slot in self.producers[actor].take():
            assert slot.oldest <= self.version
            assert self.place(actor, slot) not in self.under_way(), "a slot was lent twice"
            self.granted[slot.lane].append(slot)
            self.given.append((slot.ticket, slot.lane))

    def start(self, lane):
        """A lane that is idle starts its oldest credit with the newest weights."""
        if self.granted[lane] and lane not in self.started:
            slot = self.started[lane] = self.granted[lane].popleft()
            slot.segment["version"][:] = self.version
            slot.segment["reward"][:] = slot.ticket

    def finish(self, lane, actor_of):
        """A lane hands its segment over, its last row acted with the newest weights."""
        if lane in self.started:
            slot = self.started.pop(lane)
            slot.segment["version"][-1] = self.version
            self.posted.add(slot.ticket)
            self.producers[actor_of[lane]].post(slot)

    def update(self):
        """The trainer takes a batch if it can, and publishes the next version; whether it could."""
        slots = self.consumer.take(self.version)
        if slots is None:
            return False
        assert len(slots) == self.batch
        for slot in slots:
            assert (slot.segment["reward"] == slot.ticket).all(), "the segment was overwritten before it was taken"
            lag = self.version - int(slot.segment["version"].min())
            assert lag <= self.max_lag, f"a segment of lag {lag} reached the trainer"
            self.posted.remove(slot.ticket)
            self.taken.append((slot.ticket, slot.lane))
        self.consumer.release(slots)
        self.version += 1
        self.publish()
        self.consumer.grant(self.version)
        return True

    def publish(self):
        """Weights of the newest version; on one host nobody has to send them."""

    def under_way(self):
        """Slots in the hands of actors."""
        slots = [slot for lane in self.granted for slot in lane] + list(self.started.values())
        return [self.place(self.owners[slot.lane], slot) for slot in slots]

    def place(self, actor, slot):
        """Where a slot lies: actors of one host share their memory."""
        return slot.index

    def fill_everything(self, actor_of):
        """Every credit under way is filled, as it will be sooner or later."""
        for actor in range(len(self.producers)):
            self.receive(actor)
        while self.under_way():
            for lane in range(len(actor_of)):
                self.start(lane)
                self.finish(lane, actor_of)
