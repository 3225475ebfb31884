"""VizDoom's scenarios against its own wrapper: the same games, small pictures, honest ends."""

import os
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import registry, spaces

from srl.envs.base import EnvBatch, check_name, make
from srl.envs.gym import seeds
from srl.envs.vizdoom import Settled, register, shrunk
from srl.errors import UserError

from .arrays import arrays

pytest.importorskip("vizdoom", reason="vizdoom is not installed: pip install 'srl[vizdoom]'")
ENV = "VizdoomBasic-v1"
SEED = 4


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Doom leaves a folder where it runs."""
    monkeypatch.chdir(tmp_path)


def wrapped(**how):
    """One game as VizDoom's own wrapper gives it."""
    register(ENV)
    return gymnasium.make(ENV, frame_skip=4, screen_resolution="RES_160X120", disable_env_checker=True, **how)


def means(image, by):
    """The means of blocks, pixel by pixel."""
    height, width, channels = (image.shape[0] // by, image.shape[1] // by, image.shape[2])
    small = np.zeros((height, width, channels), np.uint8)
    for y in range(height):
        for x in range(width):
            small[y, x] = image[y * by : (y + 1) * by, x * by : (x + 1) * by].reshape(-1, channels).mean(0)
    return small


def test_rows_are_those_of_the_wrapper_but_for_the_ends():
    batch = make(ENV, 2)
    assert isinstance(batch, EnvBatch)
    assert (batch.frames_per_step, batch.scored, batch.obs["screen"].shape) == (4, False, (60, 80, 3))
    out, plain = arrays(batch), wrapped()
    batch.reset(SEED, out)
    seen, _ = plain.reset(seed=seeds(SEED, 2)[1])
    ended, ends = False, {"terminated": 0, "truncated": 0}
    for action in np.random.default_rng(0).integers(0, batch.action.n[0], (250, 2)):
        batch.step(action, out)
        if ended:
            (seen, _), reward, terminated, truncated = plain.reset(), 0, False, False
        else:
            obs, reward, terminated, truncated, _ = plain.step(int(action[1]))
            seen = seen if terminated or truncated else obs
        ended = terminated or truncated
        np.testing.assert_array_equal(out["obs"]["screen"][1], shrunk(seen["screen"], 2))
        np.testing.assert_array_equal(out["obs"]["gamevariables"][1], seen["gamevariables"])
        assert out["reward"][1] == reward
        assert (out["terminated"][1], out["truncated"][1]) == (terminated and not truncated, truncated)
        for name in ends:
            ends[name] += int(out[name][1])
    assert min(ends.values()) >= 1
    plain.close()
    batch.close()


def test_pictures_become_the_means_of_blocks():
    image = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    for by in (1, 2, 4):
        np.testing.assert_array_equal(shrunk(image, by), means(image, by))
    np.testing.assert_array_equal(shrunk(image, 4, "labels"), image[::4, ::4])


def test_options_reach_the_games():
    batch = make(ENV, 1, {"frame_skip": 10, "resolution": "200x150", "shrink": 5, "max_buttons_pressed": 0})
    out = arrays(batch)
    batch.reset(SEED, out)
    assert out["obs"]["screen"].shape == (1, 30, 40, 3)
    assert (batch.frames_per_step, batch.action.kind, batch.action.shape) == (10, "binary", (3,))
    steps, out["truncated"][:] = 0, False
    while not out["truncated"][0]:
        batch.step(np.zeros((1, 3), np.int8), out)
        steps += 1
    assert steps == 30  # of the 300 frames that the scenario lasts
    batch.close()


@pytest.mark.parametrize("env", ["VizdoomMyWayHome-v1", "VizdoomDeathmatch-v1", "VizdoomFreedoom1E1M1-S1-v0"])
def test_other_scenarios_step(env):
    batch = make(env, 1)
    out = arrays(batch)
    batch.reset(SEED, out)
    action = {"binary": np.zeros(1, int), "continuous": np.zeros((1, 3), np.float32)}
    batch.step(action if isinstance(batch.action, dict) else np.zeros((1, *batch.action.shape), int), out)
    assert all(part.any() for name, part in out["obs"].items() if name in ("screen", "automap"))
    batch.close()


def test_pictures_are_drawn_when_asked_for_and_no_settings_are_left_behind():
    batch = make(ENV, 2, render_mode="rgb_array")
    batch.reset(SEED, arrays(batch))
    assert batch.render().shape == (120, 160, 3)
    batch.close()
    assert os.listdir() in ([], ["_vizdoom"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_skip": 0}, "VizdoomBasic-v1: frame_skip is 0; it must be a whole number of at least 1"),
        ({"resolution": "160x12"}, "VizdoomBasic-v1: Doom has no resolution '160x12'; did you mean '160x120'"),
        ({"shrink": 3}, "VizdoomBasic-v1: 160x120 cannot be shrunk by 3"),
        ({"frameskip": 4}, r"VizdoomBasic-v1 cannot be built: .*'frameskip'"),
    ],
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(UserError, match=message):
        make(ENV, 1, options)


def test_an_unknown_id_is_refused_with_the_nearest_right_one():
    with pytest.raises(UserError, match="did you mean 'VizdoomBasic-v1'"):
        check_name("VizdoomBasik-v1")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "vizdoom.gymnasium_wrapper", None)
    monkeypatch.delitem(registry, ENV, raising=False)
    with pytest.raises(UserError, match=r"VizdoomBasic-v1 needs vizdoom; pip install 'srl\[vizdoom\]'"):
        check_name(ENV)


class Timed(gymnasium.Env):
    """Ends as VizDoom's wrapper does: both flags when time is up, and zeros in place of the final observation."""

    observation_space = spaces.Dict({"screen": spaces.Box(0, 255, (4, 4, 1), np.uint8)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.left = 3
        return {"screen": np.full((4, 4, 1), 30, np.uint8)}, {}

    def step(self, action):
        self.left -= 1
        over = self.left == 0
        shown = 0 if over or action else 10 * self.left
        return {"screen": np.full((4, 4, 1), shown, np.uint8)}, 1.0, over or bool(action), over, {}


@pytest.mark.parametrize(("actions", "flags", "seen"), [((0, 0, 0), (False, True), 10), ((0, 1), (True, False), 20)])
def test_an_end_is_one_thing_and_shows_what_was_seen_last(actions, flags, seen):
    env = Settled(Timed(), 2)
    env.reset()
    for action in actions:
        obs, _, *ends, _ = env.step(action)
    assert tuple(ends) == flags
    np.testing.assert_array_equal(obs["screen"], np.full((2, 2, 1), seen))
