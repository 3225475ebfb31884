"""Weights in shared memory: newest wins, versions never go back, and no reader ever sees two versions mixed."""

import itertools
import os
import signal
import time

import pytest
import torch

from srl.memory import Memory
from srl.params.base import params_bytes
from srl.params.shm import Publisher, Reader
from srl.tree import spec_of


class Weights(torch.nn.Module):
    """Leaves of many sizes and types, every number of them the version."""

    def __init__(self, size=20_000):
        super().__init__()
        self.big = torch.nn.Parameter(torch.zeros(size))
        self.scalar = torch.nn.Parameter(torch.zeros(()))
        self.matrix = torch.nn.Parameter(torch.zeros(3, 5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(size, dtype=torch.float64))

    def filled(self, version):
        return {name: torch.full_like(tensor, version) for name, tensor in self.state_dict().items()}

    def values(self):
        return {float(number) for tensor in self.state_dict().values() for number in tensor.unique()}


@pytest.fixture
def edge():
    """Weights, their publisher, and a function that makes a reader with a module of its own."""
    module = Weights()
    spec = {name: spec_of(tensor.numpy()) for name, tensor in module.state_dict().items()}
    memory = Memory(params_bytes(spec))

    def reader():
        own = Weights()
        return own, Reader(spec, memory, own)

    yield module, Publisher(spec, memory), reader
    memory.close()


def test_a_reader_has_nothing_before_the_first_publish(edge):
    _, _, reader = edge
    module, weights = reader()
    assert not weights.refresh()
    assert (weights.version, weights.steps, module.values()) == (-1, 0, {0.0})


def test_readers_take_the_newest_and_only_once(edge):
    module, publisher, reader = edge
    (first, first_reader), (second, second_reader) = reader(), reader()
    for version in (3, 4, 5, 6, 7):
        publisher.publish(version, 100 * version, module.filled(version))
        assert first_reader.refresh()
        assert not first_reader.refresh()
        assert (first_reader.version, first_reader.steps, first.values()) == (version, 100 * version, {float(version)})
    assert second_reader.refresh()
    assert (second_reader.version, second.values()) == (7, {7.0})


def test_weights_are_loaded_in_place_and_still_learn(edge):
    module, publisher, reader = edge
    own, weights = reader()
    before = own.big.data_ptr()
    publisher.publish(1, 0, module.filled(1))
    weights.refresh()
    assert own.big.data_ptr() == before
    own.big.sum().backward()
    assert own.big.grad is not None


def test_what_is_published_is_a_copy(edge):
    module, publisher, reader = edge
    own, weights = reader()
    published = module.filled(1)
    publisher.publish(1, 0, published)
    published["big"].fill_(9)
    weights.refresh()
    assert own.values() == {1.0}


def test_a_reader_beside_a_fast_writer_sees_whole_versions_that_never_go_back(edge):
    module, publisher, reader = edge
    own, weights = reader()
    writer = os.fork()
    if writer == 0:
        tensors = {name: tensor.numpy() for name, tensor in module.filled(0).items()}
        version = 0
        while True:
            version += 1
            for array in tensors.values():
                array[...] = version
            publisher.publish(version, 2 * version, {name: torch.from_numpy(array) for name, array in tensors.items()})
    seen = [0]
    until = time.monotonic() + 2
    try:
        while time.monotonic() < until:
            if weights.refresh():
                assert own.values() == {float(weights.version)}, "two versions are mixed"
                assert weights.steps == 2 * weights.version
                assert weights.version > seen[-1], "a version went back"
                seen.append(weights.version)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert len(seen) > 50
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) > 1, "the writer was not fast"
