"""Adam (Kingma and Ba, 2015) as torch computes it, without what torch's optimizers bring along.

Whoever makes one of those imports torch's compiler: 70 MiB and most of a second of every trainer, whether it compiles
or not. This is the part of `torch.optim.Adam` that is used here, by the same names, and it goes on from what that has
kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

BETAS = (0.9, 0.999)


class Adam:
    """Makes parameters follow their gradients down."""

    def __init__(self, parameters: list[nn.Parameter], eps: float) -> None:
        self._parameters = parameters
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        """Of each parameter that has had a gradient: its steps and its running averages."""
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.0, "betas": BETAS, "eps": eps}]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step of all parameters that have a gradient."""
        moved = [parameter for parameter in self._parameters if parameter.grad is not None]
        states = [self.state_of(parameter) for parameter in moved]
        means, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        (beta1, beta2), eps, rate = (self.param_groups[0][name] for name in ("betas", "eps", "lr"))
        gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
        settings: Any = {"amsgrad": False, "weight_decay": 0.0, "maximize": False, "fused": True}
        adam([*moved], gradients, means, squares, [], steps, beta1=beta1, beta2=beta2, eps=eps, lr=rate, **settings)

    def state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """The state of a parameter, which begins with zeros."""
        if parameter not in self.state:
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.state[parameter] = {"step": torch.zeros((), device=parameter.device), **zeros}
        return self.state[parameter]

    def state_dict(self) -> dict[str, Any]:
        """The state by the number of each parameter."""
        numbered = enumerate(self._parameters)
        return {"state": {at: dict(self.state[parameter]) for at, parameter in numbered if parameter in self.state}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state_dict."""
        self.state = {}
        for at, kept in state["state"].items():
            parameter = self._parameters[at]
            if kept["exp_avg"].shape != parameter.shape:
                shapes = f"{tuple(kept['exp_avg'].shape)}, not {tuple(parameter.shape)}"
                raise ValueError(f"the optimizer's averages of parameter {at} have the shape {shapes}")
            self.state[parameter] = {name: tensor.to(parameter.device, copy=True) for name, tensor in kept.items()}
