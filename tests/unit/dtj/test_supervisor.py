"""Ranks of a node as real processes, without a coordinator."""

import selectors
import signal
import time
from collections.abc import Iterator

import pytest

from dtj.agent.console import PlainConsole
from dtj.agent.heartbeats import HeartbeatReader
from dtj.agent.rank_events import RankEvents
from dtj.agent.status import Status
from dtj.agent.supervisor import Supervisor

ENV = {"RANK": "0", "WORLD_SIZE": "1", "NNODES": "1"}


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as found:
        yield found


@pytest.fixture
def events() -> RankEvents:
    return RankEvents(
        Status(), HeartbeatReader(of_rank_0=True), tell=lambda _: None, say=lambda _: None, grace_s=None
    )


@pytest.fixture
def supervisor(selector: selectors.BaseSelector, events: RankEvents) -> Iterator[Supervisor]:
    found = Supervisor(
        signal.pause,  # waits for the signal that ends it
        threads=1,
        as_json=False,
        shown=None,
        selector=selector,
        console=PlainConsole(),
        events=events,
    )
    yield found
    found.kill()
    while found.alive():
        look(selector)


def look(selector: selectors.BaseSelector) -> None:
    for key, _ in selector.select(10.0):
        if selector.get_map().get(key.fd) is key:
            key.data()


def test_time_that_a_rank_has_to_save_is_not_cut_by_an_earlier_stop(
    supervisor: Supervisor, selector: selectors.BaseSelector
) -> None:
    """An elastic job may change its size twice within the minute that a save may take."""
    supervisor.start(0, ENV, generation=1)
    supervisor.newest[0].uses_dtj = True
    supervisor.start(0, ENV, generation=2, gracefully=True)
    assert supervisor.deadline
    while supervisor.newest[0].generation == 1:
        look(selector)
    assert supervisor.deadline is None


@pytest.mark.parametrize(
    ("report", "at_least_s"),
    [
        pytest.param(
            {"step": 3, "totalSteps": 9, "epoch": 0}, 50, id="dtj, which saves, also where it is alone"
        ),
        pytest.param(
            {"failure": {"exitCode": 1, "at": "2026-01-01T00:00:00+00:00"}}, 0, id="any other script"
        ),
    ],
)
def test_time_that_a_rank_has_to_stop(
    supervisor: Supervisor, events: RankEvents, report: dict[str, object], at_least_s: float
) -> None:
    supervisor.start(0, ENV, generation=1)
    process = supervisor.newest[0]
    process._failure = report.get("failure", {})  # type: ignore[assignment]
    events.reported(process, report)
    supervisor.start(0, ENV, generation=2, gracefully=True)
    assert supervisor.deadline
    left = supervisor.deadline - time.monotonic()
    assert at_least_s < left < at_least_s + 20


def test_rank_that_was_to_be_started_is_not_once_the_node_is_asked_to_end(
    supervisor: Supervisor, selector: selectors.BaseSelector
) -> None:
    """Nobody would ever tell it to end."""
    supervisor.start(0, ENV, generation=1)
    supervisor.start(0, ENV, generation=2)
    supervisor.stop(signal.SIGTERM)
    while supervisor.newest[0].ending is None:
        look(selector)
    assert (supervisor.newest[0].generation, supervisor.alive()) == (1, [])
