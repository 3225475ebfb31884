"""What cannot be read is said in one line and never waited for; what is replaced is old or new."""

import os
import resource
from pathlib import Path

import pytest

from srl.errors import UserError
from srl.files import Records, contents, text_of, write_atomically


def test_a_file_is_read(tmp_path):
    (tmp_path / "a").write_bytes("ä\n".encode())
    (tmp_path / "b").symlink_to("a")
    assert contents(tmp_path / "b") == b"\xc3\xa4\n"
    assert text_of(tmp_path / "a") == "ä\n"


@pytest.mark.parametrize("what", ["nothing", "folder", "pipe", "loop", "device"])
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path, what):
    path = tmp_path / "it"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what != "nothing":
        path.symlink_to("it" if what == "loop" else "/dev/zero")
    with pytest.raises(UserError, match=r"there is no file .*it"):
        contents(path)


def test_a_file_that_may_not_be_read_is_named():
    # Its first bytes cannot be read, by root neither.
    with pytest.raises(UserError, match=r"cannot read /proc/self/mem"):
        contents(Path("/proc/self/mem"))


def test_text_that_is_none_is_damage(tmp_path):
    (tmp_path / "a").write_bytes(b"\xff")
    with pytest.raises(UserError, match="a is damaged"):
        text_of(tmp_path / "a")


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path):
    path = tmp_path / "a"
    write_atomically(path, b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*File too large"):
            write_atomically(path, b"new" * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_finds_no_room_leaves_nothing(tmp_path):
    records = Records(tmp_path / "a")
    records.append(b"one\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            records.append(b"another\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "a").read_bytes() == b"one\n"
    records.append(b"three\n")
    records.close()
    assert (tmp_path / "a").read_bytes() == b"one\nthree\n"
