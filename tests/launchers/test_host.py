"""Hosts without a cluster between them: what they are ordered and answer, and a run folder that one cannot see."""

import time
from pathlib import Path

import pytest

from srl import runs
from srl.errors import UserError
from srl.launchers import plan
from srl.launchers.host import Host
from srl.launchers.plan import Site
from srl.recipes.ppo import ppo
from srl.wire import Keys

SECONDS = 60
EXPERIMENT = ppo("srl.envs.fake:Counting", actors=2, envs=8, rollout=8, steps=400, compile=False, hidden=(4,))
WHERE = {"trainer-main-0": 0, "actor-main-0": 0, "actor-main-1": 1}


@pytest.fixture
def two_hosts():
    hosts = [Host(), Host()]
    yield hosts
    for host in hosts:
        host.close(1.0)


def finished(hosts, orders):
    """Pass on orders and answers until the trainer has finished; its summary, and the logs that came."""
    until, logs, number = time.monotonic() + SECONDS, dict[str, bytes](), 0
    while time.monotonic() < until:
        number += 1
        for host, its in zip(hosts, orders, strict=True):
            events, _, printed = answer = host.exchange(number, its, 0.05, memory=False)
            # The answer may be lost on the way.
            assert host.exchange(number, its, 0.05, memory=False) == answer
            its.clear()
            for name, text in printed.items():
                logs[name] = logs.get(name, b"") + text
            for event in events:
                assert event.message["kind"] not in ("exit", "error", "user_error"), event
                if event.message["kind"] == "finished":
                    return event.message["summary"], logs
    raise AssertionError("the run did not finish")


def prepared(hosts, folder_of, tmp_path, resume=False):
    shapes = hosts[0].describe(EXPERIMENT)
    doors, orders = {}, []
    for at, host in enumerate(hosts):
        site = Site(at, WHERE, "127.0.0.1")
        doors |= host.prepare(EXPERIMENT, shapes, folder_of(at), resume=resume, site=site)
        orders.append([("start", task, {"life": 0, "epoch": 0}) for task in plan.tasks_at(EXPERIMENT, site)])
    keys = Keys.new()
    for host in hosts:
        host.meet(doors, keys)
    return orders


def test_two_hosts_train_together_though_one_cannot_see_the_run_folder(two_hosts, tmp_path: Path) -> None:
    run = runs.create(tmp_path, EXPERIMENT, "Counting", "run", ["srl"])
    orders = prepared(two_hosts, lambda at: run.path if at == 0 else tmp_path / "elsewhere", tmp_path)
    scratch = two_hosts[1]._scratch
    assert scratch is not None
    (scratch / "logs" / "actor-main-1.log").write_bytes(b"printed there\n")
    summary, logs = finished(two_hosts, orders)
    assert summary["steps"] >= 400
    assert logs["actor-main-1.log"].startswith(b"printed there")
    assert {log.name for log in run.logs.iterdir()} == {"trainer-main-0.log", "actor-main-0.log"}
    two_hosts[1].close(1.0)
    assert not scratch.exists()


def test_who_writes_to_the_run_folder_must_see_it(two_hosts, tmp_path: Path) -> None:
    shapes = two_hosts[0].describe(EXPERIMENT)
    site = Site(0, WHERE, "127.0.0.1")
    with pytest.raises(UserError, match=r"trainer-main-0 .* does not see the run folder"):
        two_hosts[0].prepare(EXPERIMENT, shapes, tmp_path / "nowhere", resume=False, site=site)
