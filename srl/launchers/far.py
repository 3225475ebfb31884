"""Wiring between hosts: how a trainer, its relays and those who ask policy workers find each other.

Only imported where a run has several hosts, or asks for the network, so that nobody else needs ZeroMQ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from srl.errors import Closed
from srl.experiment import Experiment
from srl.launchers import plan
from srl.launchers.plan import Site, Task
from srl.memory import Address
from srl.params.base import Board
from srl.streams.base import Shapes
from srl.streams.far import TO_HOST, TO_TRAINER, Gate, Outpost, digest_of
from srl.streams.net import NetActClient, NetAsked
from srl.streams.shm import Lane
from srl.tree import Layout
from srl.wire import Called, Keys, Served
from srl.workers.base import Link
from srl.workers.relay import Relay

LOOK_SECONDS = 0.0005
"""A rank looks so often for weights that are on their way to its host."""


@dataclass(frozen=True)
class Far:
    """What a worker needs to know of other hosts."""

    experiment: Experiment
    shapes: Mapping[str, Shapes]
    site: Site
    doors: Mapping[str, Address]
    keys: Keys
    link: Link

    def gate(self, task: Task, resources: Mapping[str, Any]) -> Gate:
        """A trainer's end towards other hosts."""
        trainers = self.experiment.trainers[task.group]
        stream, shapes = trainers.train, self.shapes[trainers.policy]
        layout, part = self._layout(task.group), f"train/{stream}/{task.index}"
        return Gate(
            Served(resources[f"door/{task.name}"], self.keys, TO_TRAINER, layout.nbytes, self.link.send),
            self._digest(task),
            resources[part],
            layout.nbytes,
            self._credits(plan.part_of(self.experiment, stream, task.index), stream, resources),
            resources[f"{part}/full"],
            Board(shapes.params, resources[f"params/{trainers.policy}"]) if task.index == 0 else None,
        )

    def relay(self, task: Task, resources: Mapping[str, Any], life: int) -> Relay:
        """What the ranks of a trainer on other hosts are to the workers of this one."""
        policy = self.experiment.trainers[task.group].policy
        away = plan.ranks_away(self.experiment, task.group, self.site)
        outposts = [self._outpost(rank, task, resources, life) for rank in away]
        board = Board(self.shapes[policy].params, resources[f"params/{policy}"])
        news = [channel for name, channel in resources.items() if name.startswith("news/")]
        return Relay([outpost for outpost in outposts if outpost], board, news, self.link)

    def _outpost(self, rank: Task, relay: Task, resources: Mapping[str, Any], life: int) -> Outpost | None:
        trainers = self.experiment.trainers[rank.group]
        actors = plan.train_actors(self.experiment, trainers.train)
        here = [at for at in plan.part_of(self.experiment, trainers.train, rank.index) if at in self.site]
        if rank.index and not here:
            return None
        part, params = f"train/{trainers.train}/{rank.index}", self.shapes[trainers.policy].params
        return Outpost(
            Called(
                [self.doors[f"door/{rank.name}"]],
                self.keys,
                TO_HOST,
                Layout(params).nbytes,
                f"{relay.name}/{life}",
                self.link.send,
            ),
            self._digest(rank),
            resources.get(part),
            self._layout(rank.group).nbytes,
            {lane.index: lane.actor for lane in plan.lanes_of(self.experiment, actors) if actors[lane.actor] in here},
            self._credits(here, trainers.train, resources),
            resources.get(f"{part}/full"),
        )

    def _layout(self, group: str) -> Layout:
        trainers = self.experiment.trainers[group]
        return plan.segments_of(self.experiment, trainers.train, self.shapes[trainers.policy]).layout

    def _digest(self, rank: Task) -> bytes:
        policy = self.experiment.trainers[rank.group].policy
        return digest_of([rank.name, self._layout(rank.group).spec, self.shapes[policy].params])

    def _credits(self, actors: Sequence[Task], stream: str, resources: Mapping[str, Any]) -> dict[int, Any]:
        everyone = plan.train_actors(self.experiment, stream)
        return {at: resources[f"train/{stream}/credits/{at}"] for at in map(everyone.index, actors)}

    def publisher(self, task: Task, resources: Mapping[str, Any]) -> Callable[[int, int, Any], None]:
        """What a rank other than the first does when there are new weights: wait until its host has them too."""
        policy = self.experiment.trainers[task.group].policy
        board = Board(self.shapes[policy].params, resources[f"params/{policy}"])

        def wait(version: int, steps: int, weights: Any) -> None:
            while board.version < version:
                if any(message["do"] == "close" for message in self.link.receive()):
                    raise Closed
                time.sleep(LOOK_SECONDS)

        return wait

    def asked(self, task: Task, lanes: Sequence[Lane], resources: Mapping[str, Any], epoch: int) -> NetAsked:
        """Where a policy worker is asked over the network."""
        board = Board(self.shapes[task.group].params, resources[f"params/{task.group}"])
        return NetAsked(
            self.shapes[task.group],
            lanes,
            resources[f"door/{task.name}"],
            self.keys,
            epoch,
            version=lambda: board.version,
            news=resources.get(f"news/{task.name}"),
            tell=self.link.send,
        )

    def asks(self, policy: str, lanes: Sequence[Lane], epoch: int) -> NetActClient:
        """An actor's end towards all policy workers, wherever they are."""
        doors = [self.doors[f"door/{worker.name}"] for worker in plan.policy_workers(self.experiment, policy)]
        return NetActClient(self.shapes[policy], lanes, doors, self.keys, epoch, self.link.send)
