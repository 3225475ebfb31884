"""Memory is shared by whoever holds its descriptor and has no name; channels keep records whole."""

import itertools
import os
import resource
import select
import socket

import numpy as np
import pytest

from srl.memory import PIPE_BYTES, Channel, Listener, Memory, available_memory


@pytest.fixture
def channel():
    channel = Channel("<iq")
    yield channel
    channel.close()


def test_memory_starts_as_zeros_and_is_seen_through_every_mapping():
    memory = Memory(1000)
    other = Memory(1000, os.dup(memory.fd))
    assert not any(memory.buffer[:])
    np.ndarray((3,), np.int64, memory.buffer, 8)[:] = 7
    assert np.ndarray((3,), np.int64, other.buffer, 8).tolist() == [7, 7, 7]
    other.close()
    memory.close()


def test_a_child_writes_into_its_parents_memory():
    memory = Memory(8)
    if (pid := os.fork()) == 0:
        memory.buffer[0] = 5
        os._exit(0)
    os.waitpid(pid, 0)
    assert memory.buffer[0] == 5
    memory.close()


def test_memory_has_no_name_and_its_arrays_outlive_its_descriptor():
    before = set(os.listdir("/dev/shm"))
    memory = Memory(64)
    array = np.ndarray((64,), np.uint8, memory.buffer)
    assert set(os.listdir("/dev/shm")) == before
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory.fd)
    array[:] = 1
    assert array.sum() == 64


def test_memory_of_no_bytes_is_allowed():
    memory = Memory(0)
    assert memory.nbytes == 1
    memory.close()


def test_memory_there_is_no_room_for_is_refused_in_words():
    # A limit on the size of files, in a child, is a lack of room that harms nobody.
    if (pid := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        fds = len(os.listdir("/proc/self/fd"))
        try:
            Memory(2**21)
        except MemoryError as error:
            os._exit(0 if "no room for 2 MiB" in str(error) and len(os.listdir("/proc/self/fd")) == fds else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_records_arrive_whole_once_and_in_order(channel):
    assert channel.take() == []
    for number in range(5):
        channel.put(number, -number * 2**40)
    assert channel.take(2) == [(0, 0), (1, -(2**40))]
    assert channel.take() == [(number, -number * 2**40) for number in (2, 3, 4)]
    assert channel.take() == []


def filled(channel):
    """Put records until there is no room; how many there was room for."""
    for count in itertools.count():
        try:
            channel.put(count, count)
        except BlockingIOError:
            return count
    raise AssertionError


def test_a_full_channel_takes_thousands_of_records_and_then_says_so(channel):
    count = filled(channel)
    assert count >= PIPE_BYTES // 12 - 1024 // 12
    taken = []
    while records := channel.take():
        taken += records
    assert taken == [(number, number) for number in range(count)]


def test_a_channel_wakes_whoever_waits_for_it(channel):
    assert select.select([channel.reader], [], [], 0)[0] == []
    channel.put(1, 1)
    assert select.select([channel.reader], [], [], 0)[0] == [channel.reader]


def read_until_told_to_stop(jobs, done, reader):
    """What a child does: say which jobs it got; a negative one is the last."""
    while True:
        select.select([jobs.reader], [], [], 5)
        for (number,) in jobs.take(2):
            if number < 0:
                os._exit(0)
            done.put(number, reader)


def test_several_readers_share_a_channel_and_no_record_is_lost_or_doubled():
    jobs, done, children, seen = Channel("<i"), Channel("<ii"), [], []
    for reader in range(3):
        children.append(os.fork())
        if children[-1] == 0:
            read_until_told_to_stop(jobs, done, reader)
    for number in range(600):
        jobs.put(number)
    while len(seen) < 600:
        assert select.select([done.reader], [], [], 5)[0]
        seen += [number for number, _ in done.take()]
    for _ in range(6):
        jobs.put(-1)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    assert sorted(seen) == list(range(600))
    jobs.close()
    done.close()


def test_a_channel_is_attached_by_its_descriptors(channel):
    other = Channel("<iq", tuple(os.dup(fd) for fd in channel.fds()))
    other.put(1, 2)
    assert channel.take() == [(1, 2)]
    other.close()


def test_more_memory_than_there_is_is_refused_before_any_is_taken():
    available = available_memory()
    assert available is not None
    with pytest.raises(MemoryError, match="are available"):
        Memory(2 * available)
    assert available_memory() > available / 2


def test_a_listener_is_attached_by_its_descriptor_and_heard_of_by_its_address():
    listener = Listener()
    other = Listener(fd=os.dup(listener.fds()[0]))
    assert other.address == listener.address
    assert other.address[0] == "127.0.0.1"
    socket.create_connection(other.address).close()
    other.close()
    address = listener.address
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
