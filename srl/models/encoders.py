"""Encoders: from a tree of observations [N, ...] to features [N, features].

    float leaf ----------------+
    discrete leaf -> one-hot --+-> MLPEncoder ------------------+
    image leaf -> bytes -> NatureCNNEncoder or ResNetEncoder ----+-> concatenated (Parts)

Every encoder has an int attribute `features`. Encoders must not know about time: rows are independent.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from srl.errors import UserError, nearest
from srl.models import config
from srl.models.outline import (
    BLOCKS,
    NATURE,
    flat_width,
    image_of,
    mlp_width,
    nature_width,
    resnet_width,
    split_images,
)
from srl.models.precision import Layers
from srl.models.trees import at, to_torch
from srl.tree import Path, Spec, SpecTree, leaves, name_of, tree_map, zeros


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent to seven digits, by a sigmoid: on processors several times as fast as torch.tanh."""
    return torch.sigmoid(x + x) * 2 - 1


# Functions, not modules: calling a module costs as much as the tanh of a small layer.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh,
    "relu": torch.relu,
    "elu": nn.functional.elu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
}

HIDDEN_GAIN = math.sqrt(2)
"""The usual gain of orthogonal hidden layers: keeps the spread of activations through rectifiers."""


def build_encoder(encoder: config.Encoder | str, obs_spec: SpecTree) -> Any:
    """The module that settings or an import string describe, tried on two rows of zeros."""
    module = _imported(encoder)(obs_spec) if isinstance(encoder, str) else encoder.build(obs_spec)
    features = getattr(module, "features", None)
    if not isinstance(module, nn.Module) or not isinstance(features, int):
        raise UserError(f"the encoder {encoder!r} must give a torch module with an int attribute 'features'")
    with torch.no_grad():
        shape = tuple(module(tree_map(to_torch, zeros(obs_spec, 2))).shape)
    if shape != (2, features):
        raise UserError(
            f"the encoder {encoder!r} gives shape {shape} for 2 rows; its 'features' promise (2, {features})"
        )
    return module


def _imported(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import the encoder {name!r}: {error}") from error
    if not hasattr(module, attribute):
        hint = nearest(attribute, vars(module))
        raise UserError(f"the module {module_name!r} has no {attribute!r} to use as encoder{hint}")
    return getattr(module, attribute)


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float = HIDDEN_GAIN) -> Any:
    """The same layer with orthogonal weights and no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class FlatLeaf(nn.Module):
    """One leaf as rows of floats: numbers as they are, bytes divided by 255, choices as one-hot."""

    starts: Tensor

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.discrete = spec.kind == "discrete"
        self.scale = 1 / 255 if spec.dtype == "uint8" and spec.kind == "box" else 1.0
        self.features = flat_width(spec)
        starts = torch.tensor([0, *spec.n[:-1]]).cumsum(0)
        self.register_buffer("starts", starts, persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        """Rows [N, features]."""
        flat = leaf.reshape(len(leaf), -1)
        if self.discrete:
            hot = torch.zeros(len(leaf), self.features, device=leaf.device)
            return hot.scatter_(1, flat.long() + self.starts, 1.0)
        flat = flat.float()
        return flat if self.scale == 1.0 else flat * self.scale


class MLPEncoder(nn.Module):
    """All leaves in one vector, then fully connected layers."""

    def __init__(self, settings: config.MLP, obs_spec: SpecTree) -> None:
        super().__init__()
        self.paths = [path for path, _ in leaves(obs_spec)]
        self.flat = nn.ModuleList(FlatLeaf(spec) for _, spec in leaves(obs_spec))
        width = mlp_width(obs_spec)
        self.layers = nn.ModuleList()
        for size in settings.hidden:
            linear = orthogonal(nn.Linear(width, size))
            self.layers.append(nn.Sequential(linear, nn.LayerNorm(size)) if settings.layer_norm else linear)
            width = size
        self.activation = ACTIVATIONS[settings.activation]
        self.features = width

    def forward(self, obs: Any) -> Tensor:
        """Features [N, features]."""
        flat = [part(at(obs, path)) for part, path in zip(self.flat, self.paths, strict=True)]
        x = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


class ImageLeaf(nn.Module):
    """The only leaf of a tree as images of bytes in channels-first order."""

    def __init__(self, encoder: str, obs_spec: SpecTree) -> None:
        super().__init__()
        self.path, self.shape, self.channels_last = image_of(encoder, obs_spec)

    def forward(self, obs: Any) -> Tensor:
        """Images [N, channels, height, width]."""
        image = at(obs, self.path)
        # The memory stays as it is: with channels last it is what the layers want.
        return image.permute(0, 3, 1, 2) if self.channels_last else image


class NatureCNNEncoder(nn.Module):
    """Convolutions 8x8/4, 4x4/2, 3x3/1 and a fully connected layer."""

    def __init__(self, settings: config.NatureCNN, obs_spec: SpecTree) -> None:
        super().__init__()
        self.image = ImageLeaf("NatureCNN", obs_spec)
        channels, height, width = self.image.shape
        flat = nature_width(height, width)
        layers: list[nn.Module] = []
        for outputs, kernel, stride in NATURE:
            layers += [orthogonal(nn.Conv2d(channels, outputs, kernel, stride)), nn.ReLU()]
            channels = outputs
        layers += [nn.Flatten(), orthogonal(nn.Linear(flat, settings.features)), nn.ReLU()]
        self.layers = Layers(nn.Sequential(*layers), settings.precision)
        self.features = settings.features

    def forward(self, obs: Any) -> Tensor:
        """Features [N, features]."""
        return self.layers(self.image(obs))


class Residual(nn.Module):
    """Two convolutions whose output is added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = orthogonal(nn.Conv2d(channels, channels, 3, padding=1))
        # A lower gain at the end keeps the sum of six such blocks from growing.
        self.second = orthogonal(nn.Conv2d(channels, channels, 3, padding=1), gain=0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Images of the same shape."""
        return x + self.second(self.first(x.relu()).relu())


class ResNetEncoder(nn.Module):
    """Stages of convolution, pooling and two residual blocks, then a fully connected layer."""

    def __init__(self, settings: config.ResNet, obs_spec: SpecTree) -> None:
        super().__init__()
        self.image = ImageLeaf("ResNet", obs_spec)
        channels, height, width = self.image.shape
        flat = resnet_width(settings.channels, height, width)
        layers: list[nn.Module] = []
        for outputs in settings.channels:
            layers.append(orthogonal(nn.Conv2d(channels, outputs, 3, padding=1), gain=1.0))
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
            layers += [Residual(outputs) for _ in range(BLOCKS)]
            channels = outputs
        layers += [nn.ReLU(), nn.Flatten(), orthogonal(nn.Linear(flat, settings.features)), nn.ReLU()]
        self.layers = Layers(nn.Sequential(*layers), settings.precision)
        self.features = settings.features

    def forward(self, obs: Any) -> Tensor:
        """Features [N, features]."""
        return self.layers(self.image(obs))


class Parts(nn.Module):
    """Encoders for parts of the tree, their features side by side."""

    def __init__(self, images: dict[Path, Any], others: dict[Path, Spec], vector: Any) -> None:
        super().__init__()
        self.image_paths = list(images)
        self.images = nn.ModuleList(images.values())
        self.other_paths = list(others)
        self.vector = vector
        self.features: int = sum(part.features for part in (*images.values(), vector) if part is not None)

    def forward(self, obs: Any) -> Tensor:
        """Features [N, features]."""
        features = [part(at(obs, path)) for part, path in zip(self.images, self.image_paths, strict=True)]
        if self.vector is not None:
            features.append(self.vector({name_of(path): at(obs, path) for path in self.other_paths}))
        return torch.cat(features, 1)


def auto_encoder(settings: config.Auto, obs_spec: SpecTree) -> nn.Module:
    """The encoder that suits the leaves: images apart, the rest together."""
    images, others = split_images(obs_spec)
    if not images:
        return build_encoder(settings.vector, obs_spec)
    if isinstance(obs_spec, Spec):
        return build_encoder(settings.image, obs_spec)
    return Parts(
        {path: build_encoder(settings.image, spec) for path, spec in images.items()},
        others,
        build_encoder(settings.vector, {name_of(path): spec for path, spec in others.items()}) if others else None,
    )
