"""Wiring: a task becomes a worker, with its edges, where it lives.

This is the one place where environments, models, algorithms, streams and workers meet; none of them knows another.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from srl.envs.base import isolated, make
from srl.envs.faults import Limits
from srl.envs.kept import put_back, state_of, why_not
from srl.envs.state import from_bytes, to_bytes
from srl.errors import UserError
from srl.experiment import Actors, Experiment
from srl.files import made, write_atomically
from srl.launchers import plan
from srl.launchers.plan import Resource, Site, Task
from srl.launchers.ranks import go_on, meet, part_name
from srl.launchers.saving import Saver
from srl.memory import Address
from srl.params import file as checkpoints
from srl.params.checksum import LANES
from srl.params.shm import Publisher, Reader
from srl.streams.asked import ActServer, Source
from srl.streams.base import ActClient, Shapes, request_spec
from srl.streams.inline import InlineClient
from srl.streams.shm import Lane, ShmActClient, ShmAsked, ShmConsumer, ShmProducer
from srl.tree import tree_map, zeros
from srl.workers.actor import Actor, Rollout
from srl.workers.base import Link, Worker
from srl.workers.evaluator import Evaluator
from srl.workers.policy import PolicyWorker
from srl.workers.ranks import Alone, Ranks
from srl.workers.trainer import Progress, Trainer

# What torch's compiler says of torch's own past is nothing that a user could change.
for said in (".*torch.jit.*is deprecated", ".*should not be instantiated"):
    warnings.filterwarnings("ignore", said, DeprecationWarning)

MAX_BATCH = 1024
"""Rows that a policy worker's forward pass takes at most, unless the experiment says otherwise."""


def seed_of(experiment: Experiment, *words: object) -> int:
    """A seed for one part of the run, the same wherever and whenever it is drawn."""
    text = "/".join(map(str, (experiment.seed, *words)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1


def device_of(name: str, rank: int | None = None) -> torch.device:
    """The device that a setting names; auto takes a GPU where there is one, and each of several ranks another."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but torch sees no GPU here; use --device cpu, or see srl doctor")
    if name == "cuda" and rank is not None:
        return torch.device("cuda", rank % torch.cuda.device_count())
    return device


class Builder:
    """Builds the workers of one run, at one site.

    In its `life`, counted from 0, a worker starts in this epoch of the act edges. Workers of other hosts are behind
    `doors`, at these addresses, and hear those who have the keys.
    """

    def __init__(
        self,
        experiment: Experiment,
        shapes: Mapping[str, Shapes],
        folder: Path,
        *,
        resume: bool = False,
        life: int = 0,
        epoch: int = 0,
        site: Site | None = None,
        doors: Mapping[str, Address] | None = None,
        keys: Any = None,
    ) -> None:
        self._experiment = experiment
        self._shapes = dict(shapes)
        self._saver = Saver(experiment, shapes, folder)
        self._resume = resume
        self._life = life
        self._epoch = epoch
        self._site = site or Site()
        self._doors = doors or {}
        self._keys = keys

    def threads(self, task: Task) -> int:
        """Threads that torch may use in this worker."""
        if task.kind == "relay":
            return 1
        return plan.group_of(self._experiment, task).threads

    def build(self, task: Task, resources: Mapping[str, Resource], link: Link) -> Worker:
        """The worker of a task."""
        builders = {
            "trainer": self._trainer,
            "policy": self._policy_worker,
            "actor": self._actor,
            "evaluator": self._evaluator,
            "relay": self._relay,
        }
        return builders[task.kind](task, resources, link)

    def _policy(self, name: str, device: torch.device) -> Any:
        shapes = self._shapes[name]
        seed = seed_of(self._experiment, "policy", name)
        model = self._experiment.policies[name].model
        return model.build(shapes.seen, shapes.action, shapes.mask, device=str(device), seed=seed)

    def _acting_policy(self, name: str, device: torch.device) -> Any:
        policy = self._policy(name, device)
        if self._experiment.policies[name].compile:
            if not hasattr(policy, "compile_act"):
                raise UserError(f"policies {name!r}: {type(policy).__name__} cannot compile acting; set compile=False")
            policy.compile_act()
        return policy

    def _warm(self, policy: Any, name: str, rows: int) -> None:
        """Have acting compiled now, and not when others wait for the first segment."""
        if self._experiment.policies[name].compile:
            request = zeros(request_spec(self._shapes[name], rows))
            if "mask" in request:
                tree_map(lambda mask: mask.fill(True), request["mask"])
            policy.act(request)

    def _reader(self, name: str, policy: Any, resources: Mapping[str, Any]) -> Reader:
        return Reader(self._shapes[name].params, resources[f"params/{name}"], policy.module)

    def _trainer(self, task: Task, resources: Mapping[str, Any], link: Link) -> Trainer:
        trainers = self._experiment.trainers[task.group]
        device = device_of(trainers.device, task.index if trainers.count > 1 else None)
        policy = self._policy(trainers.policy, device)
        place = self._doors.get(f"ranks/{task.group}", ("", 0))
        ranks = meet(self._experiment, task, resources, place, self._site.address, device, link)
        # The first of several begins as a single one does.
        seed = seed_of(self._experiment, "learner", task.group, *([task.index] if task.index else []))
        learner = trainers.algorithm.build(policy, seed=seed, **({} if isinstance(ranks, Alone) else {"ranks": ranks}))
        gate = None if self._site.alone else self._far(link).gate(task, resources)
        consumer = self._consumer(trainers.train, task.index, self._shapes[trainers.policy], resources, gate)
        progress, loaded = Progress(), None
        init = self._experiment.policies[trainers.policy].init
        if init is not None and not self._resume:
            said = checkpoints.begin_with(init, policy.module)
            if task.index == 0:
                link.send({"kind": "warning", "text": said})
        if self._resume:
            checkpoint = checkpoints.load(self._saver.checkpoints(trainers.policy), "latest")
            loaded = checkpoint.meta.get("weights_sha256")
            with checkpoint.fits():
                policy.module.load_state_dict(checkpoint.weights())
                progress = go_on(checkpoint, learner, consumer, ranks, link)
        if isinstance(ranks, Ranks):
            ranks.broadcast(policy.module.state_dict().values())

        def save(weights: Any, meta: dict[str, Any], training: dict[str, Any]) -> str:
            if task.index == 0:
                return self._saver.save(trainers.policy, weights, meta, training, "latest")
            part = self._saver.lanes(trainers.policy, meta["version"]) / part_name(task.index)
            checkpoints.save_part(part, {name: training[name] for name in ("learner", "consumer", "random")})
            return ""

        return Trainer(
            learner,
            policy.module.state_dict,
            consumer,
            self._publisher(task, resources, gate, link),
            save,
            link,
            stop=self._experiment.stop,
            log_every=self._experiment.log_every,
            checkpoint_every=self._experiment.checkpoint_every,
            checkpoint_seconds=self._experiment.checkpoint_seconds,
            frames_per_step=self._shapes[trainers.policy].frames_per_step,
            device=device,
            progress=progress,
            keep_lanes=self._is_exact(trainers.train),
            loaded=loaded,
            ranks=ranks,
        )

    def _publisher(self, task: Task, resources: Mapping[str, Any], gate: Any, link: Link) -> Any:
        """What a trainer does with new weights: the first of its group shows them to everyone."""
        group, policy = task.group, self._experiment.trainers[task.group].policy
        if task.index:
            first_is_here = Task("trainer", group, 0) in self._site
            return (lambda *_: None) if first_is_here else self._far(link).publisher(task, resources)
        board = Publisher(self._shapes[policy].params, resources[f"params/{policy}"])
        if gate is None:
            return board.publish

        def publish(version: int, steps: int, weights: dict[str, torch.Tensor]) -> None:
            board.publish(version, steps, weights)
            gate.publish(version, steps)

        return publish

    def _far(self, link: Link) -> Any:
        # Here, because who stays on one host needs no ZeroMQ.
        from srl.launchers.far import Far

        return Far(self._experiment, self._shapes, self._site, self._doors, self._keys, link)

    def _relay(self, task: Task, resources: Mapping[str, Any], link: Link) -> Worker:
        return self._far(link).relay(task, resources, self._life)

    def _consumer(self, stream: str, rank: int, shapes: Shapes, resources: Mapping[str, Any], gate: Any) -> ShmConsumer:
        train, trainers = self._experiment.streams[stream], plan.trainers_of(self._experiment, stream)[1]
        actors = plan.train_actors(self._experiment, stream)
        own = {actors.index(actor) for actor in plan.part_of(self._experiment, stream, rank)}
        return ShmConsumer(
            plan.segments_of(self._experiment, stream, shapes),
            resources[f"train/{stream}/{rank}"],
            [lane for lane in plan.lanes_of(self._experiment, actors) if lane.actor in own],
            gate.grants() if gate else {at: resources[f"train/{stream}/credits/{at}"] for at in own},
            gate or resources[f"train/{stream}/{rank}/full"],
            batch=train.batch // trainers.count,
            max_lag=train.max_lag,
            late=train.late,
        )

    def _policy_worker(self, task: Task, resources: Mapping[str, Any], link: Link) -> PolicyWorker:
        name = task.group
        policies = self._experiment.policies[name]
        policy = self._acting_policy(name, device_of(policies.device))
        lanes = plan.lanes_of(self._experiment, plan.act_actors(self._experiment, name))
        server = ActServer(self._sources(task, lanes, resources, link), lanes, self._max_batch(name))
        return PolicyWorker(policy, self._reader(name, policy, resources), server, link)

    def _sources(self, task: Task, lanes: list[Lane], resources: Mapping[str, Any], link: Link) -> list[Source]:
        """Where a policy worker is asked: in shared memory by the actors here, over the network by the others."""
        name, sources = task.group, list[Source]()
        shapes, near = self._shapes[name], plan.lanes_by_memory(self._experiment, name, self._site)
        if near:
            block, requests = resources[f"act/{name}"], resources[f"act/{name}/requests"]
            replies = {lane.actor: resources[f"act/{name}/replies/{lane.actor}"] for lane in near}
            sources.append(ShmAsked(shapes, near, block, requests, replies, self._epoch))
        if f"door/{task.name}" in resources:
            sources.append(self._far(link).asked(task, lanes, resources, self._epoch))
        return sources

    def _max_batch(self, policy: str) -> int:
        """Rows per forward pass; 0 takes requests one by one."""
        given = self._experiment.policies[policy].max_batch
        if given is not None:
            return given
        groups = [group for group in self._experiment.actors.values() if group.policy == policy and group.train]
        synchronous = all(self._experiment.streams[group.train or ""].max_lag == 0 for group in groups)
        return 0 if synchronous else MAX_BATCH

    def _actor(self, task: Task, resources: Mapping[str, Any], link: Link) -> Actor:
        actors = self._experiment.actors[task.group]
        stream = actors.train or ""
        shapes = self._shapes[actors.policy]
        feeders = plan.train_actors(self._experiment, stream)
        at = feeders.index(task)
        train_lanes = [lane.index for lane in plan.lanes_of(self._experiment, feeders) if lane.actor == at]
        # Read once for all lanes, because reading checks the digests of every file.
        goes_on = self._resume and not self._life
        checkpoint = checkpoints.load(self._saver.checkpoints(actors.policy), "latest") if goes_on else None
        rollouts = [self._rollout(actors, lane, checkpoint) for lane in train_lanes]
        why = why_not(rollouts[0].envs) if self._is_exact(stream) and at == self._life == 0 else None
        if why:
            link.send({"kind": "warning", "text": f"this run resumes, but not bit for bit: {why}"})
        act, act_lanes = self._act_client(task, actors, resources, link)
        part = f"train/{stream}/{plan.rank_of(self._experiment, stream, task).index}"
        producer = ShmProducer(
            plan.segments_of(self._experiment, stream, shapes),
            resources[part],
            resources[f"train/{stream}/credits/{at}"],
            resources[f"{part}/full"],
        )

        def keep(lane: int, version: int, rollout: Rollout) -> None:
            envs = state_of(rollout.envs)
            if envs is None or not self._site.shared:
                return
            try:
                folder = made(self._saver.lanes(actors.policy, version))
                write_atomically(folder / str(lane), to_bytes({"rollout": rollout.state(), "envs": envs}))
            except UserError as error:
                text = f"{error}; from the checkpoint of version {version:,} the run would not resume bit for bit"
                link.send({"kind": "warning", "text": text})

        return Actor(rollouts, act, producer, act_lanes=act_lanes, train_lanes=train_lanes, keep=keep, tell=link.send)

    def _is_exact(self, stream: str) -> bool:
        """Whether a run is to resume bit for bit, as far as its environments can."""
        return self._experiment.streams[stream].max_lag == 0

    def _rollout(self, actors: Actors, lane: int, checkpoint: checkpoints.Checkpoint | None) -> Rollout:
        """A lane as the checkpoint left it, where it could say how it stood; otherwise with numbers not used before."""
        train, shapes = self._experiment.streams[actors.train or ""], self._shapes[actors.policy]
        words: list[object] = ["lane", actors.train, lane]
        kept: Path | None = None
        if self._life:
            words += ["life", self._life]
        elif checkpoint is not None:
            words += ["version", checkpoint.meta["version"]]
            kept = checkpoint.path / LANES / str(lane)
        rollout = Rollout(self._envs(actors), shapes, seed=seed_of(self._experiment, *words), chunk=train.chunk)
        if kept is not None and kept.exists():
            state = from_bytes(kept.read_bytes())
            put_back(rollout.envs, state["envs"])
            rollout.restore(state["rollout"])
        return rollout

    def _envs(self, actors: Actors) -> Any:
        faults = actors.faults
        limits = Limits(
            limit_seconds=faults.step_seconds,
            reset_seconds=faults.reset_seconds,
            max_faults=faults.limit,
            window_seconds=faults.window,
        )
        build = isolated if actors.isolate else make
        return build(actors.env, actors.envs, actors.env_kwargs, limits=limits)

    def _act_client(
        self, task: Task, actors: Actors, resources: Mapping[str, Any], link: Link
    ) -> tuple[ActClient, list[int]]:
        name = actors.policy
        askers = plan.act_actors(self._experiment, name)
        at = askers.index(task)
        lanes = [lane for lane in plan.lanes_of(self._experiment, askers) if lane.actor == at]
        own = [lane.index for lane in lanes]
        if self._experiment.policies[name].act == "inline":
            policy = self._acting_policy(name, torch.device("cpu"))
            self._warm(policy, name, actors.envs)
            return InlineClient(policy, self._reader(name, policy, resources)), own
        near = plan.lanes_by_memory(self._experiment, name, self._site)
        if any(lane.actor == at for lane in near):
            replies = resources[f"act/{name}/replies/{at}"]
            block, requests = resources[f"act/{name}"], resources[f"act/{name}/requests"]
            return ShmActClient(self._shapes[name], near, block, requests, replies, self._epoch), own
        return self._far(link).asks(name, lanes, self._epoch), own

    def _evaluator(self, task: Task, resources: Mapping[str, Any], link: Link) -> Evaluator:
        actors = self._experiment.actors[task.group]
        assert actors.evaluate is not None
        policy = self._policy(actors.policy, torch.device("cpu"))
        rows = min(actors.envs, actors.evaluate.episodes)

        def save_best(result: dict[str, Any]) -> None:
            self._saver.save(actors.policy, policy.module.state_dict(), result, None, "best")

        return Evaluator(
            policy,
            self._reader(actors.policy, policy, resources),
            self._envs(replace(actors, envs=rows)),
            self._shapes[actors.policy],
            link,
            episodes=actors.evaluate.episodes,
            explore=actors.explore,
            seed=seed_of(self._experiment, "evaluate", task.group, task.index),
            best=self._saver.best_reward(actors.policy),
            save_best=save_best,
        )
