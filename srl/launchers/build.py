"""Wiring: a task becomes a worker, with its edges, where it lives.

This is the one place where environments, models, algorithms, streams and workers meet; none of them knows another.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import sys
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
from srl.experiment import Actors, Experiment, Init
from srl.files import made, write_atomically
from srl.launchers import plan
from srl.launchers.plan import Resource, Task
from srl.params import file as checkpoints
from srl.params.checksum import LANES
from srl.params.shm import Publisher, Reader
from srl.store import Store
from srl.streams.base import ActClient, Shapes
from srl.streams.inline import InlineClient
from srl.streams.shm import ShmActClient, ShmActServer, ShmConsumer, ShmProducer
from srl.tree import seen, spec_of, spec_to_plain
from srl.workers.actor import Actor, Rollout
from srl.workers.base import Link, Worker
from srl.workers.evaluator import Evaluator
from srl.workers.policy import PolicyWorker
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


def device_of(name: str) -> torch.device:
    """The device that a setting names; auto takes a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but torch sees no GPU here; use --device cpu, or see srl doctor")
    return device


def _begin_with(init: Init, module: torch.nn.Module) -> str:
    """Load the weights of another run that fit; what did and what did not, in words."""
    path = Path(init.checkpoint)
    found, own = checkpoints.load(path.parent, path.name).weights(), module.state_dict()
    wanted = {name for name in own if name.startswith(init.part)}
    fits = {name: found[name] for name in wanted if name in found and found[name].shape == own[name].shape}
    if not fits:
        raise UserError(f"no weights of {path} fit this policy{f' in {init.part!r}' if init.part else ''}")
    module.load_state_dict({**own, **fits})
    left = sorted(wanted - fits.keys())
    rest = f"; these begin at random: {', '.join(left)}" if left else ""
    return f"begins with {len(fits)} of {len(wanted)} weights of {path}{rest}"


def describe(experiment: Experiment) -> dict[str, Shapes]:
    """The shapes of every policy, found by building one environment of each group and each policy once."""
    shapes: dict[str, Shapes] = {}
    for name, actors in experiment.actors.items():
        envs = make(actors.env, 1, actors.env_kwargs)
        try:
            spaces = (envs.obs, envs.action, envs.mask)
            frames, scored = envs.frames_per_step, envs.scored
        finally:
            envs.close()
        known = shapes.get(actors.policy)
        if known is None:
            described = _describe_policy(experiment, actors.policy, spaces)
            shapes[actors.policy] = replace(described, frames_per_step=frames, scored=scored)
        elif (known.obs, known.action, known.mask) != spaces:
            raise UserError(f"actors {name!r} share policy {actors.policy!r} with others whose spaces differ")
        elif known.scored != scored:
            raise UserError(
                f"actors {name!r} share policy {actors.policy!r} with others; either all have scores or none"
            )
    return shapes


def _describe_policy(experiment: Experiment, name: str, spaces: tuple[Any, Any, Any]) -> Shapes:
    obs, action, mask = spaces
    policy = experiment.policies[name].model.build(seen(obs), action, mask, device="cpu", seed=0)
    weights = {key: spec_of(tensor.detach().cpu().numpy()) for key, tensor in policy.module.state_dict().items()}
    return Shapes(obs, action, mask, policy.state, policy.extras, policy.noise, weights)


class Builder:
    """Builds the workers of one run; in its `life`, counted from 0, a worker starts in this epoch of the act edges."""

    def __init__(
        self,
        experiment: Experiment,
        shapes: Mapping[str, Shapes],
        folder: Path,
        *,
        resume: bool = False,
        life: int = 0,
        epoch: int = 0,
    ) -> None:
        self._experiment = experiment
        self._shapes = dict(shapes)
        self._folder = folder
        self._resume = resume
        self._life = life
        self._epoch = epoch

    def threads(self, task: Task) -> int:
        """Threads that torch may use in this worker."""
        groups = {"trainer": "trainers", "policy": "policies", "actor": "actors", "evaluator": "actors"}
        return getattr(self._experiment, groups[task.kind])[task.group].threads

    def build(self, task: Task, resources: Mapping[str, Resource], link: Link) -> Worker:
        """The worker of a task."""
        builders = {
            "trainer": self._trainer,
            "policy": self._policy_worker,
            "actor": self._actor,
            "evaluator": self._evaluator,
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

    def _reader(self, name: str, policy: Any, resources: Mapping[str, Any]) -> Reader:
        return Reader(self._shapes[name].params, resources[f"params/{name}"], policy.module)

    def _trainer(self, task: Task, resources: Mapping[str, Any], link: Link) -> Trainer:
        trainers = self._experiment.trainers[task.group]
        device = device_of(trainers.device)
        policy = self._policy(trainers.policy, device)
        learner = trainers.algorithm.build(policy, seed=seed_of(self._experiment, "learner", task.group))
        consumer = self._consumer(trainers.train, self._shapes[trainers.policy], resources)
        progress, loaded = Progress(), None
        init = self._experiment.policies[trainers.policy].init
        if init is not None and not self._resume:
            link.send({"kind": "warning", "text": _begin_with(init, policy.module)})
        if self._resume:
            checkpoint = checkpoints.load(self._checkpoints(trainers.policy), "latest")
            loaded = checkpoint.meta.get("weights_sha256")
            with checkpoint.fits():
                training = checkpoint.training()
                policy.module.load_state_dict(checkpoint.weights())
                learner.load_state_dict(training["learner"])
                progress = Progress.from_plain(training["progress"])
                if "consumer" in training:
                    consumer.restore(training["consumer"])
                    torch.set_rng_state(training["random"])
        return Trainer(
            learner,
            policy.module.state_dict,
            consumer,
            Publisher(self._shapes[trainers.policy].params, resources[f"params/{trainers.policy}"]).publish,
            lambda weights, meta, training: self._save(trainers.policy, weights, meta, training, "latest"),
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
        )

    def _consumer(self, stream: str, shapes: Shapes, resources: Mapping[str, Any]) -> ShmConsumer:
        train = self._experiment.streams[stream]
        lanes = plan.lanes_of(self._experiment, plan.train_actors(self._experiment, stream))
        actors = 1 + lanes[-1].actor
        return ShmConsumer(
            plan.segments_of(self._experiment, stream, shapes),
            resources[f"train/{stream}"],
            lanes,
            [resources[f"train/{stream}/credits/{at}"] for at in range(actors)],
            resources[f"train/{stream}/full"],
            batch=train.batch,
            max_lag=train.max_lag,
            late=train.late,
        )

    def _save(self, name: str, weights: Any, meta: dict[str, Any], training: Any, link: str) -> str:
        shapes = self._shapes[name]
        spaces = {key: spec_to_plain(getattr(shapes, key)) for key in ("obs", "action", "mask")}
        digest = checkpoints.sha256_of(weights)
        meta = {**meta, "policy": name, "spaces": spaces, "weights_sha256": digest}
        folder, store = self._checkpoints(name), Store(self._folder / "store.sqlite")
        lanes = self._lanes(name, meta["version"])
        path = checkpoints.save(folder, weights, meta, training, link, lanes=lanes)
        shutil.rmtree(lanes.parent, ignore_errors=True)
        keep = 1 if training is None else self._experiment.keep
        every = self._experiment.keep_every
        try:
            store.add_version(name, meta["version"], meta["steps"], meta.get("seconds"), meta.get("reward"), path.name)
            checkpoints.prune(folder, link, keep, every, may_go=lambda gone: store.forget(name, gone))
        except UserError as error:
            # Without its store a run goes on, and keeps every checkpoint, because one may be tagged.
            print(f"srl: {error}", file=sys.stderr)
        return digest

    def _checkpoints(self, policy: str) -> Path:
        return self._folder / "checkpoints" / policy

    def _lanes(self, policy: str, version: int) -> Path:
        """Where the lanes keep how they stand, until the checkpoint of the version takes it up."""
        return self._checkpoints(policy) / ".lanes" / str(version)

    def _best_reward(self, policy: str) -> float:
        """The reward of the best weights that are kept, when a run goes on."""
        folder = self._checkpoints(policy)
        if not (folder / "best").exists():
            return -math.inf
        try:
            return float(checkpoints.load(folder, "best").meta["mean_reward"])
        except UserError as error:
            print(f"srl: {error}; the next that is evaluated is the best", file=sys.stderr)
            return -math.inf

    def _policy_worker(self, task: Task, resources: Mapping[str, Any], link: Link) -> PolicyWorker:
        name = task.group
        policies = self._experiment.policies[name]
        policy = self._acting_policy(name, device_of(policies.device))
        lanes = plan.lanes_of(self._experiment, plan.act_actors(self._experiment, name))
        server = ShmActServer(
            self._shapes[name],
            lanes,
            resources[f"act/{name}"],
            resources[f"act/{name}/requests"],
            [resources[f"act/{name}/replies/{at}"] for at in range(1 + lanes[-1].actor)],
            self._max_batch(name),
            self._epoch,
        )
        return PolicyWorker(policy, self._reader(name, policy, resources), server, link)

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
        checkpoint = checkpoints.load(self._checkpoints(actors.policy), "latest") if goes_on else None
        rollouts = [self._rollout(actors, lane, checkpoint) for lane in train_lanes]
        why = why_not(rollouts[0].envs) if self._is_exact(stream) and at == self._life == 0 else None
        if why:
            link.send({"kind": "warning", "text": f"this run resumes, but not bit for bit: {why}"})
        act, act_lanes = self._act_client(task, actors, resources)
        producer = ShmProducer(
            plan.segments_of(self._experiment, stream, shapes),
            resources[f"train/{stream}"],
            resources[f"train/{stream}/credits/{at}"],
            resources[f"train/{stream}/full"],
        )

        def keep(lane: int, version: int, rollout: Rollout) -> None:
            envs = state_of(rollout.envs)
            if envs is None:
                return
            try:
                folder = made(self._lanes(actors.policy, version))
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

    def _act_client(self, task: Task, actors: Actors, resources: Mapping[str, Any]) -> tuple[ActClient, list[int]]:
        name = actors.policy
        askers = plan.act_actors(self._experiment, name)
        at = askers.index(task)
        lanes = plan.lanes_of(self._experiment, askers)
        own = [lane.index for lane in lanes if lane.actor == at]
        if self._experiment.policies[name].act == "inline":
            policy = self._acting_policy(name, torch.device("cpu"))
            return InlineClient(policy, self._reader(name, policy, resources)), own
        replies = resources[f"act/{name}/replies/{at}"]
        block, requests = resources[f"act/{name}"], resources[f"act/{name}/requests"]
        return ShmActClient(self._shapes[name], lanes, block, requests, replies, self._epoch), own

    def _evaluator(self, task: Task, resources: Mapping[str, Any], link: Link) -> Evaluator:
        actors = self._experiment.actors[task.group]
        assert actors.evaluate is not None
        policy = self._policy(actors.policy, torch.device("cpu"))
        rows = min(actors.envs, actors.evaluate.episodes)

        def save_best(result: dict[str, Any]) -> None:
            self._save(actors.policy, policy.module.state_dict(), result, None, "best")

        return Evaluator(
            policy,
            self._reader(actors.policy, policy, resources),
            self._envs(replace(actors, envs=rows)),
            self._shapes[actors.policy],
            link,
            episodes=actors.evaluate.episodes,
            explore=actors.explore,
            seed=seed_of(self._experiment, "evaluate", task.group, task.index),
            best=self._best_reward(actors.policy),
            save_best=save_best,
        )
