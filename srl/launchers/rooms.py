"""Rooms in a Ray cluster: what the workers of a run take, who is placed with whom, and whether it fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import placement_group, placement_group_table

from srl.errors import UserError
from srl.experiment import Experiment
from srl.launchers import plan
from srl.launchers.plan import Task

BLOCK = 16
"""Workers that are placed together; actors that may join later are placed one by one."""
BLOCKS = ("policy", "actor")
PIN = 0.001
"""Part of a host's own resource that says which host it is."""


@dataclass(eq=False)
class Room:
    """A placement group, with a bundle for each of these workers."""

    tasks: list[Task]
    group: Any

    def nodes(self) -> dict[Task, str]:
        """The node of each worker, once there is one for all."""
        table = placement_group_table(self.group)
        if table["state"] != "CREATED":
            return {}
        return {task: table["bundles_to_node_id"][at] for at, task in enumerate(self.tasks)}


def must_fit(experiment: Experiment) -> None:
    """What the cluster can never give is said at once, with the sum."""
    tasks = [task for task in plan.tasks_of(experiment) if not _may_wait(experiment, task)]
    there = ray.cluster_resources()
    for name in ("CPU", "GPU"):
        wanted = sum(bundle(experiment, task).get(name, 0.0) for task in tasks)
        if wanted > there.get(name, 0.0):
            kinds = Counter(f"{task.kind} {task.group}" for task in tasks if name in bundle(experiment, task))
            parts = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
            raise UserError(
                f"the run needs {wanted:g} {name}s ({parts}), and the whole cluster has {there.get(name, 0):g}; "
                "take fewer, or set actors.NAME.least to begin with some of the actors"
            )


def bundle(experiment: Experiment, task: Task) -> dict[str, float]:
    """What a worker takes of its host."""
    group = plan.group_of(experiment, task)
    on_gpu = getattr(group, "device", "").startswith("cuda")
    return {"CPU": float(group.threads), **({"GPU": 1.0} if on_gpu else {})}


def rooms_of(experiment: Experiment) -> Iterator[Room]:
    """Workers that are placed together: those that write to the run folder, policy workers, and blocks of actors."""
    tasks = plan.tasks_of(experiment)
    writers = [task for task in tasks if task.kind in ("trainer", "evaluator")]
    here = _here_if_it_can(sum(bundle(experiment, task)["CPU"] for task in writers))
    yield _room(experiment, writers, here)
    must = [[task for task in tasks if task.kind == kind and not _may_wait(experiment, task)] for kind in BLOCKS]
    for alike in must:
        for start in range(0, len(alike), BLOCK):
            yield _room(experiment, alike[start : start + BLOCK], {})
    for task in tasks:
        if _may_wait(experiment, task):
            yield _room(experiment, [task], {})


def _room(experiment: Experiment, tasks: list[Task], pin: dict[str, float]) -> Room:
    return Room(tasks, placement_group([bundle(experiment, task) | pin for task in tasks], strategy="PACK"))


def _here_if_it_can(cpus: float) -> dict[str, float]:
    """What a bundle asks for to be on this host, which surely sees the run folder, if that has so many CPUs."""
    here = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == here)
    able = node["Resources"].get("CPU", 0.0) >= cpus
    return {f"node:{node['NodeManagerAddress']}": PIN} if able else {}


def _may_wait(experiment: Experiment, task: Task) -> bool:
    """Whether a run can begin without this worker."""
    least = experiment.actors[task.group].least if task.kind == "actor" else None
    return least is not None and task.index >= least


def missing_of(experiment: Experiment, placed: set[Task]) -> list[Task]:
    """Workers without which the run cannot begin."""
    here = Counter(task.group for task in placed if task.kind == "actor")
    least = {name: actors.count if actors.least is None else actors.least for name, actors in experiment.actors.items()}
    missing = [task for task in plan.tasks_of(experiment) if task not in placed]
    return [task for task in missing if task.kind != "actor" or here[task.group] < least[task.group]]
