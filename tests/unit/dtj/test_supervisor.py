"""Ranks of a node as real processes, without a coordinator."""

import selectors
import signal
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
def supervisor(selector: selectors.BaseSelector) -> Iterator[Supervisor]:
    events = RankEvents(
        Status(), HeartbeatReader(of_rank_0=True), tell=lambda _: None, say=lambda _: None, grace_s=None
    )
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
