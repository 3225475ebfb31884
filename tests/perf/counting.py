"""Instruments that count what an action costs: bytes written, memory taken, calls made.

A copy needs a place to go. Places are the arrays of srl, which can count what is written into them (`Watched`), fresh
memory, which tracemalloc sees, and fresh tensors, which take a call to torch.
"""

import gc
import sys
import tracemalloc
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from torch.overrides import TorchFunctionMode


class Watched(np.ndarray):
    """An array that adds up the bytes that are written into it, through whatever view."""

    written = 0

    def __setitem__(self, at, value):
        Watched.written += self[at].nbytes
        super().__setitem__(at, value)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        Watched.written += sum(target.nbytes for target in out)
        if out:
            options["out"] = tuple(map(plain, out))
        result = getattr(ufunc, method)(*map(plain, inputs), **options)
        return out[0] if out else result

    def __array_function__(self, function, types, args, kwargs):
        if function is np.copyto:
            Watched.written += args[0].nbytes
        return super().__array_function__(function, types, args, kwargs)


def plain(array):
    """The same memory, not watched."""
    return array.view(np.ndarray) if isinstance(array, Watched) else array


def watch(monkeypatch):
    """Every array that srl makes from now on is watched."""

    def zeros(shape, dtype):
        return np.zeros(shape, dtype).view(Watched)

    monkeypatch.setattr("srl.tree.np", SimpleNamespace(**{**vars(np), "ndarray": Watched, "zeros": zeros}))


def copies(action, nbytes):
    """How often so many bytes are written, into watched arrays or into fresh memory."""
    Watched.written = 0
    taken = fresh(action)
    return _times(Watched.written, nbytes) + _times(taken, nbytes)


def _times(total, nbytes):
    times, rest = divmod(total, nbytes)
    assert rest < nbytes // 8, f"{total} bytes are no multiple of {nbytes}"
    return times


def fresh(action):
    """The most memory that is taken at any moment beyond what there was."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def grown(action, times):
    """How much memory is kept when an action is done so many times.

    The least of three goes: what keeps something grows in each, and a cache that fills does not.
    """
    tracemalloc.start()
    try:
        kept = [_kept_after(action, times) for _ in range(4)]
    finally:
        tracemalloc.stop()
    return min(after - before for before, after in pairwise(kept))


def _kept_after(action, times):
    for _ in range(times):
        action()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def calls(action):
    """What is called, Python's functions and C's."""
    counted = Counter()

    def note(frame, event, called):
        if event == "call":
            counted[frame.f_code.co_qualname] += 1
        elif event == "c_call" and called is not sys.setprofile:
            counted[f"{getattr(called, '__module__', None)}.{called.__name__}"] += 1

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return counted


def pipe_calls(action):
    """System calls that write to pipes, and that read from them."""
    counted = calls(action)
    return counted["posix.write"], counted["posix.read"]


class TorchCalls(TorchFunctionMode):
    """Counts what is done to tensors."""

    def __init__(self):
        super().__init__()
        self.counted = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.counted[function.__name__] += 1
        return function(*args, **(kwargs or {}))
