"""Files as srl reads, replaces and extends them: in one step or not at all, and a UserError says what cannot be."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from srl.errors import UserError


def contents(path: Path) -> bytes:
    """What a file holds; a pipe or a device in its place would keep its reader for ever, and is no file."""
    try:
        if path.is_file():
            return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    raise UserError(f"there is no file {path}")


def text_of(path: Path) -> str:
    """What a text file holds."""
    try:
        return contents(path).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: {error}") from error


def made(folder: Path) -> Path:
    """A folder, made if there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}") from error
    return folder


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace a file's contents in one step, which even a loss of power does not halve; or say why not."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror}") from error


class Records:
    """A file to which whole records are appended; of one that finds no room, nothing is left."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def append(self, record: bytes) -> None:
        """Append a record; OSError where there is no room for it."""
        end = os.fstat(self._file.fileno()).st_size
        written = 0
        try:
            while written < len(record):
                written += self._file.write(record[written:])
        except OSError:
            self._file.truncate(end)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()
