"""Files as srl reads and replaces them: what cannot be read is a UserError, and what is replaced is so in one step."""

from __future__ import annotations

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


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace a file's contents in one step, which even a loss of power does not halve."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
