"""The Nature CNN as an RLlib module, with an LSTM behind it if that is asked for; its processes import it by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor, nn

FEATURES = 512


class Nature(TorchRLModule, ValueFunctionAPI):
    """One network for policy and value."""

    def setup(self) -> None:
        convolutions = [nn.Conv2d(4, 32, 8, stride=4), nn.Conv2d(32, 64, 4, stride=2), nn.Conv2d(64, 64, 3)]
        layers = [part for made in convolutions for part in (made, nn.ReLU())]
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 7 * 7, FEATURES), nn.ReLU())
        width = self.model_config["lstm"]
        self.memory = nn.LSTM(FEATURES, width, batch_first=True) if width else None
        self.actor = nn.Linear(width or FEATURES, self.action_space.n)
        self.critic = nn.Linear(width or FEATURES, 1)

    def get_initial_state(self) -> dict[str, Any]:
        if self.memory is None:
            return {}
        return {name: np.zeros(self.memory.hidden_size, np.float32) for name in ("h", "c")}

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        hidden, state = self._hidden(batch)
        out = {Columns.ACTION_DIST_INPUTS: self.actor(hidden), Columns.EMBEDDINGS: hidden}
        return out if state is None else {**out, Columns.STATE_OUT: state}

    def _hidden(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor] | None]:
        obs = batch[Columns.OBS]
        pictures = obs.reshape(-1, *obs.shape[-3:]).float() / 255.0
        hidden = self.body(pictures)
        if self.memory is None:
            return hidden, None
        before = batch[Columns.STATE_IN]
        start = tuple(before[name].unsqueeze(0).contiguous() for name in ("h", "c"))
        hidden, (h, c) = self.memory(hidden.reshape(*obs.shape[:2], -1), start)
        return hidden, {"h": h.squeeze(0), "c": c.squeeze(0)}

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        hidden = self._hidden(batch)[0] if embeddings is None else embeddings
        return self.critic(hidden).squeeze(-1)
