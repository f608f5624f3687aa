"""How far a call is, on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from dtj_client import job
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.progress import bar
from dtj_client.show.logs import snapshot


class Terminal(io.StringIO):
    """What was drawn."""

    def isatty(self) -> bool:
        return True


def test_bar_appears_after_a_second_and_ends_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now, terminal = 0.0, Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with bar("reading logs", lambda: now) as progress:
        progress(1, 4)
        assert terminal.getvalue() == ""
        now = 2.0
        progress(3, 4)
        progress(2, 4)
    drawn = terminal.getvalue()
    assert "reading logs" in drawn
    assert "75%" in drawn
    assert "50%" in drawn, "a restart repeats steps"
    assert drawn.endswith("\n")


def test_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with bar("reading logs", iter((0.0, 9.0)).__next__) as progress:
        progress(3, 4)
    assert pipe.getvalue() == ""


class Cluster(Kubectl):
    """A job whose status and pods change with each question."""

    def job(self, _name: str) -> Json:
        return {"status": STATUSES.pop(0)}

    def pods(self, _name: str) -> list[Json]:
        return [{"status": {"phase": phase}} for phase in PODS.pop(0)]

    def run(self, *words: str, given: str | None = None) -> str:
        return f"2026-01-01T00:00:0{words[1][-1]}Z line of {words[1]}\n"

    def patch(self, kind: str, name: str, change: Json) -> None:
        pass

    def delete(self, kind: str, name: str) -> None:
        pass


STATUSES: list[Json] = []
PODS: list[list[str]] = []


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    monkeypatch.setattr(job, "POLL_S", 1e-9)
    return []


def test_wait_counts_steps(seen: list[tuple[int, int]]) -> None:
    running = {"phase": "Running"}
    STATUSES[:] = [{}, running | {"step": "5"}, running | {"step": "20/100"}, {"phase": "Succeeded"}]
    assert job.Job("digits", Cluster(), lambda *of: seen.append(of)).wait() == "Succeeded"
    assert seen == [(20, 100)]


def test_stop_counts_pods(seen: list[tuple[int, int]]) -> None:
    STATUSES[:] = [{"phase": "Running"}]
    PODS[:] = [["Running", "Running"], ["Succeeded", "Running"], []]
    job.Job("digits", Cluster(), lambda *of: seen.append(of)).stop()
    assert seen == [(0, 2), (1, 2)]


def test_logs_of_many_pods_count_pods_and_stay_in_order(seen: list[tuple[int, int]]) -> None:
    pods = [{"metadata": {"name": f"digits-{index}"}} for index in range(9)]
    lines = snapshot(Cluster(), pods, "digits", progress=lambda *of: seen.append(of))
    assert [line.replica for line in lines] == list(range(9))
    assert seen == [(count, 9) for count in range(1, 10)]
