"""A stranger on the network: knows where a run listens and how ZeroMQ speaks, and has no keys.

    echo '{"doors": [[HOST, PORT]], "frames": 99, "seed": 0, "heard": [HEX], "together": 9}' | python -m tests.stranger

Connects to each door again and again and says what nobody of the run would say; `heard` is what callers of the run have
said on their way there, to be said again. Each connection must be ended by the other side, who may answer no more than
ZeroMQ does before it knows who is there. With `idle`, it opens so many connections to the first door and says nothing.
"""

import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable

import zmq

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
WELCOME_BYTES = 64 + 2 + 168
"""A greeting and a cookie: the most that anyone hears without keys."""
TOGETHER = 50
"""At most so many frames per connection."""
PATIENCE = 15.0

Kind = Callable[[random.Random], list[bytes]]


def frames_of(said: bytes) -> list[bytes]:
    """What a ZeroMQ peer said: its greeting, then frame by frame."""
    frames, rest = [said[:64]], said[64:]
    while len(rest) > 1:
        head = 9 if rest[0] & 2 else 2
        size = head + int.from_bytes(rest[1:head], "big")
        frames.append(rest[:size])
        rest = rest[size:]
    return frames


def noise(rng: random.Random) -> list[bytes]:
    """Any bytes."""
    return [rng.randbytes(rng.randint(1, 400)) for _ in range(TOGETHER)]


def truncated(rng: random.Random) -> list[bytes]:
    """Frames that say they are longer than they are; often not even the greeting is whole."""
    whole = [GREETING, *(bytes([4, 200]) + rng.randbytes(rng.randint(0, 199)) for _ in range(TOGETHER - 1))]
    return [GREETING[: rng.randint(1, 63)]] if rng.random() < 0.1 else whole


def oversized(rng: random.Random) -> list[bytes]:
    """Frames of up to 2^63 bytes."""
    sizes = [rng.randint(2**20, 2**63 - 1).to_bytes(8, "big") for _ in range(TOGETHER - 1)]
    return [GREETING, *(bytes([rng.choice([2, 3, 6])]) + size + rng.randbytes(100) for size in sizes)]


def foreign(hello: bytes) -> Kind:
    """Hellos of a real client that has other keys."""
    return lambda _: [GREETING, *[hello] * (TOGETHER - 1)]


def replayed(heard: list[bytes]) -> Kind:
    """What callers of the run have said, again, as it was or without its beginning."""

    def said(rng: random.Random) -> list[bytes]:
        greeting, *frames = frames_of(rng.choice(heard))
        start = rng.choice([0, 0, rng.randrange(len(frames))])
        return [greeting, *frames[start : start + TOGETHER - 1]]

    return said


def hello_of_others() -> bytes:
    """The first frame that ZeroMQ sends for someone with keys of their own."""
    with socket.create_server(("127.0.0.1", 0)) as server, zmq.Context() as context:
        client = context.socket(zmq.DEALER)
        client.linger = 0
        client.curve_serverkey = zmq.curve_keypair()[0]
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        connection, _ = server.accept()
        with connection, client:
            connection.sendall(GREETING)
            said = b""
            while len(said) < 64 + 202:
                said += connection.recv(1000)
            return frames_of(said)[1]


def say(door: tuple[str, int], frames: list[bytes]) -> int:
    """Say it at a door until that is shut; bytes of the answer."""
    answer = 0
    with socket.create_connection(door, timeout=PATIENCE) as connection:
        try:
            connection.sendall(b"".join(frames))
            connection.shutdown(socket.SHUT_WR)
            while got := connection.recv(4096):
                answer += len(got)
        except TimeoutError:
            raise
        except OSError:
            pass  # it was shut while we spoke
    return answer


def kinds_of(heard: list[bytes]) -> dict[str, Kind]:
    """All that a stranger says."""
    kinds: dict[str, Kind] = {"noise": noise, "truncated": truncated, "oversized": oversized}
    kinds["foreign"] = foreign(hello_of_others())
    # Of some no more than a greeting was heard.
    heard = [said for said in heard if len(frames_of(said)) > 1]
    return kinds | ({"replayed": replayed(heard)} if heard else {})


def attack(
    doors: list[tuple[str, int]], frames: int, seed: int, heard: list[bytes], together: int = TOGETHER
) -> dict[str, int]:
    """So many frames at least, spread over the doors and kinds: what was sent, and the longest answer."""
    rng, kinds, sent = random.Random(seed), kinds_of(heard), Counter[str]()
    longest = connections = 0
    turns = [(door, kind) for door in doors for kind in kinds]
    while sent.total() < frames:
        for door, kind in turns:
            said = kinds[kind](rng)[:together]
            longest = max(longest, say(door, said))
            sent[kind] += len(said)
            connections += 1
    return {**sent, "frames": sent.total(), "connections": connections, "longest": longest}


def main(given: dict) -> None:
    """Do it, and print what was done."""
    doors = [(host, port) for host, port in given["doors"]]
    if count := given.get("idle"):
        silent = [socket.create_connection(doors[0], timeout=PATIENCE) for _ in range(count)]
        print(len(silent), flush=True)
        sys.stdin.read()
        return
    began = time.monotonic()
    heard = [bytes.fromhex(one) for one in given["heard"]]
    done = attack(doors, given["frames"], given["seed"], heard, given["together"])
    print(json.dumps({**done, "seconds": round(time.monotonic() - began, 2)}))


if __name__ == "__main__":
    main(json.loads(sys.stdin.readline()))
