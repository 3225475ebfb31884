"""A trained policy speaks the environment's own language: its observations in, its actions out."""

import dataclasses

import gymnasium
import numpy as np
import pytest
import torch

import srl
from srl import control
from srl.envs.fake import Masked, Nested, Recall
from srl.errors import UserError
from srl.experiment import Policies
from srl.models.config import ActorCritic, Auto, ResNet
from srl.params import file as checkpoints
from srl.recipes.ppo import ppo
from srl.runs import Run
from srl.settings import to_yaml

torch.set_num_threads(1)


class Bounds(gymnasium.Env):
    """Actions with bounds of their own for each element, which a fresh policy often leaves."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        low, high = np.array([-0.1, 5.0], np.float32), np.array([0.1, 6.0], np.float32)
        self.action_space = gymnasium.spaces.Box(low, high)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}


SMALL_IMAGES = ActorCritic(encoder=Auto(image=ResNet(channels=(4,), features=8)))
ENVS = {
    "nested": Nested,
    "bounds": Bounds,
    "recall": Recall,
    "masked": Masked,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that trains briefly on one of the environments, once, and gives the run's folder."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def one(name):
        if name not in made:
            memory = "lstm" if name == "recall" else "none"
            experiment = ppo(ENVS[name], steps=64, envs=4, rollout=8, hidden=(8,), memory=memory)
            experiment = dataclasses.replace(experiment, checkpoint_every=32)
            if name == "nested":
                experiment = dataclasses.replace(experiment, policies={"main": Policies(model=SMALL_IMAGES)})
            made[name] = control.train(experiment, launcher="serial", runs_folder=folder, name=name, quiet=True).path
        return made[name]

    return one


@pytest.mark.parametrize("name", ["nested", "bounds", "recall"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_actions_are_those_of_the_environment(trained, name, deterministic):
    policy, env = srl.load(trained(name)), ENVS[name]()
    obs, _ = env.reset(seed=1)
    state = None
    for _ in range(20):
        action, state = policy.predict(obs, state, deterministic)
        assert env.action_space.contains(action)
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            (obs, _), state = env.reset(), None


@pytest.mark.parametrize("name", ["nested", "bounds", "recall"])
def test_a_batch_of_observations_is_answered_row_by_row(trained, name):
    policy, env = srl.load(trained(name)), ENVS[name]()
    env.observation_space.seed(0)
    rows = [env.observation_space.sample() for _ in range(3)]
    together, state = policy.predict(stacked(rows))
    for at, row in enumerate(rows):
        alone, own = policy.predict(row)
        equal(pick(together, at), alone)
        equal(pick(state, slice(at, at + 1)), own)


def stacked(rows):
    """One observation whose leaves hold all rows."""
    if isinstance(rows[0], dict):
        return {key: stacked([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(stacked(list(parts)) for parts in zip(*rows, strict=True))
    return np.stack(rows)


def pick(value, at):
    if isinstance(value, dict):
        return {key: pick(child, at) for key, child in value.items()}
    return tuple(pick(child, at) for child in value) if isinstance(value, tuple) else value[at]


def equal(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        left, right = tuple(left.values()), tuple(right.values())
    if isinstance(left, tuple):
        for one, other in zip(left, right, strict=True):
            equal(one, other)
    else:
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def test_the_recurrent_state_carries_what_was_seen(trained):
    policy = srl.load(trained("recall"))
    obs = np.array([1, 0], np.float32)
    _, fresh = policy.predict(obs)
    _, again = policy.predict(obs)
    _, later = policy.predict(obs, fresh)
    equal(fresh, again)
    with pytest.raises(AssertionError):
        equal(fresh, later)


def test_only_legal_actions_are_taken(trained):
    policy, env = srl.load(trained("masked")), Masked()
    obs, info = env.reset(seed=1)
    for step in range(24):
        action, _ = policy.predict(obs, deterministic=step % 2 == 0, mask=info["action_mask"])
        obs, _, over, _, info = env.step(int(action))
        if over:
            obs, info = env.reset()


def test_the_weights_loaded_are_those_of_the_checkpoint(trained):
    path = trained("bounds")
    for which in ("latest", *(p.name for p in (path / "checkpoints" / "main").glob("step_*"))):
        policy = srl.load(path, which)
        assert checkpoints.sha256_of(policy.policy.module.state_dict()) == policy.meta["weights_sha256"]
    assert srl.load("bounds", runs_folder=str(path.parent)).meta["steps"] == 64


def test_the_best_is_preferred_where_there_is_one(trained):
    path = trained("masked")
    latest = checkpoints.load(path / "checkpoints" / "main", "latest")
    meta = {**latest.meta, "steps": 1}
    checkpoints.save(path / "checkpoints" / "main", latest.weights(), meta, None, "best")
    assert srl.load(path).meta["steps"] == 1
    assert srl.load(path, "latest").meta["steps"] == latest.meta["steps"] > 1


def test_what_is_not_there_is_named(trained):
    path = trained("bounds")
    with pytest.raises(UserError, match=r"bonds.*did you mean 'bounds'"):
        srl.load("bonds", runs_folder=str(path.parent))
    with pytest.raises(UserError, match="step_1"):
        srl.load(path, "step_1")


def test_a_run_cannot_choose_what_is_executed(trained, tmp_path):
    path, mark = trained("bounds"), tmp_path / "imported"
    module = tmp_path / "srl_test_evil.py"
    module.write_text(f"open({str(mark)!r}, 'w').close()")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "checkpoints").symlink_to(path / "checkpoints")
    text = (path / "experiment.yaml").read_text()
    (copy / "experiment.yaml").write_text(text.replace("srl.models.config:ActorCritic", "srl_test_evil:ActorCritic"))
    with pytest.raises(UserError, match="--trust srl_test_evil"):
        srl.load(copy)
    assert not mark.exists()


def test_no_environment_is_built(trained, tmp_path):
    path = trained("bounds")
    experiment = Run(path).experiment(srl.settings.trusting())
    actors = {"main": dataclasses.replace(experiment.actors["main"], env="nowhere:Nothing-v0")}
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "checkpoints").symlink_to(path / "checkpoints")
    (copy / "experiment.yaml").write_text(to_yaml(dataclasses.replace(experiment, actors=actors)))
    assert srl.load(copy).meta["steps"] == 64
