"""`kubectl dtj ui` as a process, with the rights of `edit` in one namespace."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests.integration.client.test_client import alice, helm, user
from tests.integration.crd.jobs import job
from tests.support.kubectl import Json, Kubectl

__all__ = ["alice", "helm", "user"]
PATIENCE_S = 60.0


class Ui:
    """The running command."""

    def __init__(self, address: str) -> None:
        self.place = urlsplit(address)

    def get(self, path: str) -> tuple[int, Json]:
        """Return the code and the document of an answer."""
        connection = http.client.HTTPConnection(self.place.netloc, timeout=PATIENCE_S)
        try:
            connection.request("GET", f"{self.place.path}api/{path}")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or "{}")
        finally:
            connection.close()

    def until(self, path: str, holds: Callable[[Json], bool]) -> Json:
        """Ask again and again, as the page does, until the document is as expected."""
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            _, found = self.get(path)
            if found and holds(found):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{path}: last {found}")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dtj_client", "ui", *words]


@pytest.fixture
def ui(alice: dict[str, str], namespace: str) -> Iterator[Ui]:
    """Start the command as alice and return it with its address."""
    words = command(f"--namespace={namespace}")
    with subprocess.Popen(words, env=alice, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Ui(process.stdout.readline().removeprefix("jobs: ").strip())
        finally:
            process.terminate()
    assert process.returncode == 143, "it ends in order, and so ends its kubectl processes"


def test_list_follows_the_jobs_of_the_namespace(ui: Ui, kubectl: Kubectl, namespace: str) -> None:
    code, first = ui.get("jobs?after=-1")
    assert (code, first["jobs"], first["namespace"]) == (200, [], namespace)
    assert ui.get(f"jobs?after={first['version']}")[0] == 204

    kubectl("create", "-f", "-", given=json.dumps(job("digits")))
    kubectl.set_status("dtj", "digits", phase="Running", progress={"step": 1, "totalSteps": 4})
    found = ui.until("jobs", lambda found: [each["done"] for each in found["jobs"]] == [0.25])
    assert (found["jobs"][0]["name"], found["jobs"][0]["phase"]) == ("digits", "Running")

    kubectl("delete", "dtj", "digits")
    ui.until("jobs", lambda found: found["jobs"] == [])


def test_page_of_a_job_has_its_pods_events_and_failure(ui: Ui, kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", given=json.dumps(job("digits", replicas=2)))
    failure = {"reason": "Exception", "replica": 1, "rank": 1, "at": "2026-01-01T12:00:00Z", "message": "bad"}
    kubectl.set_status("dtj", "digits", phase="Running", failure=failure)
    found = ui.until("job/" + f"{kubectl.namespace}/digits", lambda found: bool(found.get("failures")))
    assert [each["state"] for each in found["replicas"]] == ["no pod", "no pod"]
    assert found["problem"] == ""
    assert "image: trainer:1" in found["manifest"]

    labels = {"dtj.dev/job-name": "digits", "dtj.dev/replica-index": "0"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "digits-0", "labels": labels},
        "spec": {"containers": [{"name": "trainer", "image": "trainer:1"}], "nodeName": "a"},
    }
    stored = kubectl.get("dtj", "digits")
    assert stored is not None
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "digits.1", "namespace": kubectl.namespace},
        "involvedObject": {key: stored["metadata"][key] for key in ("name", "namespace", "uid")},
        "reason": "Restarting",
        "message": "Restarting 1 pod",
        "type": "Warning",
        "lastTimestamp": "2026-01-01T12:00:01Z",
    }
    kubectl("create", "-f", "-", given=json.dumps(pod))
    kubectl("create", "-f", "-", given=json.dumps(event))
    found = ui.until(f"job/{kubectl.namespace}/digits", lambda found: bool(found["events"]) and "a" in {
        each["node"] for each in found["replicas"]})  # fmt: skip
    assert [mark["title"] for mark in found["timeline"]["marks"]] == ["Exception", "Restarting", "Created"]
    assert ui.get(f"job/{kubectl.namespace}/digits/log?replicas=7")[1]["error"].startswith(
        "job digits has no replica 7"
    )
    code, gone = ui.get(f"job/{kubectl.namespace}/other")
    assert (code, gone["error"].startswith("There is no job other")) == (404, True)


def test_what_cannot_be_shown_is_one_sentence_and_a_fix(alice: dict[str, str]) -> None:
    def said(*words: str) -> str:
        done = subprocess.run(
            command(*words), env=alice, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    assert "alice may not list distributedtrainingjobs here\n  fix: ask for a role" in said("-A")
    unreachable = said("--kubeconfig=/dev/null")
    assert unreachable.startswith("error: the kubeconfig has no current context")
    assert unreachable.count("\n") == 2
