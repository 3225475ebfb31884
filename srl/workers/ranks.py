"""The trainers of one policy as ranks of a group: what each of them must know of the others.

    gather     every rank says some numbers    --all gather-->  known to all; nobody waits, a descriptor says when
    mean       gradients and losses, weighted  --all reduce-->  those of the whole batch
    moments    of each rank's rows             --all gather-->  those of the whole batch
    broadcast  the weights of rank 0           --broadcast-->   every rank begins with the same

All but `gather` wait for the others, and so are only called when all are known to be there. Whoever waits for one that
dies is told by the kernel, and can only be ended. Numbers travel by gloo, which listens on the address it is given and
no other; gradients by nccl where every rank has a GPU of its own. None of them asks who speaks, so the doors are shut
once all have met. Must not know what is learned.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from srl.errors import Closed
from srl.memory import Channel

_torch: Any = dist  # its stubs say little of groups

MEET_SECONDS = 60.0
"""Ranks that do not all meet within so long never will."""
PATIENCE = timedelta(days=365)
"""Segments may be long in coming; who is dead is seen by its connection, who is stuck by control."""
FEW_NUMBERS = 1 << 16
"""So many are sooner sent to everyone at once than reduced in turns: half the time for small networks."""
LOST_SECONDS = 10.0
"""A rank that lost another gives control so long to end it, so that the run names the one that died first."""
_opening = threading.Lock()


class Vote:
    """Numbers on their way to all ranks."""

    def __init__(self, result: Callable[[], np.ndarray[Any, Any] | None]) -> None:
        self.result = result
        """A row per rank once all are here; None before."""


class Alone:
    """The only trainer of its policy: what it says is all there is."""

    rank = 0
    count = 1

    def gather(self, numbers: np.ndarray[Any, Any]) -> Vote:
        """The numbers of this one."""
        rows = numbers[None]
        return Vote(lambda: rows)

    def told(self, number: int) -> int:
        """What rank 0 says."""
        return number

    def fds(self) -> list[int]:
        """Nobody answers."""
        return []


class Ranks:
    """One rank of a group of several."""

    def __init__(
        self,
        rank: int,
        count: int,
        address: tuple[str, int],
        *,
        here: str,
        device: torch.device,
        listener: int | None = None,
        hung_up: Sequence[int] = (),
    ) -> None:
        """Meet the others: rank 0 listens at the address, by this descriptor if it has one; all talk from `here`."""
        self.rank = rank
        self.count = count
        self._hung_up = hung_up
        meet = timedelta(seconds=MEET_SECONDS)
        # Kept, because rank 0's is the server.
        self._store = _torch.TCPStore(*address, count, rank == 0, meet, False, master_listen_fd=listener)
        options = _torch.ProcessGroupGloo._Options()
        with _opening:
            before = _listeners()
            options._devices = [_torch.ProcessGroupGloo.create_device(hostname=here)]
            doors = _listeners() - before
        options._timeout = meet
        self._gloo = _torch.ProcessGroupGloo(_torch.PrefixStore("gloo", self._store), rank, count, options)
        self._gloo.set_timeout(PATIENCE)
        self._nccl = self._by_nccl(device)
        self._shut(doors, listener)
        self._answers = Channel("<q")

    def _shut(self, doors: set[int], listener: int | None) -> None:
        """All have met, and nobody else is to be heard; gloo would keep every connection, whoever made it."""
        if sys.platform != "linux":
            return
        with socket.socket(socket.AF_UNIX) as deaf:
            # Their threads look at the descriptors for ever: these stay, and lead to where nobody can come from.
            deaf.bind("")
            deaf.listen()
            deaf.setblocking(False)
            for door in doors:
                os.dup2(deaf.fileno(), door)
            # Who comes to meet by nccl does so at the first sum.
            if listener is None or self._nccl is not None:
                return
            with socket.socket(fileno=os.dup(listener)) as meeting:
                os.dup2(deaf.fileno(), listener)
                self._store.check(["anything"])  # so that the thread of the store leaves what it looked at
                meeting.shutdown(socket.SHUT_RDWR)

    def _by_nccl(self, device: torch.device) -> Any:
        """What carries gradients between GPUs; None where it is gloo, over the processor's memory."""
        if device.type != "cuda" or not dist.is_nccl_available() or torch.cuda.device_count() < self.count:
            return None
        store, options = _torch.PrefixStore("nccl", self._store), _torch.ProcessGroupNCCL.Options()
        return _torch.ProcessGroupNCCL(store, self.rank, self.count, options)

    def gather(self, numbers: np.ndarray[Any, Any]) -> Vote:
        """Say some numbers to all ranks and hear as many from each; one vote at a time."""
        work, rows = self._gather(torch.from_numpy(numbers))
        work.get_future().add_done_callback(lambda _: self._answers.put(1))

        def result() -> np.ndarray[Any, Any] | None:
            if not self._answers.take():
                return None
            self._wait(work)
            return rows.numpy()

        return Vote(result)

    def fds(self) -> list[int]:
        """Readable when a vote has its result."""
        return [self._answers.reader]

    def told(self, number: int) -> int:
        """What rank 0 says, whatever the others hold."""
        said = torch.tensor([number])
        self._wait(self._gloo.broadcast(said, 0))
        return int(said.item())

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Set these to what rank 0 has."""
        for tensor in tensors:
            here = tensor.detach().cpu().contiguous()
            self._wait(self._gloo.broadcast(here, 0))
            tensor.detach().copy_(here)

    def mean(self, tensors: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
        """The means of these over the ranks, each rank's with its weight; the same bits on every rank."""
        flat = torch.cat([weight.reshape(1), *(tensor.flatten() * weight for tensor in tensors)])
        weights, *sums = self._sum(flat).to(flat.device).split([1, *(tensor.numel() for tensor in tensors)])
        return [(part / weights).view_as(tensor) for part, tensor in zip(sums, tensors, strict=True)]

    def _sum(self, flat: Tensor) -> Tensor:
        if self._nccl is not None:
            self._wait(self._nccl.allreduce([flat]))
            return flat
        flat = flat.cpu()
        if self.count * flat.numel() <= FEW_NUMBERS:
            work, parts = self._gather(flat)
            self._wait(work)
            return parts.sum(0)
        self._wait(self._gloo.allreduce([flat]))
        return flat

    def moments(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Count, mean and variance of the rows [N, ...] of all ranks (Chan et al., 1979), in float64."""
        rows = rows.double()
        if len(rows):
            mean, var = rows.mean(0), rows.var(0, correction=0)
        else:
            mean = var = rows.sum(0)
        own = torch.stack([torch.full_like(mean, len(rows)), mean, var])
        work, parts = self._gather(own.cpu())
        self._wait(work)
        counts, means, variances = parts.to(rows.device).unbind(1)
        total = counts.sum(0)
        share = counts / total
        mean = (share * means).sum(0)
        return total.flatten()[0], mean, (share * (variances + (means - mean).square())).sum(0)

    def _gather(self, own: Tensor) -> tuple[Any, Tensor]:
        everyone = own.new_empty(self.count * own.numel())
        return self._gloo._allgather_base(everyone, own.flatten()), everyone.view(self.count, *own.shape)

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            select.select(self._hung_up, [], [], LOST_SECONDS)
            raise Closed from error


def _listeners() -> set[int]:
    """The descriptors of this process at which others can knock."""
    found: set[int] = set()
    for name in os.listdir("/dev/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found.add(int(name))
        except OSError:
            # It was open for no longer than the look around.
            continue
    return found
