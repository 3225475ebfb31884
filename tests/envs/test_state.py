"""Environments go on bit by bit from saved state, or say that they cannot; bytes from elsewhere do no harm."""

import random
import threading
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from srl.envs.fake import Masked, NativeVector, Nested, Recall
from srl.envs.state import captured, from_bytes, obstacle, restored, to_bytes
from srl.errors import UserError

STEPS = 200
PLAIN = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
TOYS = ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1"]
BODIES = ["InvertedPendulum-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Pusher-v5"]
START = [[0, 0], [0, 0]]


class Mode(Enum):
    CALM = 1
    WILD = 2


class Place(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Frozen:
    board: tuple
    turn: int


@dataclass
class Player:
    name: str
    health: float = 10.0
    friend: "Player | None" = None


class Slotted:
    __slots__ = ("__seen", "left")

    def __init__(self):
        self.__seen = 0

    def count(self):
        self.__seen += 1
        self.left = -self.__seen
        return self.__seen


class Everything(gymnasium.Env):
    """Holds state in every way that can be captured, and shows a digest of all of it."""

    start = Frozen((0,), 0)

    def __init__(self, length=30):
        self.observation_space = spaces.Dict({"x": spaces.Box(-9, 9, (14,), np.float64), "n": spaces.Discrete(5)})
        self.action_space = spaces.Discrete(3)
        self.length = length
        self.random, self.legacy, self.bits = random.Random(1), np.random.RandomState(2), np.random.MT19937(3)
        self.generators = [
            np.random.Generator(kind(0)) for kind in (np.random.PCG64, np.random.Philox, np.random.SFC64)
        ]
        self.draw = self.generators[0].random
        self.recent, self.counts, self.by_name = deque(maxlen=4), Counter(), defaultdict(list)
        self.order, self.seen = OrderedDict(), {3, 1, 2}
        self.players = [Player("a"), Player("b")]
        self.players[0].friend, self.players[1].friend = self.players[1], self.players[0]
        self.buffer = np.zeros((3, 4))
        self.window = self.buffer[1:, :2]
        self.turned = np.asfortranarray(np.zeros((5, 7)))
        self.mode, self.place, self.frozen, self.big = Mode.CALM, Place(0, 0), Everything.start, 0
        self.board, self.slotted, self.odd = START, Slotted(), np.float32(0.5)
        self.count = counter()
        self.scaled = partial(np.multiply, 0.5)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        self.last = self.recent
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        self.buffer += self.np_random.random((3, 4))
        self.window *= self.draw()
        self.turned = np.asfortranarray(self.turned + self.legacy.random_sample((5, 7)) + self.generators[1].normal())
        self.recent.append(self.buffer.sum())
        self.counts[int(action)] += 1
        self.by_name[f"ä{action}"].append((self.steps, self.recent))
        self.order[self.steps % 7] = self.order.pop(self.steps % 5, None)
        self.seen = {int(n) for n in self.bits.random_raw(4) % 8}
        self.mode = Mode.WILD if self.random.random() < 0.5 else Mode.CALM
        self.place = Place(self.place.y, self.place.x + action)
        self.frozen = Frozen((*self.frozen.board[-3:], self.steps), self.frozen.turn + 1)
        self.players.reverse()
        self.players[0].health -= float(self.generators[2].random())
        self.big = self.big * 7 + (1 << 90) + int(action)
        self.board = [row[:] for row in self.board]
        self.board[0][1] += self.count()
        self.odd = np.float32(self.odd * 1.1)
        return self.observe(), self.legacy.standard_normal(), self.steps == self.length, False, {}

    def observe(self):
        parts = [self.turned.sum(), sum(self.recent), len(self.by_name), self.odd, self.players[0].health]
        text = repr((self.counts, self.order, self.seen, self.mode, self.place, self.frozen, self.big, self.board))
        parts += [self.slotted.count(), len(text), self.scaled(self.steps)]
        parts += [player.friend.health for player in self.players]
        return {"x": np.array([*parts, *self.window.ravel()]), "n": self.observation_space.sample()["n"]}


def counter():
    count = 0

    def up():
        nonlocal count
        count += 1
        return count

    return up


def flat(value):
    """An observation as bytes, exactly."""
    if isinstance(value, dict):
        return b"".join(flat(part) for part in value.values())
    if isinstance(value, tuple):
        return b"".join(flat(part) for part in value)
    return np.asarray(value).tobytes()


def play(env, rng, steps, over=False):
    """What the environment gives; resets it where an episode has ended, vector environments do so by themselves."""
    rows = []
    vector = hasattr(env, "num_envs")
    space = env.action_space
    for _ in range(steps):
        if over and not vector:
            rows.append((flat(env.reset()[0]), "reset"))
            over = False
            continue
        action = space.low + (space.high - space.low) * rng.random(space.shape) if hasattr(space, "low") else None
        if action is None:
            action = rng.integers(0, space.nvec) if vector else int(rng.integers(space.n))
        else:
            action = action.astype(space.dtype)
        obs, reward, terminated, truncated, _ = env.step(action)
        over = np.any(terminated) or np.any(truncated)
        rows.append((flat(obs), flat(reward), flat(terminated), flat(truncated)))
    return rows, over


def check_resume(build, steps, reset_first=True):
    """Go on twice from the same moment: in the environment that came there, and in another one."""
    env = build()
    env.reset(seed=3)
    _, over = play(env, np.random.default_rng(1), steps)
    data = captured(env)
    assert data is not None, obstacle(env)
    data = from_bytes(to_bytes(data))
    expected, _ = play(env, np.random.default_rng(2), STEPS, over)
    again = build()
    if reset_first:
        again.reset(seed=99)
    assert restored(again, data) is again
    got, _ = play(again, np.random.default_rng(2), STEPS, over)
    assert got == expected
    assert len(set(expected)) > 1
    for one in (env, again):
        one.close()


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
@pytest.mark.parametrize("steps", [0, 7, 230])
@pytest.mark.parametrize("env", [*PLAIN, *TOYS])
def test_small_environments_go_on(env, steps):
    check_resume(partial(gymnasium.make, env), steps)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "Taxi-v4"])
def test_it_need_not_have_been_reset(env):
    check_resume(partial(gymnasium.make, env, disable_env_checker=True), 50, reset_first=False)


def test_an_end_is_a_moment_like_any_other():
    build = partial(gymnasium.make, "CartPole-v1")
    env = build()
    env.reset(seed=3)
    rng, steps, over = np.random.default_rng(1), 0, False
    while not over:
        _, over = play(env, rng, 1)
        steps += 1
    check_resume(build, steps)
    check_resume(build, steps + 1)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("env", BODIES)
def test_bodies_go_on(env):
    check_resume(partial(gymnasium.make, env), 60)


@pytest.mark.parametrize("wrap", ["stack", "normalise", "statistics", "all", "transform"])
def test_wrappers_go_on(wrap):
    def build():
        env = gymnasium.make("CartPole-v1")
        if wrap in ("stack", "all"):
            env = wrappers.FrameStackObservation(env, 4)
        if wrap in ("normalise", "all"):
            env = wrappers.NormalizeReward(wrappers.NormalizeObservation(env))
        if wrap in ("statistics", "all"):
            env = wrappers.RecordEpisodeStatistics(env)
        if wrap in ("transform", "all"):
            env = wrappers.TransformReward(env, lambda reward, scale=3: reward * scale)
        return env

    check_resume(build, 47)


@pytest.mark.parametrize("steps", [0, 31])
@pytest.mark.parametrize("mode", ["native", "sync", "wrapped"])
def test_vector_environments_go_on(mode, steps):
    def build():
        if mode == "sync":
            return SyncVectorEnv([Everything] * 3)
        env = gymnasium.make_vec("CartPole-v1", 5, vectorization_mode="vector_entry_point")
        return wrappers.vector.NormalizeObservation(env) if mode == "wrapped" else env

    if mode == "sync":
        env = build()
        env.reset(seed=1)
        assert captured(env) is not None, obstacle(env)
    check_resume(build, steps)


@pytest.mark.parametrize("env", [Everything, Recall, NativeVector, Masked, partial(Nested, length=9)])
def test_environments_of_ones_own_go_on(env):
    if env is Masked or isinstance(env, partial):
        one, other = env(), env()
        one.reset(seed=1)
        other.reset(seed=2)
        restored(other, captured(one))
        for _ in range(20):
            assert flat(one.reset()[0]) == flat(other.reset()[0])
    else:
        check_resume(env, 45)


def test_a_constant_of_the_module_is_not_written_into():
    env, again = Everything(), Everything()
    env.reset(seed=1)
    play(env, np.random.default_rng(0), 20)
    restored(again, captured(env))
    assert again.board == env.board != START
    assert START == [[0, 0], [0, 0]]
    assert Everything.start == Frozen((0,), 0) != again.frozen
    assert again.board is not START


def test_what_was_shared_stays_shared_and_what_others_hold_is_written_in_place():
    env, again = Everything(), Everything()
    for one in (env, again):
        one.reset(seed=1)
    play(env, np.random.default_rng(0), 20)
    held = again.buffer, again.recent, again.np_random
    restored(again, captured(env))
    assert (again.buffer, again.recent, again.np_random) == held or all(
        a is b for a, b in zip((again.buffer, again.recent, again.np_random), held, strict=True)
    )
    assert again.last is again.recent
    assert again.by_name["ä0"][0][1] is again.recent
    assert again.draw.__self__ is again.generators[0]
    assert np.shares_memory(again.window, again.buffer)
    assert again.players[0].friend is again.players[1]


def test_several_environments_and_what_is_kept_beside_them():
    build = partial(gymnasium.make, "CartPole-v1")
    envs, again = [build() for _ in range(3)], [build() for _ in range(3)]
    for i, env in enumerate(envs):
        env.reset(seed=i)
    data = captured({"envs": envs, "ended": [True, False, True], "flags": np.array([1, 0], bool)})
    thing = {"envs": again, "ended": [False] * 3, "flags": np.zeros(2, bool)}
    assert restored(thing, from_bytes(to_bytes(data))) is thing
    assert thing["ended"] == [True, False, True]
    np.testing.assert_array_equal(thing["flags"], [True, False])
    for one, other in zip(envs, again, strict=True):
        assert flat(one.step(1)[0]) == flat(other.step(1)[0])


class OwnState(gymnasium.Env):
    """Says itself what its state is, though it holds what could not be captured."""

    observation_space, action_space = spaces.Box(-99, 99, (1,), np.float64), spaces.Discrete(2)

    def __init__(self, state=True):
        self.lock, self.total, self.says = threading.Lock(), 0.0, state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = 0.0
        return np.array([0.0]), {}

    def step(self, action):
        self.total += self.np_random.normal()
        return np.array([self.total]), 0.0, abs(self.total) > 3, False, {}

    def get_state(self):
        return {"total": self.total} if self.says else None

    def set_state(self, data):
        self.np_random.random()
        self.total = data["total"]


def test_an_environment_may_say_itself_what_its_state_is():
    check_resume(OwnState, 20)
    check_resume(lambda: wrappers.TimeLimit(OwnState(), 17), 20)
    assert captured(OwnState(state=False)) is None
    assert "get_state() returns None" in obstacle(OwnState(state=False))


def test_methods_of_these_names_that_fail_are_told_and_others_are_not_called():
    class Breaks(OwnState):
        def get_state(self):
            return 1 / 0

    class Refuses(OwnState):
        def set_state(self, data):
            raise RuntimeError("I do not know this")

    class Other(OwnState):
        def set_state(self, place, speed):
            raise AssertionError

    assert "get_state() raises ZeroDivisionError" in obstacle(Breaks())
    with pytest.raises(UserError, match=r"set_state\(\) raises RuntimeError: I do not know this"):
        restored(Refuses(), captured(Refuses()))
    assert "lock" in obstacle(Other())


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.parametrize("env", ["LunarLander-v3", "BipedalWalker-v3"])
def test_what_lies_in_a_library_is_not_captured(env):
    made = gymnasium.make(env)
    made.reset(seed=0)
    assert captured(made) is None
    assert "b2World" in obstacle(made)
    made.close()


def test_atari_games_stepped_one_by_one_go_on_and_those_stepped_together_do_not():
    from ale_py.vector_env import AtariVectorEnv

    import srl.envs.atari

    srl.envs.atari.register("ALE/Pong-v5")
    check_resume(partial(gymnasium.make, "ALE/Breakout-v5", obs_type="ram"), 60)
    assert "ALEVectorInterface" in obstacle(AtariVectorEnv("pong", 2))


@pytest.mark.parametrize(
    "held",
    [
        threading.Lock(),
        threading.Thread(),
        open,
        (n for n in range(3)),
        iter([1]),
        np.array([None]),
        np.ma.array([1]),
        0x55D0C0FFEE00,
        np.int64(0x7F00C0FFEE00),
        np.random.default_rng(1).spawn(1) and None,
        memoryview(b"1"),
        "\ud800",
        type("Text", (str,), {})("x"),
        type("Numbers", (list,), {})([1]),
        random.SystemRandom(),
    ],
    ids=repr,
)
def test_what_cannot_be_taken_refuses_all(held):
    env = OwnState.__new__(gymnasium.Env)
    env.part = held
    if held is open or held is None:  # a function and nothing are constants
        assert captured(env) is not None
    else:
        assert captured(env) is None
        assert obstacle(env).startswith("it.part")


def test_a_process_a_file_or_a_pipe_refuses_all(tmp_path):
    import multiprocessing
    import subprocess

    env = gymnasium.Env()
    reader, writer = multiprocessing.Pipe()
    with subprocess.Popen(["true"]) as process, Path(tmp_path / "x").open("w") as file:
        for env.part in (reader, process, file):
            assert captured(env) is None
    reader.close()
    writer.close()


def test_a_generator_that_has_spawned_others_refuses():
    rng = np.random.default_rng(1)
    rng.spawn(1)
    assert "spawned" in obstacle([rng])


def test_a_set_whose_order_depends_on_its_past_refuses():
    rng, members = np.random.default_rng(0), {0}
    while (order := list(members)) == list({*order}):
        members ^= {int(rng.integers(100))}
    assert "order" in obstacle([members])
    assert obstacle([{1, 2, 3}]) is None


def test_state_that_does_not_fit_changes_nothing():
    env, other = gymnasium.make("CartPole-v1"), gymnasium.make("Pendulum-v1")
    env.reset(seed=1)
    other.reset(seed=2)
    before = to_bytes(captured(other))
    with pytest.raises(UserError, match=r"does not fit .*was a .*CartPoleEnv, and there is a .*PendulumEnv now"):
        restored(other, captured(env))
    assert to_bytes(captured(other)) == before


def test_a_changed_model_of_a_body_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env, again = gymnasium.make("InvertedPendulum-v5"), gymnasium.make("InvertedPendulum-v5")
    env.reset(seed=1)
    env.unwrapped.model.body_mass[1] *= 2
    with pytest.raises(UserError, match="changed its model"):
        restored(again, captured(env))


def test_arrays_that_no_longer_share_memory_are_refused():
    class Views(gymnasium.Env):
        def __init__(self, tied):
            self.whole = np.arange(6.0)
            self.part = self.whole[2:4] if tied else np.zeros(2)

    with pytest.raises(UserError, match="share their memory"):
        restored(Views(tied=False), captured(Views(tied=True)))
    again = Views(tied=True)
    again.whole[:] = 7
    restored(again, captured(Views(tied=True)))
    np.testing.assert_array_equal(again.part, [2, 3])
    assert again.part.base is again.whole


PLAIN_DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | arrays_of.arrays(
        st.sampled_from(["<f4", "<i8", "|b1", "<U3", "|S2", "<c8", ">u2"]), arrays_of.array_shapes(min_side=0)
    ),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


def equal(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@settings(deadline=None)
@given(PLAIN_DATA)
def test_plain_data_comes_back(value):
    data = captured([value])
    if data is None:
        assert "may be the address" in obstacle([value])
    else:
        assert equal(restored([], from_bytes(to_bytes(data))), [value])


def saved():
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=1)
    return to_bytes(captured(env))


SAVED = saved()


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_bytes_are_refused(data):
    text = bytearray(SAVED)
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] ^= data.draw(st.integers(1, 255))
    text = bytes(text[: data.draw(st.integers(0, len(text)))])
    if text != SAVED:
        with pytest.raises(UserError, match=r"not the state|checksum|cannot be read"):
            from_bytes(text)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_data_that_was_tampered_with_does_no_harm(data):
    """With a checksum that is right: it fits after all, or is refused and changes nothing."""
    import zlib

    body = bytearray(SAVED[16:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=5)
    before = to_bytes(captured(env))
    try:
        restored(env, from_bytes(SAVED[:12] + zlib.crc32(body).to_bytes(4, "little") + body))
    except UserError:
        assert to_bytes(captured(env)) == before


@pytest.mark.parametrize("text", [b"", b"x" * 100, SAVED[:12], SAVED + b"x"])
def test_other_bytes_are_refused(text):
    with pytest.raises(UserError, match=r"not the state|checksum"):
        from_bytes(text)


@pytest.mark.parametrize("value", [object(), 1 << 70, np.array([None]), np.zeros(2, "f4,i4")])
def test_what_is_not_captured_data_is_not_written(value):
    with pytest.raises(ValueError, match="cannot be written"):
        to_bytes({"x": value})
