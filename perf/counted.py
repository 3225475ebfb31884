"""A policy and an algorithm that count the processor time of acting and learning; see peers/spent.py.

Workers import this module by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spent import counting

from srl.experiment import Algorithm, Model


@dataclass(frozen=True, kw_only=True)
class CountedModel:
    """A model whose policy counts what acting takes."""

    model: Model
    folder: str

    def build(self, *specs: Any, **options: Any) -> Any:
        """The policy."""
        policy = self.model.build(*specs, **options)
        policy.act = counting("act", policy.act, self.folder)
        return policy


@dataclass(frozen=True, kw_only=True)
class CountedAlgorithm:
    """An algorithm whose learner counts what a step takes."""

    algorithm: Algorithm
    folder: str

    def build(self, policy: Any, **options: Any) -> Any:
        """The learner."""
        learner = self.algorithm.build(policy, **options)
        learner.step = counting("train", learner.step, self.folder)
        return learner
