"""The kernel's count of OOM kills; real OOM kills are in tests/e2e."""

import re
from pathlib import Path

import pytest

from dtj.agent.rank.oom import OomKills

V2 = "low 0\nhigh 0\nmax 31\noom {0}\noom_kill {0}\noom_group_kill 0\n"
OF_NODE = V2.replace("oom {0}", "oom 0")
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


@pytest.mark.parametrize(
    ("name", "text", "counters", "expected"),
    [
        pytest.param("memory.max", f"{3 * 2**29}\n", V2, r"1\.50 GiB.*--memory", id="cgroup v2"),
        pytest.param("memory.limit_in_bytes", f"{2**30}\n", V1, r"1\.00 GiB.*--memory", id="cgroup v1"),
        pytest.param("memory.max", "max\n", V2, r"$", id="no limit"),
        pytest.param("memory.limit_in_bytes", "9223372036854771712\n", V1, r"$", id="no limit in v1"),
        pytest.param(
            "memory.max", f"{2**30}\n", OF_NODE, "the node or the pod had no", id="the limit was not reached"
        ),
    ],
)
def test_limit_is_named_if_it_was_reached(
    tmp_path: Path, name: str, text: str, counters: str, expected: str
) -> None:
    events = tmp_path / "events"
    events.write_text(counters.format(0))
    (tmp_path / name).write_text(text)
    kills = OomKills(events)
    events.write_text(counters.format(1))
    kills.forget_old(100.0)  # the rank may need seconds to die
    assert re.match(f".*{expected}", kills.limit())


def test_limit_that_was_reached_some_time_ago_is_not_named(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.write_text(V2.format(0))
    kills = OomKills(events)
    events.write_text(V2.format(1))
    for now in (100.0, 110.0):
        kills.forget_old(now)
    assert "the node or the pod" in kills.limit()


def test_kill_that_no_rank_died_of_is_forgotten(tmp_path: Path) -> None:
    """A data worker was killed, and its rank continues: a later SIGKILL of a rank has another cause."""
    events = tmp_path / "memory.events"
    events.write_text(V2.format(0))
    kills = OomKills(events)
    kills.forget_old(100.0)
    events.write_text(V2.format(1))
    for now in (105.0, 110.0, 119.0):
        kills.forget_old(now)
    assert kills.take(), "a rank may need seconds to die"

    events.write_text(V2.format(2))
    for now in (120.0, 130.0):
        kills.forget_old(now)
    assert not kills.take()
