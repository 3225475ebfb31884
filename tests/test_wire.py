"""Who has not the keys of a run is not heard, what is not a message is refused, and both are counted and told."""

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from srl import wire
from srl.memory import Listener
from srl.wire import Called, Keys, Served
from tests.stranger import GREETING, WELCOME_BYTES, attack, say

IN_TIME = 10.0
LARGEST = 100_000


class Word(msgspec.Struct, array_like=True, frozen=True):
    """A message of these tests."""

    number: int


class Ends:
    """A door with someone behind it, and whoever knocks."""

    def __init__(self) -> None:
        self.keys, self.door, self.told = Keys.new(), Listener(), list[dict[str, Any]]()
        self.served = Served(self.door, self.keys, Word, LARGEST, self.told.append)
        self._open: list[Called] = []

    def called(self, keys: Keys | None = None, **more: Any) -> Called:
        self._open.append(Called([self.door.address], keys or self.keys, Word, LARGEST, **more))
        return self._open[-1]

    def close(self) -> None:
        for one in self._open:
            one.close()
        self.served.close()
        self.door.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with contextlib.closing(Ends()) as ends:
        yield ends


def eventually(what: Callable[[], Any]) -> Any:
    until = time.monotonic() + IN_TIME
    while not (found := what()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.001)
    return found


def hears(ends: Ends, number: int) -> bool:
    """Whether a message of someone who has the keys arrives."""
    ends.called().send(Word(number), b"block")
    sender, word, block = eventually(ends.served.receive)
    return bool(sender) and word == Word(number) and bytes(block) == b"block"


def test_strangers_are_refused_counted_and_told_once_a_second(ends: Ends) -> None:
    done = attack([ends.door.address], 2_000, 1, [])
    assert done["longest"] <= WELCOME_BYTES
    assert eventually(lambda: ends.served.refused == done["connections"])
    assert hears(ends, 3)
    eventually(lambda: ends.served.receive() or sum(told["count"] for told in ends.told) == done["connections"])
    assert len(ends.told) <= 3
    assert {told["why"] for told in ends.told} == {"who sent it has not the keys of this run"}
    assert ends.served.refused == done["connections"], "who has the keys is none of them"


@pytest.mark.parametrize("knows_the_door", [True, False], ids=["with the door's key", "without"])
def test_who_has_other_keys_is_not_heard(ends: Ends, knows_the_door: bool) -> None:
    others = Keys.new()
    stranger = ends.called(Keys(ends.keys.served if knows_the_door else others.served, others.called))
    for number in range(1000):
        stranger.send(Word(number))
    eventually(lambda: ends.served.receive() or ends.served.refused)
    assert hears(ends, 3)
    assert ends.served.receive() is None


def test_nonsense_of_who_has_the_keys_is_counted_and_told(ends: Ends) -> None:
    guest = ends.called()
    nonsense = [[b"\xc1"], [b""], [b"\x91\xa1x"], [b"\x91\x01", b"", b""], [b"\x91" + bytes(1 << 16)]]
    for frames in nonsense:
        guest.socket.send_multipart(frames)
    guest.send(Word(3))
    assert eventually(ends.served.receive)[1] == Word(3)
    assert ends.served.refused == len(nonsense)
    eventually(lambda: ends.served.receive() or sum(told["count"] for told in ends.told) == len(nonsense))


def test_a_frame_that_is_too_large_ends_its_connection_alone(ends: Ends) -> None:
    guest, other = ends.called(name="guest"), ends.called(name="other")
    other.send(Word(1))
    assert eventually(ends.served.receive)[0] == b"other"
    before = psutil.Process().memory_info().rss
    guest.socket.send_multipart([b"\x91\x01", bytes(64 << 20)], copy=False)
    other.send(Word(2))
    assert eventually(ends.served.receive)[:2] == (b"other", Word(2))
    guest.send(Word(3))
    assert eventually(ends.served.receive)[:2] == (b"guest", Word(3))
    assert psutil.Process().memory_info().rss < before + (96 << 20)


def test_what_those_who_serve_say_is_looked_at_too(ends: Ends) -> None:
    told: list[dict[str, Any]] = []
    called = ends.called(name="guest", tell=told.append)
    called.send(Word(1))
    eventually(ends.served.receive)
    ends.served.socket.send_multipart([b"guest", b"\xc1"])
    ends.served.send(b"guest", Word(4))
    assert eventually(called.receive)[0] == Word(4)
    assert called.receive() is None
    assert [one["count"] for one in told] == [1]


def test_who_says_nothing_is_sent_away_in_time(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wire.OPTIONS, zmq.HANDSHAKE_IVL, 1000)
    with contextlib.closing(Ends()) as hasty:
        before = psutil.Process().num_fds()
        with contextlib.ExitStack() as stack:
            for at in range(100):
                silent = stack.enter_context(socket.create_connection(hasty.door.address))
                silent.sendall(GREETING[: at % 64])
            # They are here, at both ends, and then only at theirs.
            eventually(lambda: psutil.Process().num_fds() >= before + 100 + 90)
            eventually(lambda: psutil.Process().num_fds() <= before + 100)
            assert hears(hasty, 3)
            assert hasty.served.refused == 100


def test_a_replayed_handshake_is_worth_nothing(ends: Ends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as between:
        between.settimeout(IN_TIME)
        caller = Called([between.getsockname()], ends.keys, Word, LARGEST)
        with contextlib.closing(caller):
            caller.send(Word(7), b"secret")
            near, _ = between.accept()
            with near, socket.create_connection(ends.door.address) as far:
                said = passed_on(near, far, ends)
    assert b"secret" not in said
    longest = max(say(ends.door.address, [said]) for _ in range(20))
    assert longest <= WELCOME_BYTES
    assert eventually(lambda: ends.served.refused >= 20)
    assert ends.served.receive() is None


def passed_on(near: socket.socket, far: socket.socket, ends: Ends) -> bytes:
    """What the caller said until its message had arrived."""
    said = b""
    near.settimeout(0.01)
    far.settimeout(0.01)
    until = time.monotonic() + IN_TIME
    while (message := ends.served.receive()) is None:
        assert time.monotonic() < until
        with contextlib.suppress(TimeoutError):
            said += (got := near.recv(4096))
            far.sendall(got)
        with contextlib.suppress(TimeoutError):
            near.sendall(far.recv(4096))
    assert message[1] == Word(7)
    return said


def test_a_door_takes_as_many_descriptors_as_it_may() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        with contextlib.closing(Ends()):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_door_is_at_one_address(ends: Ends) -> None:
    listening = [one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert ends.door.address in [tuple(one.laddr) for one in listening]
    assert {one.laddr.ip for one in listening} == {"127.0.0.1"}
