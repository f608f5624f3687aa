"""The kernel's count of OOM kills; real OOM kills are in tests/e2e."""

from pathlib import Path

import pytest

from dtj.agent.oom import OomKills

V2 = "low 0\nhigh 0\nmax 31\noom 2\noom_kill {}\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


@pytest.mark.parametrize("text", [V1, V2], ids=["cgroup v1", "cgroup v2"])
def test_each_kill_is_taken_once(tmp_path: Path, text: str) -> None:
    events = tmp_path / "memory.events"
    events.write_text(text.format(1))
    kills = OomKills(events)
    assert not kills.take(), "it was counted before"

    events.write_text(text.format(3))

    assert [kills.take() for _ in range(3)] == [True, True, False]


def test_machine_without_the_counter_has_no_kills(tmp_path: Path) -> None:
    assert not OomKills(tmp_path / "memory.events").take()
