"""The rows of every adapter and autoreset mode against a slow, literal account of one row's episodes."""

import warnings
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from srl.envs.base import make
from srl.envs.fake import ACTION_WEIGHT, Counting, Masked, NativeVector, turned

from .arrays import arrays

STEPS = 60
SIZE = 3
LENGTHS = [(5,), (1,), (2, 1, 4), (3, 1, 1, 2), (1, 1, 7)]
ENDS = ("terminated", "truncated", "both")
MODES = ["NextStep", "SameStep", "Disabled"]
ROW = ("obs", "reward", "terminated", "truncated")


def play(batch, actions, seed=0):
    """Everything the batch writes: for each name an array [STEPS, SIZE, ...]."""
    out = arrays(batch)
    batch.reset(seed, out)
    np.testing.assert_array_equal(out["obs"], np.zeros((batch.size, 2)))
    rows = {name: [] for name in ROW}
    for action in actions:
        batch.step(action, out)
        for name in ROW:
            rows[name].append(out[name].copy())
    return {name: np.stack(rows[name]) for name in ROW}


def literal(actions, lengths, ends, per_reset=1):
    """The rows of one environment that the step semantics ask for, told episode by episode.

    A reset moves on by `per_reset` episodes, since a vector environment may spend one on a throwaway step.
    """
    rows, episode, t = [], 0, 0
    while True:
        length, end = lengths[episode % len(lengths)], ends[episode % len(ends)]
        for step in range(1, length + 1):
            if t == len(actions):
                return rows
            over = step == length
            reward = step + ACTION_WEIGHT * actions[t]
            rows.append(([episode, step], reward, over and end != "truncated", over and end != "terminated"))
            t += 1
        if t == len(actions):
            return rows
        episode += per_reset
        rows.append(([episode, 0], 0, False, False))
        t += 1


def literal_same_step(actions, lengths, ends):
    """The rows of one environment that cannot be held still: one step of an episode passes in the reset row."""
    rows, episode, step, resetting = [], 0, 0, False
    for action in actions:
        length, end = lengths[episode % len(lengths)], ends[episode % len(ends)]
        step += 1
        over = step == length
        if resetting and over:
            episode, step = episode + 1, 0
            rows.append(([episode, 0], 0, False, False))
            resetting = False
            continue
        flags = (over and end != "truncated", over and end != "terminated")
        rows.append(([episode, step], step + ACTION_WEIGHT * action, *flags))
        resetting = over
        if over:
            episode, step = episode + 1, 0
    return rows


def assert_rows(got, i, expected):
    for name, column in zip(ROW, zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(got[name][:, i], np.array(column), err_msg=name)


def some_actions():
    return np.random.default_rng(1).integers(0, 2, (STEPS, SIZE))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_loop(lengths):
    actions = some_actions()
    got = play(make(partial(Counting, lengths=lengths, ends=ENDS), SIZE), actions)
    for i in range(SIZE):
        assert_rows(got, i, literal(actions[:, i], lengths, ENDS))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("mode", MODES)
def test_vector(mode, lengths):
    actions = some_actions()
    batch = make(NativeVector, SIZE, {"mode": mode, "lengths": lengths, "ends": ENDS})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*left out")
        got = play(batch, actions)
    for i in range(SIZE):
        mine = turned(lengths, i)
        if mode == "SameStep":
            expected = literal_same_step(actions[:, i], mine, ENDS)
        else:
            expected = literal(actions[:, i], mine, ENDS, per_reset=2 if mode == "Disabled" else 1)
        assert_rows(got, i, expected)


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_own_vector_environment(mode):
    """It gives final observations as an array of objects, and insists on being reset in DISABLED mode."""
    actions, lengths = some_actions(), (4, 2, 3)

    def vector(num_envs):
        build = partial(Counting, lengths=lengths, ends=ENDS)
        return SyncVectorEnv([build] * num_envs, autoreset_mode=mode)

    got = play(make(vector, SIZE), actions)
    for i in range(SIZE):
        if mode == "SameStep":
            expected = literal_same_step(actions[:, i], lengths, ENDS)
        else:
            expected = literal(actions[:, i], lengths, ENDS, per_reset=2 if mode == "Disabled" else 1)
        assert_rows(got, i, expected)


@pytest.mark.parametrize("mode", MODES)
def test_no_row_mixes_two_episodes(mode):
    """Two rows that follow each other belong to one episode, unless the first of them was an end's reset row."""
    batch = make(NativeVector, SIZE, {"mode": mode, "lengths": (3, 2, 5), "ends": ENDS})
    got = play(batch, some_actions())
    ended = got["terminated"] | got["truncated"]
    same_episode = got["obs"][1:, :, 0] == got["obs"][:-1, :, 0]
    np.testing.assert_array_equal(same_episode, ~ended[:-1])


def test_an_episode_lost_in_a_reset_row_is_told_once():
    batch = make(NativeVector, SIZE, {"mode": "SameStep", "lengths": (1,)})
    with pytest.warns(UserWarning, match="began and ended within a reset row") as told:
        got = play(batch, some_actions())
    assert len(told) == 1
    np.testing.assert_array_equal(got["terminated"][:, 0], np.arange(STEPS) % 2 == 0)


@pytest.mark.parametrize("where", ["info", "obs"])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_the_mask_of_every_row_holds_for_the_action_that_is_played(mode, where):
    """Masked raises on an illegal action, also on one chosen in a row that shows a final observation."""

    def vector(num_envs):
        return SyncVectorEnv([partial(Masked, where)] * num_envs, autoreset_mode=mode)

    batch = make(vector if mode else partial(Masked, where), SIZE)
    out, rng = arrays(batch), np.random.default_rng(0)
    batch.reset(0, out)
    ends = 0
    for _ in range(STEPS):
        assert out["mask"].any(axis=1).all()
        action = np.array([rng.choice(np.flatnonzero(row)) for row in out["mask"]])
        out = arrays(batch)
        batch.step(action, out)
        ends += int(out["terminated"].sum())
        if mode in (None, "NextStep"):
            assert out["mask"][out["terminated"]].all()
    assert ends >= SIZE
    seen = out["obs"]["seen"] if where == "obs" else out["obs"]
    assert seen.shape == (SIZE, 4)
