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
    return [sys.executable, "-m", "dtj_client.cli", "ui", *words]


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
    assert process.returncode in (0, -15)


def set_status(kubectl: Kubectl, name: str, **status: object) -> None:
    patch = json.dumps({"status": status})
    kubectl("patch", "dtj", name, "--subresource=status", "--type=merge", "-p", patch)


def test_list_follows_the_jobs_of_the_namespace(ui: Ui, kubectl: Kubectl, namespace: str) -> None:
    code, first = ui.get("jobs?after=-1")
    assert (code, first["jobs"], first["namespace"]) == (200, [], namespace)
    assert ui.get(f"jobs?after={first['version']}")[0] == 204

    kubectl("create", "-f", "-", given=json.dumps(job("digits")))
    set_status(kubectl, "digits", phase="Running", progress={"step": 1, "totalSteps": 4})
    found = ui.until("jobs", lambda found: [each["done"] for each in found["jobs"]] == [0.25])
    assert (found["jobs"][0]["name"], found["jobs"][0]["phase"]) == ("digits", "Running")

    kubectl("delete", "dtj", "digits")
    ui.until("jobs", lambda found: found["jobs"] == [])


def test_what_cannot_be_shown_is_one_sentence_and_a_fix(alice: dict[str, str]) -> None:
    def said(*words: str) -> str:
        done = subprocess.run(
            command(*words), env=alice, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    assert "alice may not list distributedtrainingjobs here\n  fix: ask for a role" in said("-A")
    unreachable = said("--kubeconfig=/dev/null")
    assert unreachable.startswith("error: kubectl cannot reach a cluster")
    assert unreachable.count("\n") == 2
