"""What passes between the environments and the policies of an experiment, found by building one of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from srl.envs.base import make
from srl.errors import UserError
from srl.experiment import Experiment
from srl.streams.base import Shapes
from srl.tree import seen, spec_of


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
