"""Atari games against ale-py itself: the same frames, true scores, and the rows of an episode for each life."""

import sys

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium import registry
from PIL import Image

from srl.envs.atari import Atari
from srl.envs.base import EnvBatch, check_name, make
from srl.envs.gym import GymBatch, seeds
from srl.errors import UserError

from .arrays import arrays

FIRE = 1
SEED = 11
NAMES = ("frame", "reward", "terminated", "truncated", "score", "game_over")


def newest(obs):
    """The newest frame of each row of an observation, whether it comes alone or with those before it."""
    return obs[:, -1] if obs.ndim == 4 else obs


def play(batch, actions, seed=SEED):
    """All that the batch writes, each an array [steps, rows, ...]; the first frames come first."""
    out = arrays(batch)
    batch.reset(seed, out)
    rows = {name: [] for name in NAMES}
    first = newest(out["obs"]).copy()
    for action in actions:
        batch.step(action, out)
        rows["frame"].append(newest(out["obs"]).copy())
        for name in NAMES[1:]:
            rows[name].append(out[name].copy())
    batch.close()
    return first, {name: np.stack(column) for name, column in rows.items()}


def bare(game, size=1, **how):
    """The games as ale-py steps them."""
    return AtariVectorEnv(game, size, num_threads=1, reward_clipping=False, **how)


def some_actions(batch, steps, seed=0):
    return np.random.default_rng(seed).integers(0, batch.action.n[0], (steps, batch.size))


def literal(game, actions, seed, life_loss=False, **how):
    """The rows that one game must give, told from ale-py's own steps of that game alone."""
    env = bare(game, **how)
    _, info = env.reset(seed=np.array([seed]))
    rows, lives, now = [], info["lives"][0], "playing"
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(np.array([FIRE if now == "life lost" else action]))
        score, over, left = reward[0], bool(terminated[0] or truncated[0]), info["lives"][0]
        if now == "game over":
            row, now = (0, False, False, 0, False), "playing"
        elif now == "life lost":
            row, now = (0, False, False, score, over), "playing"
            if over:
                obs, info = env.reset(options={"reset_mask": np.array([True])})
                left = info["lives"][0]
        else:
            lost = life_loss and 0 < left < lives and not over
            row = (np.sign(score), bool(terminated[0] or lost), bool(truncated[0]), score, over)
            now = "game over" if over else "life lost" if lost else "playing"
        lives = left
        rows.append((newest(obs)[0].copy(), *row))
    return rows


def assert_rows(got, i, expected):
    for name, column in zip(NAMES, zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(got[name][:, i], np.array(column), err_msg=name)


@pytest.mark.parametrize(
    ("env", "game", "sticky"),
    [("PongNoFrameskip-v4", "pong", 0.0), ("ALE/Pong-v5", "pong", 0.25), ("BreakoutNoFrameskip-v0", "breakout", 0.25)],
)
def test_an_id_gives_the_frames_and_scores_of_ale_py(env, game, sticky):
    batch = make(env, 3)
    assert isinstance(batch, EnvBatch)
    assert (batch.size, batch.frames_per_step, batch.scored) == (3, 4, True)
    actions = some_actions(batch, 300)
    _, got = play(batch, actions)
    for i, seed in enumerate(seeds(SEED, 3)):
        assert_rows(got, i, literal(game, actions[:, i], seed, repeat_action_probability=sticky))


def test_sticky_actions_change_the_game():
    actions = some_actions(make("ALE/Pong-v5", 1), 100)
    exact, sticky = (play(make(env, 1), actions)[1]["frame"] for env in ("PongNoFrameskip-v4", "ALE/Pong-v5"))
    assert (exact != sticky).any()


def test_seeds_are_reproducible_and_distinct():
    actions = np.zeros((20, 4), np.int64)
    first, got = play(make("BreakoutNoFrameskip-v4", 4, {"noop_max": 30}), actions)
    again, same = play(make("BreakoutNoFrameskip-v4", 4, {"threads": 2}), actions)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(got["frame"], same["frame"])
    assert len({frames.tobytes() for frames in got["frame"].swapaxes(0, 1)}) == 4
    other, _ = play(make("BreakoutNoFrameskip-v4", 4), actions, seed=SEED + 1)
    assert (first != other).any()


def test_a_reset_begins_everything_again():
    batch = make("BreakoutNoFrameskip-v4", 2, {"life_loss": True})
    actions, out = some_actions(batch, 60), arrays(batch)
    for _ in range(2):
        batch.reset(SEED, out)
        for action in actions:
            batch.step(action, out)
    last = literal("breakout", actions[:, 0], seeds(SEED, 2)[0], life_loss=True)[-1]
    np.testing.assert_array_equal(newest(out["obs"])[0], last[0])
    assert out["score"][0] == last[4]


@pytest.mark.parametrize("clip", [True, False])
def test_scores_are_true_while_rewards_are_clipped(clip):
    batch = make("MsPacmanNoFrameskip-v4", 2, {"clip_rewards": clip})
    _, got = play(batch, some_actions(batch, 200))
    assert got["score"].max() >= 10
    np.testing.assert_array_equal(got["reward"], np.sign(got["score"]) if clip else got["score"])


@pytest.mark.parametrize("life_loss", [True, False])
@pytest.mark.parametrize("game", ["breakout", "space_invaders", "freeway"])
def test_rows_of_lives_and_of_games(game, life_loss):
    """Breakout waits for FIRE after a lost life, Space Invaders goes on by itself, Freeway has no lives."""
    batch = Atari(2, game=game, life_loss=life_loss, max_num_frames_per_episode=3000, fire_reset=game != "freeway")
    actions = some_actions(batch, 1000)
    _, got = play(batch, actions)
    how = {"max_num_frames_per_episode": 3000, "use_fire_reset": game != "freeway"}
    for i, seed in enumerate(seeds(SEED, 2)):
        assert_rows(got, i, literal(game, actions[:, i], seed, life_loss=life_loss, **how))
    assert got["game_over"].any()


def test_a_game_has_an_episode_for_each_life_and_one_score():
    batch = make("BreakoutNoFrameskip-v4", 1, {"life_loss": True})
    _, got = play(batch, some_actions(batch, 1500))
    ends, games = np.flatnonzero(got["terminated"]), np.flatnonzero(got["game_over"])
    assert len(games) >= 3
    lives = np.diff(np.searchsorted(ends, games, side="right"), prepend=0)
    np.testing.assert_array_equal(lives, 5)
    assert not (got["terminated"][1:] & got["terminated"][:-1]).any()  # a reset row follows each end
    for name in ("reward", "terminated", "truncated"):
        assert not got[name][ends[ends < 1499] + 1].any()


def test_full_games_are_one_episode():
    batch = make("BreakoutNoFrameskip-v4", 1)
    _, got = play(batch, some_actions(batch, 800))
    assert got["game_over"].any()
    np.testing.assert_array_equal(got["game_over"], got["terminated"] | got["truncated"])


def test_a_game_that_is_cut_is_truncated():
    batch = make("BreakoutNoFrameskip-v4", 1, {"max_num_frames_per_episode": 40})
    _, got = play(batch, some_actions(batch, 30))
    (cut,) = np.nonzero(got["truncated"][:, 0])
    assert len(cut) >= 2
    assert not got["terminated"].any()
    assert set(np.diff(cut)) == {11}  # ten steps of four frames, and the reset row


def test_a_game_that_ends_in_the_reset_row_of_a_life_is_counted_and_the_next_begins():
    actions = some_actions(make("BreakoutNoFrameskip-v4", 1), 200)
    seed = seeds(SEED, 1)[0]
    told = literal("breakout", actions[:, 0], seed, life_loss=True)
    end = next(t for t, row in enumerate(told) if row[2])
    how = {"max_num_frames_per_episode": 4 * (end + 2)}  # the game is cut in the row after the lost life
    told = literal("breakout", actions[:, 0], seed, life_loss=True, **how)
    _, got = play(make("BreakoutNoFrameskip-v4", 1, {"life_loss": True, **how}), actions)
    assert_rows(got, 0, told)
    assert got["game_over"][end + 1, 0]
    assert not (got["terminated"] | got["truncated"])[end + 1, 0]


def test_pictures_are_of_the_game_that_is_played():
    """In colour, of row 0, through lost lives and ends: always nearer to its frame than to that of row 1."""
    batch = make("ALE/Breakout-v5", 2, {"life_loss": True}, render_mode="rgb_array")
    out = arrays(batch)
    batch.reset(SEED, out)
    ends = 0
    for t, action in enumerate(some_actions(batch, 800)):
        batch.step(action, out)
        ends += int(out["game_over"][0])
        if t % 10 == 0 or out["terminated"][0]:
            picture = batch.render()
            assert (picture.shape, picture.dtype) == ((210, 160, 3), np.uint8)
            grey = np.asarray(Image.fromarray(picture).convert("L").resize((84, 84), Image.Resampling.BOX), int)
            mine, other = (np.abs(grey - frame).mean() for frame in newest(out["obs"]))
            assert mine < other
    assert ends >= 1
    batch.close()


def test_nothing_is_drawn_unless_asked_for():
    batch = make("PongNoFrameskip-v4", 1)
    play(batch, np.zeros((1, 1), np.int64))
    assert batch.render() is None
    with pytest.raises(UserError, match="open no window; record a video: srl play RUN --video FILE"):
        make("PongNoFrameskip-v4", 1, render_mode="human")


def test_the_bare_screen_of_a_game_is_an_environment_like_any_other():
    check_name("PongNoFrameskip-v4")
    assert isinstance(make("Pong-v4", 1), GymBatch)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("PonkNoFrameskip-v4", "'PonkNoFrameskip-v4' is registered .*did you mean 'PongNoFrameskip-v4'"),
        ("ALE/Breakot-v5", "did you mean 'ALE/Breakout-v5'"),
    ],
)
def test_an_unknown_id_is_refused_with_the_nearest_right_one(env, message):
    with pytest.raises(UserError, match=message):
        check_name(env)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "pomg"}, "no Atari game is called 'pomg'; did you mean 'pong'"),
        ({"frame_skip": 4}, "PongNoFrameskip-v4 cannot be built: .*'frame_skip'"),
        ({"frameskip": 0}, "Atari: frameskip is 0; it must be a whole number of at least 1"),
        ({"threads": 1.5}, "Atari: threads is 1.5; it must be a whole number"),
        ({"max_num_frames_per_episode": -1}, "max_num_frames_per_episode is -1"),
    ],
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(UserError, match=message):
        make("PongNoFrameskip-v4", 1, options)


@pytest.mark.parametrize("env", ["PongNoFrameskip-v4", "ALE/Pong-v5"])
def test_a_missing_package_is_named(monkeypatch, env):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.delitem(registry, env, raising=False)
    with pytest.raises(UserError, match=f"{env} needs ale-py; pip install 'srl\\[atari\\]'"):
        check_name(env)


def test_options_reach_the_games():
    assert make("PongNoFrameskip-v4", 1, {"full_action_space": True}).action.n == (18,)
    assert make("PongNoFrameskip-v4", 1).action.n == (6,)
    batch = make("PongNoFrameskip-v4", 1, {"frameskip": 2})
    assert batch.frames_per_step == 2
    actions = some_actions(batch, 20)
    _, got = play(batch, actions)
    assert_rows(got, 0, literal("pong", actions[:, 0], seeds(SEED, 1)[0], frameskip=2))
