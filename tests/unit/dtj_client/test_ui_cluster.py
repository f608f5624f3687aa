"""What the pages keep of jobs."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dtj_client.errors import ClientError, ForbiddenError, UnreachableError
from dtj_client.kube.kubectl import Kubectl
from dtj_client.ui import agent as ui_agent
from dtj_client.ui import watch
from dtj_client.ui.agent import Agent
from dtj_client.ui.cluster import Cluster
from dtj_client.ui.feed import Feed


def job(name: str, version: int) -> dict[str, Any]:
    status = {
        "phase": "Running",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "progress": {"observedAt": "2026-01-01T00:00:09Z", "step": 1, "totalSteps": 9, "loss": "0.5"},
    }
    metadata = {"namespace": "team", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "status": status}


class Fake(Kubectl):
    """Lists the jobs that its program names."""

    def run(self, *words: str, given: str | None = None) -> str:
        names = self.program.split()
        listed = [job(name, 1) for name in names]
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": listed})


def test_nothing_is_kept_of_a_job_that_was_deleted() -> None:
    """The page is open for weeks beside jobs that come and go."""
    cluster = Cluster(
        Fake(options=("--namespace=team", "--context=a"), program="digits text"), all_namespaces=False
    )
    kept, jobs = (cluster._phases, cluster._readings), cluster._jobs
    jobs._list()
    assert [set(each) for each in kept] == [{"uid-digits", "uid-text"}] * 2
    assert jobs._take(json.dumps({"type": "DELETED", "object": job("digits", 2)}).encode())
    assert [set(each) for each in kept] == [{"uid-text"}] * 2

    object.__setattr__(jobs._kubectl, "program", "images")
    jobs._list()
    assert [set(each) for each in kept] == [{"uid-images"}] * 2


def test_page_that_was_opened_while_the_cluster_gave_no_answer_shows_its_pods_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = {"pods": UnreachableError("no answer"), "events": ForbiddenError("you may not list events")}
    shown = threading.Event()

    class Slow(Kubectl):
        def run(self, *words: str, given: str | None = None) -> str:
            kind = words[-1].partition("?")[0].rpartition("/")[2]
            if error := failures.get(kind):
                raise error
            return json.dumps({"metadata": {"resourceVersion": "1"}, "items": [job("digits-0", 1)]})

        def start(self, *words: str, as_preferred: bool = False, **how: Any) -> Any:
            shown.set()
            raise ClientError("no watch in this test")

        def may(self, verb: str, kind: str) -> bool:
            return False

    monkeypatch.setattr(watch, "_RETRY_S", 0.0)
    template = {"spec": {"containers": [{"name": "trainer"}]}}
    feed = Feed(Slow(), job("digits", 1) | {"spec": {"template": template}})
    feed.start()
    assert feed.problems() == ["pods: no answer", "events: you may not list events"]
    del failures["pods"]
    assert shown.wait(60)
    assert feed.problems() == ["events: you may not list events"]
    assert [pod["metadata"]["name"] for pod in feed.pods] == ["digits-0"]
    feed.stop()


@pytest.mark.parametrize("knows", [True, False], ids=["the right is known", "the right is asked for"])
def test_page_says_why_it_cannot_ask_an_agent(knows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And asks again: nothing was said about the rights of the user."""
    asked = 0

    class Full(Kubectl):
        def start(self, *words: str, as_preferred: bool = False, **how: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 2:
                agent.stop()
            raise ClientError("kubectl cannot be started: Resource temporarily unavailable")

    if knows:
        monkeypatch.setattr(Kubectl, "may", lambda *_: True)
    monkeypatch.setattr(ui_agent, "_RETRY_S", 0.0)
    agent = Agent(Full(), "digits-0")
    agent._forward()
    assert (asked, agent.problem) == (2, "kubectl cannot be started: Resource temporarily unavailable")


def test_watch_that_is_stopped_as_it_begins_leaves_no_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that prints nothing would stay for five minutes after `kubectl dtj ui` has ended."""
    found: list[str] = []

    def lines() -> Iterator[str]:
        found.append("read")
        yield from ()

    @contextlib.contextmanager
    def begin(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        jobs.stop()  # it does not know the process yet
        yield SimpleNamespace(stdout=lines(), kill=lambda: found.append("killed"))

    monkeypatch.setattr(subprocess, "Popen", begin)
    jobs = watch.Watch(Kubectl(program="sh"), "/api/v1/namespaces/team/pods")
    jobs._follow("1")
    assert found[0] == "killed"
