"""Algorithms: settings that build learners, and learners that turn batches of segments into better weights.

    settings (PPO, IMPALA)  --build(policy)-->  learner.step(batch) -> stats

The settings import no torch, so that a recipe can be shown without it. A learner must not know where its batches come
from or where its weights go.
"""

from srl.algorithms.impala import IMPALA
from srl.algorithms.ppo import PPO

__all__ = ["IMPALA", "PPO"]
