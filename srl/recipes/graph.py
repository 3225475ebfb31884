"""What on-policy recipes share: the graph in which actors feed one trainer, the model, and variants of a recipe."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from srl.errors import UserError
from srl.experiment import Actors, Algorithm, Evaluate, Experiment, Model, Policies, Stop, Train, Trainers
from srl.models.config import GRU, LSTM, MLP, ActorCritic, Auto, Gaussian, PopArt

Source = str | Callable[..., Any]
Act = Literal["inline", "shm", "net"]
Memory = Literal["none", "lstm", "gru"]

CHUNK = 16
"""Steps of the pieces that recurrent policies are trained on."""
EVAL_EPISODES = 20


def on_policy(name: str, algorithm: Algorithm, p: dict[str, Any]) -> Experiment:
    """The experiment in which every rollout of every actor gives one segment to each update; `p` is placed."""
    env, rollouts = p["env"], p["actors"] * p["ring"]
    if rollouts < 1 or p["envs"] < rollouts or p["envs"] % rollouts:
        raise UserError(f"envs ({p['envs']}) must be a multiple of actors x ring ({p['actors']} x {p['ring']})")
    main = Actors(env=env, count=p["actors"], ring=p["ring"], envs=p["envs"] // rollouts, isolate=p["isolate"])
    groups = {"main": main}
    if p["eval_every"]:
        evaluate = Evaluate(every=p["eval_every"], episodes=EVAL_EPISODES)
        played = replace(main, count=1, ring=1, envs=EVAL_EPISODES // 2, train=None, explore=False)
        groups["eval"] = replace(played, evaluate=evaluate)
    return Experiment(
        name=name,
        actors=groups,
        policies={
            "main": Policies(
                model=_model(p), act=p["act"], count=p["policy_workers"], device=p["device"], compile=p["compile"]
            ),
        },
        trainers={"main": Trainers(algorithm=algorithm, count=p["trainers"], device=p["device"], threads=p["threads"])},
        streams={"main": Train(rollout=p["rollout"], batch=rollouts, max_lag=p["max_lag"], chunk=_chunk(p))},
        stop=Stop(steps=p["steps"], reward=p["stop_at_reward"]),
        seed=p["seed"],
    )


def same_parameters(recipe: Callable[..., Experiment], **defaults: Any) -> Callable[..., Any]:
    """Decorates a recipe of `**given` that takes what another takes, with these defaults in place of its own."""
    parameters = inspect.signature(recipe).parameters.values()
    signature = inspect.Signature([p.replace(default=defaults.get(p.name, p.default)) for p in parameters])
    _, heading, section = (inspect.getdoc(recipe) or "").partition("Args:\n")

    def decorate(variant: Callable[..., Experiment]) -> Callable[..., Experiment]:
        @functools.wraps(variant)
        def made(*args: Any, **named: Any) -> Experiment:
            bound = signature.bind(*args, **named)
            bound.apply_defaults()
            return variant(**bound.arguments)

        made.__dict__.update(__signature__=signature, __wrapped__=recipe)
        made.__annotations__ = dict(recipe.__annotations__)
        made.__doc__ = f"{inspect.getdoc(variant)}\n\n{heading}{section}"
        return made

    return decorate


def _model(p: dict[str, Any]) -> Model:
    memories = {"none": None, "lstm": LSTM(), "gru": GRU()}
    if p["memory"] not in memories:
        raise UserError(f"memory must be one of {', '.join(memories)}, not {p['memory']!r}")
    return ActorCritic(
        encoder=Auto(vector=MLP(hidden=p["hidden"])),
        memory=memories[p["memory"]],
        shared=p["shared"],
        normalise_obs=p["normalise"],
        popart=PopArt() if p.get("popart") else None,
        gaussian=_gaussian(p.get("spread", 1.0)),
    )


def _gaussian(spread: float) -> Gaussian:
    if spread <= 0:
        raise UserError(f"spread is {spread}; a standard deviation is above 0")
    return Gaussian(init_log_std=math.log(spread))


def _chunk(p: dict[str, Any]) -> int | None:
    if p["memory"] == "none":
        return None
    return CHUNK if p["rollout"] % CHUNK == 0 else p["rollout"]
