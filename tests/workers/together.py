"""Learning in ranks, each in a process of its own, from parts of batches that one learner had whole."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from srl.algorithms import IMPALA, PPO
from srl.algorithms.ppo import VTrace
from srl.memory import Listener
from srl.models.config import LSTM, ActorCritic, PopArt
from srl.tree import tree_map
from srl.workers.ranks import Ranks
from tests.algorithms.acted import ACTION, MASK, OBS, play

ALL = {"normalise_obs": True, "popart": PopArt()}
WHOLE: dict[str, Any] = {
    "learning_rate": 1e-3,
    "epochs": 3,
    "minibatches": 1,
    "normalise_reward": True,
    "value_clip": 0.2,
}
KINDS: dict[str, tuple[Any, ActorCritic]] = {
    "ppo": (PPO(**WHOLE, target_kl=0.0008), ActorCritic(**ALL)),
    "ppo, lstm": (PPO(**WHOLE), ActorCritic(memory=LSTM(size=8), **ALL)),
    "ppo, v-trace": (PPO(**WHOLE, vtrace=VTrace()), ActorCritic(**ALL)),
    "ppo, compiled": (PPO(**WHOLE, compile=True), ActorCritic(shared=True)),
    "impala": (IMPALA(epochs=2, normalise_reward=True), ActorCritic(**ALL)),
}


class Learns:
    """A learner and the policy it improves."""

    def __init__(self, kind: str, ranks: Ranks | None = None) -> None:
        settings, model = KINDS[kind]
        self.policy = model.build(OBS, ACTION, MASK, seed=1)
        self.learner = settings.build(self.policy, **({"ranks": ranks} if ranks else {}))

    def step(self, batch: Any, at: int) -> dict[str, float]:
        return self.learner.step(batch, at / 100)

    def learned(self, stats: list[dict[str, float]]) -> dict[str, Any]:
        """The stats of all updates, and where they led."""
        parameters = self.policy.module.named_parameters()
        return {
            "stats": stats,
            "weights": self.policy.module.state_dict(),
            "gradients": {name: weight.grad for name, weight in parameters if weight.grad is not None},
            "state": self.learner.state_dict(),
        }


def whole(kind: str, updates: int) -> tuple[dict[str, Any], list[Any]]:
    """What one learner makes of batches in which its own policy acted, and the batches."""
    one, stats, batches = Learns(kind), [], []
    for at in range(updates):
        batches.append(play(one.policy, at))
        stats.append(one.step(batches[-1], at))
    return one.learned(stats), batches


def part_of(batch: Any, rank: int, count: int) -> Any:
    """A rank's columns."""
    columns = batch["valid"].shape[1]
    return tree_map(lambda leaf: leaf[:, columns * rank // count : columns * (rank + 1) // count], batch)


def learn(kind: str, batches: list[Any], ranks: Ranks) -> dict[str, Any]:
    """What one rank of several makes of its parts."""
    one = Learns(kind, ranks)
    return one.learned([one.step(part_of(batch, ranks.rank, ranks.count), at) for at, batch in enumerate(batches)])


def meet(rank: int, count: int, port: int, listener: int | None = None) -> Ranks:
    """A rank of this machine."""
    place = ("127.0.0.1", port)
    return Ranks(rank, count, place, here=place[0], device=torch.device("cpu"), listener=listener)


def in_ranks(kind: str, batches: list[Any], count: int, folder: Path) -> list[dict[str, Any]]:
    """What each of several ranks makes of its parts; the first lives here."""
    torch.save(batches, folder / "batches.pt")
    listener = Listener()
    port = listener.address[1]
    words = [str(count), str(port), kind, str(folder)]
    commands = [[sys.executable, "-m", "tests.workers.together", str(rank), *words] for rank in range(1, count)]
    others = [subprocess.Popen(command) for command in commands]
    try:
        ranks = meet(0, count, port, os.dup(listener.fds()[0]))
        first = learn(kind, batches, ranks)
        assert [other.wait(30) for other in others] == [0] * (count - 1)
    finally:
        listener.close()
        for other in others:
            other.kill()
            other.wait()
    return [first, *(torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(1, count))]


def main(rank: int, count: int, port: int, kind: str, folder: Path) -> None:
    """A rank other than the first."""
    torch.set_num_threads(1)
    batches = torch.load(folder / "batches.pt", weights_only=True)
    torch.save(learn(kind, batches, meet(rank, count, port)), folder / f"{rank}.pt")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4], Path(sys.argv[5]))
    # As workers end: gloo's threads may not survive that what they work on is taken apart before them.
    os._exit(0)
