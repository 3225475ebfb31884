"""Making environments from names and callables, and what is said when that cannot be done."""

import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest

from srl.envs.base import EnvBatch, check_name, make, name_of_env
from srl.envs.fake import Bandit, Counting, NativeVector, Recall
from srl.envs.gym import GymBatch
from srl.envs.vector import VectorBatch
from srl.errors import UserError
from srl.tree import zeros

from .arrays import arrays

CLASSICS = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "LunarLander-v3", "FrozenLake-v1")
BODIES = ("HalfCheetah-v5", "Ant-v5", "Hopper-v5", "Walker2d-v5", "Humanoid-v5")
PLUGIN = """
import gymnasium
from srl.envs.fake import Counting
gymnasium.register("{id}", entry_point=Counting)
gymnasium.register("{id}Vector", vector_entry_point="srl.envs.fake:NativeVector")
number = 3
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A module that registers an id of its own."""
    (tmp_path / "srl_test_plugin.py").write_text(
        PLUGIN.replace("{id}Vector", "PluginVector-v0").replace("{id}", "Plugin-v0")
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "srl_test_plugin"
    for env_id in ("Plugin-v0", "PluginVector-v0"):
        gymnasium.registry.pop(env_id, None)


def play(batch, steps):
    out = arrays(batch)
    batch.reset(5, out)
    for _ in range(steps):
        batch.step(zeros(batch.action, batch.size), out)
    return out


@pytest.mark.parametrize("env", [*CLASSICS, *BODIES])
def test_known_environments_step_without_a_warning(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = make(env, 2)
        out = play(batch, 120)
        batch.close()
    assert isinstance(batch, EnvBatch)
    assert np.isfinite(out["reward"]).all()


def test_a_native_vector_environment_is_used_where_there_is_one():
    assert isinstance(make("CartPole-v1", 2), VectorBatch)
    assert isinstance(make("Acrobot-v1", 2), GymBatch)


@pytest.mark.parametrize(("mode", "adapter"), [("NextStep", VectorBatch), ("SameStep", GymBatch)])
def test_a_native_vector_environment_is_used_only_if_it_is_exact(mode, adapter):
    gymnasium.register("Fake-v0", entry_point=Counting, vector_entry_point=partial(NativeVector, mode=mode))
    try:
        assert isinstance(make("Fake-v0", 2, {"lengths": (3,)}), adapter)
    finally:
        gymnasium.registry.pop("Fake-v0")


def test_pictures_are_drawn_by_single_environments():
    assert isinstance(make("CartPole-v1", 1, render_mode="rgb_array"), GymBatch)


def test_an_id_of_a_module(plugin):
    assert isinstance(make(f"{plugin}:Plugin-v0", 2), GymBatch)
    assert isinstance(make(f"{plugin}:PluginVector-v0", 2), VectorBatch)
    with pytest.raises(UserError, match=r"'srl_test_plugin:Plugin-v7' is registered .*did you mean 'Plugin-v0'"):
        check_name(f"{plugin}:Plugin-v7")
    with pytest.raises(UserError, match="is a int; it must be a class or a function"):
        check_name(f"{plugin}:number")


def test_an_attribute_of_a_module_and_callables():
    for env in ("srl.envs.fake:Counting", Counting, partial(Counting, lengths=(2,)), lambda: Counting()):
        assert isinstance(make(env, 2), GymBatch)
    assert isinstance(make(lambda num_envs: make(Counting, num_envs), 2), GymBatch)
    assert isinstance(make("srl.envs.fake:NativeVector", 2), VectorBatch)
    assert isinstance(make(lambda: NativeVector(2), 2), VectorBatch)


def test_keyword_arguments_reach_every_environment():
    out = play(make("srl.envs.fake:Counting", 3, {"lengths": (2,)}), 2)
    assert out["terminated"].all()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("CartPole-v9", "'CartPole-v9' is registered with Gymnasium; did you mean 'CartPole-v1'"),
        ("LunarLander-v2", "did you mean 'LunarLander-v3'"),
        ("CartPole", "did you mean 'CartPole-v1'"),
        ("srl.envs.fake:Countin", "srl.envs.fake has no 'Countin'; did you mean 'Counting'"),
        ("srl.envs.nowhere:Counting", "no module 'srl.envs.nowhere'; is it installed or on PYTHONPATH"),
        (Counting(), "pass the class or a function"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest_right_one(env, message):
    with pytest.raises(UserError, match=message):
        check_name(env)


def test_a_module_that_lacks_something_itself_is_named(tmp_path, monkeypatch):
    (tmp_path / "srl_test_lacking.py").write_text("import srl_test_absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="importing 'srl_test_lacking' failed: No module named 'srl_test_absent'"):
        check_name("srl_test_lacking:Env")


@pytest.mark.parametrize("env", ["CartPole-v1", Recall, "srl.envs.fake:Recall"])
def test_right_names_are_accepted(env):
    check_name(env)


@pytest.mark.parametrize(
    ("env", "size", "kwargs", "message"),
    [
        ("Pendulum-v1", 1, {"gravitas": 1}, "Pendulum-v1 cannot be built: .*'gravitas'"),
        ("Pendulum-v1", 0, {}, "must be at least 1"),
        (lambda: NativeVector(2), 3, {}, "gives 2 environments, not 3; let it take the number as num_envs"),
        (lambda num_envs: Counting(), 1, {}, "gives a Counting; it must give an Env, or with num_envs"),
        (lambda: 5, 1, {}, "gives a int; it must give an Env"),
    ],
)
def test_what_cannot_be_built_says_so_in_one_line(env, size, kwargs, message):
    with pytest.raises(UserError, match=message):
        make(env, size, kwargs)


def test_a_missing_package_is_named(monkeypatch):
    gymnasium.register("Lacking-v0", entry_point="srl_test_absent:Env")
    try:
        with pytest.raises(UserError, match="Lacking-v0 cannot be built: No module named 'srl_test_absent'"):
            make("Lacking-v0", 1)
    finally:
        gymnasium.registry.pop("Lacking-v0")


def test_names_for_people():
    assert name_of_env("CartPole-v1") == "CartPole-v1"
    assert name_of_env(Counting) == "srl.envs.fake:Counting"
    assert name_of_env(partial(Counting, lengths=(2,))) == "srl.envs.fake:Counting"


@pytest.mark.parametrize("env", ["Acrobot-v1", "CartPole-v1", partial(Bandit, arms=10**6)])
def test_seeds_are_reproducible_and_distinct(env):
    def first(seed):
        batch = make(env, 4)
        out = {"obs": zeros(batch.obs, 4)}
        batch.reset(seed, out)
        return out["obs"]

    np.testing.assert_array_equal(first(7), first(7))
    assert (first(7) != first(8)).any()
    assert len(np.unique(first(7), axis=0)) == 4


def test_pictures_are_of_environment_0():
    for env in ("CartPole-v1", "Acrobot-v1"):
        batch = make(env, 2, render_mode="rgb_array")
        play(batch, 1)
        assert batch.render().ndim == 3
        batch.close()
    assert make("CartPole-v1", 1).render() is None
    assert make("Acrobot-v1", 1).render() is None
