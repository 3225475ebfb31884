"""The bound of a workload on this machine: what its environments, its acting and its learning take with all cores busy.

    steps/s  <=  cores / (t_env + t_act + epochs x t_train)

Each part is run by one process per core at the same time and by itself, as fast as SRL can do it: nothing is sent,
nobody waits. Environments share the caches with each other then, as they do in a run.

    python perf/roofline.py w2 [--seconds S] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from srl.envs.base import make
from srl.experiment import Experiment
from srl.launchers.shapes import describe
from srl.recipes.workloads import WORKLOADS, workload
from srl.streams.base import Shapes, Slot, request_spec, segment_spec
from srl.tree import Layout, leaves, tree_map, zeros
from srl.workers.loader import Block

SECONDS = 6.0
CORES = len(os.sched_getaffinity(0))


def roofline(name: str, seconds: float = SECONDS) -> dict[str, float]:
    """Microseconds per step of each part, and the bound in steps per second."""
    took = {part: _on_all_cores(name, part, seconds) for part in ("env", "act", "train")}
    epochs = _parts(workload(name))[2].epochs
    bound = CORES * 1e6 / (took["env"] + took["act"] + epochs * took["train"])
    return {**{f"{part}_us": us for part, us in took.items()}, "epochs": epochs, "bound": bound}


def _on_all_cores(name: str, part: str, seconds: float) -> float:
    """The mean over cores of the microseconds that one step takes, all cores doing the same."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(CORES), context.Queue()
    processes = [
        context.Process(target=_measure, args=(name, part, seconds, barrier, results), daemon=True)
        for _ in range(CORES)
    ]
    for process in processes:
        process.start()
    took = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return sum(took) / len(took)


def _measure(name: str, part: str, seconds: float, barrier: Any, results: Any) -> None:
    torch.set_num_threads(1)
    once, steps = {"env": _env, "act": _act, "train": _train}[part](workload(name))
    for _ in range(3):
        once()
    barrier.wait()
    started, count = time.perf_counter(), 0
    while time.perf_counter() < started + seconds:
        once()
        count += 1
    results.put((time.perf_counter() - started) * 1e6 / (count * steps))


def _parts(experiment: Experiment) -> tuple[Any, Any, Any]:
    return experiment.actors["main"], experiment.policies["main"], experiment.trainers["main"].algorithm


def _described(experiment: Experiment) -> Shapes:
    return describe(experiment)["main"]


def _policy(experiment: Experiment, shapes: Shapes) -> Any:
    return experiment.policies["main"].model.build(shapes.seen, shapes.action, shapes.mask, seed=0)


def _random(rng: np.random.Generator, spec: Any, *lead: int) -> Any:
    def drawn(leaf: Any) -> Any:
        shape = (*lead, *leaf.shape)
        if leaf.kind == "discrete" or leaf.dtype == "bool":
            return rng.integers(0, leaf.n[0] if leaf.n else 2, shape).astype(leaf.dtype)
        return rng.integers(0, 256, shape, np.uint8) if leaf.dtype == "uint8" else rng.random(shape, np.float32)

    return tree_map(drawn, spec)


def _env(experiment: Experiment) -> tuple[Callable[[], None], int]:
    """Stepping one batch of environments, as an actor has it, by actions prepared before."""
    actors, shapes = _parts(experiment)[0], _described(experiment)
    envs = make(actors.env, actors.envs, actors.env_kwargs)
    rng = np.random.default_rng(os.getpid())
    out = {"obs": zeros(shapes.obs, envs.size), **{n: np.zeros(envs.size, bool) for n in ("terminated", "truncated")}}
    out |= {"reward": np.zeros(envs.size, np.float32), "score": np.zeros(envs.size, np.float32)}
    out["game_over"] = np.zeros(envs.size, bool)
    envs.reset(0, out)
    actions = [_random(rng, shapes.action, envs.size) for _ in range(256)]
    turn = iter(range(10**12))
    return lambda: envs.step(actions[next(turn) % 256], out), envs.size


def _act(experiment: Experiment) -> tuple[Callable[[], None], int]:
    """Acting on the rows of all environments at once."""
    actors, policies, _ = _parts(experiment)
    shapes, rows = _described(experiment), actors.count * actors.ring * actors.envs
    policy = _policy(experiment, shapes)
    if policies.compile:
        policy.compile_act()
    request = Layout(request_spec(shapes, rows)).view(bytearray(Layout(request_spec(shapes, rows)).nbytes))
    for (_, leaf), (_, drawn) in zip(
        leaves(request["obs"]), leaves(_random(np.random.default_rng(0), shapes.seen, rows)), strict=True
    ):
        leaf[...] = drawn
    return lambda: policy.act(request), rows


def _train(experiment: Experiment) -> tuple[Callable[[], None], int]:
    """One epoch over a batch of random experience, with all that an update does besides."""
    actors, _, algorithm = _parts(experiment)
    shapes, stream = _described(experiment), experiment.streams["main"]
    rng, slots = np.random.default_rng(0), []
    for at in range(stream.batch):
        segment = zeros(segment_spec(shapes, stream.rollout, actors.envs, stream.chunk))
        segment["valid"][...] = True
        for name, spec in (("obs", shapes.obs), ("action", shapes.action)):
            segment[name] = _random(rng, spec, stream.rollout + (name == "obs"), actors.envs)
        segment["log_prob"][...] = -1.0
        segment["reward"][...] = rng.random(segment["reward"].shape)
        slots.append(Slot(at, at, at, 0, segment))
    learner = replace(algorithm, epochs=1).build(_policy(experiment, shapes), seed=0)
    block = Block(slots[0].segment, stream.batch)
    return lambda: learner.step(block.fill(slots), 0.0), stream.batch * stream.rollout * actors.envs


def main() -> int:
    """Print the bound of the workloads that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["w1", "w2", "w2e1", "w3"], choices=[*WORKLOADS], metavar="W")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each part [{SECONDS:.0f}]")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in options.workloads:
        found = roofline(name, options.seconds)
        parts = ", ".join(f"{part} {found[f'{part}_us']:.1f}" for part in ("env", "act", "train"))
        said = f"{name}: {found['bound']:,.0f} steps/s; us per step: {parts} x {found['epochs']} epochs"
        print(json.dumps({"workload": name, **found}) if options.json else said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
