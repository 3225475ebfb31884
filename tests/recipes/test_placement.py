"""What is picked for a machine follows the stated rule, and never against what was given."""

import pytest

from srl.recipes import placement
from srl.recipes.placement import ENOUGH_GRADIENT_STEPS, placed
from srl.recipes.ppo import ppo

OPEN = {
    "env": "srl.envs.fake:Counting",
    "actors": None,
    "ring": 1,
    "envs": 32,
    "threads": 1,
    "trainers": 1,
    "max_lag": 0,
    "memory": "none",
    "compile": None,
    "steps": 1_000_000,
    "rollout": 125,
    "epochs": 4,
    "minibatches": 5,
}


@pytest.fixture
def cores(monkeypatch):
    def have(count: int) -> None:
        monkeypatch.setattr(placement, "cores_here", lambda: count)

    return have


@pytest.mark.parametrize(
    ("machine", "given", "actors"),
    [
        (1, {}, 1),
        (2, {}, 2),
        (4, {}, 4),
        (64, {}, 8),
        (6, {}, 4),
        (4, {"ring": 2}, 4),
        (8, {"envs": 6}, 1),
        (8, {"env": "CartPole-v1"}, 1),
        (8, {"env": "LunarLander-v3"}, 8),
        (2, {"env": "PongNoFrameskip-v4", "envs": 16}, 2),
        (8, {"actors": 2}, 2),
        (8, {"trainers": 2}, 8),
        (6, {"trainers": 2}, 4),
        (1, {"trainers": 2}, 2),
        (8, {"trainers": 2, "env": "CartPole-v1"}, 2),
    ],
)
def test_actors(cores, machine, given, actors):
    cores(machine)
    assert placed(OPEN | given)["actors"] == actors


@pytest.mark.parametrize(
    ("machine", "given", "threads"),
    [
        (8, {}, 1),
        (8, {"threads": 0}, 8),
        (8, {"threads": 0, "max_lag": 1}, 4),
        (1, {"threads": 0, "max_lag": 1}, 1),
        (8, {"threads": 0, "trainers": 2}, 4),
        (1, {"threads": 0, "trainers": 2}, 1),
    ],
)
def test_threads(cores, machine, given, threads):
    cores(machine)
    assert placed(OPEN | given)["threads"] == threads


@pytest.mark.parametrize(
    ("gradient_steps", "given", "compiler", "compiled"),
    [
        (ENOUGH_GRADIENT_STEPS, {}, True, True),
        (ENOUGH_GRADIENT_STEPS - 1, {}, True, False),
        (ENOUGH_GRADIENT_STEPS, {}, False, False),
        (ENOUGH_GRADIENT_STEPS, {"memory": "lstm"}, True, False),
        (ENOUGH_GRADIENT_STEPS, {"compile": False}, True, False),
        (0, {"compile": True}, False, True),
    ],
)
def test_compiling(monkeypatch, gradient_steps, given, compiler, compiled):
    monkeypatch.setattr(placement, "has_compiler", lambda: compiler)
    steps = gradient_steps * 32 * 125 / (4 * 5)
    assert placed(OPEN | {"steps": steps} | given)["compile"] is compiled


def test_what_is_picked_reaches_the_experiment(cores, monkeypatch):
    cores(2)
    monkeypatch.setattr(placement, "has_compiler", lambda: True)
    game, body = ppo("PongNoFrameskip-v4"), ppo("HalfCheetah-v5")
    assert (game.actors["main"].count, game.trainers["main"].threads) == (2, 2)
    assert (body.actors["main"].count, body.trainers["main"].threads) == (2, 1)
    assert [experiment.policies["main"].compile for experiment in (game, body)] == [False, True]
    assert [experiment.trainers["main"].algorithm.compile for experiment in (game, body)] == [False, True]
