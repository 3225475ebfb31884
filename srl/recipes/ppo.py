"""PPO for any Gymnasium environment."""

from __future__ import annotations

from typing import Any

from srl.algorithms.ppo import PPO
from srl.experiment import Experiment
from srl.recipes.graph import Act, Memory, Source, on_policy
from srl.recipes.placement import placed
from srl.recipes.tuned import settled

DEFAULTS = {
    "steps": 1_000_000,
    "envs": 32,
    "rollout": 128,
    "learning_rate": 3e-4,
    "anneal": False,
    "gamma": 0.99,
    "lam": 0.95,
    "clip": 0.2,
    "entropy": 0.01,
    "spread": 1.0,
    "epochs": 4,
    "minibatches": 4,
    "normalise": False,
    "popart": False,
    "hidden": (64, 64),
    "memory": "none",
    "shared": False,
    "threads": 1,
}


def ppo(
    env: Source = "CartPole-v1",
    *,
    seed: int = 1,
    steps: int | None = None,
    stop_at_reward: float | None = None,
    actors: int | None = None,
    ring: int = 1,
    envs: int | None = None,
    rollout: int | None = None,
    max_lag: int = 0,
    act: Act = "inline",
    policy_workers: int = 1,
    trainers: int = 1,
    device: str = "auto",
    threads: int | None = None,
    eval_every: int = 0,
    isolate: bool = False,
    learning_rate: float | None = None,
    anneal: bool | None = None,
    gamma: float | None = None,
    lam: float | None = None,
    clip: float | None = None,
    entropy: float | None = None,
    spread: float | None = None,
    epochs: int | None = None,
    minibatches: int | None = None,
    normalise: bool | None = None,
    popart: bool | None = None,
    hidden: tuple[int, ...] | None = None,
    memory: Memory | None = None,
    shared: bool | None = None,
    compile: bool | None = None,
) -> Experiment:
    """Proximal policy optimisation, for any Gymnasium environment.

    What is not given is what was tuned for the environment, or else the default in brackets.

    Args:
        env: a Gymnasium id, module:Id-v0, or module:attribute
        seed: everything random is drawn from it
        steps: steps to train on [1,000,000]
        stop_at_reward: stop early at this mean reward of the last 100 episodes
        actors: actor processes; picked for environment and machine if not given
        ring: rollouts per actor, which overlap stepping and inference when acting is remote
        envs: environments in all, shared out over the rollouts [32]
        rollout: steps of each environment per update [128]
        max_lag: how many versions old the data of an update may be; 0 is synchronous and reproducible
        act: where actions are computed: in the actors (inline), or in policy workers over shared memory (shm)
        policy_workers: policy workers, when acting is not inline
        trainers: trainers that share each batch and average their gradients
        device: where training and policy workers compute: auto, cpu, cuda, cuda:1
        threads: threads of each trainer; 0 lets the machine decide [1]
        eval_every: steps between two evaluations; 0 for none
        isolate: give each environment a process of its own, so that one that hangs or aborts costs only its own episode
        learning_rate: step size of Adam [0.0003]
        anneal: let the learning rate fall to 0 over the run [no]
        gamma: discount [0.99]
        lam: trace decay of the advantage estimate [0.95]
        clip: how far probability ratios may move [0.2]
        entropy: weight of the entropy bonus [0.01]
        spread: standard deviation of continuous actions at the start [1.0]
        epochs: passes over each batch [4]
        minibatches: parts of each pass [4]
        normalise: bring observations and rewards to a common scale [no]
        popart: let the value head follow the scale of returns [no]
        hidden: widths of the hidden layers [64,64]
        memory: recurrence: none, lstm, gru [none]
        shared: one encoder and memory for policy and value [no]
        compile: compile acting and learning; if not given, where that pays: small networks and long runs
    """
    return proximal("ppo", locals())


def proximal(name: str, given: dict[str, Any], **more: Any) -> Experiment:
    """The experiment of a recipe with these parameters, and more settings of the algorithm."""
    p = placed(settled(name, given, DEFAULTS))
    names = ("learning_rate", "anneal", "gamma", "lam", "clip", "entropy", "epochs", "minibatches", "compile")
    return on_policy(name, PPO(**{key: p[key] for key in names}, normalise_reward=p["normalise"], **more), p)
