"""Curves and the heat map, from what a run writes anyway."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_client.show.logs import Line
from dtj_client.show.readings import Reading
from dtj_client.ui import curves, log
from dtj_client.ui.curves import StepTimes

AT = "2026-01-01T12:00:00Z"


def test_curve_has_a_gap_where_a_restart_repeats_steps() -> None:
    found = curves.curves([Reading(AT, step, 1.0, None) for step in (1, 2, 3, 2, 3)])
    assert [point[0] for point in found["loss"] if point[1] is None] == [2]
    assert found["rate"] == []


def test_long_curve_is_thinned_and_keeps_its_last_point() -> None:
    found = curves.curves([Reading(AT, step, 1.0, 2.0) for step in range(10_001)])
    assert len(found["loss"]) <= curves.POINTS + 1
    assert found["loss"][-1] == [10_000, 1.0]


def test_step_time_of_a_rank_that_hangs_grows() -> None:
    found = StepTimes()
    for now, (one, other) in enumerate([(10, 10), (20, 20), (30, 20), (40, 20)]):
        found.see({"ranks": [{"rank": 0, "step": one}, {"rank": 1, "step": other}]}, AT, float(now))
    heat = found.heat()
    assert heat["ranks"] == [0, 1]
    assert heat["seconds"] == [[0.1, 0.1], [0.1, 1.0], [0.1, 2.0]]


def test_restart_from_an_older_step_starts_the_times_again() -> None:
    found = StepTimes()
    for now, step in enumerate([10, 20, 5, 15]):
        found.see({"ranks": [{"rank": 0, "step": step}]}, AT, float(now))
    assert found.heat()["seconds"] == [[0.1], [0.1]]


@pytest.mark.parametrize(
    "answer", [{}, {"ranks": None}, {"ranks": [1, {"rank": "0"}, {"rank": 0, "step": -1}]}]
)
def test_answer_of_another_shape(answer: dict[str, Any]) -> None:
    found = StepTimes()
    found.see(answer, AT, 0.0)
    assert found.heat() == {"ranks": [], "times": [], "seconds": []}


def test_heat_map_of_a_thousand_ranks_is_limited() -> None:
    found = StepTimes()
    for now in range(100):
        found.see({"ranks": [{"rank": rank, "step": now} for rank in range(1000)]}, AT, float(now))
    assert sum(map(len, found.heat()["seconds"])) <= 30_000


def test_lines_of_several_pods() -> None:
    said = (
        "[pod/digits-1/trainer] 2026-01-01T12:00:00Z [pod/x-9/y] text\nerror: no pod\n"
        "[pod/digits-0/trainer] 2026-01-01T12:00:01Z \n[pod/other-0/trainer] 2026-01-01T12:00:01Z x"
    )
    assert list(log.parse(said, "digits")) == [
        Line("2026-01-01T12:00:00Z", 1, "[pod/x-9/y] text"),
        Line("2026-01-01T12:00:01Z", 0, ""),
    ]
