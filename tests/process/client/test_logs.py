"""Following the logs of pods with a kubectl whose connections break."""

from __future__ import annotations

import json
import os
import select
from pathlib import Path
from typing import Any

import pytest

from dtj_client.errors import ForbiddenError
from dtj_client.kube.kubectl import Kubectl
from dtj_client.show import logs
from tests.support.commands import wait_for

PATIENCE_S = 60.0  # ends a test that hangs
# One pod, which ends with the third of its logs. The first connection breaks between two lines of a second,
# and then the API server gives no answer once.
KUBECTL = """
[ -e 1 ] && [ ! -e 1.5 ] && touch 1.5 && echo "Unable to connect to the server: EOF" >&2 && exit 1
case "$*" in
  *"get pod"*) [ -e 3 ] && cat ended || cat running ;;
  *--since=9m*--tail=7) touch 1; printf '2026-01-01T00:00:01.1Z one\\377\\r 9%%\\n'; exit 1 ;;
  *--since-time=2026-01-01T00:00:01.1Z)
    touch 2; printf '2026-01-01T00:00:01.1Z one\\n2026-01-01T00:00:01.2Z two\\n'; [ -e 3 ] ;;
  *--since-time=2026-01-01T00:00:01.2Z)
    touch 3; printf '2026-01-01T00:00:01.2Z two\\n2026-01-01T00:00:09Z three\\n' ;;
esac
"""


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "NEXT_POD_S", 0)


def pod(index: int, uid: str, phase: str, **status: Any) -> dict[str, Any]:
    metadata = {"name": f"digits-{index}", "uid": uid}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, **status}}


def kubectl(folder: Path, text: str, **pods: list[dict[str, Any]]) -> Kubectl:
    """A kubectl that this shell script plays, in a folder with a file of pods for each of these names."""
    for name, items in pods.items():
        (folder / name).write_text(json.dumps({"items": items}))
    program = folder / "kubectl"
    program.write_text(f'#!/bin/sh\ncd "$(dirname "$0")"\n{text}')
    program.chmod(0o755)
    return Kubectl(program=str(program))


def test_log_continues_after_a_broken_connection(tmp_path: Path) -> None:
    over = (tmp_path / "3").exists
    cluster = kubectl(tmp_path, KUBECTL, running=[pod(0, "a", "Running")], ended=[pod(0, "a", "Succeeded")])
    found = logs.follow_job(cluster, "digits", [0], "--since=9m", "--tail=7", finished=over)
    assert [line.text for line in found] == ["one\N{REPLACEMENT CHARACTER}", " 9%", "two", "three"]
    assert (tmp_path / "1.5").exists()


def test_log_whose_connection_breaks_just_after_its_job_has_ended_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks = """
case "$*" in
  *"get pod"*) cat pods ;;
  *--since-time*) echo "2026-01-01T00:00:02Z two" ;;
  *) echo "2026-01-01T00:00:01Z one"; while [ ! -e over ]; do sleep 0.01; done ;;
esac
"""
    begin = logs._Following._begin

    def begins(following: logs._Following, pod: dict[str, Any], *, over: bool) -> bool:
        """Returns only after what was read meanwhile has ended."""
        has_begun = begin(following, pod, over=over)
        if over and not has_begun:
            (tmp_path / "over").touch()
            wait_for(lambda: not following._read, "the end of the log")
        return has_begun

    answers = iter([False])
    monkeypatch.setattr(logs._Following, "_begin", begins)
    cluster = kubectl(tmp_path, breaks, pods=[pod(0, "a", "Running")])
    found = logs.follow_job(cluster, "digits", [0], finished=lambda: next(answers, True))
    assert [line.text for line in found] == ["one", "two"]


def test_log_of_a_pod_that_comes_later_has_all_its_lines(tmp_path: Path) -> None:
    replaced = """
case "$*" in
  *"get pod"*) [ -e 1 ] && cat second || cat first ;;
  *--tail=7) [ -e 1 ] && touch 2; touch 1; echo "2026-01-01T00:00:01.1Z one" ;;
  *"logs digits-0"*) touch 2; echo "2026-01-01T00:00:01.2Z two" ;;
esac
"""
    over = (tmp_path / "2").exists
    cluster = kubectl(tmp_path, replaced, first=[pod(0, "a", "Running")], second=[pod(0, "b", "Succeeded")])
    found = logs.follow_job(cluster, "digits", [0], "--tail=7", finished=over)
    assert {line.text for line in found} == {"one", "two"}


def test_missing_right_ends_the_log(tmp_path: Path) -> None:
    """The log would be empty until the job has finished."""
    refuses = """
case "$*" in
  *"get pod"*) cat pods ;;
  *) echo 'pods "digits-0" is forbidden: User "alice" cannot get resource "pods/log"' >&2; exit 1 ;;
esac
"""
    cluster = kubectl(tmp_path, refuses, pods=[pod(0, "a", "Running")])
    found = logs.follow_job(cluster, "digits", [0], finished=bool)
    with pytest.raises(ForbiddenError, match="alice may not get pods/log here"):
        list(found)


def test_log_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    """The node of one pod is silent until the job is over; another pod was refused by its node."""
    silent = """
case "$*" in
  *"get pod"*) cat pods ;;
  *"logs digits-0"*) echo "2026-01-01T00:00:01.1Z zero" ;;
  *"logs digits-1"*) echo "$$" >> asked
    echo 'Error from server: Get "https://10.0.0.3:10250/containerLogs/a/b/c": i/o timeout' >&2; exit 1 ;;
  *) echo 'Error from server (BadRequest): container "a" in pod "digits-2" is not available' >&2; exit 1 ;;
esac
"""
    asked = tmp_path / "asked"
    pods = [pod(0, "a", "Succeeded"), pod(1, "b", "Running"), pod(2, "c", "Failed")]
    cluster = kubectl(tmp_path, silent, pods=pods)
    over = lambda: asked.exists() and len(asked.read_text().split()) > 2  # noqa: E731
    found = sorted(str(line) for line in logs.follow_job(cluster, "digits", [0, 1, 2], finished=over))
    assert found == [
        "0| zero",
        "1| no log: the node of the pod gives no answer: i/o timeout",
        '2| no log: container "a" in pod "digits-2" is not available',
    ]


def test_pod_that_runs_on_after_its_job_does_not_hold_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With cleanPodPolicy None. A pod that is being deleted is followed until it is gone."""
    monkeypatch.setattr(logs, "STAYS_S", 0)
    runs_on = """
case "$*" in
  *"get pod"*) [ -e gone ] && cat one || cat both ;;
  *"logs digits-0"*--follow*) touch followed; exec sleep 1000 ;;
  *"logs digits-0"*) printf '2026-01-01T00:00:01.1Z zero\\n' ;;
  *"logs digits-1"*) while [ ! -e read ]; do sleep 0.01; done
    touch gone; echo "2026-01-01T00:00:02.1Z one" ;;
esac
"""
    over = (tmp_path / "followed").exists
    stays, ends = pod(0, "a", "Running"), pod(1, "b", "Running")
    ends["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
    found = []
    cluster = kubectl(tmp_path, runs_on, one=[stays], both=[stays, ends])
    for line in logs.follow_job(cluster, "digits", [0, 1], finished=over):
        found.append(line.text)
        (tmp_path / "read").touch()
    assert sorted(set(found)) == ["one", "zero"]


def test_new_replicas_are_followed_only_if_asked_for(tmp_path: Path) -> None:
    """Of three pods one replaces another, and two were added, one of which ended at once; a fourth waits."""
    scaled = """
case "$*" in
  *"get pods --selector=dtj.dev/job-name=digits,dtj.dev/replica-index in (0) "*) cat chosen ;;
  *"get pods --selector=dtj.dev/job-name=digits,dtj.dev/replica-index in (0,1,2,3,4,"*63") "*) cat every ;;
  *"logs digits-0"*) echo "2026-01-01T00:00:01.1Z zero" ;;
  *"logs digits-1"*) echo "2026-01-01T00:00:01.2Z one" ;;
  *"logs digits-3"*) echo "2026-01-01T00:00:01.3Z three" ;;
esac
"""
    ended = {"containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}
    zero, one, two = pod(0, "a", "Succeeded"), pod(1, "b", "Succeeded"), pod(2, "c", "Pending")
    every = [zero, one, two, pod(3, "d", "Pending", **ended)]
    cluster = kubectl(tmp_path, scaled, chosen=[zero], every=every)
    for with_new, expected in ((True, {"zero", "one", "three"}), (False, {"zero"})):
        found = logs.follow_job(cluster, "digits", [0], finished=lambda: True, with_new=with_new)
        assert {line.text for line in found} == expected


def test_log_of_a_failed_init_container_is_followed_too(tmp_path: Path) -> None:
    """Of a pod that the operator replaces; the first try finds no node that answers."""
    failed = {
        "initContainerStatuses": [{"name": "packages", "state": {"terminated": {"exitCode": 1}}}],
        "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    installs = """
case "$*" in
  *"get pod"*) [ -e said ] && cat second || cat first ;;
  *--container=trainer*--container=packages)
    [ -e asked ] || { touch asked; echo 'Error from server: error dialing backend: EOF' >&2; exit 1; }
    touch said; printf '2026-01-01T00:00:01Z no such package\\n2026-01-01T00:00:02Z bye\\n' ;;
  *"logs digits-0"*) touch over; echo "2026-01-01T00:00:03Z hello" ;;
esac
"""
    first, second = pod(0, "a", "Failed", **failed), pod(0, "b", "Succeeded")
    cluster = kubectl(tmp_path, installs, first=[first], second=[second])
    over = (tmp_path / "over").exists
    found = [
        line.text for line in logs.follow_job(cluster, "digits", [0], "--container=trainer", finished=over)
    ]
    assert found == [
        "no log: the node of the pod gives no answer: EOF",
        "log of init container packages:",
        "no such package",
        "bye",
        "hello",
    ]


def test_reader_who_has_enough_ends_kubectl_of_a_quiet_job(tmp_path: Path) -> None:
    quiet = """
case "$*" in
  *"get pod"*) cat pods ;;
  *) echo "2026-01-01T00:00:01.1Z $$"; exec sleep 600 ;;
esac
"""
    cluster = kubectl(tmp_path, quiet, pods=[pod(0, "a", "Running")])
    found = logs.follow_job(cluster, "digits", [0], finished=bool)
    process = os.pidfd_open(int(next(found).text))
    found.close()
    assert select.select([process], [], [], PATIENCE_S)[0]
    os.close(process)
