"""Returns and advantages of segments: pure functions on [T, B] tensors.

    row            t        t+1      t+2
    valid          true     FALSE    true      the row after an episode's end is the reset row
    value          V(o_t)   V(end)   V(o_0')   so the next row's value is always the right bootstrap

Row t holds the transition t -> t+1; last_value [B] is V(obs[T]). A terminated row does not bootstrap, a truncated one
bootstraps from its true final observation, and terminated wins when both are set. Nothing passes from a row to the one
before it across an episode's end or through an invalid row. Must not know about policies or losses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from srl.algorithms.base import Moments


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and value targets (Schulman et al., 2016), zero on invalid rows.

    delta[t] = reward[t] + gamma * value[t+1] - value[t]
    advantage[t] = delta[t] + gamma * lam * advantage[t+1]
    target[t] = value[t] + advantage[t]
    """
    _check_shapes(last_value, reward=reward, value=value, terminated=terminated, truncated=truncated, valid=valid)
    v_tp1 = _next_values(value, last_value, terminated)
    delta_t = torch.where(valid, reward + gamma * v_tp1 - value, 0.0)
    goes_on = valid & ~(terminated | truncated)
    advantage = _backward_sums(delta_t, goes_on.to(delta_t) * (gamma * lam))
    return advantage, torch.where(valid, value + advantage, 0.0)


@torch.no_grad()
def vtrace(
    log_rho: Tensor,
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace policy gradient advantages and value targets (Espeholt et al., 2018), zero on invalid rows.

    rho[t] = min(rho_bar, exp(log_rho[t])),  c[t] = lam * min(c_bar, exp(log_rho[t])), log_rho = log(target / behaviour)
    delta[t] = rho[t] * (reward[t] + gamma * value[t+1] - value[t])
    target[t] = value[t] + delta[t] + gamma * c[t] * (target[t+1] - value[t+1])
    advantage[t] = rho[t] * (reward[t] + gamma * target[t+1] - value[t]),  where target[t+1] = value[t+1] at the end
    """
    _check_shapes(
        last_value,
        log_rho=log_rho,
        reward=reward,
        value=value,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
    )
    ratio_t = torch.where(valid, log_rho, 0.0).exp()
    rho_t = ratio_t.clamp(max=rho_bar)
    v_tp1 = _next_values(value, last_value, terminated)
    delta_t = torch.where(valid, rho_t * (reward + gamma * v_tp1 - value), 0.0)
    goes_on = valid & ~(terminated | truncated)
    correction_t = _backward_sums(delta_t, goes_on * (gamma * lam * ratio_t.clamp(max=c_bar)))
    target_tp1 = v_tp1 + _next_corrections(correction_t, goes_on)
    advantage = torch.where(valid, rho_t * (reward + gamma * target_tp1 - value), 0.0)
    return advantage, torch.where(valid, value + correction_t, 0.0)


@torch.no_grad()
def off_policy_gae(
    log_rho: Tensor,
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    lam: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace value targets, and advantages for a loss that weighs row t by its own ratio; GAE where log_rho is 0.

    target[t] is that of vtrace
    advantage[t] = reward[t] + gamma * value[t+1] - value[t] + gamma * lam * (target[t+1] - value[t+1])
    """
    _, target = vtrace(log_rho, reward, value, last_value, terminated, truncated, valid, gamma, rho_bar, c_bar, lam)
    v_tp1 = _next_values(value, last_value, terminated)
    goes_on = valid & ~(terminated | truncated)
    advantage = reward + gamma * v_tp1 - value + gamma * lam * _next_corrections(target - value, goes_on)
    return torch.where(valid, advantage, 0.0), target


@torch.no_grad()
def discounted_returns(
    reward: Tensor, ended: Tensor, valid: Tensor, gamma: float, carry: Tensor
) -> tuple[Tensor, Tensor]:
    """The discounted sum of the rewards so far in each row's episode, and the carry for the batch that follows.

    so_far[t] = reward[t] + gamma * so_far[t-1], which starts at carry [B] and again at 0 after an episode's end
    """
    _check_shapes(carry, reward=reward, ended=ended, valid=valid)
    so_far = carry
    sums: list[Tensor] = []
    for reward_t, keep_t in zip(torch.where(valid, reward, 0.0), ~ended, strict=True):
        sums.append(torch.add(reward_t, so_far, alpha=gamma))
        so_far = sums[-1] * keep_t
    return torch.stack(sums), so_far


@torch.no_grad()
def explained_variance(value: Tensor, target: Tensor, valid: Tensor, moments: Moments | None = None) -> Tensor:
    """1 - Var(target - value) / Var(target) over the valid rows; 0 when the targets do not vary."""
    _check_shapes(None, value=value, target=target, valid=valid)
    target, value = target[valid], value[valid]
    if moments is None:
        spread, rest = target.var(correction=0), (target - value).var(correction=0)
    else:
        spread, rest = moments(torch.stack([target, target - value], 1))[2].to(target)
    return torch.where(spread > 0, 1.0 - rest / spread, 0.0)


def _next_values(value: Tensor, last_value: Tensor, terminated: Tensor) -> Tensor:
    """The value of the observation each row leads to, 0 where the episode terminated."""
    return torch.where(terminated, 0.0, torch.cat([value[1:], last_value[None]]))


def _next_corrections(correction: Tensor, goes_on: Tensor) -> Tensor:
    """The correction of the row after each, 0 where the episode or the segment ends."""
    return torch.where(goes_on, torch.cat([correction[1:], torch.zeros_like(correction[:1])]), 0.0)


def _backward_sums(x_t: Tensor, decay_t: Tensor) -> Tensor:
    """y[t] = x[t] + decay[t] * y[t+1], with y[T] = 0."""
    total = torch.zeros_like(x_t[0])
    sums: list[Tensor] = []
    for x, decay in zip(reversed(x_t.unbind()), reversed(decay_t.unbind()), strict=True):
        total = torch.addcmul(x, decay, total)
        sums.append(total)
    return torch.stack(sums[::-1])


def _check_shapes(per_column: Tensor | None, **rows: Tensor) -> None:
    """Refuse anything but equal [T, B], and [B] for what there is once per column: broadcasting would hide it."""
    shape = next(iter(rows.values())).shape
    for name, tensor in rows.items():
        if tensor.ndim != 2 or tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected [T, B] = {tuple(shape)}")
    if per_column is not None and per_column.shape != shape[1:]:
        raise ValueError(f"one entry per column expected, {tuple(shape[1:])}; got shape {tuple(per_column.shape)}")
