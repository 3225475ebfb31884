"""A run that goes on from a checkpoint takes back what was measured after it, so that curves have no doubles.

    metrics.jsonl             rows beyond the checkpoint's steps are dropped
    events.out.tfevents.*     so are events; a last file tells a TensorBoard that has read them to drop them too

Files are written anew beside and renamed: whoever is killed leaves the old or the new one. Nothing else may be writing.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from srl.files import write_atomically
from srl.metrics import STEPS, Events, read_rows


def rewind(folder: Path, steps: int) -> None:
    """Drop the rows and the events of a run folder that lie beyond `steps`."""
    metrics = folder / "metrics.jsonl"
    if metrics.is_file():
        rows = [row for row in read_rows(metrics) if isinstance(row.get(STEPS), int) and row[STEPS] <= steps]
        write_atomically(metrics, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    events = [path for path in folder.glob("events.out.tfevents.*") if path.is_file()]
    for path in events:
        write_atomically(path, b"".join(_events_until(path.read_bytes(), steps)))
    if events:
        _tell_readers(folder, steps)


def _events_until(data: bytes, steps: int) -> Iterator[bytes]:
    """The records of an event file up to `steps`; one that was being written when the run died is left out."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] generated

    at = 0
    # A record is its length, a checksum of that, its bytes and a checksum of those.
    while at + 12 <= len(data):
        end = at + 16 + struct.unpack_from("<Q", data, at)[0]
        with contextlib.suppress(DecodeError):
            if end <= len(data) and Event.FromString(data[at + 12 : end - 4]).step <= steps:
                yield data[at:end]
        at = end


def _tell_readers(folder: Path, steps: int) -> None:
    from tensorboard.compat.proto.event_pb2 import (
        Event,  # pyright: ignore[reportAttributeAccessIssue] generated
        SessionLog,  # pyright: ignore[reportAttributeAccessIssue] generated
    )

    events = Events(folder)
    start = SessionLog(status=SessionLog.START)
    # A reader takes no notice of the first start of a session that it sees.
    for _ in range(2):
        events.append(Event(wall_time=time.time(), step=steps + 1, session_log=start))
    events.close()
