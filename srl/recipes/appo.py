"""APPO: PPO whose actors run ahead of its trainer, corrected by V-trace."""

from __future__ import annotations

from typing import Any

from srl.algorithms.ppo import VTrace
from srl.experiment import Experiment
from srl.recipes.graph import same_parameters
from srl.recipes.ppo import ppo, proximal


@same_parameters(ppo, max_lag=1)
def appo(**given: Any) -> Experiment:
    """Asynchronous PPO: actors run ahead while the trainer learns, and V-trace corrects for it.

    What is not given is what was tuned for the environment, or else the default in brackets.
    """
    return proximal("appo", given, vtrace=VTrace())
