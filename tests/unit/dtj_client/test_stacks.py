"""Where the ranks of a job are."""

import contextlib
import io
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dtj_client.errors import ClientError, ForbiddenError, SilentNodeError
from dtj_client.kube.kubectl import Json
from dtj_client.show.stacks import check_ranks, question, stacks

ANSWER = "rank 2, pid 7, step 5\n  File a\n\nrank 3, pid 8, step 5\n  File b\n"


def pod(index: int, phase: str = "Running", processes: int = 2) -> Json:
    env = [{"name": "NODE_RANK", "value": str(index)}, {"name": "NPROC_PER_NODE", "value": str(processes)}]
    containers = [{"name": "side"}, {"name": "trainer", "env": env}]
    return {
        "metadata": {"name": f"a-{index}"},
        "spec": {"containers": containers},
        "status": {"phase": phase},
    }


def test_each_rank_is_a_part_and_only_pods_with_wanted_ranks_are_asked() -> None:
    asked = []

    def ask(name: str, container: str) -> str:
        asked.append((name, container))
        return ANSWER

    assert list(stacks([pod(0), pod(1)], {3}, ask)) == ["rank 3, pid 8, step 5\n  File b"]
    assert asked == [("a-1", "trainer")]


def test_rank_without_a_pod_or_a_process_is_named() -> None:
    """As while its pod is replaced, or starts again."""
    assert list(stacks([pod(0)], {1, 2, 3}, lambda *_: "")) == [
        "a-0: its agent has no such rank at this moment",
        "rank 2 has no pod at this moment",
        "rank 3 has no pod at this moment",
    ]


def test_container_that_a_webhook_put_first_is_not_asked() -> None:
    found = pod(0)
    found["spec"]["containers"][1]["name"] = "pytorch"  # as a converted job may call it
    assert list(stacks([found], {1}, lambda _, container: f"rank 1, {container}")) == ["rank 1, pytorch"]


def test_pod_without_stacks_says_why() -> None:
    def refuse(name: str, _container: str) -> str:
        if name == "a-2":
            raise SilentNodeError("the node of the pod gives no answer")
        if name == "a-3":
            raise ClientError("Traceback:\n  File a\nTimeoutError: timed out\n")
        raise ClientError(f"{name}: Connection refused")

    found = list(stacks([pod(0), pod(1, phase="Pending"), pod(2), pod(3)], None, refuse))
    assert found == [
        "a-0 has no agent so far: run the program under dtj run, or ask again if it starts",
        "a-1 is Pending: its ranks do not run",
        "a-2: no stacks: the node of the pod gives no answer",
        "a-3: no stacks: TimeoutError: timed out",
    ]


def test_missing_right_is_an_error() -> None:
    def forbid(_name: str, _container: str) -> str:
        raise ForbiddenError("alice may not create pods/exec here")

    with pytest.raises(ClientError, match="alice may not"):
        list(stacks([pod(0)], None, forbid))


def test_rank_that_does_not_exist_is_named() -> None:
    job = {"metadata": {"name": "digits"}, "spec": {"replicas": 2}}
    check_ranks(job, [pod(0)], {0, 3})
    with pytest.raises(ClientError, match="job digits has no rank 9\n  fix: it has 0 to 3"):
        check_ranks(job, [pod(0)], {4, 9})
    check_ranks({**job, "spec": {"replicas": 2, "elastic": {"maxReplicas": 5}}}, [pod(0)], {9})
    check_ranks(job, [], {9})


def test_question_prints_what_the_agent_answers_whatever_proxy_the_pod_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy knows no agent at 127.0.0.1; it would be said that the pod has none."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    class Agent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ANSWER.encode() if self.path == "/stacks" else b"")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Agent) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(question(server.server_port), {})
        thread.join()
    assert printed.getvalue() == ANSWER
