"""The run store: nothing committed is lost, whoever is killed; whatever the disk does is said in one line."""

import contextlib
import os
import random
import resource
import signal
import sqlite3
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srl import store as stores
from srl.errors import UserError
from srl.store import Evaluation, Store


@pytest.fixture
def store(tmp_path):
    """A store in a run with checkpoints of three versions; the newest is kept twice."""
    made = Store(tmp_path / "store.sqlite")
    for version, folder in ((1, "step_10"), (2, "step_20"), (3, "step_30"), (3, "step_30_best")):
        add(made, version, folder)
    return made


def add(store, version, folder, policy="main"):
    (store.path.parent / "checkpoints" / policy / folder).mkdir(parents=True, exist_ok=True)
    store.add_version(policy, version, version * 10, version * 0.5, None, folder)


def evaluate(store, version, mean):
    store.add_evaluation("main", version, version * 10, mean, 1.5, 20, 99.0)


def test_versions_are_listed_with_all_that_is_known(store):
    evaluate(store, 3, 7.25)
    evaluate(store, 4, 8.0)
    store.tag("main", 3, "good")
    first, _, third, fourth = store.versions("main")
    assert (first.version, first.steps, first.seconds, first.reward) == (1, 10, 0.5, None)
    assert (first.evaluation, first.folders, first.tags) == (None, ("step_10",), ())
    assert third.evaluation == Evaluation(7.25, 1.5, 20, 99.0)
    assert third.folders == ("step_30", "step_30_best")
    assert third.tags == ("good",)
    assert (fourth.folders, fourth.seconds) == ((), None)
    assert store.versions("other") == []


def test_a_run_without_a_store_has_no_versions_and_looking_makes_none(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    assert store.versions("main") == []
    with pytest.raises(UserError, match="no version 'latest'"):
        store.find("main", "latest")
    assert list(tmp_path.iterdir()) == []


def test_a_version_is_found_by_number_by_tag_as_latest_and_as_best(store):
    for version, mean in ((1, 5.0), (2, 9.0), (3, 1.0), (4, 100.0)):
        evaluate(store, version, mean)
    assert store.tag("main", "best", "champion").version == 2
    for which, version in (("1", 1), (1, 1), ("latest", 3), ("best", 2), ("champion", 2)):
        assert store.find("main", which).version == version


def test_what_is_not_there_is_named_with_the_nearest(store):
    store.tag("main", 1, "champion")
    with pytest.raises(UserError, match=r"'champoin'.*did you mean 'champion'"):
        store.find("main", "champoin")
    with pytest.raises(UserError, match="no version 'best'"):
        store.find("main", "best")
    with pytest.raises(UserError, match=r"no tag 'champio'.*did you mean 'champion'"):
        store.untag("main", "champio")


def test_a_label_names_one_version_and_moves(store):
    store.tag("main", 1, "good")
    store.tag("main", 3, "good")
    assert [row.tags for row in store.versions("main")] == [(), (), ("good",)]
    store.untag("main", "good")
    assert not any(row.tags for row in store.versions("main"))


@pytest.mark.parametrize("label", ["latest", "best", "12", "", "a b", "a:b", "../x", "-x"])
def test_labels_that_could_mean_something_else_are_refused(store, label):
    with pytest.raises(UserError, match="cannot be a tag"):
        store.tag("main", 1, label)


def test_a_checkpoint_that_is_forgotten_or_removed_is_no_longer_offered(store):
    assert store.forget("main", "step_30")
    assert store.find("main", 3).folders == ("step_30_best",)
    (store.path.parent / "checkpoints" / "main" / "step_20").rmdir()
    for forgotten in (lambda: store.find("main", 2), lambda: store.tag("main", 2, "late")):
        with pytest.raises(UserError, match=r"version 2 .* no checkpoint any more; these have: 1, 3"):
            forgotten()


def test_what_is_tagged_is_not_given_up(store):
    store.tag("main", 3, "good")
    assert not store.forget("main", "step_30")
    assert not store.forget("main", "step_30_best")
    assert store.forget("main", "step_10")
    assert store.forget("main", "unknown")
    assert len(store.find("main", "good").folders) == 2


def test_saving_a_version_again_keeps_its_results(store):
    evaluate(store, 2, 3.0)
    store.tag("main", 2, "good")
    add(store, 2, "step_20.1")
    found = store.find("main", 2)
    assert (found.evaluation, found.tags) == (Evaluation(3.0, 1.5, 20, 99.0), ("good",))


REAL = st.floats(allow_nan=False)
COUNTS = st.integers(0, 2**62)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), COUNTS, REAL | st.none(), REAL), max_size=6))
def test_what_is_written_is_read(tmp_path_factory, rows):
    store, expected = Store(tmp_path_factory.mktemp("store") / "a%20b?#.sqlite"), {}
    for policy, version, steps, reward, mean in rows:
        store.add_version(policy, version, steps, 1.0, reward, "folder")
        store.add_evaluation(policy, version, steps, mean, mean, 3, mean)
        before = expected.get((policy, version), (0, None, None))
        expected[policy, version] = (steps, before[1] if reward is None else reward, Evaluation(mean, mean, 3, mean))
    found = {
        (policy, row.version): (row.steps, row.reward, row.evaluation)
        for policy in "ab"
        for row in store.versions(policy)
    }
    assert found == expected


def child(work):
    """Do this in a process of its own, until it is killed."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            work()
        os._exit(1)
    return pid


def killed(pid):
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_whoever_is_killed_loses_nothing_that_was_committed(tmp_path):
    store, chance = Store(tmp_path / "store.sqlite"), random.Random(4)
    read, write = os.pipe()
    os.set_blocking(read, False)

    def work(start):
        for version in range(start, 10**9):
            store.add_version("main", version, version, 0.0, 0.0, f"step_{version}")
            store.add_evaluation("main", version, version, 1.0, 0.0, 1, 1.0)
            store.forget("main", f"step_{version - 3}")
            os.write(write, version.to_bytes(8, "little"))

    started = time.perf_counter()
    evaluate(Store(tmp_path / "trial.sqlite"), 1, 1.0)
    span = time.perf_counter() - started
    committed = kills = 0
    while kills < 30 or committed < 20:
        kills += 1
        pid = child(lambda start=committed + 1: work(start))
        time.sleep(chance.uniform(0, 6 * span))
        assert killed(pid)
        with contextlib.suppress(BlockingIOError):
            committed = int.from_bytes(os.read(read, 1 << 20)[-8:], "little")
        rows = store.versions("main")
        assert [row.version for row in rows] == list(range(1, len(rows) + 1))
        assert committed <= len(rows) <= committed + 1
        assert all(row.evaluation for row in rows[:committed])
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_many_may_read_and_write_at_once(tmp_path):
    store = Store(tmp_path / "store.sqlite")

    def work(policy):
        for version in range(20):
            store.add_version(policy, version, version, 0.0, 0.0, "folder")
        os._exit(0)

    pids = [child(lambda policy=policy: work(policy)) for policy in ("a", "b", "c")]
    running, seen = set(pids), 0
    while running:
        running -= {pid for pid in running if os.waitpid(pid, os.WNOHANG)[0] == pid}
        for policy in "abc":
            rows = store.versions(policy)
            assert [row.version for row in rows] == list(range(len(rows)))
            seen += 1
    assert seen
    assert [len(store.versions(policy)) for policy in "abc"] == [20, 20, 20]


def test_a_damaged_file_is_named_with_what_to_do(store):
    whole = store.path.read_bytes()
    for data in (b"no database at all" * 100, whole[:5000], whole[:100] + b"\xff" * 8000):
        store.path.write_bytes(data)
        for use in (lambda: store.versions("main"), lambda: evaluate(store, 1, 1.0)):
            with pytest.raises(UserError, match=r"store.sqlite is damaged.*remove it.*checkpoints are intact"):
                use()
    store.path.unlink()
    evaluate(store, 1, 1.0)
    assert len(store.versions("main")) == 1


def test_a_file_with_other_tables_is_damaged(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as database:
        database.execute("CREATE TABLE versions (policy TEXT)")
    for use in (lambda store: store.versions("main"), lambda store: evaluate(store, 1, 1.0)):
        with pytest.raises(UserError, match="damaged"):
            use(Store(tmp_path / "store.sqlite"))


def test_values_of_other_types_are_damage(store):
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        database.execute("UPDATE versions SET steps = 'many'")
        database.commit()
    with pytest.raises(UserError, match="damaged"):
        store.versions("main")


def test_a_name_that_leads_out_of_the_run_is_no_checkpoint(store):
    store.add_version("main", 9, 90, 0.0, 0.0, "../../checkpoints")
    store.add_version("main", 9, 90, 0.0, 0.0, "/")
    store.add_version("main", 9, 90, 0.0, 0.0, "..")
    assert store.versions("main")[-1].folders == ()


def test_a_store_that_would_keep_its_reader_for_ever_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "WAIT_SECONDS", 0.2)
    store = Store(tmp_path / "store.sqlite")
    evaluate(store, 1, 1.0)
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        database.execute("DROP TABLE folders")
        database.execute(
            "CREATE VIEW folders AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
            " SELECT 'main' AS policy, x AS version, 'a' AS folder FROM n ORDER BY x"
        )
    with pytest.raises(UserError, match="damaged"):
        store.versions("main")


def test_a_newer_format_is_refused_with_who_reads_it(store):
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        database.execute("PRAGMA user_version = 99")
    for use in (lambda: store.versions("main"), lambda: evaluate(store, 1, 1.0)):
        with pytest.raises(UserError, match=r"format 99 and this srl reads up to 1.*system.json"):
            use()


def test_an_older_format_is_brought_up_to_date(store, monkeypatch):
    evaluate(store, 1, 1.0)
    monkeypatch.setattr(stores, "MIGRATIONS", (*stores.MIGRATIONS, ("ALTER TABLE versions ADD COLUMN notes TEXT",)))
    assert len(store.versions("main")) == 3
    evaluate(store, 2, 2.0)
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        assert database.execute("SELECT version, notes FROM versions").fetchall() == [(1, None), (2, None), (3, None)]


def test_a_migration_that_fails_leaves_the_file_as_it_was(store, monkeypatch):
    before = store.versions("main")
    with monkeypatch.context() as patch:
        patch.setattr(stores, "MIGRATIONS", (*stores.MIGRATIONS, ("DROP TABLE tags", "no SQL")))
        with pytest.raises(UserError, match="damaged"):
            evaluate(store, 1, 1.0)
    assert store.versions("main") == before


def as_nobody(work):
    """Run this where permissions count, and give what it printed by an exception."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            said = f"fine: {work()}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        return pipe.read()


@pytest.fixture
def public(tmp_path_factory):
    """A folder that every user can reach."""
    folder = tmp_path_factory.mktemp("public")
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.geteuid() and path.name.startswith(("pytest-", "public")):
            path.chmod(0o755)
    return folder


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_read_only_folder_can_be_read_and_not_written(public, end):
    store = Store(public / "store.sqlite")
    with contextlib.closing(sqlite3.connect(store.path)) as other:
        evaluate(store, 1, 1.0)
        if end == "killed":
            # A connection that is open keeps what was written ahead from being put in its place.
            other.execute("SELECT * FROM versions").fetchall()
            evaluate(store, 2, 1.0)
        public.chmod(0o555)
        try:
            assert as_nobody(lambda: len(store.versions("main"))) == f"fine: {1 + (end == 'killed')}"
            assert "UserError: cannot write" in as_nobody(lambda: evaluate(store, 3, 1.0))
        finally:
            public.chmod(0o755)


@pytest.fixture
def full_disk(tmp_path):
    """A small disk of its own, and a function that fills it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "srl-test", folder], capture_output=True)
    if mount.returncode:
        pytest.skip("may not mount a disk here")

    def fill():
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass

    yield folder, fill
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_said_and_loses_nothing(full_disk):
    folder, fill = full_disk
    store = Store(folder / "store.sqlite")
    evaluate(store, 1, 1.0)
    fill()
    with pytest.raises(UserError, match=r"cannot write .*store.sqlite: .*checkpoints do not need it"):
        evaluate(store, 2, 1.0)
    (folder / "filler").unlink()
    assert store.versions("main")
    evaluate(store, 1, 2.0)
    assert store.versions("main")[0].evaluation.mean == 2.0


def test_a_disk_that_is_full_from_the_start_is_said(full_disk):
    folder, fill = full_disk
    fill()
    with pytest.raises(UserError, match="cannot write"):
        evaluate(Store(folder / "store.sqlite"), 1, 1.0)


def test_a_quota_is_said_and_loses_nothing(store):
    before, limits = store.versions("main"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.raises(UserError, match="cannot write"):
            evaluate(store, 1, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.versions("main") == before


def test_a_folder_that_is_gone_is_said(tmp_path):
    store = Store(tmp_path / "gone" / "store.sqlite")
    assert store.versions("main") == []
    with pytest.raises(UserError, match="cannot write"):
        evaluate(store, 1, 1.0)


def test_reading_leaves_nothing_and_changes_nothing(store):
    before = store.path.read_bytes()
    store.versions("main")
    assert {path.name for path in store.path.parent.iterdir()} == {"store.sqlite", "checkpoints"}
    assert store.path.read_bytes() == before


def test_a_link_is_not_followed_out_of_the_run(store, tmp_path):
    other = Store(tmp_path / "other.sqlite")
    other.path.symlink_to(store.path)
    for use in (lambda: other.versions("main"), lambda: evaluate(other, 1, 1.0)):
        with pytest.raises(UserError, match="is a link"):
            use()
