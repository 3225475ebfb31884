"""Wiring of the trainers of one policy, which are ranks of a group: how they meet, and how each goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from srl.experiment import Experiment
from srl.launchers.plan import Task
from srl.memory import Listener
from srl.params.checksum import LANES
from srl.params.file import Checkpoint
from srl.streams.base import Consumer
from srl.workers.base import Link
from srl.workers.ranks import Alone, Ranks
from srl.workers.trainer import Progress


def meet(
    experiment: Experiment, task: Task, resources: Mapping[str, Any], device: torch.device, link: Link
) -> Ranks | Alone:
    """What a trainer sees of the others of its group, once all are there."""
    count = experiment.trainers[task.group].count
    if count == 1:
        return Alone()
    place: Listener = resources[f"ranks/{task.group}"]
    listener = os.dup(place.fds()[0]) if task.index == 0 else None
    return Ranks(
        task.index, count, place.address, here=place.here, device=device, listener=listener, hung_up=link.fds()
    )


def part_name(rank: int) -> str:
    """The file in the folder of lanes in which a rank other than the first keeps what is its own."""
    return f"rank-{rank}"


def go_on(checkpoint: Checkpoint, learner: Any, consumer: Consumer, ranks: Ranks | Alone, link: Link) -> Progress:
    """Continue from a checkpoint, each rank with what it kept; where they were not as many, all with rank 0's."""
    training = checkpoint.training()
    before, own = training.get("ranks", 1), dict[str, Any]()
    if before != ranks.count and ranks.rank == 0:
        text = f"the checkpoint is of {before} trainer(s); all {ranks.count} go on from what its first one kept"
        link.send({"kind": "warning", "text": text})
    elif ranks.rank and before == ranks.count:
        own = checkpoint.training(f"{LANES}/{part_name(ranks.rank)}")
    learner.load_state_dict({**training["learner"], **own.get("learner", {})})
    own = {**training, **own}
    if before == ranks.count and "consumer" in training:
        consumer.restore(own["consumer"])
        torch.set_rng_state(own["random"])
    return Progress.from_plain(training["progress"])
