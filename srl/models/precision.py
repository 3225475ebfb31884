"""In which numbers the layers of an image encoder compute: bfloat16 where the processor is fast in it, else float32.

    weights, float32 --cast--> layers --> features, float32
    image, bytes     --cast--/

Weights, gradients and the optimizer stay float32; only what passes through the layers is short. Images are bytes from
0 to 255, and that they mean numbers from 0 to 1 is said to the first layer's weights, so that no pass over the image is
spent on it. This module must not know what the layers are.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

_CPU: Any = torch.cpu
"""What the processor can is asked in private functions; there are no public ones."""


def has_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is computed by the hardware itself, and not more slowly by way of float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return device.type == "cpu" and any(getattr(_CPU, probe, bool)() for probe in probes)


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """The numbers that a setting asks for on this device."""
    short = has_bfloat16(device) if precision == "auto" else precision == "bf16"
    return torch.bfloat16 if short else torch.float32


class Layers(nn.Module):
    """Layers over byte images [N, channels, height, width], computed in numbers of a chosen length."""

    def __init__(self, layers: nn.Sequential, precision: str) -> None:
        super().__init__()
        # Channels last is what convolutions are fastest in, on processors and on tensor cores.
        self.layers = layers.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] untyped overload
        self.precision = precision
        # A copy of the weights to act with, made anew when they have changed; in a list, lest it be a part of this.
        self._copies: list[nn.Module] = []
        self._seen: tuple[Any, ...] = ()

    def forward(self, image: Tensor) -> Tensor:
        """Features [N, features], float32."""
        dtype = dtype_of(self.precision, image.device)
        image = image.to(dtype)
        if torch.is_grad_enabled():
            return torch.func.functional_call(self.layers, self._cast(dtype), (image,)).float()
        return self._copy(dtype, image.device)(image).float()

    def _cast(self, dtype: torch.dtype) -> dict[str, Tensor]:
        cast = dict(self.layers.named_parameters())
        cast["0.weight"] = cast["0.weight"] / 255
        return {name: weight.to(dtype) for name, weight in cast.items()}

    def _copy(self, dtype: torch.dtype, device: torch.device) -> nn.Module:
        seen = (dtype, device, *((id(weight), weight._version) for weight in self.layers.parameters()))
        if seen != self._seen:
            # Not in inference mode, whose tensors could not be used outside of it.
            with torch.inference_mode(False), torch.no_grad():
                module = copy.deepcopy(self.layers).to(dtype)
                module.load_state_dict(self._cast(dtype))
            self._copies, self._seen = [module], seen
        return self._copies[0]
