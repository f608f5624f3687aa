"""Lines of several replicas as one log."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dtj_client.errors import ClientError, UnreachableError
from dtj_client.job import Job
from dtj_client.kube.kubectl import Kubectl
from dtj_client.show.logs import Line, follow_job, merge, of_ranks, parse, snapshot


def test_lines_of_all_replicas_are_in_the_order_of_time() -> None:
    zero = parse(0, ["2026-01-01T00:00:01.5Z first", "2026-01-01T00:00:03.000000001Z third\n"])
    one = parse(1, ["2026-01-01T00:00:02Z second word", "2026-01-01T00:00:09Z "])
    assert [str(line) for line in merge([zero, one])] == ["0| first", "1| second word", "0| third", "1| "]


def test_progress_bar_is_lines_and_a_line_without_a_time_has_the_last_one() -> None:
    said = "2026-01-01T00:00:01.5Z \r 10%\r 20%\r\nunable to retrieve the log\n2026-01-01T00:00:02Z\n"
    assert list(parse(0, said.split("\n"))) == [
        Line("2026-01-01T00:00:01.5Z", 0, " 10%"),
        Line("2026-01-01T00:00:01.5Z", 0, " 20%"),
        Line("2026-01-01T00:00:01.5Z", 0, "unable to retrieve the log"),
        Line("2026-01-01T00:00:02Z", 0, ""),
    ]


def test_times_of_a_node_with_another_time_zone_sort_with_the_others() -> None:
    (line,) = parse(0, ["2026-01-01T01:00:01.123456789+01:00 x"])
    assert line.at == "2026-01-01T00:00:01.123456Z"


def test_lines_of_some_ranks() -> None:
    texts = ["[rank 1] a", "dtj: generation 2", "[rank 10] b", '{"rank": 1, "message": "c"}', "x [rank 1] d"]
    lines = [Line("", 0, text) for text in texts]
    assert [line.text for line in of_ranks(lines, {1})] == [texts[0], texts[3]]


def test_missing_log_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Kubectl, *words: str) -> str:
        if words[1] == "digits-0":
            raise self.error(
                b'Error from server: Get "https://10.0.0.3:10250/containerLogs/a/digits-0/trainer": dial tcp '
                b"10.0.0.3:10250: i/o timeout"
            )
        if words[1] == "digits-2":  # whose node refused it
            raise self.error(b'Error from server (BadRequest): container "a" in pod "b" is terminated')
        return "2026-01-01T00:00:01Z hello\n"

    monkeypatch.setattr(Kubectl, "run", run)
    pods = [{"metadata": {"name": f"digits-{index}"}} for index in (0, 1, 2)]
    assert [str(line) for line in snapshot(Kubectl(), pods, "digits")] == [
        "0| no log: the node of the pod gives no answer: dial tcp 10.0.0.3:10250: i/o timeout",
        '2| no log: container "a" in pod "b" is terminated',
        "1| hello",
    ]


@pytest.mark.parametrize("trainer", ["waiting", "terminated"])
def test_pod_that_an_init_container_kept_from_starting_has_the_log_of_that_one(
    trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_self: Kubectl, *words: str) -> str:
        (*_, container) = [word for word in words if word.startswith("--container=")]
        return f"2026-01-01T00:00:01Z {container}\n"

    monkeypatch.setattr(Kubectl, "run", run)
    codes = {"code": 0, "packages": 78}
    inits = [{"name": name, "state": {"terminated": {"exitCode": code}}} for name, code in codes.items()]
    status = {"initContainerStatuses": inits, "containerStatuses": [{"state": {trainer: {}}}]}
    pods = [{"metadata": {"name": "digits-0"}, "status": status}]
    lines = [str(line) for line in snapshot(Kubectl(), pods, "digits", "--container=trainer")]
    named = ["0| log of init container packages:", "0| --container=packages"]
    assert lines == (named if trainer == "waiting" else ["0| --container=trainer"])


def test_error_of_one_kubelet_does_not_hide_the_other_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Kubectl, *words: str) -> str:
        if words[1] in refused:
            raise self.error(
                b'Error from server (InternalError): an error on the server ("Authorization error '
                b'(resource=nodes)") has prevented the request from succeeding (get pods a)'
            )
        return "2026-01-01T00:00:01Z hello\n"

    monkeypatch.setattr(Kubectl, "run", run)
    pods = [{"metadata": {"name": f"digits-{index}"}} for index in (0, 1)]
    refused = {"digits-0"}
    no_log, hello = map(str, snapshot(Kubectl(), pods, "digits"))
    assert no_log.startswith("0| no log: the API server gave no answer: Error from server (InternalError)")
    assert hello == "1| hello"
    refused = {"digits-0", "digits-1"}  # then it may be that of a load balancer before the API server
    with pytest.raises(UnreachableError):
        snapshot(Kubectl(), pods, "digits")


class Large(Kubectl):
    """A job of 100 replicas with two ranks each, whose pods exist."""

    def job(self, name: str) -> dict[str, Any]:
        pod = {"spec": {"containers": [{"name": "trainer"}]}}
        return {
            "metadata": {"name": name},
            "spec": {"replicas": 100, "template": pod, "elastic": {"maxReplicas": 200}},
        }

    def pods(self, name: str) -> list[dict[str, Any]]:
        env = [{"name": "NPROC_PER_NODE", "value": "2"}]
        spec = {"containers": [{"name": "trainer", "env": env}]}
        return [{"metadata": {"name": f"{name}-{index}"}, "spec": spec} for index in range(100)]


@pytest.mark.parametrize(
    ("options", "followed", "first"),
    [
        ({}, range(64), "64| replicas 64 to 99 are not followed: --replica chooses others"),
        ({"replicas": {70, 80}}, [70, 80], None),
        ({"ranks": {0, 1, 199}}, [0, 99], None),
        ({"ranks": {0, 210}}, range(64), None),  # of an elastic job: replica 105 may be added
    ],
)
def test_at_most_so_many_replicas_are_followed_as_this_machine_can(
    options: dict[str, Any], followed: Sequence[int], first: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[int]] = []

    def follow(_kubectl: Kubectl, _name: str, replicas: Sequence[int], *_: str, **__: Any) -> Iterator[Line]:
        asked.append(replicas)
        return iter(())

    monkeypatch.setattr("dtj_client.job.follow_job", follow)
    assert [str(line) for line in Job("digits", Large()).logs(follow=True, **options)] == (
        [first] if first else []
    )
    assert list(asked[0]) == list(followed)


def test_too_many_chosen_replicas_are_not_followed() -> None:
    with pytest.raises(ClientError, match="80 replicas are too many to follow\n  fix: choose at most 64"):
        Job("digits", Large()).logs(follow=True, replicas=range(80))


class Unlucky(Kubectl):
    """Has one pod; a part of this package fails in a way that it does not expect."""

    def run(self, *words: str, given: str | None = None) -> str:
        if self.program == "list":
            raise RuntimeError("can't start new thread")
        return '{"items": [{"metadata": {"name": "digits-0", "uid": "a"}, "status": {"phase": "Running"}}]}'

    def start(self, *words: str, **how: Any) -> Any:
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("at", ["list", "read"])
def test_reader_of_a_log_does_not_wait_for_a_thread_that_failed(at: str) -> None:
    with pytest.raises(RuntimeError, match="new thread"):
        list(follow_job(Unlucky(program=at), "digits", [0], finished=lambda: False))


class WithoutPods(Kubectl):
    """A job of this status, without pods."""

    def __init__(self, **status: Any) -> None:
        super().__init__()
        object.__setattr__(self, "status", status)

    status: dict[str, Any]

    def job(self, name: str) -> dict[str, Any]:
        pod = {"spec": {"containers": [{"name": "trainer"}]}}
        return {"metadata": {"name": name}, "spec": {"replicas": 1, "template": pod}, "status": self.status}

    def pods(self, name: str) -> list[dict[str, Any]]:
        return []


def test_replica_without_a_pod_is_named_not_the_job() -> None:
    """As while its pod is replaced; the pods of the others are there."""
    with pytest.raises(ClientError, match="there is no pod of replica 110, 111 of job digits at this moment"):
        Job("digits", Larger()).logs(replicas={110, 111})


class Larger(Large):
    """Some of its pods are not there yet."""

    def job(self, name: str) -> dict[str, Any]:
        job = super().job(name)
        return {**job, "spec": {**job["spec"], "replicas": 120}}


@pytest.mark.parametrize(
    ("replicas", "said"),
    [
        (
            None,
            [
                "100| no log of replica 100, 101, 102, 103, 104, 105, 106, 107 and 12 more: "
                "no pod at this moment"
            ],
        ),
        ({3, 101}, ["101| no log of replica 101: no pod at this moment"]),
        ({3}, []),
    ],
)
def test_replicas_without_a_pod_are_named(
    replicas: set[int] | None, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that has failed, a pod that had not ended is deleted, and its log with it."""
    monkeypatch.setattr("dtj_client.job.snapshot", lambda *_, **__: iter(()))
    assert [str(line) for line in Job("digits", Larger()).logs(replicas=replicas)] == said


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "has no pods so far"),
        ({"phase": "Suspended", "attempt": 0}, "has no pods so far"),
        ({"phase": "Suspended", "attempt": 1}, "has no pods, and their logs went with them"),
        ({"phase": "Succeeded", "startTime": "2026-01-01T00:00:00Z"}, "and their logs went with them"),
    ],
)
def test_job_without_pods_has_lost_its_logs_only_if_it_ran(status: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError, match=said) as raised:
        Job("digits", WithoutPods(**status)).logs()
    assert ("cleanPodPolicy: None keeps" in str(raised.value)) is (status.get("phase") == "Succeeded")
