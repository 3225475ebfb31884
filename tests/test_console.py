"""What a person sees: one line now and then in a log, nothing when quiet."""

import pytest

from srl.console import Console, View, clock_time, sparkline, summary_lines

VIEW = View(steps=5_000, total=10_000, seconds=10.0, fps=500.0, reward=12.25, goal=100.0, episodes=40, lag=0.5)


def test_a_log_gets_a_line_now_and_then(capsys):
    console = Console()
    console.begin("ppo on [E]", "runs/[x]")
    for _ in range(5):
        console.update(VIEW)
    console.end()
    console.say("done [all]")
    out, err = capsys.readouterr()
    assert out == ""
    for part in (
        "ppo on [E]",
        "runs/[x]",
        "steps 5,000",
        "reward 12.2 of 100.0",
        "10 s left",
        "done [all]",
    ):
        assert part in err
    assert err.count("steps 5,000") == 1


def test_quiet_prints_nothing(capsys):
    console = Console(quiet=True)
    console.begin("title", "folder")
    console.update(VIEW)
    console.end()
    console.say("done")
    assert capsys.readouterr() == ("", "")


def test_a_run_without_an_episode_says_so(capsys):
    Console().update(View(steps=1))
    assert "no episode yet" in capsys.readouterr().err


def test_what_is_left_is_never_negative():
    assert VIEW.left == 10.0
    assert View(steps=5, fps=1.0).left is None
    assert View(steps=5, total=10).left is None
    assert not View(steps=15_000, total=10_000, fps=500.0).left


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_time_as_people_say_it(seconds, text):
    assert clock_time(seconds) == text


def test_a_curve_in_one_line():
    assert sparkline([]) == ""
    assert sparkline([1.0]) == "▁"
    assert sparkline([0.0, 3.5, 7.0]) == "▁▄█"
    assert len(set(sparkline([2.0] * 10))) == 1
    for count in (39, 40, 41, 1000):
        assert 0 < len(sparkline(list(range(count)))) <= 40


def test_a_summary_in_words():
    lines = "\n".join(
        summary_lines({"status": "completed", "reason": "reached 10 steps", "ep_rew_mean": 2.5, "steps": 10})
    )
    assert "completed: reached 10 steps" in lines
    assert "mean reward 2.5" in lines
    assert "no episode" in "\n".join(summary_lines({"status": "failed", "reason": ""}))
