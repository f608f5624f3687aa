"""A job's seconds by their use; test_goodput.py compares them with the ranks' own records."""

import selectors

from dtj.agent.coordinator.coordinator import Coordinator
from dtj.agent.coordinator.ledger import Ledger
from dtj.agent.coordinator.membership import Membership
from dtj.agent.coordinator.restarts import Restarts
from dtj.agent.coordinator.watch.hang import Watchdog
from dtj.agent.wire.protocol import CoordinatorState, Job, RestartBudget


def test_every_second_is_in_one_kind() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)  # start-up
    ledger.stepped(2, 5.0)  # productive
    ledger.fault(5.5)  # half a step is lost
    ledger.fault(6.0)  # the same incident
    ledger.formed(7.0)
    ledger.stepped(1, 8.0)  # recovered, behind the best step
    ledger.stepped(2, 9.0)  # repeated
    ledger.stepped(3, 10.5)  # productive again
    assert ledger.at(11.0) == {"startup": 4.0, "productive": 3.0, "lost": 1.5, "recovering": 2.5}
    assert sum(ledger.at(11.0).values()) == 11.0


def test_step_that_is_reported_after_a_later_fault_is_productive() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)
    ledger.fault(6.0)
    ledger.stepped(2, 5.0)
    ledger.formed(6.5)
    ledger.stepped(3, 6.25)  # by ranks that had not noticed the fault yet
    ledger.stepped(4, 8.0)
    assert ledger.at(8.0) == {"startup": 4.0, "productive": 2.25, "lost": 0.0, "recovering": 1.75}


def test_fault_during_startup_counts_as_startup() -> None:
    ledger = Ledger(since=0.0)
    ledger.fault(2.0)
    ledger.formed(3.0)
    ledger.stepped(1, 5.0)
    assert ledger.at(6.0) == {"startup": 5.0, "productive": 1.0, "lost": 0.0, "recovering": 0.0}


def test_late_report_does_not_take_time_back() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)
    ledger.stepped(2, 3.0)
    ledger.fault(2.0)
    assert ledger.at(5.0) == {"startup": 4.0, "productive": 0.0, "lost": 0.0, "recovering": 1.0}


def test_ledger_can_be_read_while_the_job_recovers() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)
    ledger.fault(4.5)
    assert ledger.at(6.0) == {"startup": 4.0, "productive": 0.0, "lost": 0.5, "recovering": 1.5}


def test_steps_of_an_earlier_attempt_are_repeated_and_not_productive() -> None:
    """As after a suspension without a checkpoint."""
    membership = Membership(
        job=Job(), restarts=Restarts(budget=RestartBudget()), state=CoordinatorState(best_step=2)
    )
    with selectors.DefaultSelector() as selector:
        coordinator = Coordinator(membership, Watchdog(), selector, log=print)
        ledger, began = coordinator.ledger, coordinator.ledger.since
        coordinator.close()
    for step in (1, 2, 3):
        ledger.stepped(step, began + step)
    assert {kind: round(seconds) for kind, seconds in ledger.at(began + 3).items()} == {
        "startup": 1,
        "lost": 1,
        "productive": 1,
        "recovering": 0,
    }
