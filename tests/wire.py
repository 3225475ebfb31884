"""A slow, lossy wire between two network interfaces: `python -m tests.wire ONE OTHER DELAY_MS LOSS_PERCENT MBIT`.

It copies the frames that arrive at either interface to the other one, and ends when its standard input does.
"""

import random
import select
import socket
import sys
import time
from collections import deque

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE = 33
EVERY_PROTOCOL = 3
LONGEST_QUEUE = 1000
FRAME_BYTES = 1 << 17


class Direction:
    """One way of the wire: frames wait here until they are due."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay: float, loss: float, bytes_per_second: float):
        self.source, self.sink = source, sink
        self.delay, self.loss, self.bytes_per_second = delay, loss, bytes_per_second
        self.free = 0.0
        self.queue: deque[tuple[float, bytes]] = deque()
        self.random = random.Random(0)

    def take(self) -> None:
        """Read the frame that has arrived; lose it, or say when it is due."""
        frame = self.source.recv(FRAME_BYTES)
        if self.random.random() < self.loss or len(self.queue) >= LONGEST_QUEUE:
            return
        now = time.monotonic()
        self.free = max(self.free, now)
        if self.bytes_per_second:
            self.free += len(frame) / self.bytes_per_second
        self.queue.append((self.free + self.delay, frame))

    def give(self) -> None:
        """Send every frame that is due."""
        while self.queue and self.queue[0][0] <= time.monotonic():
            self.sink.send(self.queue.popleft()[1])


def opened(interface: str) -> socket.socket:
    """A socket that reads and writes whole frames, with what the kernel still has to do to them in a header."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
    raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    raw.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
    raw.bind((interface, 0))
    return raw


def main(one: str, other: str, delay_ms: str, loss_percent: str, mbit: str) -> None:
    """Copy frames both ways until standard input ends."""
    ends = opened(one), opened(other)
    traits = float(delay_ms) / 1e3, float(loss_percent) / 100, float(mbit) * 1e6 / 8
    directions = {ends[0]: Direction(*ends, *traits), ends[1]: Direction(*reversed(ends), *traits)}
    print("ready", flush=True)
    while True:
        due = [way.queue[0][0] for way in directions.values() if way.queue]
        wait = max(0.0, min(due) - time.monotonic()) if due else None
        ready, _, _ = select.select([*ends, sys.stdin], [], [], wait)
        if sys.stdin in ready:
            return
        for end in ready:
            directions[end].take()
        for way in directions.values():
            way.give()


if __name__ == "__main__":
    main(*sys.argv[1:])
