"""Environments that write into arrays: their rows, what is copied, and what cannot be served."""

import warnings

import numpy as np
import pytest
from gymnasium import spaces

from srl.envs.base import EnvBatch, make
from srl.envs.fake import ACTION_WEIGHT, WritesInPlace, turned
from srl.errors import UserError

from .arrays import arrays

STEPS, SIZE = 60, 3
ENDS = ("terminated", "truncated", "both")
NAMES = ("obs", "reward", "terminated", "truncated")


def play(batch, actions, seen=None):
    """All that the batch writes; every step is given other memory, as segments do, and that is never clean."""
    out = arrays(batch)
    batch.reset(0, out)
    rows = [out]
    for action in actions:
        rows.append(arrays(batch))
        rows[-1]["obs"][:] = -1
        batch.step(action, rows[-1])
        if seen:
            seen(rows[-1])
    return {name: np.stack([row[name] for row in rows[1:]]) for name in NAMES}


def literal(actions, lengths, ends):
    """The rows of one environment that ends and begins again within a step, told step by step."""
    rows, episode, step, resetting = [], 0, 0, False
    for action in actions:
        length, end = lengths[episode % len(lengths)], ends[episode % len(ends)]
        step += 1
        over = step == length
        if over:
            episode, step = episode + 1, 0
        told = over and not resetting
        reward = 0 if over and resetting else (length if over else step) + ACTION_WEIGHT * action
        rows.append(([episode, step], reward, told, told and end != "terminated"))
        resetting = told
    return rows


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("lengths", [(5,), (2, 1, 4), (3, 1, 1, 2), (1,)])
def test_rows(lengths, moves):
    """A row after an end shows the next episode's first observation; what is truncated counts as terminated, too."""
    actions = np.random.default_rng(1).integers(0, 2, (STEPS, SIZE))
    batch = make(WritesInPlace, SIZE, {"lengths": lengths, "ends": ENDS, "buffers_move": moves})
    assert isinstance(batch, EnvBatch)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*left out")
        got = play(batch, actions)
    for i in range(SIZE):
        columns = zip(*literal(actions[:, i], turned(lengths, i), ENDS), strict=True)
        for name, column in zip(NAMES, columns, strict=True):
            np.testing.assert_array_equal(got[name][:, i], np.array(column), err_msg=name)


@pytest.mark.parametrize(("moves", "copies"), [(True, 0), (False, 4 * STEPS)])
def test_what_is_handed_over_is_not_copied(moves, copies):
    """The rest is copied once: four arrays in each step."""
    made = WritesInPlace(SIZE, buffers_move=moves)
    attributes = dict(zip(NAMES, ("observations", "rewards", "terminals", "truncations"), strict=True))
    copied = []

    def seen(row):
        copied.extend(name for name, own in attributes.items() if not np.shares_memory(row[name], getattr(made, own)))

    play(make(lambda num_envs: made, SIZE), np.zeros((STEPS, SIZE), int), seen)
    assert len(copied) == copies


def test_memory_is_given_back_at_the_end():
    made = WritesInPlace(SIZE, buffers_move=True)
    own = made.observations
    batch = make(lambda num_envs: made, SIZE)
    play(batch, np.zeros((2, SIZE), int))
    assert made.observations is not own
    batch.close()
    assert made.observations is own


def test_wide_numbers_are_copied_even_if_the_arrays_could_move():
    """Policies see float64 as float32, so the environment cannot write where they look."""

    class Wide(WritesInPlace):
        def __init__(self, num_envs):
            super().__init__(num_envs, buffers_move=True)
            self.single_observation_space = spaces.Box(0, np.inf, (2,), np.float64)
            self.observations = self.observations.astype(np.float64)

    got = play(make(Wide, 1), np.zeros((4, 1), int))
    np.testing.assert_array_equal(got["obs"][:, 0], [[0, 1], [0, 2], [0, 3], [0, 4]])
    assert got["obs"].dtype == np.float32


def test_an_episode_lost_in_a_reset_row_is_told_once():
    batch = make(WritesInPlace, SIZE, {"lengths": (1,)})
    with pytest.warns(UserWarning, match="began and ended within a reset row") as told:
        got = play(batch, np.zeros((STEPS, SIZE), int))
    assert len(told) == 1
    np.testing.assert_array_equal(got["terminated"][:, 0], np.arange(STEPS) % 2 == 0)


def test_a_reset_begins_everything_again():
    batch = make(WritesInPlace, SIZE, {"lengths": (2,)})
    for _ in range(2):
        assert play(batch, np.zeros((2, SIZE), int))["terminated"][-1].all()


def test_absent_agents_are_refused():
    made = WritesInPlace(SIZE)
    batch = make(lambda num_envs: made, SIZE)
    out = arrays(batch)
    batch.reset(0, out)
    made.masks[1] = False
    with pytest.raises(UserError, match=r"masks say that agents \[1\] are absent"):
        batch.step(np.zeros(SIZE, int), out)


def test_arrays_of_another_shape_are_named():
    class Narrow(WritesInPlace):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            self.observations = self.observations[:, :1]

    with pytest.raises(UserError, match=r"observations has shape \(3, 1\); num_agents and the space say \(3, 2\)"):
        make(Narrow, 3)


def test_an_observation_that_is_no_array_is_named():
    class Apart(WritesInPlace):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            self.single_observation_space = spaces.Discrete(3)

    with pytest.raises(
        UserError, match="observation is a Discrete space; an environment that writes in place has a Box"
    ):
        make(Apart, 3)


def test_more_rows_than_asked_for_are_refused():
    with pytest.raises(UserError, match="gives 4 environments, not 2"):
        make(lambda num_envs: WritesInPlace(2 * num_envs), 2)
