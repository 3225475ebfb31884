"""The fakes do what their names promise."""

import time

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from srl.envs.fake import Bandit, ConstantReward, Counting, Masked, Nested, Raises, Recall, Slow


def episode(env, policy, seed=None):
    """The return and length of one episode."""
    obs, _ = env.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy(obs))
        total, steps, over = total + reward, steps + 1, terminated or truncated
    return total, steps


@pytest.mark.parametrize("env", [Counting, Recall, Bandit, ConstantReward, Masked, Nested])
@pytest.mark.filterwarnings("ignore:.*:UserWarning:gymnasium")
def test_they_are_gymnasium_environments(env):
    made = env()
    made.reset(seed=0)
    if env is Masked:
        obs, info = made.reset(seed=0)
        assert made.observation_space.contains(obs)
        assert info["action_mask"].shape == (4,)
    else:
        check_env(made, skip_render_check=True, skip_close_check=True)


def test_recall_needs_memory():
    env = Recall()
    returns = [episode(env, lambda obs: 1, seed) for seed in range(200)]
    assert {steps for _, steps in returns} == {8}
    assert 0.4 < np.mean([total for total, _ in returns]) < 0.6
    seen = []

    def remembers(obs):
        seen.append(obs)
        return int(seen[-8][0] > 0) if obs[1] else 0

    assert all(episode(env, remembers)[0] == 1 for _ in range(50))
    asked = [tuple(obs) for obs in seen if obs[1]]
    assert set(asked) == {(0.0, 1.0)}


def test_bandit_pays_for_the_arm_it_shows():
    env = Bandit(arms=5)
    env.reset(seed=0)
    assert all(episode(env, lambda obs: obs) == (1.0, 1) for _ in range(10))
    assert all(episode(env, lambda obs: (obs + 1) % 5) == (0.0, 1) for _ in range(10))


def test_constant_reward_only_truncates():
    env = ConstantReward()
    env.reset(seed=0)
    flags = [env.step(0)[2:4] for _ in range(50)]
    assert flags == [(False, False)] * 49 + [(False, True)]


def test_masked_raises_on_an_illegal_action_and_ends_with_none():
    env = Masked()
    _, info = env.reset(seed=1)
    illegal = np.flatnonzero(info["action_mask"] == 0)
    with pytest.raises(ValueError, match="is illegal"):
        env.step(int(illegal[0]))
    over = False
    while not over:
        *_, over, _, info = env.step(int(np.argmax(info["action_mask"])))
    assert not info["action_mask"].any()


def test_raises_and_slow():
    env = Raises(after=2)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(RuntimeError, match="told to raise"):
        env.step(0)
    slow = Slow(0.02)
    slow.reset(seed=0)
    start = time.perf_counter()
    slow.step(0)
    assert time.perf_counter() - start >= 0.02


def test_nested_refuses_an_action_outside_its_space():
    env = Nested()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="is not in"):
        env.step({"gear": 5})
