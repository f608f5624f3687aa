"""What the pages keep of jobs."""

import json
from typing import Any

from dtj_client.errors import ClientError
from dtj_client.kubectl import Kubectl
from dtj_client.ui.agent import Agent
from dtj_client.ui.cluster import Cluster


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
    assert jobs._take(json.dumps({"type": "DELETED", "object": job("digits", 2)}))
    assert [set(each) for each in kept] == [{"uid-text"}] * 2

    object.__setattr__(jobs._kubectl, "program", "images")
    jobs._list()
    assert [set(each) for each in kept] == [{"uid-images"}] * 2


def test_page_says_why_it_cannot_ask_an_agent() -> None:
    class Full(Kubectl):
        def may(self, verb: str, kind: str) -> bool:
            return True

        def start(self, *words: str, **how: Any) -> Any:
            agent.stop()
            raise ClientError("kubectl cannot be started: Resource temporarily unavailable")

    agent = Agent(Full(), "digits-0")
    agent._forward()
    assert agent.problem == "kubectl cannot be started: Resource temporarily unavailable"
