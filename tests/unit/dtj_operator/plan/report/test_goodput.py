"""Where the time went: what agents report for each attempt, what only the operator sees, nothing twice."""

from typing import Any

from dtj_operator.model.agent_status import Ledger, Progress
from dtj_operator.plan.actions import Verdict
from dtj_operator.plan.policies.restart import restart
from dtj_operator.plan.report.status import new_status
from tests.support.builders import NOW, JobBuilder, job, pod

Json = dict[str, Any]
TWO = job().replicas(2).running()


def status_of(given: JobBuilder, verdict: Verdict | None = None) -> Json:
    status: Json = new_status(given.snapshot(), verdict)
    return status


def ledger(productive: float, *, startup: float = 0, lost: float = 0, recovering: float = 0) -> Ledger:
    return Ledger(productive=productive, startup=startup, lost=lost, recovering=recovering)


def test_no_goodput_without_an_agent_report() -> None:
    assert "goodput" not in status_of(TWO.at_step(3))


def test_time_before_the_agents_start_is_queued_until_all_pods_have_a_node() -> None:
    given = TWO.having(pod(0).running().placed(NOW - 60), pod(1).running().placed(NOW - 56)).answering(
        ledger=ledger(40, startup=5, lost=3, recovering=2)
    )
    first = status_of(given)
    later = Progress(attempt=0, observed_at=NOW + 30, ledger=ledger(70, startup=5, lost=3, recovering=2))
    second = status_of(given.stored(first).seeing(answer=later, now=NOW + 30))

    assert (first["goodput"]["queuedSeconds"], first["goodput"]["startupSeconds"]) == (4, 11)
    assert second["goodput"] == first["goodput"] | {"productiveSeconds": 70, "percent": "77.8"}
    ended = status_of(
        given.stored(second).seeing(answer=later), restart(given.but(pod(1).crashed()).snapshot())
    )
    assert ended["goodput"]["startupSeconds"] == 11
    assert ended["memory"]["earlierSeconds"]["startupSeconds"] == 11


def test_program_that_reports_no_step_has_no_percentage() -> None:
    """As plain scripts that do not call step(): 0.0 % would say that they have done nothing."""
    assert "percent" not in status_of(TWO.answering(ledger=ledger(0, startup=600)))["goodput"]
    assert status_of(TWO.answering(ledger=ledger(0, lost=9)))["goodput"]["percent"] == "0.0"


def test_time_until_all_pods_run_is_not_counted_twice() -> None:
    """The first agent answers while another pod still starts."""
    starting = TWO.having(pod(0).running().placed(NOW - 57), pod(1).placed(NOW - 57)).was("Starting")
    first = status_of(starting.answering(ledger=ledger(0, startup=50)))
    up = TWO.stored(first).seeing(now=NOW + 20)
    late = Progress(attempt=0, observed_at=NOW + 20, ledger=ledger(0, startup=70))
    assert (first["phase"], first["goodput"]["queuedSeconds"]) == ("Starting", 3)
    assert status_of(up.seeing(answer=late))["goodput"] == first["goodput"] | {"startupSeconds": 77}


def test_pods_that_start_after_a_resume_are_not_queued() -> None:
    status = {"goodput": {"productiveSeconds": 9, "queuedSeconds": 1}, "attempt": 1}
    before = status | {"memory": {"earlierSeconds": {"productiveSeconds": 9}}}
    up = job().replicas(2).was("Starting", **before).having(*(pod(i, attempt=1).running() for i in (0, 1)))
    account = status_of(up)["goodput"]
    assert (account["queuedSeconds"], account["startupSeconds"]) == (1, 60)


def test_time_in_which_the_pods_of_a_later_attempt_have_no_nodes_is_queued() -> None:
    status = {"goodput": {"productiveSeconds": 9, "queuedSeconds": 1}, "attempt": 1}
    before = status | {"memory": {"earlierSeconds": {"productiveSeconds": 9}}}
    placed = job().replicas(2).was("Pending", **before).having(*(pod(i, attempt=1).on("w") for i in (0, 1)))
    started = status_of(placed)
    assert (started["phase"], started["goodput"]["queuedSeconds"]) == ("Starting", 61)


def test_time_before_the_agents_start_is_queued_if_pods_do_not_say_when_they_had_nodes() -> None:
    given = TWO.answering(ledger=ledger(40, startup=5, lost=3, recovering=2))

    assert status_of(given)["goodput"] == {
        "percent": "66.7",  # 40 of the 60 s since startTime
        "productiveSeconds": 40,
        "startupSeconds": 5,
        "lostSeconds": 3,
        "recoveringSeconds": 2,
        "queuedSeconds": 10,
    }


def test_attempts_add_up_and_the_time_between_them_is_recovering() -> None:
    failing = TWO.answering(ledger=ledger(40, startup=20)).but(pod(1).crashed())
    fallen = status_of(failing, restart(failing.snapshot()))
    waiting = TWO.stored(fallen).having().seeing(now=NOW + 7, answer=None)
    up = waiting.having(*(pod(i, attempt=1).running() for i in (0, 1)))
    risen = status_of(up)
    late = Progress(attempt=1, observed_at=NOW + 40, ledger=ledger(30, startup=3))
    late_status = status_of(up.stored(risen).seeing(answer=late, now=NOW + 40))
    account = late_status["goodput"]

    assert fallen["goodput"]["productiveSeconds"] == 40
    assert risen["goodput"]["recoveringSeconds"] == 7
    assert (account["productiveSeconds"], account["startupSeconds"]) == (70, 23)
    assert (account["recoveringSeconds"], account["queuedSeconds"]) == (7, 0)
    assert late_status["memory"]["earlierSeconds"] == {
        "productiveSeconds": 40,
        "startupSeconds": 20,
        "lostSeconds": 0,
        "recoveringSeconds": 7,
    }
    assert account["percent"] == "70.0"


def test_agents_that_restart_in_place_count_that_time_themselves() -> None:
    healing = TWO.recovery(scope="Replica")
    failing = healing.answering(ledger=ledger(50, startup=10)).but(pod(1).crashed())
    fallen = status_of(failing, restart(failing.snapshot()))
    up = healing.stored(fallen).having(pod(0).running(), pod(1).with_uid("young").running())
    risen = status_of(up.seeing(now=NOW + 9, answer=None))["goodput"]

    assert (risen["recoveringSeconds"], risen["queuedSeconds"]) == (0, 0)


def test_account_continues_if_replica_0_is_replaced_in_place() -> None:
    healing = TWO.recovery(scope="Replica")
    failing = healing.answering(ledger=ledger(50, startup=10)).but(pod(0).crashed())
    fallen = status_of(failing, restart(failing.snapshot()))
    up = healing.stored(fallen).having(pod(0).with_uid("young").running(), pod(1).running())
    risen = status_of(up.answering(ledger=ledger(50, startup=10)).seeing(now=NOW + 9))
    late = Progress(attempt=0, observed_at=NOW + 60, ledger=ledger(30))
    later = up.stored(risen).seeing(answer=late, now=NOW + 60)

    assert risen["goodput"]["productiveSeconds"] == 50, "the old agent's last report is not added again"
    assert risen["goodput"]["recoveringSeconds"] == 9
    assert status_of(later)["goodput"]["productiveSeconds"] == 80
    # 120 s since startTime: whether the old agent's work after its last report was kept is unknown.
    assert status_of(later)["goodput"]["recoveringSeconds"] == 120 - 50 - 10 - 30
    assert status_of(later)["goodput"]["percent"] == "66.7"
    again = status_of(up.stored(status_of(later)).seeing(answer=late, now=NOW + 60))
    assert again["goodput"] == status_of(later)["goodput"], "counted once"


def test_agent_that_lost_its_account_reduces_no_time() -> None:
    first = status_of(TWO.answering(ledger=ledger(50, startup=10)))
    second = status_of(TWO.stored(first).answering(ledger=ledger(1)))

    assert second["goodput"] == first["goodput"]


def test_the_account_survives_a_restart_of_the_operator() -> None:
    first = status_of(TWO.answering(ledger=ledger(50, startup=10)))

    assert status_of(TWO.stored(first).seeing(answer=None))["goodput"] == first["goodput"]
