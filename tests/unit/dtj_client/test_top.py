"""The table of `kubectl dtj top`, and colours."""

from datetime import UTC, datetime
from typing import Any

import pytest

from dtj_client.cli import shared as cli_shared
from dtj_client.show.logs import Line
from dtj_client.show.top import table

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def test_jobs_that_run_come_first_and_problems_are_named() -> None:
    slow = {"type": "Healthy", "status": "False", "message": "rank 3 is\n\x1b[2J slow"}
    blocked = {"type": "PodsReady", "status": "False", "reason": "Unschedulable"}
    jobs = [
        job("old", phase="Succeeded", ready="0/2", step="9/9"),
        job(
            "train",
            phase="Running",
            lastTransitionTime="2026-01-01T11:56:40Z",
            ready="2/2",
            step="5/9",
            progress={"samplesPerSecond": "80"},
            goodput={"percent": "97.0"},
            restarts={"total": 1},
            conditions=[slow],
        ),
        job(
            "hangs",
            phase="Running",
            step="5/9",
            progress={"step": 5, "stepAt": "2026-01-01T11:58:40Z", "observedAt": "2026-01-01T12:00:00Z"},
            conditions=[
                {"type": "PodsReady", "status": "True", "lastTransitionTime": "2026-01-01T10:00:00Z"}
            ],
        ),
        job("big", phase="Pending", conditions=[blocked]),
        job("held", phase="Suspended", conditions=[{"type": "Suspended", "reason": "QueueUnavailable"}]),
        job("paused", phase="Suspended", conditions=[{"type": "Suspended", "reason": "Suspended"}]),
        job("again", phase="Recovering", conditions=[blocked]),
        {"metadata": {"name": "new"}, "spec": {}},
    ]
    assert list(table(jobs, NOW, 200)) == [
        "NAME    PHASE       FOR    READY  STEP  SAMPLES/S  GOODPUT  RESTARTS  PROBLEM",
        "again   Recovering  -      -      -     -          -        0         Unschedulable",
        "big     Pending     -      -      -     -          -        0         Unschedulable",
        "hangs   Running     -      -      5/9   -          -        0         no newer step for 1 min",
        "new     -           -      -      -     -          -        0",
        "train   Running     3m20s  2/2    5/9   80         97.0 %   1         rank 3 is ?[2J slow",
        "held    Suspended   -      -      -     -          -        0         QueueUnavailable",
        "old     Succeeded   -      0/2    9/9   -          -        0",
        "paused  Suspended   -      -      -     -          -        0",
    ]
    assert [len(line) for line in table(jobs, NOW, 10)] == [10] * 9


def test_each_rank_has_a_colour_and_a_pipe_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (cli_shared.shown(Line("", 0, f"[rank {rank}] x")) for rank in (0, 1))
    assert first.replace("[rank 0]", "") != second.replace("[rank 1]", "")
    cli_shared.echo(first)
    assert capsys.readouterr().out == "0| [rank 0] x\n"


@pytest.mark.parametrize(("variable", "plain"), [("1", True), ("", False)])
def test_no_color(variable: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool | None] = []
    monkeypatch.setenv("NO_COLOR", variable)
    monkeypatch.setattr("click.echo", lambda _text, color: said.append(color))
    cli_shared.echo("x")
    assert said == [False if plain else None]
