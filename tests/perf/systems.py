"""Environments with large observations, a policy that does nothing, and all edges between them in one thread."""

from functools import partial

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from srl.envs.base import make
from srl.memory import Channel, Memory
from srl.streams.asked import ActServer
from srl.streams.base import Shapes, reply_spec
from srl.streams.inline import InlineClient
from srl.streams.shm import (
    CREDIT,
    FULL,
    LANE,
    Lane,
    Segments,
    ShmActClient,
    ShmAsked,
    ShmConsumer,
    ShmProducer,
    act_bytes,
)
from srl.tree import Spec, index, zeros
from srl.workers.actor import Actor, Rollout
from srl.workers.loader import Loader
from srl.workers.policy import PolicyWorker

from .counting import plain

ROWS, ROLLOUT = 4, 6
WIDTH = 2**18
"""Bytes of one environment's observation."""
STEP = ROWS * WIDTH
"""Bytes of the observations of one time step."""
CPU = torch.device("cpu")


def pictures(width):
    """The space of observations of so many bytes."""
    return spaces.Box(0, 255, (width,), np.uint8)


class Lends:
    """Writes as C code does, which numpy does not see: into its own arrays, or into those it is lent."""

    def __init__(self, num_envs, buffers_move=False, width=WIDTH):
        self.num_agents, self.buffers_move = num_envs, buffers_move
        self.single_observation_space, self.single_action_space = pictures(width), spaces.Discrete(2)
        self.observations = np.zeros((num_envs, width), np.uint8)
        self.rewards = np.zeros(num_envs, np.float32)
        self.terminals, self.truncations = np.zeros((2, num_envs), bool)

    def reset(self, seed=None):
        plain(self.observations)[:] = 1

    def step(self, actions):
        plain(self.observations)[:] += 1

    def close(self):
        pass


class Vector(VectorEnv):
    """A vector environment that keeps its observations in one array of its own."""

    def __init__(self, num_envs=1, width=WIDTH):
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = pictures(width), spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._obs = np.zeros((num_envs, width), np.uint8)
        self._result = np.zeros(num_envs), *np.zeros((2, num_envs), bool), {}

    def reset(self, *, seed=None, options=None):
        return self._obs, {}

    def step(self, actions):
        self._obs += 1
        return self._obs, *self._result


class Single(gymnasium.Env):
    """One environment that keeps its observation in an array of its own."""

    def __init__(self):
        self.observation_space, self.action_space = pictures(WIDTH), spaces.Discrete(2)
        self._obs = np.zeros(WIDTH, np.uint8)

    def reset(self, *, seed=None, options=None):
        return self._obs, {}

    def step(self, action):
        self._obs += 1
        return self._obs, 0.0, False, False, {}


class Deaf:
    """A batch of environments that does nothing at all."""

    size, scored = ROWS, False

    def reset(self, seed, out):
        pass

    def step(self, action, out):
        pass


LENT = partial(Lends, buffers_move=True)
ENVIRONMENTS = {"lent": (LENT, 0), "in place": (Lends, 1), "vector": (Vector, 1), "single": (Single, 1)}
"""How each kind is built, and how often an observation is copied from its own array into the segment."""


class Still:
    """Gives the same reply to everything, and keeps the last request."""

    def __init__(self, reply):
        self.reply = reply
        self.request = None

    def act(self, request):
        self.request = request
        return index(self.reply, slice(len(request["first"])))


class Newest:
    """Weights that never change and are newer than any credit asks for."""

    version = 10**9

    def refresh(self):
        return False


def shapes_with(obs, action=None):
    action = action or Spec((), "int64", "discrete", (2,), (0,))
    real = Spec((), "float32")
    return Shapes(obs, action, None, {}, {"log_prob": real, "value": real}, 1, {})


class System:
    """An actor, a policy worker if it is to have one, and a trainer's end of the stream, stepped by hand."""

    def __init__(self, build=LENT, *, rows=ROWS, rollout=ROLLOUT, ring=1, over_memory=False):
        envs = [make(build, rows) for _ in range(ring)]
        shapes, lanes = shapes_with(envs[0].obs), [Lane(at, 0, rows) for at in range(ring)]
        segments = Segments(shapes, rollout, rows, None)
        block, granted, full = Memory(ring * segments.layout.nbytes), Channel(CREDIT), Channel(FULL)
        self._resources = [block, granted, full]
        self.policy = Still(zeros(reply_spec(shapes, rows * ring)))
        self.worker = None
        act = self._over_memory(shapes, lanes) if over_memory else InlineClient(self.policy, Newest())
        self.consumer = ShmConsumer(segments, block, lanes, [granted], full, batch=ring, max_lag=0)
        self.loader = Loader(CPU)
        rollouts = [Rollout(one, shapes, seed=at, chunk=None) for at, one in enumerate(envs)]
        producer = ShmProducer(segments, block, granted, full)
        quiet = {"keep": lambda *_: None, "tell": lambda _: None}
        self.actor = Actor(rollouts, act, producer, act_lanes=range(ring), train_lanes=range(ring), **quiet)
        self.version = 0
        self.consumer.grant(0)
        self.updates(2)

    def _over_memory(self, shapes, lanes):
        block, requests, replies = Memory(act_bytes(shapes, lanes)), Channel(LANE), Channel(LANE)
        self._resources += [block, requests, replies]
        server = ActServer([ShmAsked(shapes, lanes, block, requests, {0: replies})], lanes, 1024)
        self.worker = PolicyWorker(self.policy, Newest(), server, link=None)
        return ShmActClient(shapes, lanes, block, requests, replies)

    def step(self):
        """One time step of every rollout; False when they wait for credits."""
        worked = self.actor.step()
        return (self.worker is not None and self.worker.step()) or worked

    def updates(self, times=1):
        """Whole batches, and the credits for the next."""
        for _ in range(times):
            while self.step():
                pass
            slots = self.consumer.take(self.version)
            self.loader.load(slots)
            self.consumer.release(slots)
            self.version += 1
            self.consumer.grant(self.version)

    def close(self):
        for resource in self._resources:
            resource.close()
