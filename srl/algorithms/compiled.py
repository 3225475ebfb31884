"""The gradient step as one compiled function: losses, their gradient, clipping and Adam without Python in between.

    rows --losses--> loss --gradient--> clip --> Adam --> weights          one graph, one call

Small networks spend most of an eager step on the way into and out of torch's operators: compiled, the same step takes
between a half and a fifth of the time. It equals `Update.step` with Adam up to rounding, and shares its state. Among
ranks it is two functions, because what passes between trainers is not compiled. Must not know what is learned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from srl.algorithms.base import Stats, Update
from srl.errors import UserError


class CompiledStep:
    """`losses(*args)["loss"]` goes down by one step of Adam; the statistics of the step come back."""

    def __init__(self, losses: Callable[..., Stats], update: Update) -> None:
        # Asked for here, because it imports the compiler. There is no public switch.
        switches: Any = torch._dynamo.config  # pyright: ignore[reportPrivateUsage]
        if not hasattr(switches, "trace_autograd_ops"):
            raise UserError(
                f"torch {torch.__version__} cannot compile a gradient step; use torch 2.13, or compile=False"
            )
        switches.trace_autograd_ops = True
        self._losses = losses
        self._update = update
        self._adam = update.optimizer
        group = self._adam.param_groups[0]
        self._betas, self._eps = group["betas"], group["eps"]
        self._steps: list[Tensor] = []
        self._means: list[Tensor] = []
        self._squares: list[Tensor] = []
        # Sizes of minibatches differ a little from each other, and not every size may be worth a compilation. The code
        # that is chosen for a size need not look at the shapes of all weights again.
        options: Any = {"size_asserts": False, "alignment_asserts": False}
        compiled: Any = functools.partial(torch.compile, dynamic=True, fullgraph=True, options=options)
        if update.ranks is None:
            self._step = compiled(self._step)
        else:
            self._differentiate, self._descend = compiled(self._differentiate), compiled(self._descend)

    def __call__(self, learning_rate: float, *args: Any) -> Stats:
        """One step."""
        self._update.count += 1
        state = self._adam.state.get(self._update.parameters[0])
        if not state or not self._means or state["exp_avg"] is not self._means[0]:
            self._find_state()
        for step in self._steps:
            step += 1
        age = self._steps[0].item()
        # Tensors, because a number that changes would have to be compiled anew.
        numbers = torch.tensor([learning_rate, *(1 - beta**age for beta in self._betas)])
        return self._step(numbers, self._means, self._squares, *args)

    def _find_state(self) -> None:
        """Take the optimizer's state as it is now: fresh, or read from a checkpoint."""
        for parameter in self._update.parameters:
            if not self._adam.state.get(parameter):
                zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                self._adam.state[parameter] = {"step": torch.zeros(()), **zeros}
        states = [self._adam.state[parameter] for parameter in self._update.parameters]
        self._steps, self._means, self._squares = (
            [state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq")
        )

    def _step(self, numbers: Tensor, means: list[Tensor], squares: list[Tensor], *args: Any) -> Stats:
        stats, gradients = self._differentiate(*args)
        stats = self._update.shared(stats, gradients)
        return stats | {"grad_norm": self._descend(numbers, means, squares, gradients)}

    def _differentiate(self, *args: Any) -> tuple[Stats, Sequence[Tensor]]:
        stats = self._losses(*args)
        parameters = self._update.parameters
        gradients = torch.autograd.grad(stats["loss"], parameters, allow_unused=True, materialize_grads=True)
        return {name: value.detach() for name, value in stats.items()}, gradients

    @torch.no_grad()
    def _descend(
        self, numbers: Tensor, means: list[Tensor], squares: list[Tensor], gradients: Sequence[Tensor]
    ) -> Tensor:
        parameters = self._update.parameters
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        scale = (self._update.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for parameter, gradient, mean, square in zip(parameters, gradients, means, squares, strict=True):
            self._follow(parameter, gradient * scale, mean, square, numbers)
        return norm

    def _follow(self, parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, numbers: Tensor) -> None:
        """Adam (Kingma and Ba, 2015), as torch does it."""
        learning_rate, mean_share, square_share = numbers
        mean.lerp_(gradient, 1 - self._betas[0])
        square.mul_(self._betas[1]).addcmul_(gradient, gradient, value=1 - self._betas[1])
        spread = (square / square_share).sqrt() + self._eps
        parameter.sub_(learning_rate / mean_share * mean / spread)
