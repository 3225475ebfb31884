"""What a policy will be, known from its settings and spaces alone, so that experiments are shown before they run.

    settings, specs -> Outline: recurrent state, extras, noise, and how much its weights hold

The networks take their widths and state from the functions here, so that these cannot disagree with them; only the
shapes of weights are said a second time. This module must not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from srl.errors import UserError
from srl.models import config
from srl.tree import Path, Spec, SpecTree, leaves, name_of

EXTRAS: dict[str, Any] = {"log_prob": Spec((), "float32"), "value": Spec((), "float32")}
"""What an actor-critic adds to each row besides action and state."""

FLOATS = ("float32", "float64")
"""The leaves that are normalised; bytes, bits and choices have a scale of their own."""

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel and stride of the convolutions of the Nature DQN."""

BLOCKS = 2
"""Residual blocks in each stage of the ResNet, of two convolutions each."""

GATES: dict[type, int] = {config.LSTM: 4, config.GRU: 3}
"""How many vectors of the state's size a step of each memory computes from its input."""


@dataclass(frozen=True)
class Outline:
    """What can be said of a policy without building it."""

    state: dict[str, Any]
    """Specs of the recurrent state of one row; {} when there is none."""
    extras: dict[str, Any]
    """Specs of what acting gives for each row besides action and state."""
    noise: int
    """Uniform random numbers that acting takes for each row."""
    weights: int | None
    """Numbers in all that is published; None when part of the network is not ours, so that only building it tells."""
    weight_bytes: int | None
    """The bytes of these numbers, running statistics being float64; None as above."""


def outline_of(
    settings: config.ActorCritic, obs_spec: SpecTree, action_spec: SpecTree, mask_spec: SpecTree | None
) -> Outline:
    """The outline of the policy that these settings build for these spaces."""
    masked_paths(action_spec, mask_spec)
    noise = sum(spec.size for _, spec in leaves(action_spec))
    weights = _weights(settings, obs_spec, action_spec)
    numbers, nbytes = (None, None) if weights is None else _totals(weights)
    return Outline(state_of(settings), EXTRAS, noise, numbers, nbytes)


def state_of(settings: config.ActorCritic) -> dict[str, Any]:
    """The recurrent state of one row: that of the only trunk, or one for each of the two."""
    if settings.memory is None:
        return {}
    state = settings.memory.state
    return state if settings.shared else {"actor": state, "critic": state}


def is_image(spec: Spec) -> bool:
    """Whether a leaf is treated as an image: bytes with three axes."""
    return spec.kind == "box" and spec.dtype == "uint8" and len(spec.shape) == 3


def split_images(obs_spec: SpecTree) -> tuple[dict[Path, Spec], dict[Path, Spec]]:
    """The leaves that are images, and the others."""
    found = dict(leaves(obs_spec))
    images = {path: spec for path, spec in found.items() if is_image(spec)}
    return images, {path: spec for path, spec in found.items() if path not in images}


def flat_width(spec: Spec) -> int:
    """How many floats a leaf becomes in a vector: choices as one-hot, all else number by number."""
    return sum(spec.n) if spec.kind == "discrete" else spec.size


def mlp_width(obs_spec: SpecTree) -> int:
    """How many floats all leaves make in one vector."""
    width = sum(flat_width(spec) for _, spec in leaves(obs_spec))
    if width == 0:
        raise UserError("the observation has no elements; MLP needs at least one")
    return width


def image_of(encoder: str, obs_spec: SpecTree) -> tuple[Path, tuple[int, int, int], bool]:
    """The only leaf, an image: its path, its shape with channels first, and whether they come last as it is."""
    found = list(leaves(obs_spec))
    if len(found) != 1 or not is_image(found[0][1]):
        names = ", ".join(f"{name_of(path)} {spec.dtype}{list(spec.shape)}" for path, spec in found)
        raise UserError(f"{encoder} takes one uint8 image with three axes, got {names}; Auto takes any observations")
    path, (first, second, third) = found[0][0], found[0][1].shape
    last = third <= first
    return path, (third, first, second) if last else (first, second, third), last


def nature_width(height: int, width: int) -> int:
    """How many floats the convolutions of the Nature DQN make of an image."""
    if min(height, width) < 36:
        raise UserError(f"NatureCNN needs images of at least 36 x 36, got {height} x {width}; use ResNet()")
    for _, kernel, stride in NATURE:
        height, width = ((side - kernel) // stride + 1 for side in (height, width))
    return NATURE[-1][0] * height * width


def resnet_width(channels: Sequence[int], height: int, width: int) -> int:
    """How many floats the stages of the ResNet make of an image; each halves its sides, rounding up."""
    for _ in channels:
        height, width = -(-height // 2), -(-width // 2)
    return channels[-1] * height * width


def head_widths(action_spec: SpecTree, gaussian: config.Gaussian) -> list[int]:
    """How many outputs of the policy head each action leaf takes."""
    widths = [_head_width(spec, name_of(path), gaussian) for path, spec in leaves(action_spec)]
    if not widths:
        raise UserError("the action space is empty")
    return widths


def _head_width(spec: Spec, name: str, gaussian: config.Gaussian) -> int:
    if spec.size == 0:
        raise UserError(f"the action {name!r} has no elements")
    if spec.kind == "discrete":
        return sum(spec.n)
    if spec.kind == "binary":
        return spec.size
    if not spec.dtype.startswith("float"):
        raise UserError(f"the action {name!r} is a box of {spec.dtype}; use a Discrete space or a box of floats")
    return spec.size * (2 if gaussian.state_dependent_std else 1)


def masked_paths(action_spec: SpecTree, mask_spec: SpecTree | None) -> set[Path]:
    """The action leaves that come with a mask."""
    if mask_spec is None:
        return set()
    choices = {path: sum(spec.n) for path, spec in leaves(action_spec) if spec.kind == "discrete"}
    for path, spec in leaves(mask_spec):
        if choices.get(path) != spec.size:
            raise UserError(
                f"the mask {name_of(path)!r} has {spec.size} entries; "
                f"its action has {choices.get(path, 'no')} choices to allow or forbid"
            )
    return {path for path, _ in leaves(mask_spec)}


@dataclass(frozen=True)
class _Part:
    """A part of the network: how many features it gives, and its weights."""

    features: int
    weights: list[Spec]


def _totals(weights: list[Spec]) -> tuple[int, int]:
    return sum(spec.size for spec in weights), sum(spec.nbytes for spec in weights)


def _weights(settings: config.ActorCritic, obs_spec: SpecTree, action_spec: SpecTree) -> list[Spec] | None:
    outputs = sum(head_widths(action_spec, settings.gaussian))
    trunk = _trunk(settings, obs_spec)
    if trunk is None:
        return None
    weights = trunk.weights * (1 if settings.shared else 2)
    weights += _linear(trunk.features, outputs) + _linear(trunk.features, 1)
    if not settings.gaussian.state_dependent_std:
        weights += [_floats(spec.size) for _, spec in leaves(action_spec) if spec.kind == "box"]
    if settings.normalise_obs:
        weights += [part for _, spec in leaves(obs_spec) if spec.dtype in FLOATS for part in _statistics(spec.shape)]
    if settings.popart is not None:
        weights += _statistics(())
    return weights


def _trunk(settings: config.ActorCritic, obs_spec: SpecTree) -> _Part | None:
    encoder = _encoder(settings.encoder, obs_spec)
    if encoder is None or settings.memory is None:
        return encoder
    gates = GATES.get(type(settings.memory))
    if gates is None:
        return None
    size = settings.memory.size
    weights = [*_linear(encoder.features, gates * size), _floats(size, gates * size)]
    if type(settings.memory) is config.GRU:
        weights.append(_floats(size))
    return _Part(size, encoder.weights + weights)


def _encoder(encoder: config.Encoder | str, obs_spec: SpecTree) -> _Part | None:
    # By exact type, as for memory: a subclass may build anything.
    known = _ENCODERS.get(type(encoder))
    return None if known is None else known(encoder, obs_spec)


def _mlp(settings: config.MLP, obs_spec: SpecTree) -> _Part:
    width = mlp_width(obs_spec)
    weights: list[Spec] = []
    for size in settings.hidden:
        weights += _linear(width, size)
        if settings.layer_norm:
            weights += [_floats(size), _floats(size)]
        width = size
    return _Part(width, weights)


def _nature(settings: config.NatureCNN, obs_spec: SpecTree) -> _Part:
    _, (channels, height, width), _ = image_of("NatureCNN", obs_spec)
    weights: list[Spec] = []
    for outputs, kernel, _ in NATURE:
        weights += _convolution(channels, outputs, kernel)
        channels = outputs
    return _Part(settings.features, weights + _linear(nature_width(height, width), settings.features))


def _resnet(settings: config.ResNet, obs_spec: SpecTree) -> _Part:
    _, (channels, height, width), _ = image_of("ResNet", obs_spec)
    weights: list[Spec] = []
    for outputs in settings.channels:
        weights += _convolution(channels, outputs, 3) + _convolution(outputs, outputs, 3) * 2 * BLOCKS
        channels = outputs
    flat = resnet_width(settings.channels, height, width)
    return _Part(settings.features, weights + _linear(flat, settings.features))


def _auto(settings: config.Auto, obs_spec: SpecTree) -> _Part | None:
    images, others = split_images(obs_spec)
    parts = [_encoder(settings.image, spec) for spec in images.values()]
    if others or not images:
        parts.append(_encoder(settings.vector, {name_of(path): spec for path, spec in others.items()}))
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return _Part(sum(part.features for part in known), [spec for part in known for spec in part.weights])


_ENCODERS: dict[type, Callable[[Any, SpecTree], _Part | None]] = {
    config.MLP: _mlp,
    config.NatureCNN: _nature,
    config.ResNet: _resnet,
    config.Auto: _auto,
}


def _floats(*shape: int) -> Spec:
    return Spec(shape, "float32")


def _linear(inputs: int, outputs: int) -> list[Spec]:
    return [_floats(outputs, inputs), _floats(outputs)]


def _convolution(inputs: int, outputs: int, kernel: int) -> list[Spec]:
    return [_floats(outputs, inputs, kernel, kernel), _floats(outputs)]


def _statistics(shape: tuple[int, ...]) -> list[Spec]:
    """A mean, a variance and a count."""
    return [Spec(shape, "float64"), Spec(shape, "float64"), Spec((), "float64")]
