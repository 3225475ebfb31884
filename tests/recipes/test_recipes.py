"""Recipes give experiments without loose ends, from what is given, what is tuned, and defaults, in this order."""

import inspect
import math
from dataclasses import replace

import pytest

from srl.envs.base import check_name
from srl.errors import UserError
from srl.experiment import Experiment
from srl.flags import find_recipe, help_of
from srl.models.config import GRU, LSTM
from srl.recipes import BUILT_IN
from srl.recipes import impala as impala_module
from srl.recipes import ppo as ppo_module
from srl.recipes.appo import appo
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo
from srl.recipes.tuned import ATARI, FAMILIES, MUJOCO, TUNED, VIZDOOM

RECIPES = {
    "ppo": (ppo, ppo_module.DEFAULTS),
    "appo": (appo, ppo_module.DEFAULTS),
    "impala": (impala, impala_module.DEFAULTS),
}
PICKED = {"actors", "compile"}
"""Parameters that a rule picks, and no default."""
UNTUNED = "srl.envs.fake:Counting"


def test_every_built_in_recipe_is_known_here():
    assert {name: find_recipe(name) for name in BUILT_IN} == {name: recipe for name, (recipe, _) in RECIPES.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_needs_nothing_but_its_defaults(name):
    experiment = RECIPES[name][0]()
    assert isinstance(experiment, Experiment)
    assert experiment.check().name == name


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("memory", ["none", "lstm", "gru"])
@pytest.mark.parametrize(
    "shape", [{}, {"actors": 2, "ring": 2, "envs": 8, "act": "shm", "eval_every": 100, "max_lag": 2}]
)
def test_every_shape_checks(name, memory, shape):
    experiment = RECIPES[name][0](UNTUNED, memory=memory, **shape).check()
    group = experiment.actors["main"]
    assert group.count * group.ring * group.envs == shape.get("envs", 32)
    assert experiment.streams["main"].batch == group.count * group.ring
    assert ("eval" in experiment.actors) == bool(shape)


@pytest.mark.parametrize("name", RECIPES)
def test_environments_may_have_processes_of_their_own(name):
    for isolate in (False, True):
        groups = RECIPES[name][0](UNTUNED, isolate=isolate, eval_every=100).actors
        assert {key: group.isolate for key, group in groups.items()} == {"main": isolate, "eval": isolate}


@pytest.mark.parametrize("name", RECIPES)
def test_parameters_and_their_help_agree(name):
    recipe, defaults = RECIPES[name]
    parameters = inspect.signature(recipe).parameters
    assert list(help_of(recipe)) == list(parameters)
    assert set(defaults) <= set(parameters)
    unset = {key for key, parameter in parameters.items() if parameter.default is None}
    assert unset - {"stop_at_reward"} - PICKED == set(defaults)
    shown = {True: "yes", False: "no", None: "none"}
    for key, value in defaults.items():
        text = help_of(recipe)[key].rpartition("[")[2].rstrip("]").replace(",", "")
        said = (
            shown[value] if isinstance(value, bool) else "".join(map(str, value)) if isinstance(value, tuple) else value
        )
        assert text in (str(said), str(said).replace("(", "")) or float(text) == float(said), key


@pytest.mark.parametrize("name", RECIPES)
def test_tuned_settings_are_parameters_and_their_environments_exist(name):
    recipe, _ = RECIPES[name]
    for env, settings in TUNED[name].items():
        check_name(env)
        assert set(settings) <= set(inspect.signature(recipe).parameters)
        recipe(env).check()


@pytest.mark.parametrize("name", FAMILIES)
def test_settings_of_families_are_parameters(name):
    for settings in FAMILIES[name].values():
        assert set(settings) <= set(inspect.signature(RECIPES[name][0]).parameters)


@pytest.mark.parametrize(
    ("env", "family"),
    [
        ("ALE/Pong-v5", ATARI),
        ("SpaceInvadersNoFrameskip-v4", ATARI),
        ("VizdoomBasic-v1", VIZDOOM),
        ("HalfCheetah-v5", MUJOCO),
        ("Ant-v5", MUJOCO),
        ("Hopper-v5", MUJOCO),
        ("Walker2d-v5", MUJOCO),
        ("Humanoid-v5", MUJOCO),
        ("envpool:Humanoid-v5", MUJOCO),
        ("envpool:HalfCheetah-v5", {**MUJOCO, "gamma": 0.98}),
        ("envpool:Pong-v5", ATARI),
    ],
)
def test_an_environment_has_the_settings_of_its_family(env, family):
    experiment = ppo(env).check()
    trainers, actors = experiment.trainers["main"], experiment.actors["main"]
    assert (experiment.stop.steps, actors.count * actors.envs, experiment.streams["main"].rollout) == (
        family["steps"],
        family["envs"],
        family["rollout"],
    )
    for name in ("learning_rate", "anneal", "entropy", "epochs", "minibatches"):
        assert getattr(trainers.algorithm, name) == family[name]
    assert trainers.algorithm.normalise_reward == family.get("normalise", False)
    assert experiment.policies["main"].model.normalise_obs == family.get("normalise", False)


def test_what_is_given_beats_what_is_tuned_and_that_the_default():
    tuned = TUNED["ppo"]["CartPole-v1"]
    assert ppo().trainers["main"].algorithm.learning_rate == tuned["learning_rate"]
    assert ppo().stop.reward == tuned["stop_at_reward"]
    assert ppo(learning_rate=0.5).trainers["main"].algorithm.learning_rate == 0.5
    assert ppo(UNTUNED).trainers["main"].algorithm.learning_rate == ppo_module.DEFAULTS["learning_rate"]
    assert ppo(UNTUNED).stop.reward is None


def test_what_is_given_counts_even_if_it_is_nothing():
    assert ppo(anneal=False).trainers["main"].algorithm.anneal is False
    assert ppo("Pendulum-v1", entropy=0.0).trainers["main"].algorithm.entropy == 0.0
    assert ppo(UNTUNED, hidden=()).policies["main"].model.encoder.vector.hidden == ()


def test_parameters_reach_their_settings():
    experiment = ppo(
        UNTUNED, seed=5, steps=7, rollout=24, device="cpu", threads=2, memory="lstm", normalise=True, clip=0.3
    )
    trainers, model = experiment.trainers["main"], experiment.policies["main"].model
    assert (experiment.seed, experiment.stop.steps, experiment.streams["main"].rollout) == (5, 7, 24)
    assert (trainers.device, trainers.threads, trainers.algorithm.clip) == ("cpu", 2, 0.3)
    assert model.memory == LSTM()
    assert model.normalise_obs
    assert trainers.algorithm.normalise_reward
    assert ppo("Pendulum-v1", spread=0.5).policies["main"].model.gaussian.init_log_std == math.log(0.5)
    assert ppo(memory="gru").policies["main"].model.memory == GRU()


@pytest.mark.parametrize("rollout", [1, 7, 16, 24, 48])
def test_recurrent_states_are_stored_so_that_chunks_fill_the_rollout(rollout):
    train = ppo(UNTUNED, memory="lstm", rollout=rollout).streams["main"]
    assert train.rollout % train.chunk == 0
    assert ppo(UNTUNED, rollout=rollout).streams["main"].chunk is None


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"envs": 7, "actors": 2}, "envs.*7.*multiple"),
        ({"envs": 2, "actors": 4}, "envs.*2.*multiple"),
        ({"actors": 0}, "actors"),
        ({"memory": "lstn"}, "memory"),
        ({"rollout": 0}, "rollout"),
        ({"max_lag": -1}, "max_lag"),
        ({"hidden": (0,)}, "hidden"),
        ({"clip": -1.0}, "clip"),
        ({"spread": 0.0}, "spread is 0.0"),
        ({"act": "shn"}, "did you mean 'shm'"),
    ],
)
def test_parameters_that_make_no_sense_are_named(parameters, said):
    with pytest.raises(UserError, match=said):
        ppo(**parameters)


def test_appo_is_ppo_that_runs_ahead_and_corrects_for_it():
    experiment, plain = appo(UNTUNED, steps=7, actors=1), ppo(UNTUNED, steps=7, actors=1, max_lag=1)
    algorithm = experiment.trainers["main"].algorithm
    assert algorithm.vtrace is not None
    assert replace(algorithm, vtrace=None) == plain.trainers["main"].algorithm
    assert experiment.streams == plain.streams
    assert appo(UNTUNED, max_lag=3).streams["main"].max_lag == 3
    with pytest.raises(TypeError, match="max_leg"):
        appo(UNTUNED, max_leg=3)
