"""What the edges cost: each beside the barest way to move the same bytes, in turns, in one run.

    train     segments written by one process and copied into a batch by another    against memcpy of the same bytes
              credit to full segment, to another process and back                   against a bare pipe
    act       request to reply, over shared memory and inline                       against a bare pipe, and inline
    params    publish, and refresh                                                  against memcpy of the same bytes

Run as `python perf/streams.py [--json] [--repeats N]`. Figures are medians of repeats, and a ratio is the median of the
ratios within each repeat. Only ratios mean anything on another day or machine. A stream moves its bytes twice, in and
out, on two cores at once: 1 is as good as it gets, and about 2 is one core doing both. Every process that is started
here ends with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import statistics
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch

from srl.launchers.nursery import Line
from srl.memory import Channel, Memory
from srl.params.base import params_bytes
from srl.params.shm import Publisher, Reader
from srl.processes import die_with
from srl.streams.asked import ActServer
from srl.streams.base import ActClient, Shapes, Slot, reply_spec, request_spec
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
from srl.tree import Spec, copy_into, spec_of, zeros
from srl.workers.base import run
from srl.workers.beat import Beat
from srl.workers.loader import Loader
from srl.workers.policy import PolicyWorker

T = TypeVar("T", Memory, Channel)
Work = Callable[[int], None]
"""Something that can be done so many times."""

SLICE_SECONDS = 0.05
"""How long each piece of work lasts within a repeat."""
PATIENCE_SECONDS = 10.0
"""How long another process may take to answer."""
ROLLOUT, ROWS = 32, 16
SEGMENTS = {"64 KiB": 2**16, "1 MiB": 2**20, "8 MiB": 2**23}
OBSERVATIONS = {"16 x 4 floats": Spec((4,), "float32"), "16 x 84 x 84 x 4 bytes": Spec((84, 84, 4), "uint8")}
WEIGHTS = {"10 KB": 10_000, "1 MB": 1_000_000, "7 MB": 7_000_000}
TENSORS = 10


@dataclass(frozen=True)
class Question:
    """What is compared with what: the names of two pieces of work, and the bytes that each moves."""

    name: str
    base: str
    nbytes: int = 0


@dataclass(frozen=True)
class Answer:
    """How long both took, in seconds each, and how the ratio spread over the repeats."""

    name: str
    seconds: float
    base: str
    base_seconds: float
    ratio: float
    lowest: float
    highest: float
    nbytes: int


class Measured:
    """All pieces of work by name, the questions about them, and what has to be closed in the end."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.works: dict[str, Work] = {}
        self.questions: list[Question] = []

    def ask(self, name: str, work: Work, base: str, nbytes: int = 0) -> None:
        """Measure this work against one that is already there."""
        self.works[name] = work
        self.questions.append(Question(name, base, nbytes))

    def answers(self, repeats: int) -> list[Answer]:
        """Every work once per repeat, so that whatever else the machine does disturbs all alike."""
        times = {name: often_enough(work) for name, work in self.works.items()}
        taken: dict[str, list[float]] = {name: [] for name in self.works}
        for _ in range(repeats):
            for name, work in self.works.items():
                taken[name].append(seconds_of(work, times[name]))
        return [answer(question, taken) for question in self.questions]


def seconds_of(work: Work, times: int) -> float:
    """Seconds of doing it once, of so many times."""
    start = time.perf_counter()
    work(times)
    return (time.perf_counter() - start) / times


def often_enough(work: Work) -> int:
    """How many times fill a slice; also warms up."""
    times = 4
    while (taken := seconds_of(work, times) * times) < SLICE_SECONDS / 4:
        times *= 4
    return max(4, round(times * SLICE_SECONDS / taken))


def answer(question: Question, taken: dict[str, list[float]]) -> Answer:
    """The medians of a question's repeats."""
    seconds, base = taken[question.name], taken[question.base]
    ratios = sorted(own / other for own, other in zip(seconds, base, strict=True))
    return Answer(
        question.name,
        statistics.median(seconds),
        question.base,
        statistics.median(base),
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        question.nbytes,
    )


def beside(stack: ExitStack, work: Callable[[], object]) -> None:
    """Do this in a process of its own, which ends with this one and with the stack."""
    parent = os.getpid()
    if (pid := os.fork()) == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            die_with(parent)
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    stack.callback(_end, pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class Wait:
    """Sleeps until one of these descriptors is readable, as a worker does."""

    def __init__(self, fds: list[int]) -> None:
        self._poll = select.poll()
        for fd in fds:
            self._poll.register(fd, select.POLLIN)

    def __call__(self) -> None:
        if not self._poll.poll(PATIENCE_SECONDS * 1000):
            raise TimeoutError(f"the other process did not answer within {PATIENCE_SECONDS:.0f} s")


def kept(stack: ExitStack, resource: T) -> T:
    """A resource that the stack closes."""
    stack.callback(resource.close)
    return resource


# The bases


def memcpy(nbytes: int, sources: int = 1, targets: int = 1) -> Work:
    """Copy between arrays in turn; none is ever a page of zeros that the kernel only pretends to have."""
    read = [np.full(nbytes, at, np.uint8) for at in range(sources)]
    write = [np.full(nbytes, at, np.uint8) for at in range(targets)]

    def work(times: int) -> None:
        for at in range(times):
            np.copyto(write[at % targets], read[at % sources])

    return work


def pipe(stack: ExitStack) -> Work:
    """Four bytes through a pipe to another process, and back through a second one."""
    (there, sender), (receiver, back) = os.pipe(), os.pipe()

    def echo() -> None:
        while True:
            os.write(back, os.read(there, 4))

    beside(stack, echo)
    os.close(there)
    os.close(back)
    stack.callback(os.close, sender)
    stack.callback(os.close, receiver)

    def work(times: int) -> None:
        for _ in range(times):
            os.write(sender, b"ping")
            if not os.read(receiver, 4):
                raise RuntimeError("the process at the other end of the pipe is gone")

    return work


def both(first: Work, second: Work) -> Work:
    """One after the other, each time."""

    def work(times: int) -> None:
        for _ in range(times):
            first(1)
            second(1)

    return work


# The train edge


def shapes_of(obs: Spec) -> Shapes:
    """The shapes of a plain policy with two actions."""
    real = Spec((), "float32")
    action = Spec((), "int64", "discrete", (2,), (0,))
    return Shapes(obs, action, None, {}, {"log_prob": real, "value": real}, 1, {})


def segments_of(nbytes: int) -> Segments:
    """Segments of about so many bytes, by the width of their observations."""
    rest = Segments(shapes_of(Spec((0,), "uint8")), ROLLOUT, ROWS, None).layout.nbytes
    width = (nbytes - rest) // ((ROLLOUT + 1) * ROWS)
    return Segments(shapes_of(Spec((width,), "uint8")), ROLLOUT, ROWS, None)


class Stream:
    """A train stream whose one lane is a process that hands every slot it is lent back, written if asked to."""

    def __init__(self, stack: ExitStack, segments: Segments, *, batch: int, max_lag: int, written: bool) -> None:
        slots = (max_lag + 1) * batch
        block = kept(stack, Memory(slots * segments.layout.nbytes))
        granted, full = kept(stack, Channel(CREDIT)), kept(stack, Channel(FULL))
        beside(stack, lambda: produce(ShmProducer(segments, block, granted, full), segments, written))
        lanes = [Lane(0, 0, ROWS)]
        self._consumer = ShmConsumer(segments, block, lanes, [granted], full, batch=batch, max_lag=max_lag)
        self._wait = Wait(self._consumer.fds())
        self._loader = Loader(torch.device("cpu"))
        self._version, self._size = 0, batch
        self._consumer.grant(0)

    def take(self, times: int) -> None:
        """Wait for so many batches, and lend their slots again."""
        for _ in range(times):
            self._return(self._next())

    def copy(self, times: int) -> None:
        """Copy so many segments into batches."""
        for _ in range(-(-times // self._size)):
            slots = self._next()
            self._loader.load(slots)
            self._return(slots)

    def _next(self) -> list[Slot]:
        while (slots := self._consumer.take(self._version)) is None:
            self._wait()
        return slots

    def _return(self, slots: list[Slot]) -> None:
        self._consumer.release(slots)
        self._version += 1
        self._consumer.grant(self._version)


def produce(producer: ShmProducer, segments: Segments, written: bool) -> None:
    """Fill slots for ever: the whole segment from memory of this process, or nothing."""
    wait = Wait(producer.fds())
    own = segments.layout.view(np.full(segments.layout.nbytes, 1, np.uint8))
    while True:
        for slot in producer.take():
            if written:
                copy_into(slot.segment, own)
            slot.segment["version"][:] = slot.oldest
            producer.post(slot)
        wait()


def filling(segments: Segments) -> Work:
    """The copy of segments into a batch alone, in this process."""
    # Not from `zeros`: memory that nobody has written is read faster.
    buffers = [np.full(segments.layout.nbytes, 1, np.uint8) for _ in range(4)]
    slots = [Slot(at, 0, at, 0, segments.layout.view(buffer)) for at, buffer in enumerate(buffers)]
    loader = Loader(torch.device("cpu"))

    def work(times: int) -> None:
        for at in range(-(-times // 2)):
            loader.load(slots[:2] if at % 2 else slots[2:])

    return work


def measure_train(measured: Measured) -> None:
    """Questions about the train edge."""
    for size, nbytes in SEGMENTS.items():
        segments = segments_of(nbytes)
        moved = segments.layout.nbytes
        stream = Stream(measured.stack, segments, batch=2, max_lag=1, written=True)
        measured.works[f"memcpy {size}"] = memcpy(moved, 4, 2)
        measured.ask(f"train: segment of {size}", stream.copy, f"memcpy {size}", moved)
        measured.ask(f"train: its copy into the batch, {size}", filling(segments), f"memcpy {size}", moved)
    turns = Stream(measured.stack, segments_of(2**16), batch=1, max_lag=0, written=False)
    measured.ask("train: credit to full segment", turns.take, "pipe")


# The act edge


class Still:
    """The least a policy can do: one and the same reply."""

    def __init__(self, shapes: Shapes) -> None:
        self._reply = zeros(reply_spec(shapes, ROWS))

    def act(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._reply


class Unchanging:
    """Weights of which there is one version."""

    version = 0

    def refresh(self) -> bool:
        return False


def asking(client: ActClient, shapes: Shapes) -> Work:
    """A request, and its reply awaited."""
    request = zeros(request_spec(shapes, ROWS))
    wait = Wait(client.fds())

    def work(times: int) -> None:
        for _ in range(times):
            client.send(0, request)
            while not client.poll():
                wait()
            client.reply(0)

    return work


def over_memory(stack: ExitStack, shapes: Shapes) -> ActClient:
    """The client of a policy worker in a process of its own, with the loop, the line and the beat of a run."""
    lanes = [Lane(0, 0, ROWS)]
    block = kept(stack, Memory(act_bytes(shapes, lanes)))
    requests, replies = kept(stack, Channel(LANE)), kept(stack, Channel(LANE))

    control, line = socket.socketpair()
    stack.callback(control.close)

    def serve() -> None:
        server = ActServer([ShmAsked(shapes, lanes, block, requests, {0: replies})], lanes, ROWS)
        link = Line(line.fileno())
        run(PolicyWorker(Still(shapes), Unchanging(), server, link), link, Beat(Memory(8), 0).touch)

    beside(stack, serve)
    line.close()
    return ShmActClient(shapes, lanes, block, requests, replies)


def measure_act(measured: Measured) -> None:
    """Questions about the act edge."""
    for size, obs in OBSERVATIONS.items():
        shapes, nbytes = shapes_of(obs), ROWS * obs.nbytes
        bare = f"pipe and memcpy, {size}"
        measured.works[bare] = both(measured.works["pipe"], memcpy(nbytes))
        inline = f"act: inline, {size}"
        measured.works[inline] = asking(InlineClient(Still(shapes), Unchanging()), shapes)
        name = f"act: over memory, {size}"
        measured.ask(name, asking(over_memory(measured.stack, shapes), shapes), "pipe", nbytes)
        measured.questions += [Question(name, bare, nbytes), Question(name, inline, nbytes)]


# The params edge


def measure_params(measured: Measured) -> None:
    """Questions about the params edge."""
    for size, nbytes in WEIGHTS.items():
        tensors = {str(at): torch.ones(nbytes // 4 // TENSORS) for at in range(TENSORS)}
        spec = {name: spec_of(tensor.numpy()) for name, tensor in tensors.items()}
        block, module = kept(measured.stack, Memory(params_bytes(spec))), torch.nn.Module()
        for name, tensor in tensors.items():
            module.register_buffer(name, tensor.clone())
        publish, refresh = publishing(Publisher(spec, block), tensors), refreshing(Reader(spec, block, module))
        once, twice = f"memcpy {size}", f"memcpy {size}, twice"
        measured.works[once] = memcpy(nbytes, 1, 2)
        measured.works[twice] = both(memcpy(nbytes, 1, 2), memcpy(nbytes, 2, 1))
        measured.ask(f"params: publish {size}", publish, once, nbytes)
        measured.ask(f"params: publish and refresh {size}", both(publish, refresh), twice, nbytes)


def publishing(publisher: Publisher, weights: dict[str, torch.Tensor]) -> Work:
    """Publish version after version."""
    versions = count(1)

    def work(times: int) -> None:
        for _ in range(times):
            publisher.publish(next(versions), 0, weights)

    return work


def refreshing(reader: Reader) -> Work:
    """Look for newer weights, and take them."""

    def work(times: int) -> None:
        for _ in range(times):
            reader.refresh()

    return work


# What people see


def table(answers: list[Answer]) -> str:
    """The answers for people."""
    lines = [f"{'':42} {'takes':>9} {'per second':>11} {'GB/s':>6}   {'against':38} {'takes':>9} {'ratio':>6}"]
    for row in answers:
        speed = f"{row.nbytes / row.seconds / 1e9:6.2f}" if row.nbytes else " " * 6
        lines.append(
            f"{row.name:42} {_time(row.seconds)} {1 / row.seconds:11,.0f} {speed}   "
            f"{row.base:38} {_time(row.base_seconds)} {row.ratio:6.2f}   ({row.lowest:.2f} to {row.highest:.2f})"
        )
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:6.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:6.2f} ms"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the edges cost, against the barest way to move the bytes.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repeats", type=int, default=9, help="how often everything is measured (9)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured = Measured()
    with measured.stack:
        measured.works["pipe"] = pipe(measured.stack)
        for questions in (measure_train, measure_act, measure_params):
            questions(measured)
        answers = measured.answers(arguments.repeats)
    print(json.dumps([asdict(row) for row in answers], indent=2) if arguments.json else table(answers))


if __name__ == "__main__":
    main()
