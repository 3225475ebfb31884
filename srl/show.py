"""An experiment drawn for people: the graph, what it will take, and every setting. Starts nothing, loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from srl.envs.base import make, name_of_env
from srl.experiment import Actors, Experiment, Policies
from srl.launchers import plan
from srl.models.outline import EXTRAS, Outline
from srl.params.base import params_bytes
from srl.settings import to_yaml
from srl.streams.base import Shapes
from srl.tree import Spec, leaves, seen


@dataclass(frozen=True)
class Known:
    """What can be said of a policy without building it."""

    shapes: Shapes
    weights: int | None
    """Numbers in its weights; None when only building the model can tell."""


def drawn(experiment: Experiment) -> str:
    """The whole picture as text."""
    known = {name: _known(experiment, name) for name in experiment.policies}
    lines = [*_graph(experiment, known), "", *_resources(experiment, known), "", to_yaml(experiment).rstrip()]
    return "\n".join(lines)


def _known(experiment: Experiment, policy: str) -> Known:
    actors = next(group for group in experiment.actors.values() if group.policy == policy)
    envs = make(actors.env, 1, actors.env_kwargs)
    try:
        obs, action, mask, scored = envs.obs, envs.action, envs.mask, envs.scored
    finally:
        envs.close()
    said = _describe(experiment.policies[policy].model, seen(obs), action, mask)
    # Bytes, because running statistics are wider than the rest.
    params = {} if said.weight_bytes is None else {"weights": Spec((said.weight_bytes,), "uint8")}
    return Known(Shapes(obs, action, mask, said.state, said.extras, said.noise, params, scored=scored), said.weights)


def _describe(model: Any, obs: Any, action: Any, mask: Any) -> Outline:
    """A model may say what it will be; one that does not is taken for feedforward."""
    if hasattr(model, "outline"):
        return model.outline(obs, action, mask)
    return Outline({}, EXTRAS, sum(leaf.size for _, leaf in leaves(action)), None, None)


def _graph(experiment: Experiment, known: dict[str, Known]) -> Iterator[str]:
    yield f"{experiment.name}, seed {experiment.seed}"
    yield ""
    for name, actors in experiment.actors.items():
        yield f"  actors {name}: {_say_actors(actors)}"
        policies = experiment.policies[actors.policy]
        how = _say_act(policies) if actors.train else "inline (one version at a time)"
        yield f"    | act    {how} -> policy {actors.policy}: {_say_spec(known[actors.policy].shapes)}"
        if actors.train:
            yield f"    | train  {_say_stream(experiment, actors)}"
    for name, trainers in experiment.trainers.items():
        who = f"{trainers.count} x {type(trainers.algorithm).__name__}"
        yield f"  trainers {name}: {who}, {trainers.threads} thread(s), device {trainers.device}"
        yield f"    | params {_say_weights(known[trainers.policy])} -> policy {trainers.policy}, shm"


def _say_actors(actors: Actors) -> str:
    shape = f"{actors.count} x {actors.ring} x {actors.envs} environments {name_of_env(actors.env)}"
    shape += ", each in a process of its own" if actors.isolate else ""
    if actors.evaluate:
        return f"{shape}, {actors.evaluate.episodes} episodes every {actors.evaluate.every:,} steps"
    return shape


def _say_act(policies: Policies) -> str:
    if policies.act == "inline":
        return "inline"
    return f"{policies.act}, {policies.count} policy worker(s) on {policies.device}"


def _say_spec(shapes: Shapes) -> str:
    def said(spec: Any) -> str:
        return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for _, leaf in leaves(spec))

    return f"{said(shapes.seen)} to {said(shapes.action)}"


def _say_stream(experiment: Experiment, actors: Actors) -> str:
    name = actors.train or ""
    train = experiment.streams[name]
    steps = train.batch * train.rollout * actors.envs
    lag = "synchronous" if train.max_lag == 0 else f"at most {train.max_lag} version(s) old, late: {train.late}"
    return (
        f"shm, batches of {train.batch} x {train.rollout} x {actors.envs} = {steps:,} steps, {lag} -> trainers {name}"
    )


def _say_weights(known: Known) -> str:
    return "weights counted when built" if known.weights is None else f"{known.weights:,} weights"


def _resources(experiment: Experiment, known: dict[str, Known]) -> Iterator[str]:
    tasks = plan.tasks_of(experiment)
    kinds = [task.kind for task in tasks]
    counts = ", ".join(f"{kinds.count(kind)} {kind}(s)" for kind in dict.fromkeys(kinds))
    yield f"processes: {len(tasks)} workers ({counts}), control, and the nursery that starts them"
    needs = plan.needs_of(experiment, {name: one.shapes for name, one in known.items()})
    total = sum(need.nbytes for need in needs)
    yield f"shared memory: {_mebibytes(total)}"
    for need in needs:
        if need.nbytes >= params_bytes({}) and need.name != plan.BEATS:
            yield f"  {need.name:16} {_mebibytes(need.nbytes)}"


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.2f} MiB"
