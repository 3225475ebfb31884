"""The run store: every version of a policy that was kept or evaluated, its results and its tags, in RUN/store.sqlite.

    trainer --add_version, forget-->  store.sqlite  <--versions, find, tag, untag-- srl versions, srl tag
    evaluator --add_evaluation----->

    versions   policy, version -> steps, seconds, reward; mean, std, episodes, length of its last evaluation
    folders    policy, folder -> version: a version may be kept twice, to train on and as the best
    tags       policy, label -> version

Whoever is killed leaves every committed row: SQLite writes ahead (WAL) and syncs each commit, of which there are few.
A connection lives as long as one call, so that none crosses a fork. It knows no torch and no worker; checkpoints are
whole without it, and a run goes on without it.
"""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from srl.errors import UserError, nearest

MIGRATIONS = (
    (
        "CREATE TABLE versions (policy TEXT, version INTEGER, steps INTEGER, seconds REAL, reward REAL, mean REAL,"
        " std REAL, episodes INTEGER, length REAL, PRIMARY KEY (policy, version))",
        "CREATE TABLE folders (policy TEXT, folder TEXT, version INTEGER, PRIMARY KEY (policy, folder))",
        "CREATE TABLE tags (policy TEXT, label TEXT, version INTEGER, PRIMARY KEY (policy, label))",
    ),
)
"""The statements that lead from each format of the store to the next; `user_version` counts those that were run."""
WAIT_SECONDS = 10.0
"""Longest wait for another process to commit, and longest that a question may take: a file may hold an endless one."""
_LABEL = re.compile(r"[A-Za-z_][\w.-]*")
_OUTSIDE = tuple(f"SQLITE_{word}" for word in ("FULL", "READONLY", "CANTOPEN", "IOERR", "BUSY", "LOCKED", "PERM"))
"""What the disk or another process may cause; all else means that the file is not what was written."""
_COLUMNS = "version, steps, seconds, reward, mean, std, episodes, length"
_NAMES = list[tuple[int, str]]
_Real = float | None
_ROWS = list[tuple[int, int, _Real, _Real, _Real, _Real, int | None, _Real]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What whole episodes with one version gave."""

    mean: float
    std: float
    episodes: int
    length: float


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a policy: how it came about, how good it is, and where its weights are."""

    version: int
    steps: int
    seconds: float | None
    reward: float | None
    evaluation: Evaluation | None
    folders: tuple[str, ...]
    """Its checkpoints that are still there."""
    tags: tuple[str, ...]


class Store:
    """The store of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add_version(
        self, policy: str, version: int, steps: int, seconds: float | None, reward: float | None, folder: str
    ) -> None:
        """Note a checkpoint; a version may have several."""
        with self._writing() as database:
            _put(database, policy, version, steps=steps, seconds=seconds, reward=reward)
            database.execute("INSERT OR REPLACE INTO folders VALUES (?, ?, ?)", (policy, folder, version))

    def add_evaluation(
        self, policy: str, version: int, steps: int, mean: float, std: float, episodes: int, length: float
    ) -> None:
        """Note an evaluation; the last of a version counts."""
        with self._writing() as database:
            _put(database, policy, version, steps=steps, mean=mean, std=std, episodes=episodes, length=length)

    def tag(self, policy: str, which: str | int, label: str) -> Version:
        """Give a version that is kept a label, so that it stays; a label that another has moves."""
        if not _LABEL.fullmatch(label) or label in ("latest", "best"):
            raise UserError(f"{label!r} cannot be a tag: a letter first, then letters, digits, '.', '_' or '-'")
        with self._writing() as database:
            # Looked up and tagged at once, so that no pruning comes between.
            found = self._kept(self._rows(database, policy), policy, str(which))
            database.execute("INSERT OR REPLACE INTO tags VALUES (?, ?, ?)", (policy, label, found.version))
        return found

    def untag(self, policy: str, label: str) -> None:
        """Take a label away."""
        with self._writing() as database:
            known = [row[0] for row in database.execute("SELECT label FROM tags WHERE policy = ?", (policy,))]
            if label not in known:
                raise UserError(f"policy {policy!r} has no tag {label!r}{nearest(label, known)}")
            database.execute("DELETE FROM tags WHERE policy = ? AND label = ?", (policy, label))

    def forget(self, policy: str, folder: str) -> bool:
        """Strike out a checkpoint that is about to be removed; False if its version is tagged and it must stay."""
        with self._writing() as database:
            tagged = "SELECT 1 FROM folders JOIN tags USING (policy, version) WHERE policy = ? AND folder = ?"
            if database.execute(tagged, (policy, folder)).fetchone():
                return False
            database.execute("DELETE FROM folders WHERE policy = ? AND folder = ?", (policy, folder))
            return True

    def versions(self, policy: str) -> list[Version]:
        """Every version that was kept or evaluated, oldest first."""
        with self._reading() as database:
            return self._rows(database, policy)

    def find(self, policy: str, which: str | int) -> Version:
        """The version, of those whose weights are there, that `which` names: a tag, a number, latest or best."""
        return self._kept(self.versions(policy), policy, str(which))

    def _kept(self, rows: list[Version], policy: str, which: str) -> Version:
        named = [row for row in rows if which in (str(row.version), *row.tags)]
        kept = [row for row in rows if row.folders]
        if which == "latest":
            named = kept[-1:]
        elif which == "best":
            evaluated = [(row.evaluation.mean, row.version, row) for row in kept if row.evaluation]
            named = [row for _, _, row in sorted(evaluated)[-1:]]
        if not named:
            words = [*(str(row.version) for row in kept), *(tag for row in rows for tag in row.tags), "latest", "best"]
            raise UserError(f"policy {policy!r} has no version {which!r} in {self.path}{nearest(which, words)}")
        if not named[0].folders:
            known = ", ".join(str(row.version) for row in kept) or "none"
            raise UserError(f"version {which} of policy {policy!r} has no checkpoint any more; these have: {known}")
        return named[0]

    def _rows(self, database: sqlite3.Connection, policy: str) -> list[Version]:
        def select(words: str, kind: Any) -> Any:
            return msgspec.convert(database.execute(f"SELECT {words}", (policy,)).fetchall(), kind)

        folders, tags = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
        # What a file says is not trusted to name a checkpoint.
        there = {path.name for path in (self.path.parent / "checkpoints" / policy).glob("step_*")}
        for version, name in select("version, folder FROM folders WHERE policy = ? ORDER BY folder", _NAMES):
            folders[version] += [name] if name in there else []
        for version, name in select("version, label FROM tags WHERE policy = ? ORDER BY label", _NAMES):
            tags[version].append(name)
        rows = select(f"{_COLUMNS} FROM versions WHERE policy = ? ORDER BY version", _ROWS)
        return [
            Version(
                version, steps, seconds, reward, _evaluation(results), tuple(folders[version]), tuple(tags[version])
            )
            for version, steps, seconds, reward, *results in rows
        ]

    @contextlib.contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """A connection in a transaction that is committed at the end, whole or not at all."""
        with self._errors("write"), contextlib.closing(self._connect(str(self.path))) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            self._begin(database)
            yield database
            database.execute("COMMIT")

    @contextlib.contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        """A connection to a copy in memory, brought to the newest format; the file and its folder may be read-only."""
        with self._errors("read"), contextlib.closing(self._connect(":memory:")) as database:
            if self.path.is_file():
                self._copy_to(database)
            self._begin(database)
            yield database

    def _copy_to(self, database: sqlite3.Connection) -> None:
        where = f"file:{quote(str(self.path))}"
        try:
            with contextlib.closing(self._connect(f"{where}?mode=rw")) as source:
                source.backup(database)
        except sqlite3.OperationalError:
            # In a read-only folder SQLite cannot make the files that readers share, and needs none if nobody writes.
            if self.path.with_name(f"{self.path.name}-wal").exists():
                raise
            with contextlib.closing(self._connect(f"{where}?immutable=1")) as source:
                source.backup(database)

    def _connect(self, where: str) -> sqlite3.Connection:
        database = sqlite3.connect(where, timeout=WAIT_SECONDS, isolation_level=None, uri=where.startswith("file:"))
        until = time.monotonic() + 2 * WAIT_SECONDS
        database.set_progress_handler(lambda: time.monotonic() > until, 10_000)
        return database

    def _begin(self, database: sqlite3.Connection) -> None:
        """Begin a transaction, and bring the file to the newest format in it."""
        database.execute("BEGIN IMMEDIATE")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found > len(MIGRATIONS):
            raise UserError(
                f"{self.path} has format {found} and this srl reads up to {len(MIGRATIONS)};"
                " the run's system.json names the srl that wrote it"
            )
        for statement in chain.from_iterable(MIGRATIONS[found:]):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Generator[None]:
        if self.path.is_symlink():
            raise UserError(f"{self.path} is a link; a store lies in its run")
        try:
            yield
        except (sqlite3.Error, msgspec.ValidationError, UnicodeDecodeError) as error:
            if getattr(error, "sqlite_errorname", "").startswith(_OUTSIDE):
                raise UserError(f"cannot {verb} {self.path}: {error}; checkpoints do not need it") from error
            raise UserError(
                f"{self.path} is damaged ({error}); remove it and what begins with its name: checkpoints are intact,"
                " only results and tags are lost"
            ) from error


def _put(database: sqlite3.Connection, policy: str, version: int, **columns: float | None) -> None:
    """Write what is known of a version into its row, and make it if there is none."""
    known = {name: value for name, value in columns.items() if value is not None}
    updates = ", ".join(f"{name} = excluded.{name}" for name in known)
    database.execute(
        f"INSERT INTO versions (policy, version, {', '.join(known)}) VALUES (?, ?{', ?' * len(known)})"
        f" ON CONFLICT DO UPDATE SET {updates}",
        (policy, version, *known.values()),
    )


def _evaluation(results: list[Any]) -> Evaluation | None:
    """The evaluation of a row, if there was one; SQLite keeps NaN as nothing."""
    if results[2] is None:
        return None
    mean, std, episodes, length = [math.nan if number is None else number for number in results]
    return Evaluation(mean, std, int(episodes), length)
