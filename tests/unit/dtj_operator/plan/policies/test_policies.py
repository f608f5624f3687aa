"""The policies, one table each; every row differs from its neighbour in one thing."""

from typing import Any
from unittest.mock import ANY

import pytest

from dtj_operator.model.agent_status import Incident, SilentReplica
from dtj_operator.model.views import ContainerView
from dtj_operator.plan.actions import (
    AwaitCause,
    DeleteChild,
    DeletePod,
    Fail,
    Restart,
    Resume,
    Succeed,
    Suspend,
    UseReplicaScope,
)
from dtj_operator.plan.planner import plan
from dtj_operator.plan.policies import deadline as deadline_policy
from dtj_operator.plan.policies import restart as restart_policy
from dtj_operator.plan.policies import ttl
from dtj_operator.plan.policies.cleanup import cleanup
from dtj_operator.plan.policies.deadline import deadline
from dtj_operator.plan.policies.restart import counters, fail_healed, restart
from dtj_operator.plan.policies.success import success
from dtj_operator.plan.policies.suspend import suspend
from tests.support.builders import NOW, at, job, pod

param = pytest.param

TWO = job().replicas(2).running()
CULPRIT = {"replica": 1, "rank": 1, "reason": "ExitCode", "exitCode": 3, "at": at(-1)}  # as pod 0 reports it
NEW = job().replicas(2).was("Starting").having(pod(0), pod(1))
NOT_ALL_CAME = (  # as torch 2.15 says it
    "    return TCPStore(\ntorch.distributed.DistStoreError: "
    "Timed out after 601 seconds waiting for clients. 1/2 clients joined."
)
TIMED_OUT = NEW.but(pod(0).crashed(at=NOW - 9, message=NOT_ALL_CAME), pod(1).unschedulable())
NO_PROGRAM = (  # as containerd 1.6 with runc 1.1 says it
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
    'failed: unable to start container process: exec: "pyton": executable file not found in $PATH: unknown'
)
DONE = TWO.but(pod(0).succeeded(), pod(1).succeeded())
FIRST_DECIDES = TWO.wants(successPolicy={"replicas": [0]})
TWO_DECIDE = job().replicas(3).running().wants(successPolicy={"replicas": [1, 2]})
ONE_DECIDES = TWO_DECIDE.elastic(2, 3).wants(successPolicy={"replicas": [1]})
DECIDED = Succeed("SuccessPolicy")
LAST_WORD = pod(0).succeeded('{"reason": "Done"}')
OVER = job().replicas(3).elastic(1, 3).running().but(LAST_WORD.seen(exited=NOW - 10), pod(1).succeeded())
JUST_OVER = OVER.but(LAST_WORD.seen(exited=NOW - 9))
LONG_OVER = OVER.but(LAST_WORD.seen(exited=NOW - 120))


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        param(TWO, None, id="running ranks have not succeeded"),
        param(TWO.but(pod(0).succeeded()), None, id="one of two is not all"),
        param(DONE, Succeed("AllRanksSucceeded"), id="all have succeeded"),
        param(DONE.without(1), None, id="a pod that vanished proves nothing"),
        param(FIRST_DECIDES.but(pod(0).succeeded()), Succeed("SuccessPolicy"), id="replica 0 decides"),
        param(FIRST_DECIDES.but(pod(1).succeeded()), None, id="replica 0 decides: another does not"),
        param(
            FIRST_DECIDES.but(pod(0).succeeded(), pod(1).crashed()),
            Succeed("SuccessPolicy"),
            id="replica 0 decides: others may crash",
        ),
        param(TWO_DECIDE.but(pod(1).succeeded(), pod(2)), None, id="one of two that decide is not enough"),
        param(TWO_DECIDE.but(pod(1).succeeded(), pod(2).succeeded()), DECIDED, id="both that decide"),
        param(
            ONE_DECIDES.recovery(scope="Replica").but(pod(1).unschedulable(since=NOW - 300)),
            None,
            id="the one that decides is unschedulable",
        ),
        param(
            OVER.but(pod(2)),
            Succeed("AllRanksSucceeded"),
            id="a replica that has not started when the run is over",
        ),
        param(
            OVER.but(pod(2).running().placed(NOW - 9)),
            Succeed("AllRanksSucceeded"),
            id="a replica that was bound in the last seconds of the run",
        ),
        param(JUST_OVER.but(pod(2).running().placed(NOW - 9)), None, id="its end may not be seen yet"),
        param(JUST_OVER.but(pod(2)), Succeed("AllRanksSucceeded"), id="a replica that never started"),
        param(OVER.but(pod(2).running().placed(NOW - 11)), None, id="a replica that may have taken part"),
        param(
            OVER.but(pod(2).running().placed(NOW - 9).seen(bound=NOW - 20)),
            None,
            id="a replica that was bound earlier, only that the clock of replica 0's node is behind",
        ),
        param(OVER.but(pod(2).running()), None, id="a replica whose bind time is unknown"),
        param(OVER.but(pod(2), pod(1).running()), None, id="a replica that takes part for certain"),
        param(
            OVER.but(pod(2), pod(0).succeeded()), None, id="a plain program may continue without replica 0"
        ),
        param(OVER.without(2), None, id="a vanished pod may have taken part"),
        param(
            LONG_OVER.but(pod(2).running().placed(NOW - 200)),
            Succeed("AllRanksSucceeded"),
            id="a replica that was bound in time, but still runs: its agent had not joined before the end",
        ),
    ],
)
def test_success(given, verdict) -> None:
    assert success(given.snapshot()) == verdict


def test_job_is_reconciled_when_a_pod_that_still_runs_counts_as_too_late() -> None:
    assert plan(JUST_OVER.but(pod(2).running().placed(NOW - 9)).snapshot()).requeue_at == NOW + 1
    assert plan(OVER.but(pod(2).running().placed(NOW - 200)).snapshot()).requeue_at == NOW + 110


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        param(TWO, None, id="not suspended"),
        param(TWO.wants(suspend=True), Suspend(), id="suspended while running"),
        param(TWO.wants(suspend=True).was("Suspended"), None, id="already suspended"),
        param(TWO.was("Suspended"), Resume(), id="resumed"),
        param(job().wants(suspend=True), Suspend(), id="created suspended"),
    ],
)
def test_suspend(given, verdict) -> None:
    assert suspend(given.snapshot()) == verdict


@pytest.mark.parametrize(
    ("given", "late"),
    [
        param(TWO, False, id="no deadline"),
        param(TWO.wants(activeDeadlineSeconds=61), False, id="a second left"),
        param(TWO.wants(activeDeadlineSeconds=60), True, id="reached"),
        param(job().wants(activeDeadlineSeconds=1), False, id="not started"),
    ],
)
def test_deadline(given, late) -> None:
    verdict = deadline(given.snapshot())

    assert verdict == (Fail("DeadlineExceeded", ANY) if late else None)


def test_the_deadline_counts_from_the_stored_start() -> None:
    assert deadline_policy.due_at(TWO.wants(activeDeadlineSeconds=100).snapshot()) == NOW + 40


def restarts(
    *,
    highest_step: int | None = None,
    ago: int = 60,
    uncounted: int = 0,
    at_replacement: int = 0,
    **counters: int,
) -> dict[str, dict[str, Any]]:
    memory: dict[str, Any] = {} if highest_step is None else {"highestStep": highest_step}
    memory["uncountedRestarts"], memory["restartsAtReplacement"] = uncounted, at_replacement
    memory["countedAt"] = [int(NOW) - ago] * counters.get("counted", 0)
    return {
        "restarts": {"counted": 0, "disruptions": 0, "withoutProgress": 0, **counters},
        "memory": memory,
    }


def of_container(rule: dict[str, Any], name: str) -> dict[str, Any]:
    return {**rule, "onExitCodes": {**rule["onExitCodes"], "containerName": name}}


CRASHED = TWO.but(pod(1).crashed(1))
TAKEN = TWO.but(pod(1).running().deleting())
COUNTED, UNCOUNTED = Restart(ANY, counts=True), Restart(ANY, counts=False)
FAIL_3 = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}
FREE_1 = {"action": "RestartUncounted", "onExitCodes": {"operator": "In", "values": [1]}}
RETRY_78 = {"action": "Restart", "onExitCodes": {"operator": "In", "values": [78]}}
FAIL_UNLISTED = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}
FAIL_1 = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}
FREE_9 = {"action": "RestartUncounted", "onExitCodes": {"operator": "In", "values": [9]}}
SIDECAR = TWO.but(pod(1).crashed(1).beside("logs", code=9))
FAIL_EVICTED = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}
FREE_3, RETRY_3 = {**FAIL_3, "action": "RestartUncounted"}, {**FAIL_3, "action": "Restart"}
IN_PLACE_3 = Incident(replica=1, rank=1, reason="ExitCode", exit_code=3, message="bad record", generation=1)
HEALED_3 = TWO.answering(in_place=2, incident=IN_PLACE_3)


@pytest.mark.parametrize(
    ("rules", "verdict"),
    [
        param([FAIL_3], Fail("RecoveryRule", ANY, ANY), id="FailJob"),
        param([of_container(FAIL_3, "trainer")], Fail("RecoveryRule", ANY, ANY), id="of the trainer"),
        param([FAIL_1], None, id="a rule about another code"),
        param([RETRY_3, FAIL_3], None, id="the first matching rule wins"),
    ],
)
def test_rules_apply_to_a_failure_that_the_agents_have_healed(rules, verdict) -> None:
    assert fail_healed(HEALED_3.recovery(rules=rules).snapshot()) == verdict


def test_failure_that_a_rule_makes_final_wins_over_what_follows_from_it() -> None:
    given = HEALED_3.recovery(rules=[{**FAIL_3, "name": "broken-data"}]).but(pod(0).reported(76))
    found = plan(given.snapshot()).verdict
    assert isinstance(found, Fail)
    assert found.message == (
        "rank 1 (replica 1) exited with code 3: ExitCode: bad record; "
        "no further restart because of rule broken-data"
    )


def test_failure_that_was_healed_before_the_first_answer_is_final_too() -> None:
    """That answer also says that the agents rejoin, which is a verdict of its own."""
    given = TWO.recovery(scope="Auto").answering(in_place=2, incident=IN_PLACE_3, rejoin=True)
    assert isinstance(plan(given.snapshot()).verdict, UseReplicaScope)
    assert isinstance(plan(given.recovery(rules=[FAIL_3]).snapshot()).verdict, Fail)


@pytest.mark.parametrize(
    ("rules", "counted", "disruptions"), [([], 2, 0), ([FREE_1], 2, 0), ([FREE_3], 0, 2)]
)
def test_healed_failure_is_not_counted_if_a_rule_says_so(rules, counted, disruptions) -> None:
    found = counters(HEALED_3.recovery(rules=rules).snapshot())
    assert (found.counted, len(found.counted_at), found.disruptions) == (counted, counted, disruptions)
    assert (found.in_place, found.in_place_of_attempt) == (2, 2)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        param([{**FAIL_1, "name": "broken-data"}], "rule broken-data", id="a rule with a name"),
        param([FREE_9, FAIL_1], "recovery.rules[1]", id="a rule without a name"),
        param([], "the built-in rule for exit code 78", id="a built-in rule"),
    ],
)
def test_failure_names_the_rule_that_matched(given, rule) -> None:
    broken = TWO.but(pod(1).crashed(1 if given else 78)).recovery(rules=given)
    verdict = restart(broken.snapshot())

    assert isinstance(verdict, Fail)
    assert f"not restarted because of {rule}" in verdict.message


KEY_ERROR: Any = {"reason": "Exception", "message": "KeyError: 'a'", "inPlace": 3}
KEY_ERROR_SEEN = "rank 1 (replica 1) exited with code 1: Exception: KeyError: 'a'"
SAME_ERROR = TWO.but(pod(1).crashed(1, message="line 7\nKeyError: 'a'")).was(
    "Running",
    restarts={"counted": 3, "disruptions": 0, "withoutProgress": 3},
    memory={"identicalFailures": 3},
    failure={"replica": 0, "reason": "ExitCode", "exitCode": 1, "message": "line 3\nKeyError: 'a'"},
)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        param(TWO, None, id="healthy replicas are left alone"),
        param(CRASHED, COUNTED, id="one crash restarts the job"),
        param(
            TWO.but(pod(1).crashed(78)), Fail("RecoveryRule", ANY, ANY), id="a bad recipe is never retried"
        ),
        param(
            TWO.but(
                pod(1)._with(
                    phase="Failed",
                    containers=(ContainerView(name="packages", init=True, exit_code=78, message="no x"),),
                )
            ),
            Fail(
                "RecoveryRule",
                "init container packages of replica 1 exited with code 78: no x; "
                "not restarted because of the built-in rule for exit code 78 (bad recipe or arguments)",
                ANY,
            ),
            id="packages that cannot be installed are not tried again",
        ),
        param(
            NEW.but(pod(1).crashed(128, message=NO_PROGRAM, reason="StartError")),
            Fail(
                "RecoveryRule",
                "rank 1 (replica 1) exited with code 128: ExitCode: container trainer cannot start: "
                'exec: "pyton": executable file not found in $PATH; correct command or args of that '
                "container in spec.template, or its image; not restarted because of the built-in rule for a "
                "program that the image does not have",
                ANY,
            ),
            id="a program that the image does not have",
        ),
        param(
            NEW.but(pod(0).running(), pod(1).crashed(128, message=NO_PROGRAM, reason="StartError")),
            COUNTED,
            id="a node with an older image of that tag, which does not have the program",
        ),
        param(
            NEW.was("Recovering").but(pod(1).crashed(128, message=NO_PROGRAM, reason="StartError")),
            COUNTED,
            id="likewise, once pods have run",
        ),
        param(
            NEW.but(pod(1).crashed(128, message="driver error", reason="StartError")),
            COUNTED,
            id="a container that its node cannot start",
        ),
        param(
            NEW.but(pod(1).crashed(128, message=NO_PROGRAM)),
            COUNTED,
            id="a program that says what a container runtime says",
        ),
        param(
            TWO.but(pod(1).reported(75, reason="Stopped")), UNCOUNTED, id="a stop on request is not counted"
        ),
        param(TWO.but(pod(1).crashed(75)), COUNTED, id="75 of a plain program is a failure"),
        param(TWO.but(pod(1).crashed(75, message='{"reason": "x"}')), COUNTED, id="75 with another report"),
        param(
            TWO.was("Recovering", failure={"reason": "Evicted", "at": at(-5)}).but(pod(1).crashed(75)),
            Restart(ANY, counts=False, replaces=None, same_incident=True),
            id="75 within the grace period of a pod that is taken away",
        ),
        param(TWO.but(pod(1).crashed(137).disrupted()), UNCOUNTED, id="an eviction is not counted"),
        param(TWO.but(pod(1).running().deleting()), UNCOUNTED, id="a deleted pod is not counted"),
        param(TWO.without(1), UNCOUNTED, id="a vanished pod is not counted"),
        param(TIMED_OUT, UNCOUNTED, id="a plain program that gave up waiting for a pod without a node"),
        param(TIMED_OUT.without(1), UNCOUNTED, id="or for one that a quota refuses"),
        param(TIMED_OUT.was("Recovering"), UNCOUNTED, id="likewise after a restart"),
        param(TIMED_OUT.but(pod(1).running()), COUNTED, id="likewise, but all pods have started"),
        param(TIMED_OUT.was("Running"), COUNTED, id="likewise of a job that trains without that pod"),
        param(
            TIMED_OUT.but(pod(0).crashed(at=NOW - 9, message="KeyError: 'a'")),
            COUNTED,
            id="an error of the program, while another pod has no node",
        ),
        param(TWO.but(pod(1).refused("OutOfcpu")), COUNTED, id="a pod that its kubelet rejects is counted"),
        param(CRASHED.recovery(rules=[FREE_1]), UNCOUNTED, id="the user's rule comes first"),
        param(CRASHED.recovery(rules=[FAIL_3]), COUNTED, id="a rule about another code does not match"),
        param(
            TWO.but(pod(1).crashed(3)).recovery(rules=[FAIL_3]), Fail("RecoveryRule", ANY, ANY), id="FailJob"
        ),
        param(
            CRASHED.recovery(rules=[FREE_1, {**FAIL_1, "name": "late"}]),
            UNCOUNTED,
            id="a later rule is ignored",
        ),
        param(
            SIDECAR.recovery(rules=[of_container(FREE_1, "logs")]), COUNTED, id="the sidecar ended otherwise"
        ),
        param(
            SIDECAR.recovery(rules=[of_container(FREE_9, "logs")]), UNCOUNTED, id="the sidecar's exit code"
        ),
        param(SIDECAR.recovery(rules=[FREE_9]), COUNTED, id="by default the exit code of the trainer"),
        param(
            SIDECAR.recovery(rules=[of_container(FAIL_UNLISTED, "unknown")]),
            COUNTED,
            id="a container that has not ended matches no code rule",
        ),
        param(TWO.but(pod(1).crashed(78)).recovery(rules=[RETRY_78]), COUNTED, id="even 78 may be retried"),
        param(
            TWO.but(pod(1).crashed(4)).recovery(rules=[FAIL_UNLISTED]),
            Fail("RecoveryRule", ANY, ANY),
            id="NotIn",
        ),
        param(CRASHED.recovery(rules=[FAIL_UNLISTED]), COUNTED, id="NotIn does not match what it lists"),
        param(CRASHED.recovery(rules=[FREE_1, FAIL_UNLISTED]), UNCOUNTED, id="the first matching rule wins"),
        param(
            TWO.but(pod(1).crashed(137).disrupted()).recovery(rules=[FAIL_EVICTED]),
            Fail("RecoveryRule", ANY, ANY),
            id="a rule about a pod condition",
        ),
        param(
            TWO.without(1).recovery(rules=[FAIL_UNLISTED]),
            UNCOUNTED,
            id="without an exit code no code rule matches",
        ),
        param(CRASHED.recovery(maxRestarts=0), Fail("RestartBudgetSpent", ANY, ANY), id="no budget"),
        param(CRASHED.was("Running", **restarts(counted=9)), COUNTED, id="the last of ten"),
        param(
            CRASHED.was("Running", **restarts(counted=10)),
            Fail("RestartBudgetSpent", ANY, ANY),
            id="the eleventh",
        ),
        param(
            CRASHED.was("Running", **restarts(counted=10, ago=86_399)),
            Fail("RestartBudgetSpent", ANY, ANY),
            id="the eleventh within a day",
        ),
        param(
            CRASHED.was("Running", **restarts(counted=10, ago=86_400)),
            COUNTED,
            id="the eleventh, a day after the other ten",
        ),
        param(
            CRASHED.recovery(windowSeconds=60).was("Running", **restarts(counted=10)),
            COUNTED,
            id="restarts older than the job's own window do not count",
        ),
        param(
            CRASHED.was("Running", **restarts(counted=10, ago=-4000)),
            Fail("RestartBudgetSpent", ANY, ANY),
            id="restarts in the future, because the clock was set back, count",
        ),
        param(
            TWO.without(1).was("Running", **restarts(counted=10)),
            UNCOUNTED,
            id="a disruption costs no budget",
        ),
        param(
            CRASHED.was("Running", **restarts(counted=3, withoutProgress=3, highest_step=40)),
            Fail("NoProgress", ANY, ANY),
            id="three in a row without a step",
        ),
        param(
            CRASHED.was("Running", **restarts(counted=3, withoutProgress=3)),
            COUNTED,
            id="without steps, another error each time",
        ),
        param(
            SAME_ERROR, Fail("NoProgress", ANY, ANY), id="without steps, the same error after three restarts"
        ),
        param(SAME_ERROR.recovery(maxRestartsWithoutProgress=4), COUNTED, id="one more is allowed"),
        param(
            SAME_ERROR.but(pod(1).crashed(137, reason="OOMKilled", message="line 9")).was(
                "Running", failure={"replica": 0, "reason": "OOMKilled", "exitCode": 137, "message": "line 3"}
            ),
            Fail("NoProgress", ANY, ANY),
            id="without steps, out of memory after three restarts, at any line of the log",
        ),
        param(
            TWO.but(pod(1).reported(1, **KEY_ERROR, identicalFailures=4)),
            Fail("NoProgress", f"{KEY_ERROR_SEEN}; the same error after each of 3 consecutive restarts", ANY),
            id="without steps, the same error after three restarts in place",
        ),
        param(
            TWO.but(pod(1).reported(1, **KEY_ERROR, identicalFailures=3)),
            COUNTED,
            id="another error in place before",
        ),
        param(
            SAME_ERROR.but(pod(1).crashed(1, message="line 9\nKeyError: 'b'")),
            COUNTED,
            id="another last line",
        ),
        param(SAME_ERROR.but(pod(1).crashed(2, message="KeyError: 'a'")), COUNTED, id="another exit code"),
        param(SAME_ERROR.but(pod(1).crashed(139, message="KeyError: 'a'")), COUNTED, id="a signal"),
        param(
            SAME_ERROR.was("Running", lastTransitionTime=at(-600)),
            COUNTED,
            id="the same error, but the program ran for ten minutes",
        ),
        param(
            SAME_ERROR.was("Starting", lastTransitionTime=at(-600)),
            Fail("NoProgress", ANY, ANY),
            id="time before all pods run is not progress",
        ),
        param(
            CRASHED.was("Running", **restarts(counted=3, withoutProgress=3, highest_step=40)).at_step(41),
            COUNTED,
            id="a new step ends the row",
        ),
        param(
            CRASHED.was("Running", **restarts(counted=3, withoutProgress=3, highest_step=40)).at_step(40),
            Fail("NoProgress", ANY, ANY),
            id="a repeated step is not progress",
        ),
        param(
            TWO.but(pod(1).reported(1, reason="Exception", step=50)).was(
                "Running", **restarts(counted=3, withoutProgress=3, highest_step=40)
            ),
            COUNTED,
            id="the report of the pod that died counts as progress too",
        ),
        param(
            TWO.but(pod(1).crashed(76, at=NOW - 1)),
            AwaitCause(until=NOW + 4),
            id="a lost peer waits for its cause",
        ),
        param(TWO.but(pod(1).crashed(76, at=NOW - 5)), COUNTED, id="a lost peer whose cause does not come"),
        param(
            TWO.but(pod(0).reported(76, at=NOW - 10, culprit=CULPRIT, reason="PeerLost")),
            AwaitCause(until=NOW + 20),
            id="the pod of a rank that another pod names is about to end, but its kubelet may be busy",
        ),
        param(
            TWO.but(pod(0).reported(76, at=NOW - 30, culprit=CULPRIT, reason="PeerLost")),
            COUNTED,
            id="that pod does not end",
        ),
        param(
            TWO.but(pod(0).reported(76, at=NOW, culprit=CULPRIT), pod(1).crashed(3, at=NOW)),
            COUNTED,
            id="that pod has ended",
        ),
        param(
            TWO.but(pod(0).reported(76, culprit=CULPRIT)).without(1),
            COUNTED,
            id="that pod was deleted before its end was seen",
        ),
        param(
            TWO.but(pod(0).reported(76, at=NOW - 30, culprit={**CULPRIT, "exitCode": 78})),
            Fail("RecoveryRule", ANY, ANY),
            id="the rules see the exit code of the rank that is named",
        ),
        param(
            TWO.but(pod(0).reported(76, culprit=CULPRIT)).was(
                "Recovering", failure={"replica": 1, "rank": 1, "at": CULPRIT["at"]}
            ),
            Restart(ANY, counts=False, replaces=None, same_incident=True),
            id="a pod that ends because of a failure that is already recorded",
        ),
        param(
            TWO.but(pod(1).crashed(76, at=NOW + 60).seen(exited=NOW - 5)),
            COUNTED,
            id="a node whose clock is ahead delays nothing",
        ),
        param(
            TWO.but(pod(1).crashed(76, at=NOW - 60).seen(exited=NOW)),
            AwaitCause(until=NOW + 5),
            id="a node whose clock is behind shortens nothing",
        ),
        param(
            TWO.but(pod(0).crashed(76), pod(1).crashed(76)),
            COUNTED,
            id="all lost their peers: no cause will come",
        ),
        param(TWO.but(pod(0).crashed(76), pod(1).crashed(1)), COUNTED, id="the cause is there already"),
    ],
)
def test_restart(given, verdict) -> None:
    assert restart(given.snapshot()) == verdict


def test_budget_verdict_names_the_rank_and_its_error() -> None:
    verdict = restart(
        TWO.but(pod(1).crashed(1, message="Traceback\nValueError: nan")).recovery(maxRestarts=0).snapshot()
    )

    assert isinstance(verdict, Fail)
    assert verdict.message == (
        "rank 1 (replica 1) exited with code 1: ExitCode: ValueError: nan; "
        "no restarts left: 0 counted within 86400 s, maxRestarts is 0"
    )


@pytest.mark.parametrize(
    ("without_progress", "delay"),
    [
        param(0, 2.0, id="a disruption"),
        param(1, 2.0, id="the first"),
        param(2, 4.0, id="the second"),
        param(30, 300.0, id="never more than five minutes"),
    ],
)
def test_back_off_doubles_per_restart_without_progress(without_progress, delay) -> None:
    waiting = job().was("Recovering", lastTransitionTime=at(0), **restarts(withoutProgress=without_progress))
    waits = restart_policy.backoff_until(waiting.recovery(backoffSeconds=2).snapshot()) - NOW

    assert 0.8 * delay <= waits <= 1.2 * delay


ROW = TWO.was("Running", **restarts(counted=2, withoutProgress=2, highest_step=40))
LATER = ROW.but(pod(0).reported(1, step=9, withoutProgress=1, inPlace=0))
REPLACED = ROW.was("Running", **restarts(counted=2, withoutProgress=2, highest_step=40, at_replacement=2))
LONG_AGO = REPLACED.was("Running", lastTransitionTime=at(-600))


@pytest.mark.parametrize(
    ("given", "row"),
    [
        param(ROW, 2, id="no agent"),
        param(ROW.answering(in_place=1, step=9), 3, id="an agent that does not count it"),
        param(ROW.at_step(41), 0, id="a new step"),
        param(ROW.answering(in_place=1, without_progress=1, step=9), 1, id="progress, then one in place"),
        param(ROW.answering(in_place=1, without_progress=1, step=41), 1, id="a new step, then one in place"),
        param(
            ROW.was("Recovering").answering(without_progress=1, step=9),
            2,
            id="the coordinator does not know of the restart yet",
        ),
        param(
            ROW.answering(without_progress=1, missing=(SilentReplica(replica=1, seconds=3),)),
            2,
            id="the new pod has not joined",
        ),
        param(
            REPLACED.answering(without_progress=0, of_newest_pod=1, step=9),
            2,
            id="the new pod has not joined, and the coordinator has not known its replica",
        ),
        param(
            REPLACED.answering(without_progress=0, of_newest_pod=1, step=9).but(
                pod(0).reported(1, step=9, withoutProgress=0)
            ),
            2,
            id="nor had it joined when replica 0 ended",
        ),
        param(REPLACED.answering(without_progress=0, of_newest_pod=2, step=9), 0, id="it has joined"),
        param(REPLACED.answering(without_progress=0, step=9), 0, id="an agent that does not tell"),
        param(
            ROW.was("Running", lastTransitionTime=at(5)).answering(without_progress=1), 2, id="an old answer"
        ),
        param(
            ROW.answering(without_progress=2, step=9).but(pod(1).reported(1, step=41, withoutProgress=0)),
            0,
            id="a new step since the answer, by the report of a pod that has ended",
        ),
        param(
            ROW.answering(without_progress=2, step=9).but(pod(1).reported(1, step=40, withoutProgress=2)),
            2,
            id="no new step, by that report",
        ),
        param(LATER.answering(without_progress=2, step=9), 1, id="the last word of replica 0"),
        param(TWO.answering(in_place=2, without_progress=7), 2, id="no steps: the operator's own count"),
    ],
)
def test_row_of_restarts_without_progress_is_that_of_the_agents(given, row) -> None:
    assert restart_policy.counters(given.snapshot()).without_progress == row


@pytest.mark.parametrize(
    ("given", "in_a_row"),
    [
        param(REPLACED.answering(of_newest_pod=1, without_progress=0, step=41), (0, 2), id="not joined"),
        param(REPLACED.answering(of_newest_pod=2, without_progress=0, step=41), (0, 0), id="joined"),
        param(LONG_AGO.answering(of_newest_pod=1, without_progress=0, step=41), (0, 0), id="ten minutes ago"),
    ],
)
def test_steps_of_the_others_do_not_end_the_back_off_of_a_pod_that_has_not_joined(given, in_a_row) -> None:
    found = restart_policy.counters(given.snapshot())
    assert (found.without_progress, found.uncounted) == in_a_row


@pytest.mark.parametrize("given", [CRASHED, TAKEN])
def test_restart_is_remembered_until_a_newer_pod_has_joined(given) -> None:
    snapshot = given.was("Running", **restarts(counted=3, disruptions=1)).snapshot()
    assert restart_policy.counters_after(snapshot, restart(snapshot)).at_replacement == 5


def test_row_that_the_agents_have_spent_ends_the_job() -> None:
    spent = TWO.was("Running", **restarts(highest_step=3)).recovery(maxRestartsWithoutProgress=2)
    ended = spent.but(pod(0).reported(1, step=3, inPlace=2, withoutProgress=2), pod(1).crashed(76))

    verdict = restart(ended.snapshot())

    assert isinstance(verdict, Fail)
    assert verdict.reason == "NoProgress"
    assert verdict.message.endswith("2 consecutive restarts completed no step beyond 3")


OLD, YOUNG = (pod(1).running().placed(NOW - ago).deleting() for ago in (600, 10))


@pytest.mark.parametrize(
    ("given", "number"),
    [
        param(TAKEN, 1, id="the first"),
        param(TAKEN.was("Running", **restarts(uncounted=3)), 4, id="one more, without progress"),
        param(TAKEN.was("Running", **restarts(uncounted=3, highest_step=7)).at_step(8), 1, id="a new step"),
        param(TWO.but(YOUNG).was("Recovering", **restarts(uncounted=1)), 2, id="a pod of the last restart"),
        param(TWO.but(OLD).was("Recovering", **restarts(uncounted=1)), 1, id="one more pod of the same rack"),
        param(CRASHED.was("Running", **restarts(uncounted=3)), 3, id="a counted restart"),
    ],
)
def test_uncounted_restarts_in_a_row(given, number) -> None:
    snapshot = given.snapshot()

    assert restart_policy.counters_after(snapshot, restart(snapshot)).uncounted == number


def test_uncounted_restarts_lengthen_the_back_off_too() -> None:
    waiting = job().was("Recovering", lastTransitionTime=at(0), **restarts(uncounted=3, withoutProgress=2))
    waits = restart_policy.backoff_until(waiting.recovery(backoffSeconds=1).snapshot()) - NOW

    assert 0.8 * 16 <= waits <= 1.2 * 16


HEALTHY_UNTIL_NOW = {"conditions": [{"type": "Healthy", "status": "False", "lastTransitionTime": at(0)}]}
SICK_BEFORE = {"conditions": [{"type": "Healthy", "status": "False", "lastTransitionTime": at(-5)}]}


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        param({**HEALTHY_UNTIL_NOW, "failure": {"reason": "Evicted"}}, False, id="a pod taken away"),
        param({**HEALTHY_UNTIL_NOW, "failure": {"reason": "NodeLost"}}, False, id="a node lost"),
        param({**SICK_BEFORE, "failure": {"reason": "Evicted"}}, True, id="its replacement taken away, too"),
        param(
            {**HEALTHY_UNTIL_NOW, **restarts(withoutProgress=1, highest_step=7)},
            False,
            id="a rank, after new steps",
        ),
        param(
            {**HEALTHY_UNTIL_NOW, **restarts(withoutProgress=2, highest_step=7)},
            True,
            id="a rank, at the same step",
        ),
        param({**HEALTHY_UNTIL_NOW, **restarts(withoutProgress=1)}, True, id="a rank that reports no steps"),
        param(
            {**SICK_BEFORE, **restarts(withoutProgress=1, highest_step=7)},
            True,
            id="a rank that fails again before the job is healthy",
        ),
        param(
            {
                **HEALTHY_UNTIL_NOW,
                **restarts(highest_step=7, uncounted=1),
                "failure": {"reason": "Stopped", "exitCode": 75},
            },
            False,
            id="a rank that stops on request, after new steps",
        ),
        param(
            {
                **HEALTHY_UNTIL_NOW,
                **restarts(highest_step=7, uncounted=2),
                "failure": {"reason": "Stopped", "exitCode": 75},
            },
            True,
            id="a rank that stops on request again, at the same step",
        ),
        param(
            {**HEALTHY_UNTIL_NOW, **restarts(uncounted=2), "failure": {"reason": "Evicted"}},
            True,
            id="a pod taken away again, without progress",
        ),
        param({"failure": {"reason": "Evicted"}}, True, id="a job that was never Healthy"),
    ],
)
def test_only_a_fault_that_may_repeat_is_delayed(fields, waits) -> None:
    given = job().was("Recovering", lastTransitionTime=at(0), **fields).recovery(backoffSeconds=10)

    assert (restart_policy.backoff_until(given.snapshot()) > NOW) == waits


@pytest.mark.parametrize(("row", "waits"), [(10, False), (11, True)])
def test_endless_restarts_are_delayed_even_if_the_job_wants_no_back_off(row: int, waits: bool) -> None:
    """As those of pods that another controller deletes again and again, which no budget ends."""
    given = job().was("Recovering", lastTransitionTime=at(0), **restarts(uncounted=row))

    assert (restart_policy.backoff_until(given.recovery(backoffSeconds=0).snapshot()) > NOW) == waits


def test_back_off_is_the_same_at_every_reconcile_and_different_for_every_attempt() -> None:
    def until(attempt: int) -> float:
        return restart_policy.backoff_until(job().was("Recovering", attempt=attempt).snapshot())

    assert until(1) == until(1)
    assert until(1) != until(2)


def test_pods_are_delayed_only_after_a_restart() -> None:
    assert restart_policy.backoff_until(job().was("Pending").snapshot()) == NOW


ENDED = (
    job()
    .replicas(2)
    .was("Succeeded", conditions=[{"type": "Complete", "status": "True", "reason": "AllRanksSucceeded"}])
)
CRASHED_ENDED = ENDED.was(
    "Failed", conditions=[{"type": "Failed", "status": "True", "reason": "RestartBudgetSpent"}]
)
LATE = ENDED.was("Failed", conditions=[{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}])
MIXED = (pod(0).succeeded(), pod(1).running())


def deleted(given) -> list[tuple[str, int | None]]:
    return [(a.pod.name, a.grace_s) for a in cleanup(given.snapshot()) if isinstance(a, DeletePod)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        param(
            CRASHED_ENDED.having(*MIXED),
            [("digits-1", 5)],
            id="Running deletes running pods, with a short grace period",
        ),
        param(
            LATE.having(*MIXED),
            [("digits-1", None)],
            id="after the deadline healthy ranks have their own grace period",
        ),
        param(
            ENDED.having(pod(0).crashed(), pod(1)),
            [("digits-1", None)],
            id="Running deletes pending pods too",
        ),
        param(
            ENDED.wants(cleanPodPolicy="All").having(*MIXED),
            [("digits-0", None), ("digits-1", None)],
            id="All",
        ),
        param(
            ENDED.having(pod(0).exited(), pod(1).exited()),
            [],
            id="Running keeps a pod whose container has exited but whose phase is still Running",
        ),
        param(ENDED.wants(cleanPodPolicy="None").having(*MIXED), [], id="None deletes nothing"),
        param(ENDED.having(pod(0).running().deleting()), [], id="a terminating pod is not deleted again"),
        param(ENDED.having(pod(0).running().owned_by("another")), [], id="a pod of another owner stays"),
    ],
)
def test_cleanup_of_pods(given, expected) -> None:
    assert deleted(given) == expected


def test_network_objects_are_deleted_once_at_the_end() -> None:
    network = (DeleteChild("Service"), DeleteChild("NetworkPolicy"))
    assert cleanup(ENDED.with_network().snapshot()) == network
    assert cleanup(ENDED.with_network().having(pod(0).succeeded(), pod(1).exited()).snapshot()) == network
    assert cleanup(ENDED.snapshot()) == ()


@pytest.mark.parametrize(
    "given",
    [
        param(LATE.having(*MIXED), id="a pod that is deleted in this moment"),
        param(LATE.having(pod(0).succeeded(), pod(1).running().deleting()), id="a pod that still saves"),
        param(ENDED.wants(cleanPodPolicy="None").having(*MIXED), id="a pod that is left alone"),
    ],
)
def test_ranks_that_still_run_stay_isolated(given) -> None:
    assert not any(isinstance(action, DeleteChild) for action in cleanup(given.with_network().snapshot()))


@pytest.mark.parametrize(
    ("given", "due"),
    [
        param(ENDED.was("Succeeded", completionTime=at(-9)), None, id="no TTL: the job is kept"),
        param(
            ENDED.wants(ttlSecondsAfterFinished=10).was("Succeeded", completionTime=at(-9)),
            NOW + 1,
            id="a second left",
        ),
        param(
            ENDED.wants(ttlSecondsAfterFinished=0).was("Succeeded", completionTime=at(-9)),
            NOW - 9,
            id="at once",
        ),
        param(TWO.wants(ttlSecondsAfterFinished=10), None, id="not finished"),
    ],
)
def test_ttl(given, due) -> None:
    assert ttl.due_at(given.snapshot()) == due
