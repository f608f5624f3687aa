"""How often agents try to reach replica 0, how often they write to it, and how many files they may open."""

import itertools
import resource
import socket

import pytest

from dtj.agent.open_files import wanted
from dtj.agent.replica import connector
from dtj.agent.replica.connector import pauses
from dtj.agent.wire.link import SILENCE_S, pace_s


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        pytest.param(2, [0.1, 0.1, 0.1, 0.1], id="a small job heals without delay"),
        pytest.param(100, [0.1, 0.2, 0.4, 0.5, 0.5], id="200 attempts a second together"),
        pytest.param(5000, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], id="at most 5 s"),
    ],
)
def test_pauses_between_attempts(agents: int, expected: list[float]) -> None:
    found = pauses(agents, jitter=lambda: 1.0)
    assert list(itertools.islice(found, len(expected))) == pytest.approx(expected)


def test_jitter_at_most_halves_a_pause() -> None:
    found = pauses(1000, jitter=lambda: 0.0)
    assert list(itertools.islice(found, 3)) == pytest.approx([0.05, 0.1, 0.2])


def test_address_that_stays_out_of_reach_is_named_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be wrong; usually replica 0 is still starting. An attempt takes 5 s here."""
    times, attempts = itertools.count(step=5.0), itertools.count(1)

    def connect(address: tuple[str, int], *, timeout: float) -> socket.socket:
        del timeout
        if next(attempts) == 20:
            raise KeyboardInterrupt
        raise socket.gaierror(-2, f"{address[0]} is unknown")

    monkeypatch.setattr("socket.create_connection", connect)
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    monkeypatch.setattr("time.sleep", lambda _: None)
    ours, theirs = socket.socketpair()
    said: list[str] = []
    with ours, theirs, pytest.raises(KeyboardInterrupt):
        connector._connect("job-0.job", 29500, theirs, 2, said.append)
    assert said == [
        f"cannot reach replica 0 at job-0.job, port 29500, for {s} s: job-0.job is unknown; trying again"
        for s in (30, 60)
    ]


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 524_288, 65_536),
        (1024, 4096, 4096),
        (1_000_000, 1_000_000, 1_000_000),
        (1024, resource.RLIM_INFINITY, 65_536),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_limit_of_open_files(soft: int, hard: int, expected: int) -> None:
    assert wanted(soft, hard) == expected


@pytest.mark.parametrize(("agents", "seconds"), [(2, 0.25), (250, 0.25), (2000, 2.0), (10_000, 5.0)])
def test_agents_of_large_jobs_write_less_often(agents: int, seconds: float) -> None:
    assert pace_s(agents, least_s=0.25) == seconds
    assert 3 * pace_s(agents, least_s=0.25) < SILENCE_S, "one late message must not look like a loss"
