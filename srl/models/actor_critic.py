r"""The actor-critic policy: networks that act and say how good a situation is.

    obs -> normaliser -> encoder -> memory -+-> policy head -> distribution of actions
                    \-> encoder -> memory -+-> value head  -> value
                     (one or two trunks)

A trunk works on rows; only its memory sees time. This module must not know how the policy is trained or who asks.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from srl.errors import UserError
from srl.models import config
from srl.models.base import Evaluation, Moments
from srl.models.encoders import build_encoder
from srl.models.heads import ActionHead, Joint
from srl.models.normalise import ObservationNormaliser, PopArtHead, ValueHead, moments_here
from srl.models.outline import state_of
from srl.models.trees import merge_time, to_numpy, to_torch
from srl.tree import Array, SpecTree, leaves, name_of, tree_map

REQUEST = ("obs", "first", "state", "mask", "noise")
"""What act reads of a request; the last three may be absent."""


class Trunk(nn.Module):
    """Encoder and memory: observations to features."""

    def __init__(self, settings: config.ActorCritic, obs_spec: SpecTree) -> None:
        super().__init__()
        self.encoder = build_encoder(settings.encoder, obs_spec)
        self.memory = None if settings.memory is None else settings.memory.build(self.encoder.features)
        self.features: int = self.encoder.features if self.memory is None else self.memory.features

    def forward(self, obs: Any, first: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Features [T * B, features] and the state after row T - 1, for rows obs [T * B, ...] and first [T, B]."""
        features = self.encoder(obs)
        if self.memory is None:
            return features, {}
        features, state = self.memory(features.unflatten(0, first.shape), first, state)
        return features.flatten(0, 1), state


class Network(nn.Module):
    """All that is learnt: normaliser, trunks and heads."""

    def __init__(
        self,
        settings: config.ActorCritic,
        obs_spec: SpecTree,
        action_spec: SpecTree,
        mask_spec: SpecTree | None,
    ) -> None:
        super().__init__()
        self.normaliser = ObservationNormaliser(obs_spec) if settings.normalise_obs else None
        self.actor = Trunk(settings, obs_spec)
        self.critic = None if settings.shared else Trunk(settings, obs_spec)
        width = self.actor.features
        self.action_head = ActionHead(width, action_spec, mask_spec, settings.gaussian, settings.policy_gain)
        if settings.popart is None:
            self.value_head: ValueHead | PopArtHead = ValueHead(width, settings.value_gain)
        else:
            self.value_head = PopArtHead(width, settings.value_gain, settings.popart)
        self.state: SpecTree = state_of(settings)

    def forward(self, obs: Any, first: Tensor, state: Any, mask: Any) -> tuple[Joint, Tensor, Any]:
        """Distribution and value of T * B rows, and the state after row T - 1."""
        if self.normaliser is not None:
            obs = self.normaliser(obs)
        if self.critic is None:
            features, state = self.actor(obs, first, state)
            return self.action_head(features, mask), self.value_head(features), state
        acting, actor_state = self.actor(obs, first, state["actor"] if self.state else {})
        judging, critic_state = self.critic(obs, first, state["critic"] if self.state else {})
        after = {"actor": actor_state, "critic": critic_state} if self.state else {}
        return self.action_head(acting, mask), self.value_head(judging), after

    def value(self, obs: Any, first: Tensor, state: Any) -> Tensor:
        """The values of T * B rows alone."""
        if self.normaliser is not None:
            obs = self.normaliser(obs)
        if self.critic is None:
            features, _ = self.actor(obs, first, state)
        else:
            features, _ = self.critic(obs, first, state["critic"] if self.state else {})
        return self.value_head(features)


class ActorCriticPolicy:
    """The Policy of `ActorCritic` settings; see `srl.models.base.Policy` for what each method promises."""

    def __init__(
        self,
        settings: config.ActorCritic,
        obs_spec: SpecTree,
        action_spec: SpecTree,
        mask_spec: SpecTree | None,
        *,
        device: str,
        seed: int,
    ) -> None:
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.module = Network(settings, obs_spec, action_spec, mask_spec)
        # For good: acting and evaluating must be the same function, so nothing may behave otherwise in training.
        self.module.to(self.device).eval()
        outline = settings.outline(obs_spec, action_spec, mask_spec)
        self.state, self.extras, self.noise = outline.state, outline.extras, outline.noise
        self._answer: Callable[..., dict[str, Any]] = self._eager_answer
        self._to_tensor = to_torch if self.device.type == "cpu" else self._to_device
        self._to_numpy = Tensor.numpy if self.device.type == "cpu" else to_numpy

    def act(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request of N rows, as numpy arrays."""
        with torch.inference_mode():
            given = [tree_map(self._to_tensor, request[key]) if key in request else {} for key in REQUEST]
            reply = tree_map(self._to_numpy, self._answer(*given))
        for name in self.extras:
            finite = np.isfinite(reply[name])
            if np.count_nonzero(finite) < finite.size:
                raise FloatingPointError(_complaint(name, request))
        return reply

    def _eager_answer(self, obs: Any, first: Tensor, state: Any, mask: Any, noise: Any) -> dict[str, Any]:
        joint, value, state = self.module(obs, first.unsqueeze(0), state, mask)
        action = joint.mode() if isinstance(noise, dict) else joint.sample(noise)
        return {"action": action, "state": state, "log_prob": joint.log_prob(action), "value": value}

    def compile_act(self) -> None:
        """From now on act is one compiled function: some seconds at the first request, then half the time or less."""
        compiled: Any = torch.compile  # not every overload of it knows all its parameters
        if "isolate_recompiles" not in inspect.signature(compiled).parameters:
            raise UserError(f"torch {torch.__version__} cannot compile acting; use torch 2.13, or compile=False")
        # A small network spends most of its time between kernels. The C++ wrapper saves a quarter of it, and as much is
        # saved by not looking in every call at the network, in which only numbers change, nor twice at any shape.
        quick = {"cpp_wrapper": True, "size_asserts": False, "alignment_asserts": False}
        options: Any = {"guard_filter_fn": _of_the_request, **(quick if self.device.type == "cpu" else {})}
        # Isolated, because what was compiled for another policy's network would be taken for this one's.
        self._answer = compiled(self._eager_answer, fullgraph=True, isolate_recompiles=True, options=options)

    def evaluate(self, obs: Any, action: Any, mask: Any, first: Tensor, state: Any) -> Evaluation:
        """What the policy says of actions [T, B, ...], with gradient."""
        mask = {} if mask is None else merge_time(mask)
        joint, value, _ = self.module(merge_time(obs), first, state, mask)
        log_prob = joint.log_prob(merge_time(action))
        return Evaluation(*(rows.unflatten(0, first.shape) for rows in (log_prob, joint.entropy(), value)))

    def value(self, obs: Any, first: Tensor, state: Any) -> Tensor:
        """The values [T, B], with gradient."""
        return self.module.value(merge_time(obs), first, state).unflatten(0, first.shape)

    def value_scale(self) -> Tensor:
        """Size of a typical value, 1 without PopArt."""
        return self.module.value_head.scale

    def update_value_stats(self, targets: Tensor, moments: Moments = moments_here) -> None:
        """Adapt PopArt, when it is on, to new targets; no value changes."""
        self.module.value_head.update(targets, moments)

    def observe(self, obs: Any, moments: Moments = moments_here) -> None:
        """Take observations [N, ...] into the normaliser, when it is on."""
        if self.module.normaliser is not None:
            self.module.normaliser.update(obs, moments)

    def _to_device(self, array: Array) -> Tensor:
        return to_torch(array).to(self.device)


def _of_the_request(guards: Any) -> list[bool]:
    """Which conditions of compiled code are to be checked in every call: those on what is asked, and on its shapes."""
    return [guard.guard_type == "SHAPE_ENV" or re.split(r"\W", guard.name)[0] in REQUEST for guard in guards]


def _complaint(name: str, request: dict[str, Any]) -> str:
    given = {key: request.get(key, {}) for key in ("obs", "state")}
    guilty = ", ".join(name_of(path) for path, leaf in leaves(given) if not np.isfinite(leaf).all())
    cause = f"neither is {guilty} in the request" if guilty else "the request is, so look at the weights"
    return f"the policy's {name} is not finite; {cause}"
