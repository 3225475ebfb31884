"""EnvPool's environments: rows, scores and seeds, against a stand-in and, where it is installed, the real package."""

import sys

import numpy as np
import pytest

from srl.envs.base import EnvBatch, check_name, make
from srl.envs.envpool import source
from srl.envs.fake_envpool import PoolPackage
from srl.envs.gym import seeds
from srl.errors import UserError
from srl.settings import demand_trust, outside

from .arrays import arrays

SEED = 3
NAMES = ("obs", "reward", "terminated", "truncated", "score", "game_over")


def own_seeds(seed, size):
    """The seeds of the rows: a pool is seeded by one number, as every vector environment is."""
    return seeds(seeds(seed, 1)[0], size)


def fake(task, size, **options):
    return make(source(task, PoolPackage()), size, options)


def play(batch, actions, seed=SEED):
    """All that the batch writes, each an array [steps, rows, ...]."""
    out = arrays(batch)
    batch.reset(seed, out)
    rows = {name: [] for name in NAMES if name in out}
    for action in actions:
        batch.step(action, out)
        for name, column in rows.items():
            column.append(out[name].copy())
    return {name: np.stack(column) for name, column in rows.items()}


def literal(actions, seed, lives, life, limit, episodic):
    """The rows of one game, told life by life."""
    rows, game = [], 0
    actions = iter(actions.tolist())
    while True:
        age = 0
        for left in reversed(range(lives)):
            for step in range(1, life + 1):
                action, age = next(actions, None), age + 1
                if action is None:
                    return rows
                dies, cut = step == life, age == limit
                gone = dies and not left
                over = gone or cut
                ends = over or (dies and episodic)
                rows.append(([seed % 1000, game, age], 5 + action, ends and not cut, cut, over))
                if over:
                    game += 1
                if ends and next(actions, None) is None:
                    return rows
                if ends:
                    rows.append(([seed % 1000, game, 0 if over else age], 0, False, False, False))
                if over:
                    break
            if over:
                break


@pytest.mark.parametrize("limit", [1000, 3])
@pytest.mark.parametrize(
    ("task", "lives", "life", "episodic"),
    [("Count-v0", 1, 5, False), ("Lives-v5", 3, 2, False), ("Lives-v5", 3, 2, True)],
)
def test_rows(task, lives, life, episodic, limit):
    """The action of a reset row is ignored; with episodic lives each is an episode, and the score is of the game."""
    options = {"max_episode_steps": limit} | ({"episodic_life": True} if episodic else {})
    batch = fake(task, 3, **options)
    assert isinstance(batch, EnvBatch)
    assert batch.scored == (task == "Lives-v5")
    actions = np.random.default_rng(0).integers(0, 2, (40, 3))
    got = play(batch, actions)
    for i, seed in enumerate(own_seeds(SEED, 3)):
        told = [
            np.array(column) for column in zip(*literal(actions[:, i], seed, lives, life, limit, episodic), strict=True)
        ]
        np.testing.assert_array_equal(got["obs"][:, i], told[0])
        np.testing.assert_array_equal(got["terminated"][:, i], told[2])
        np.testing.assert_array_equal(got["truncated"][:, i], told[3])
        if batch.scored:
            np.testing.assert_array_equal(got["reward"][:, i], np.sign(told[1]))
            np.testing.assert_array_equal(got["score"][:, i], told[1])
            np.testing.assert_array_equal(got["game_over"][:, i], told[4])
        else:
            np.testing.assert_array_equal(got["reward"][:, i], told[1])


def test_rewards_are_clipped_unless_told_otherwise():
    actions = np.zeros((3, 1), int)
    assert play(fake("Lives-v5", 1), actions)["reward"].max() == 1
    assert play(fake("Lives-v5", 1, reward_clip=False), actions)["reward"].max() == 5


def test_frames_of_a_step():
    assert fake("Lives-v5", 1).frames_per_step == 4
    assert fake("Count-v0", 1).frames_per_step == 1


def test_another_seed_makes_the_pool_anew_and_the_same_one_begins_again():
    batch = fake("Count-v0", 2)
    out = arrays(batch)
    for seed in (0, 7, 7, 8):
        batch.reset(seed, out)
        np.testing.assert_array_equal(out["obs"], [[own % 1000, 0, 0] for own in own_seeds(seed, 2)])
        batch.step(np.zeros(2, int), out)


def test_a_pool_is_closed_when_another_takes_its_place_and_at_the_end():
    made = []

    class Package(PoolPackage):
        def make(self, task_id, env_type, **options):
            made.append(super().make(task_id, env_type, **options))
            return made[-1]

    batch = make(source("Count-v0", Package()), 2)
    batch.reset(1, arrays(batch))
    assert [pool.closed for pool in made] == [True, False]
    batch.close()
    assert made[-1].closed


def test_an_unknown_id_or_option_is_named():
    with pytest.raises(UserError, match="EnvPool has no environment 'Live-v5'; did you mean 'Lives-v5'"):
        source("Live-v5", PoolPackage())
    with pytest.raises(UserError, match=r"cannot be built: .*unexpected keyword argument 'lenght'"):
        fake("Count-v0", 1, lenght=3)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError, match=r"envpool:Pong-v5 needs envpool; pip install 'srl\[envpool\]'"):
        check_name("envpool:Pong-v5")


def test_its_ids_need_no_trust():
    settings = {"env": "envpool:Pong-v5"}
    demand_trust(settings)
    assert outside(settings) == []


@pytest.fixture
def envpool():
    """The real package."""
    return pytest.importorskip("envpool", reason="envpool is not installed: pip install 'srl[envpool]'")


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"max_episode_steps": 7}),
        ("HalfCheetah-v5", {"max_episode_steps": 20}),
        ("Breakout-v5", {"reward_clip": True}),
        ("Breakout-v5", {"reward_clip": True, "episodic_life": True}),
    ],
)
def test_rows_of_the_real_package(envpool, task, options):
    """What it gives is what a row must be: a reset row has no reward, ignores its action and begins an episode."""
    batch = make(f"envpool:{task}", 2, options)
    plain = envpool.make(task, env_type="gymnasium", num_envs=2, env_seed=own_seeds(SEED, 2), **options)
    plain.reset()
    rng = np.random.default_rng(0)
    kind = plain.action_space
    actions = rng.integers(0, kind.n, (500, 2)) if kind.dtype.kind == "i" else rng.uniform(-1, 1, (500, 2, *kind.shape))
    got = play(batch, actions)
    ended, ends = np.zeros(2, bool), 0
    for t, action in enumerate(actions):
        # Another action in a reset row: were it not ignored, the two would part.
        played = np.where(ended.reshape(2, *[1] * (action.ndim - 1)), 0, action)
        obs, reward, terminated, truncated, info = plain.step(played)
        for name, value in zip(NAMES, (obs.astype(batch.obs.dtype), reward, terminated, truncated), strict=False):
            np.testing.assert_array_equal(got[name][t], value.astype(got[name].dtype), err_msg=f"{name} at {t}")
        assert not reward[ended].any()
        assert not (terminated | truncated)[ended].any()
        if batch.scored:
            np.testing.assert_array_equal(got["score"][t], info["reward"])
            if options.get("episodic_life"):
                np.testing.assert_array_equal(got["game_over"][t], terminated & (info["lives"] == 0))
        ended = terminated | truncated
        ends += int(ended.sum())
    assert ends >= 3
