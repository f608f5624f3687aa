"""What a written status adds to the metrics of jobs."""

import pytest

from dtj_operator.model.agent_status import Incident, Ledger
from dtj_operator.plan.actions import Fail, Fault, Restart, Succeed, Verdict
from dtj_operator.plan.report.measures import Measures, Recovered, measures
from dtj_operator.plan.report.status import new_status
from tests.support.builders import NOW, JobBuilder, at, job, pod

param = pytest.param
TWO = job().replicas(2)
UP = TWO.having(pod(0).running(), pod(1).running())
FAULT = Fault(reason="NodeLost", replica=1, node="w2", at=NOW, disruption=True)
BROKE = {"reason": "OOMKilled", "replica": 1, "at": at(-25)}
STEPPED = Ledger(productive=2, startup=8)


def measured(given: JobBuilder, verdict: Verdict | None = None) -> Measures:
    s = given.snapshot()
    return measures(s, verdict, new_status(s, verdict))


@pytest.mark.parametrize(
    ("given", "verdict", "found"),
    [
        param(TWO, None, Measures(), id="a new job"),
        param(UP.was("Starting"), None, Measures(running_s=60), id="all pods run"),
        param(UP.was("Starting", attempt=1), None, Measures(), id="all pods run again after a suspension"),
        param(UP.running(), None, Measures(), id="a running job"),
        param(
            UP.running().answering(step=1, ledger=STEPPED),
            None,
            Measures(first_step_s=58),  # of 60 s, 2 s are productive
            id="the first step",
        ),
        param(
            UP.running().answering(step=9, ledger=STEPPED).was("Running", progress={"step": 8}),
            None,
            Measures(),
            id="a later step",
        ),
        param(
            UP.running(),
            Succeed("AllRanksSucceeded"),
            Measures(finished=("Succeeded", "AllRanksSucceeded")),
            id="success",
        ),
        param(
            UP.running(),
            Fail("NoProgress", "three times", FAULT),
            Measures(finished=("Failed", "NoProgress"), fault="NodeLost", lost_node="w2"),
            id="failure",
        ),
        param(UP.was("Failed"), None, Measures(), id="a job that had finished before"),
        param(
            UP.running(),
            Restart(FAULT, counts=False),
            Measures(fault="NodeLost", lost_node="w2", restarted=False),
            id="a restart",
        ),
        param(
            UP.was("Recovering", failure=BROKE),
            Restart(FAULT, counts=False, same_incident=True),
            Measures(),
            id="another pod of the same incident",
        ),
        param(
            UP.was("Recovering", failure=BROKE),
            None,
            Measures(recovered=(Recovered(scope="Job", reason="OOMKilled", seconds=25),)),
            id="all pods run again after a fault",
        ),
        param(
            UP.running().answering(
                in_place=2, incident=Incident(reason="Signal"), ledger=Ledger(startup=50, recovering=10)
            ),
            None,
            Measures(fault="Signal", recovered=(Recovered(scope="InPlace", reason="Signal", seconds=5),) * 2),
            id="two restarts in place",
        ),
        param(
            UP.running().answering(in_place=1, incident=Incident(reason="a new word each time")),
            None,
            Measures(fault="Other", recovered=(Recovered(scope="InPlace", reason="Other", seconds=0),)),
            id="a reason that an agent made up",
        ),
    ],
)
def test_measures(given: JobBuilder, verdict: Verdict | None, found: Measures):
    assert measured(given, verdict) == found
