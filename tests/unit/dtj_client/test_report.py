"""The screen of `kubectl dtj status`."""

from datetime import UTC, datetime
from typing import Any

import pytest

from dtj_client.show.report import age, at_stake, failures, report

param = pytest.param
Json = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def shown(status: Json, *pods: Json, replicas: int = 1) -> str:
    job = {"metadata": {"name": "digits"}, "spec": {"replicas": replicas}, "status": status}
    return "\n".join(report(job, pods, NOW))


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        param(
            {"step": 21, "stepAt": "2026-01-01T11:56:40Z"}, "  step 21, no newer step for 3 min", id="a hang"
        ),
        param({"step": 21, "stepAt": "2026-01-01T11:59:01Z"}, "  step 21", id="a step a moment ago"),
        param(
            {"step": 21, "stepAt": "2026-01-01T11:00:00Z"},
            "  step 21, no newer step for 16 min",
            id="resumed",
        ),
        param({"step": 21}, "  step 21", id="an operator that does not report it"),
        param({"observedAt": "2026-01-01T11:59:59Z"}, None, id="a program that reports no steps"),
        param(
            {"step": 21, "stepAt": "2026-01-01T11:46:40Z", "observedAt": "2026-01-01T11:46:40Z"},
            "  step 21",
            id="an old status",
        ),
        param({}, None, id="no agent"),
    ],
)
def test_running_job_without_a_newer_step_says_for_how_long(progress: Json, said: str | None) -> None:
    ready = {"type": "PodsReady", "status": "True", "lastTransitionTime": "2026-01-01T11:43:30Z"}
    progress = {"observedAt": "2026-01-01T12:00:00Z", **progress} if progress else {}
    status = {"phase": "Running", "conditions": [ready], "progress": progress}
    status |= {"step": str(progress["step"])} if "step" in progress else {}
    line = shown(status).splitlines()[1]
    assert line == said or (said is None and "step" not in line)
    assert "newer" not in shown(status | {"phase": "Succeeded"})


def pod(index: int, node: str = "node-a", **status: Any) -> Json:
    return {"metadata": {"name": f"digits-{index}"}, "spec": {"nodeName": node}, "status": status}


def test_running_job() -> None:
    text = shown(
        {
            "phase": "Running",
            "lastTransitionTime": "2026-01-01T11:56:40Z",
            "attempt": 1,
            "restarts": {"total": 2},
            "step": "120/2000",
            "progress": {"samplesPerSecond": "812", "loss": "0.21", "eta": "2026-01-01T13:00:00Z"},
            "goodput": {
                "percent": "93.1",
                "productiveSeconds": 5130,
                "startupSeconds": 95,
                "lostSeconds": 60,
                "recoveringSeconds": 140,
                "queuedSeconds": 85,
            },
        },
        pod(0, phase="Running"),
        pod(1, "node-b", phase="Running"),
        replicas=3,
    )
    assert text.splitlines() == [
        "digits: Running for 3m20s, attempt 1, 2 restarts",
        "  step 120/2000, 812 samples/s, loss 0.21, done at about 2026-01-01T13:00:00Z",
        "  goodput 93.1 % [####################################+x!.]",
        "    # productive 85m, + start-up 95s, x lost 60s, ! recovering 2m20s, . queued 85s",
        "  replica  pod      node",
        "  0        Running  node-a",
        "  1        Running  node-b",
        "  2        no pod   -",
        "next: kubectl dtj logs -f digits",
    ]


@pytest.mark.parametrize(
    ("ranks", "said"), [(1, "  1 rank trains, step 7/9"), (4, "  4 ranks train, step 7/9")]
)
def test_elastic_job_says_how_many_ranks_train(ranks: int, said: str) -> None:
    """Fewer than its pods have, if one of them has to wait for the others."""
    job = {"metadata": {"name": "digits"}, "spec": {"elastic": {"minReplicas": 1}}}
    status = {"phase": "Running", "step": "7/9", "worldSize": ranks}
    assert list(report(job | {"status": status}, (), NOW))[1] == said
    assert list(report(job | {"status": status | {"phase": "Starting"}}, (), NOW))[1] == "  step 7/9"


def test_job_that_starts_says_what_it_waits_for() -> None:
    status = blocked("0 of 2 pods are ready; 2 pods are still terminating", "Starting")
    assert shown(status).splitlines()[1] == "  0 of 2 pods are ready; 2 pods are still terminating"
    assert shown(status | {"message": "no node yet"}).splitlines()[1] == "  no node yet"


def test_many_replicas_are_grouped_by_state_and_the_odd_ones_keep_their_rows() -> None:
    pods = [pod(index, f"node-{index % 50}", phase="Running") for index in range(100) if index not in {7, 40}]
    pods[3]["metadata"]["deletionTimestamp"] = "2026-01-01T11:00:00Z"
    lines = shown({"phase": "Running"}, *pods, replicas=100).splitlines()
    assert lines[1:-1] == [
        "  replica             pod          node",
        "  0-2,4-6,8-39,41-99  Running      50 nodes",
        "  3                   Terminating  node-3",
        "  7                   no pod       -",
        "  40                  no pod       -",
    ]


def test_scattered_replicas_are_counted() -> None:
    pods = [pod(index, phase="Running") for index in range(0, 100, 2)]
    assert "  50 replicas  Running  node-a" in shown({}, *pods, replicas=100).splitlines()


@pytest.mark.parametrize(
    ("goodput", "lines"),
    [
        param({}, [], id="no agent reports it"),
        param({"percent": "0.0"}, ["  goodput 0.0 %"], id="no second so far"),
        param(
            {"percent": "50.0", "productiveSeconds": 30, "lostSeconds": 30},
            [
                "  goodput 50.0 % [####################xxxxxxxxxxxxxxxxxxxx]",
                "    # productive 30s, x lost 30s",
            ],
            id="two halves",
        ),
    ],
)
def test_goodput_is_a_bar_of_what_is_known(goodput: Json, lines: list[str]) -> None:
    assert shown({"phase": "Running", "goodput": goodput}).splitlines()[1:-3] == lines


def test_failed_job_shows_the_end_of_the_traceback_and_no_control_character() -> None:
    failure = {
        "reason": "Exception",
        "rank": 3,
        "replica": 1,
        "node": "node-b",
        "exitCode": 1,
        "at": "2026-01-01T11:59:00Z",
        "message": "\n".join(f"line {n}" for n in range(40)) + "\nValueError: \x1b[2Jbad",
    }
    text = shown({"phase": "Failed", "failure": failure})
    assert "last failure: Exception of rank 3 (replica 1) on node node-b, exit code 1, 60s ago" in text
    assert "ValueError: ?[2Jbad" in text
    assert "line 39" in text
    assert "line 5\n" not in text
    assert "submit the job again" in text


def held(reason: str) -> Json:
    """The condition Suspended of a job that its queue does not let run."""
    return {"type": "Suspended", "status": "True", "reason": reason}


def test_job_whose_pods_were_deleted_is_not_said_to_have_logs() -> None:
    """As after its deadline, or beside a sidecar that did not end."""
    failed = {"phase": "Failed", "ready": "0/2", "replicaStatuses": {"active": 0, "failed": 0}}
    assert shown(failed).splitlines()[-1].endswith("correct the cause above and submit the job again")


def blocked(message: str, reason: str = "Unschedulable") -> Json:
    """The status of a job whose pods cannot start."""
    found = {"type": "PodsReady", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [found]}


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        param({}, "check that the operator runs", id="not seen by the operator"),
        param({"phase": "Suspended"}, "kubectl dtj resume digits", id="suspended"),
        param({"phase": "Suspended", "conditions": [held("Queued")]}, "Kueue starts the job", id="queued"),
        param(
            {"phase": "Suspended", "conditions": [held("Deactivated")]},
            "what the message above says",
            id="deactivated",
        ),
        param({"phase": "Succeeded"}, "kubectl dtj logs digits", id="succeeded"),
        param(
            {"phase": "Failed", "ready": "0/2", "replicaStatuses": {"active": 0, "failed": 1}},
            "again; kubectl dtj logs digits has the logs",
            id="failed",
        ),
        param({"phase": "Recovering"}, "nothing", id="recovering"),
        param(
            {
                "phase": "Recovering",
                "conditions": [{"type": "PodsReady", "status": "False", "reason": "Starting"}],
            },
            "nothing",
            id="new pods start",
        ),
        param(
            {
                "phase": "Recovering",
                "conditions": [
                    {
                        "type": "PodsReady",
                        "status": "False",
                        "reason": "Starting",
                        "message": "0 of 2 pods are ready; new pods are created after the back-off, at 7:21",
                    }
                ],
            },
            "replacing what failed; new pods are created after the back-off, at 7:21",
            id="new pods wait for the back-off",
        ),
        param(
            {
                "phase": "Recovering",
                "conditions": [{"type": "PodsReady", "status": "False", "reason": "Unschedulable"}],
            },
            "remove the cause that the message above names",
            id="new pods are blocked",
        ),
        param({"phase": "Terminating"}, "nothing: the job is being deleted", id="being deleted"),
        param(
            {
                "phase": "Pending",
                "conditions": [{"type": "PodsReady", "status": "False", "reason": "Unschedulable"}],
            },
            "remove the cause that the message above names",
            id="blocked",
        ),
        param(blocked("pod a-0 is unschedulable: no CPU; request less"), "next: request less; kub", id="fix"),
        param(
            blocked("Service digits exists; delete it", "NameConflict"), "next: delete it; ", id="a conflict"
        ),
        param(
            blocked("denied: set a; or b", "PodRejected"),
            "names; if it is in the job, delete that and submit it corrected; ",
            id="words of others, which may not end with what to do",
        ),
        param(
            blocked("pod a-0 is unschedulable: " + "node a: no CPU; " * 70),
            "remove the cause that the message above names",
            id="the message is cut before the fix",
        ),
        param(
            {
                "phase": "Failed",
                "failure": {"message": "  File a\nModuleNotFoundError: No module named 'a.b'"},
            },
            "submit --requirements requirements.txt ... installs packages that the image lacks, such as a.b",
            id="a module is missing",
        ),
        param(
            {
                "phase": "Running",
                "conditions": [
                    {"type": "PodsReady", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                ],
                "progress": {"stepAt": "2026-01-01T00:01:00Z", "observedAt": "2026-01-01T00:03:00Z"},
            },
            "kubectl dtj stacks ",
            id="no step for minutes",
        ),
        param(
            {
                "phase": "Running",
                "conditions": [{"type": "Healthy", "status": "False", "reason": "Straggler"}],
            },
            "kubectl dtj stacks ",
            id="straggler",
        ),
        param(
            {
                "phase": "Running",
                "conditions": [{"type": "Healthy", "status": "False", "reason": "SaveFailed"}],
            },
            "each save tries again",
            id="no checkpoint can be written",
        ),
    ],
)
def test_advice(status: Json, advice: str) -> None:
    assert advice in shown(status).splitlines()[-1]


@pytest.mark.parametrize(
    ("checkpoint", "status", "lost"),
    [
        param(None, {"phase": "Suspended", "step": "120/2000"}, "its 120 steps are lost", id="none"),
        param(None, {"phase": "Running"}, "its work is lost", id="none, and no step is reported"),
        param(None, {"phase": "Starting"}, "", id="nothing done so far"),
        param({"claim": {}}, {"phase": "Running", "step": "120/2000"}, "", id="there is one"),
        param(
            {"claim": {}},
            {"phase": "Running", "step": "120", "conditions": [{"type": "Healthy", "reason": "SaveFailed"}]},
            "its last save failed",
            id="it cannot be written",
        ),
    ],
)
def test_what_a_job_loses_that_cannot_save(checkpoint: Json | None, status: Json, lost: str) -> None:
    job = {"spec": {"checkpoint": checkpoint}, "status": status}
    assert lost in at_stake(job) if lost else not at_stake(job)


def test_resume_says_that_a_job_without_checkpoints_begins_again() -> None:
    last = shown({"phase": "Suspended", "step": "120/2000"}).splitlines()[-1]
    assert last.startswith(
        "next: kubectl dtj resume digits; it has no spec.checkpoint: its 120 steps are lost"
    )


def test_job_that_never_had_a_pod_has_no_logs() -> None:
    assert shown({"phase": "Failed"}).endswith("next: correct the cause above and submit the job again")


def initializing(state: Json) -> Json:
    """The status of a pod whose code was unpacked."""
    return {
        "phase": "Pending",
        "initContainerStatuses": [
            {"name": "code", "state": {"terminated": {"exitCode": 0}}},
            {"name": "packages", "state": state},
        ],
        "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, "ImagePullBackOff"),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]}, "exit code 137"),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
            "Unschedulable",
        ),
        ({"phase": "Succeeded"}, "Succeeded"),
        (initializing({"waiting": {"reason": "ImagePullBackOff"}}), "packages: ImagePullBackOff"),
        (initializing({"terminated": {"exitCode": 1}}), "packages: exit code 1"),
        (initializing({"running": {}}), "packages runs"),
        (initializing({"waiting": {"reason": "PodInitializing"}}), "PodInitializing"),
    ],
)
def test_state_of_a_pod(status: Json, state: str) -> None:
    assert f"  0        {state}" in shown({"phase": "Running"}, pod(0, **status))


@pytest.mark.parametrize(
    ("phase", "proxy", "state"),
    [
        ("Running", {"running": {}}, "Running"),
        ("Succeeded", {"terminated": {"exitCode": 137}}, "Succeeded"),
        ("Pending", {"waiting": {"reason": "CrashLoopBackOff"}}, "proxy: CrashLoopBackOff"),
    ],
)
def test_sidecar_is_not_the_state_of_a_pod_unless_it_does_not_start(
    phase: str, proxy: Json, state: str
) -> None:
    found = pod(0, phase=phase, initContainerStatuses=[{"name": "proxy", "state": proxy}])
    found["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}]
    assert f"  0        {state}" in shown({"phase": "Running"}, found)


def test_message_of_others_changes_neither_the_terminal_nor_the_order_of_its_letters() -> None:
    """Such as that of an admission webhook, which has several lines."""
    status = {"phase": "Pending", "message": "denied:\n\x1b[2J\u202erule", "conditions": []}
    assert shown(status).splitlines()[1:3] == ["  denied:", "  ?[2J?rule"]


def test_age_is_written_as_kubectl_does() -> None:
    assert [age(s) for s in (5, 119, 200, 1800, 3 * 3600 + 60, 50 * 3600)] == [
        *("5s", "119s", "3m20s", "30m", "3h1m", "2d2h")
    ]


def test_failures_are_listed_from_the_oldest_to_the_latest() -> None:
    found = [
        {"reason": "NodeLost", "replica": 1, "node": "b", "at": "2026-01-01T11:00:00Z"},
        {
            "reason": "Exception",
            "rank": 0,
            "replica": 0,
            "exitCode": 1,
            "message": "line 1\nValueError: \x07",
        },
    ]
    job = {"metadata": {"name": "digits"}, "status": {"failures": found}}
    assert list(failures(job)) == [
        "Exception of rank 0 (replica 0), exit code 1",
        "  line 1",
        "  ValueError: ?",
        "2026-01-01T11:00:00Z NodeLost of replica 1 on node b",
    ]
    assert list(failures({"metadata": {"name": "digits"}})) == ["digits: no failure so far"]
