"""Settings of the models: what a recipe writes to say which network acts.

    ActorCritic -> encoder (Auto, MLP, NatureCNN, ResNet, yours) -> memory (None, LSTM, GRU) -> policy and value heads

Settings are plain values that build what they describe. This module must not load torch, so that experiments can be
written, checked and shown without it; every `build` imports its implementation when it is called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

from srl.errors import UserError, nearest
from srl.tree import Spec, SpecTree

if TYPE_CHECKING:
    from torch import nn

    from srl.models.actor_critic import ActorCriticPolicy
    from srl.models.memory import GRUMemory, LSTMMemory
    from srl.models.outline import Outline

ActivationName: TypeAlias = Literal["tanh", "relu", "elu", "gelu", "silu"]
Precision: TypeAlias = Literal["auto", "bf16", "fp32"]


class Encoder(Protocol):
    """Settings of an encoder; yours is any dataclass with this method."""

    def build(self, obs_spec: SpecTree) -> nn.Module:
        """A module from the observation tree [N, ...] to features [N, features], with an int attribute `features`."""
        ...


def _positive(name: str, sizes: Sequence[Any]) -> None:
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UserError(f"{name} has {size!r}; sizes are whole numbers of at least 1")


def _precision(name: str, precision: str) -> None:
    known = get_args(Precision)
    if precision not in known:
        hint = nearest(str(precision), known)
        raise UserError(f"{name}.precision is {precision!r}; use one of {', '.join(known)}{hint}")


def _encoder(name: str, encoder: Encoder | str) -> None:
    if isinstance(encoder, str):
        module, colon, attribute = encoder.partition(":")
        if not (module and colon and attribute):
            raise UserError(f"{name} is {encoder!r}; an import string looks like 'package.module:Class'")
    elif isinstance(encoder, type) or not hasattr(encoder, "build"):
        raise UserError(f"{name} is {encoder!r}; use Auto(), MLP(), ... or settings with build(obs_spec)")


@dataclass(frozen=True, kw_only=True)
class MLP:
    """All leaves flattened into one vector, then fully connected layers."""

    hidden: tuple[int, ...] = (64, 64)
    """Width of each layer, first to last; empty passes the vector on as it is."""
    activation: ActivationName = "tanh"
    """Nonlinearity after each layer."""
    layer_norm: bool = False
    """Normalise each layer's output before its nonlinearity."""

    def __post_init__(self) -> None:
        _positive("MLP.hidden", self.hidden)
        known = get_args(ActivationName)
        if self.activation not in known:
            hint = nearest(str(self.activation), known)
            raise UserError(f"MLP.activation is {self.activation!r}; use one of {', '.join(known)}{hint}")

    def build(self, obs_spec: SpecTree) -> nn.Module:
        """The module for these observations."""
        from srl.models import encoders

        return encoders.MLPEncoder(self, obs_spec)


@dataclass(frozen=True, kw_only=True)
class NatureCNN:
    """The three convolutions of the Nature DQN, for one image of about 84 x 84."""

    features: int = 512
    """Width of the layer after the convolutions."""
    precision: Precision = "auto"
    """Numbers the layers compute in: fp32, bf16, or auto, which is bf16 where the hardware is made for it."""

    def __post_init__(self) -> None:
        _precision("NatureCNN", self.precision)
        _positive("NatureCNN.features", (self.features,))

    def build(self, obs_spec: SpecTree) -> nn.Module:
        """The module for these observations."""
        from srl.models import encoders

        return encoders.NatureCNNEncoder(self, obs_spec)


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """The residual network of IMPALA, for one image of any size."""

    channels: tuple[int, ...] = (16, 32, 32)
    """Channels of each stage; every stage halves the image."""
    features: int = 256
    """Width of the layer after the stages."""
    precision: Precision = "auto"
    """Numbers the layers compute in: fp32, bf16, or auto, which is bf16 where the hardware is made for it."""

    def __post_init__(self) -> None:
        _precision("ResNet", self.precision)
        _positive("ResNet.channels", self.channels)
        _positive("ResNet.features", (self.features,))
        if not self.channels:
            raise UserError("ResNet.channels is empty; give the channels of at least one stage")

    def build(self, obs_spec: SpecTree) -> nn.Module:
        """The module for these observations."""
        from srl.models import encoders

        return encoders.ResNetEncoder(self, obs_spec)


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Chosen from the observations: each image gets its own encoder, all other leaves share one; concatenated."""

    vector: Encoder | str = MLP()
    """Encoder of the leaves that are not images, together."""
    image: Encoder | str = NatureCNN()
    """Encoder of each leaf that is an image (uint8 with three axes, channels first or last)."""

    def __post_init__(self) -> None:
        _encoder("Auto.vector", self.vector)
        _encoder("Auto.image", self.image)

    def build(self, obs_spec: SpecTree) -> nn.Module:
        """The module for these observations."""
        from srl.models import encoders

        return encoders.auto_encoder(self, obs_spec)


@dataclass(frozen=True, kw_only=True)
class LSTM:
    """Long short-term memory after the encoder."""

    size: int = 128
    """Width of the hidden state and of the cell."""

    def __post_init__(self) -> None:
        _positive("LSTM.size", (self.size,))

    @property
    def state(self) -> dict[str, Spec]:
        """What is remembered of one row; the first leaf is the output."""
        return {name: Spec((self.size,), "float32") for name in ("h", "c")}

    def build(self, features: int) -> LSTMMemory:
        """The module for an input of that many features."""
        from srl.models import memory

        return memory.LSTMMemory(features, self)


@dataclass(frozen=True, kw_only=True)
class GRU:
    """Gated recurrent unit after the encoder: as LSTM with half the state."""

    size: int = 128
    """Width of the hidden state."""

    def __post_init__(self) -> None:
        _positive("GRU.size", (self.size,))

    @property
    def state(self) -> dict[str, Spec]:
        """What is remembered of one row; it is the output, too."""
        return {"h": Spec((self.size,), "float32")}

    def build(self, features: int) -> GRUMemory:
        """The module for an input of that many features."""
        from srl.models import memory

        return memory.GRUMemory(features, self)


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """How continuous actions are drawn."""

    state_dependent_std: bool = False
    """Let the network choose the spread for each observation, instead of one learnt spread for all."""
    squash: bool = False
    """Squash by tanh into the bounds of the action space, which must be finite; otherwise the environment clips."""
    init_log_std: float = 0.0
    """Logarithm of the spread at the start."""
    min_log_std: float = -10.0
    """The spread never gets smaller than exp of this."""
    max_log_std: float = 2.0
    """The spread never gets larger than exp of this."""

    def __post_init__(self) -> None:
        low, start, high = self.min_log_std, self.init_log_std, self.max_log_std
        if not (-math.inf < low <= start <= high < math.inf and low < high):
            raise UserError(
                "Gaussian needs finite min_log_std <= init_log_std <= max_log_std with min below max; "
                f"got {low}, {start}, {high}"
            )


@dataclass(frozen=True, kw_only=True)
class PopArt:
    """The value head learns targets of mean 0 and spread 1, whatever the rewards; its outputs survive each change."""

    rate: float = 0.01
    """Weight of the newest batch in the statistics; the k-th batch gets at least 1/k, so that the start is unbiased."""
    min_scale: float = 1e-4
    """The spread never counts as smaller than this."""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise UserError(f"PopArt.rate is {self.rate}; it must be above 0 and at most 1")
        if not 0 < self.min_scale < math.inf:
            raise UserError(f"PopArt.min_scale is {self.min_scale}; it must be above 0 and finite")


@dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """A policy and a value function, for any spaces: the model of PPO and IMPALA."""

    encoder: Encoder | str = Auto()
    """Observations to features: settings with `build(obs_spec)`, or "module:Class" for Class(obs_spec)."""
    memory: LSTM | GRU | None = None
    """Recurrence after the encoder, or none."""
    shared: bool = False
    """One encoder and memory for policy and value, instead of one each."""
    gaussian: Gaussian = Gaussian()
    """How continuous actions are drawn; unused by other action spaces."""
    normalise_obs: bool = False
    """Bring float observations to mean 0 and spread 1 by running statistics, clipped at 10."""
    popart: PopArt | None = None
    """Adaptive scale of the value head, or none."""
    policy_gain: float = 0.01
    """Gain of the orthogonal initial weights of the policy head; small means that all actions start about equal."""
    value_gain: float = 1.0
    """Gain of the orthogonal initial weights of the value head."""

    def __post_init__(self) -> None:
        _encoder("ActorCritic.encoder", self.encoder)
        if self.memory is not None and not (hasattr(self.memory, "build") and hasattr(self.memory, "state")):
            known = "LSTM(), GRU(), None, or settings with state and build(features)"
            raise UserError(f"ActorCritic.memory is {self.memory!r}; use {known}")
        for name, gain in (("policy_gain", self.policy_gain), ("value_gain", self.value_gain)):
            if not 0 <= gain < math.inf:
                raise UserError(f"ActorCritic.{name} is {gain}; it must be finite and not negative")

    def outline(self, obs: SpecTree, action: SpecTree, mask: SpecTree | None = None) -> Outline:
        """What the policy for these spaces will be, without building it and without torch."""
        from srl.models.outline import outline_of

        return outline_of(self, obs, action, mask)

    def build(
        self,
        obs_spec: SpecTree,
        action_spec: SpecTree,
        mask_spec: SpecTree | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> ActorCriticPolicy:
        """The policy for these spaces, its weights drawn from the seed."""
        from srl.models.actor_critic import ActorCriticPolicy

        return ActorCriticPolicy(self, obs_spec, action_spec, mask_spec, device=device, seed=seed)
