"""Seconds of a job by what they were good for; test_goodput.py compares with the ranks' own books."""

from dtj.agent.ledger import Ledger


def test_every_second_is_in_one_kind() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)  # start-up
    ledger.stepped(2, 5.0)  # productive
    ledger.fault(5.5)  # half a step for nothing
    ledger.fault(6.0)  # the same incident goes on
    ledger.formed(7.0)
    ledger.stepped(1, 8.0)  # back, but behind
    ledger.stepped(2, 9.0)  # done again
    ledger.stepped(3, 10.5)  # productive again
    assert ledger.at(11.0) == {"startup": 4.0, "productive": 3.0, "lost": 1.5, "recovering": 2.5}
    assert sum(ledger.at(11.0).values()) == 11.0


def test_step_that_is_told_of_after_a_later_fault_was_good() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)
    ledger.fault(6.0)
    ledger.stepped(2, 5.0)
    ledger.formed(6.5)
    ledger.stepped(3, 6.25)  # by those that did not notice yet
    ledger.stepped(4, 8.0)
    assert ledger.at(8.0) == {"startup": 4.0, "productive": 2.25, "lost": 0.0, "recovering": 1.75}


def test_fault_in_the_start_up_belongs_to_it() -> None:
    ledger = Ledger(since=0.0)
    ledger.fault(2.0)
    ledger.formed(3.0)
    ledger.stepped(1, 5.0)
    assert ledger.at(6.0) == {"startup": 5.0, "productive": 1.0, "lost": 0.0, "recovering": 0.0}


def test_what_is_told_of_too_late_takes_no_time_back() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)
    ledger.stepped(2, 3.0)
    ledger.fault(2.0)
    assert ledger.at(5.0) == {"startup": 4.0, "productive": 0.0, "lost": 0.0, "recovering": 1.0}


def test_books_can_be_read_while_the_job_recovers() -> None:
    ledger = Ledger(since=0.0)
    ledger.stepped(1, 4.0)
    ledger.fault(4.5)
    assert ledger.at(6.0) == {"startup": 4.0, "productive": 0.0, "lost": 0.5, "recovering": 1.5}
