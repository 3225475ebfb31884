"""Memory and signals that processes of one machine share, and that the kernel takes back whatever dies.

    Memory    anonymous shared memory (memfd), mapped by everyone who holds its descriptor
    Channel   a pipe of small fixed-size records; many may write, many may read, each record is read once
    Listener  a socket that listens on this machine alone; whoever holds its descriptor knows its address, or accepts

All travel to a child as plain file descriptors. Nothing has a name, so nothing can be left behind. What lies in the
memory and what the records mean is not known here.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
import tempfile
from pathlib import Path

PIPE_BYTES = 64 * 1024


class Memory:
    """A block of anonymous memory shared by every process that holds its descriptor."""

    def __init__(self, nbytes: int, fd: int | None = None) -> None:
        self.nbytes = max(nbytes, 1)
        if fd is None:
            fd = _anonymous_file(self.nbytes)
        self.fd = fd
        self.buffer = mmap.mmap(fd, self.nbytes)

    def fds(self) -> list[int]:
        """The descriptors a process needs to attach."""
        return [self.fd]

    def close(self) -> None:
        """Give the descriptor back; mappings end when the last array over them is gone."""
        os.close(self.fd)


def _anonymous_file(nbytes: int) -> int:
    # The kernel would rather kill someone than refuse pages, so the room is looked at before they are asked for.
    available = available_memory()
    if available is not None and nbytes > available:
        raise MemoryError(f"no room for {_mebibytes(nbytes)} of shared memory: {_mebibytes(available)} are available")
    if sys.platform == "linux":
        fd = os.memfd_create("srl", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="srl-")
        os.unlink(path)
    try:
        os.posix_fallocate(fd, 0, nbytes) if hasattr(os, "posix_fallocate") else os.ftruncate(fd, nbytes)
    except OSError as error:
        os.close(fd)
        raise MemoryError(f"no room for {_mebibytes(nbytes)} of shared memory: {error.strerror}") from error
    return fd


def available_memory() -> int | None:
    """Bytes that can be taken without harm: what the machine has, or a container is allowed; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    known = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    try:
        allowed, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current"))
        known.append(int(allowed) - int(used))
    except (OSError, ValueError):
        pass
    return min(known, default=None)


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


class Channel:
    """A pipe of fixed-size records: writes never tear, reads take what is there, neither ever waits."""

    def __init__(self, record: str, fds: tuple[int, int] | None = None) -> None:
        self._struct = struct.Struct(record)
        if fds is None:
            fds = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        self.reader, self.writer = fds
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)

    def fds(self) -> list[int]:
        """The descriptors a process needs to attach: the end to read, the end to write."""
        return [self.reader, self.writer]

    def put(self, *values: int) -> None:
        """Append one record; a full pipe is an error, because every protocol here bounds what is under way."""
        os.write(self.writer, self._struct.pack(*values))

    def take(self, most: int = PIPE_BYTES) -> list[tuple[int, ...]]:
        """All records that wait, at most so many."""
        size = self._struct.size
        try:
            data = os.read(self.reader, size * min(most, PIPE_BYTES // size))
        except BlockingIOError:
            return []
        return list(self._struct.iter_unpack(data))

    def close(self) -> None:
        """Give both descriptors back."""
        os.close(self.reader)
        os.close(self.writer)


class Listener:
    """A socket that listens on the loopback, at a port that nobody else can take meanwhile."""

    def __init__(self, fd: int | None = None) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0)) if fd is None else socket.socket(fileno=fd)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self._socket.getsockname()[:2]

    @property
    def here(self) -> str:
        """The address by which others reach who holds this."""
        return self.address[0]

    def fds(self) -> list[int]:
        """The descriptors a process needs to attach."""
        return [self._socket.fileno()]

    def close(self) -> None:
        """Give the descriptor back."""
        self._socket.close()
