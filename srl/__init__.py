"""SRL trains reinforcement-learning agents, on a laptop or on ten thousand cores, from the same short recipe.

Names are imported when they are first used: `import srl` loads neither torch nor an environment.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srl.algorithms.impala import IMPALA as IMPALA
    from srl.algorithms.ppo import PPO as PPO
    from srl.control import train as train
    from srl.experiment import Actors as Actors
    from srl.experiment import Evaluate as Evaluate
    from srl.experiment import Experiment as Experiment
    from srl.experiment import Policies as Policies
    from srl.experiment import Stop as Stop
    from srl.experiment import Train as Train
    from srl.experiment import Trainers as Trainers
    from srl.models.config import GRU as GRU
    from srl.models.config import LSTM as LSTM
    from srl.models.config import MLP as MLP
    from srl.models.config import ActorCritic as ActorCritic
    from srl.models.config import PopArt as PopArt
    from srl.trained import Trained as Trained
    from srl.trained import load as load

_HOME = {
    "Actors": "srl.experiment",
    "ActorCritic": "srl.models.config",
    "Evaluate": "srl.experiment",
    "Experiment": "srl.experiment",
    "GRU": "srl.models.config",
    "IMPALA": "srl.algorithms.impala",
    "LSTM": "srl.models.config",
    "MLP": "srl.models.config",
    "PPO": "srl.algorithms.ppo",
    "Policies": "srl.experiment",
    "PopArt": "srl.models.config",
    "Stop": "srl.experiment",
    "Train": "srl.experiment",
    "Trained": "srl.trained",
    "Trainers": "srl.experiment",
    "load": "srl.trained",
    "train": "srl.control",
}
__all__ = [
    "GRU",
    "IMPALA",
    "LSTM",
    "MLP",
    "PPO",
    "ActorCritic",
    "Actors",
    "Evaluate",
    "Experiment",
    "Policies",
    "PopArt",
    "Stop",
    "Train",
    "Trained",
    "Trainers",
    "load",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'srl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
