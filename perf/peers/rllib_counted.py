"""RLlib's module and learner, counting the processor time of acting and learning; its processes import it by name."""

from __future__ import annotations

import os
from typing import Any

from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.connectors.module_to_env.get_actions import GetActions
from spent import counting

FOLDER = os.environ.get("SRL_SPENT", "")
# Drawing actions is part of acting, as it is in SRL.
GetActions.__call__ = counting("act", GetActions.__call__, FOLDER)


class CountedModule(DefaultPPOTorchRLModule):
    """The default network."""

    def _forward_exploration(self, *args: Any, **named: Any) -> Any:
        return counting("act", super()._forward_exploration, FOLDER)(*args, **named)


class CountedLearner(IMPALATorchLearner):
    """The default learner: forward pass, losses, gradients, optimizer."""

    def _uncompiled_update(self, *args: Any, **named: Any) -> Any:
        return counting("train", super()._uncompiled_update, FOLDER)(*args, **named)
