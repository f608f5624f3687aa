"""Where the seconds went: what agents tell of each attempt, what only the operator sees, nothing twice."""

from typing import Any

from dtj_operator.plan.actions import Verdict
from dtj_operator.plan.policies.restart import restart
from dtj_operator.plan.snapshot import Ledger, Progress
from dtj_operator.plan.status import new_status
from tests.support.builders import NOW, JobBuilder, job, pod

Json = dict[str, Any]
TWO = job().replicas(2).running()


def told(given: JobBuilder, verdict: Verdict | None = None) -> Json:
    status: Json = new_status(given.snapshot(), verdict)
    return status


def ledger(productive: float, *, startup: float = 0, lost: float = 0, recovering: float = 0) -> Ledger:
    return Ledger(productive=productive, startup=startup, lost=lost, recovering=recovering)


def test_where_no_agent_tells_nothing_is_told() -> None:
    assert "goodput" not in told(TWO.at_step(3))


def test_what_came_before_the_agents_is_queued() -> None:
    given = TWO.answering(ledger=ledger(40, startup=5, lost=3, recovering=2))

    assert told(given)["goodput"] == {
        "percent": "66.7",  # 40 of the 60 s since startTime
        "productiveSeconds": 40,
        "startupSeconds": 5,
        "lostSeconds": 3,
        "recoveringSeconds": 2,
        "queuedSeconds": 10,
    }


def test_attempts_add_up_and_the_time_between_them_is_recovering() -> None:
    failing = TWO.answering(ledger=ledger(40, startup=20)).but(pod(1).crashed())
    fallen = told(failing, restart(failing.snapshot()))
    waiting = TWO.stored(fallen).having().seeing(now=NOW + 7, progress=None)
    up = waiting.having(*(pod(i, attempt=1).running() for i in (0, 1)))
    risen = told(up)
    late = Progress(attempt=1, observed_at=NOW + 40, ledger=ledger(30, startup=3))
    account = told(up.stored(risen).seeing(progress=late, now=NOW + 40))["goodput"]

    assert fallen["goodput"]["productiveSeconds"] == 40
    assert risen["goodput"]["recoveringSeconds"] == 7
    assert (account["productiveSeconds"], account["startupSeconds"]) == (70, 23)
    assert (account["recoveringSeconds"], account["queuedSeconds"]) == (7, 0)
    assert account["earlier"] == {
        "productiveSeconds": 40,
        "startupSeconds": 20,
        "lostSeconds": 0,
        "recoveringSeconds": 7,
    }
    assert account["percent"] == "70.0"


def test_agents_that_heal_in_place_count_that_time_themselves() -> None:
    healing = TWO.recovery(scope="Replica")
    failing = healing.answering(ledger=ledger(50, startup=10)).but(pod(1).crashed())
    fallen = told(failing, restart(failing.snapshot()))
    up = healing.stored(fallen).having(pod(0).running(), pod(1).with_uid("young").running())
    risen = told(up.seeing(now=NOW + 9, progress=None))["goodput"]

    assert (risen["recoveringSeconds"], risen["queuedSeconds"]) == (0, 0)


def test_the_account_goes_on_where_replica_0_is_replaced_in_place() -> None:
    healing = TWO.recovery(scope="Replica")
    failing = healing.answering(ledger=ledger(50, startup=10)).but(pod(0).crashed())
    fallen = told(failing, restart(failing.snapshot()))
    up = healing.stored(fallen).having(pod(0).with_uid("young").running(), pod(1).running())
    risen = told(up.answering(ledger=ledger(50, startup=10)).seeing(now=NOW + 9))
    late = Progress(attempt=0, observed_at=NOW + 60, ledger=ledger(30))
    later = up.stored(risen).seeing(progress=late, now=NOW + 60)

    assert risen["goodput"]["productiveSeconds"] == 50, "the old agent's last word is not added again"
    assert risen["goodput"]["recoveringSeconds"] == 9
    assert told(later)["goodput"]["productiveSeconds"] == 80
    # 120 s since startTime: what the old agent did after its last word is not known to have been kept.
    assert told(later)["goodput"]["recoveringSeconds"] == 120 - 50 - 10 - 30
    assert told(later)["goodput"]["percent"] == "66.7"
    again = told(up.stored(told(later)).seeing(progress=late, now=NOW + 60))
    assert again["goodput"] == told(later)["goodput"], "booked once"


def test_an_agent_that_lost_its_account_makes_no_time_undone() -> None:
    first = told(TWO.answering(ledger=ledger(50, startup=10)))
    second = told(TWO.stored(first).answering(ledger=ledger(1)))

    assert second["goodput"] == first["goodput"]


def test_the_account_survives_a_restart_of_the_operator() -> None:
    first = told(TWO.answering(ledger=ledger(50, startup=10)))

    assert told(TWO.stored(first).seeing(progress=None))["goodput"] == first["goodput"]
