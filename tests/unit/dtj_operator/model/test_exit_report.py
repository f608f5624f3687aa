"""A termination message comes from the user's container: it may be a report, text, or anything else."""

import json

import pytest

from dtj_operator.model.exit_report import NO_REPORT, ExitReport, parse


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("", id="nothing"),
        pytest.param("Traceback ...", id="text"),
        pytest.param('{"reason": "Exc', id="a report that was cut"),
        pytest.param("[1]", id="JSON, but not an object"),
        pytest.param("{}", id="an empty object"),
        pytest.param('{"reason":' + "[" * 2000 + "]" * 2000 + "}", id="deeper than Python's stack"),
        pytest.param(
            json.dumps({"reason": 1, "rank": "0", "step": -1, "inPlace": True}), id="fields of other types"
        ),
        pytest.param(json.dumps({"step": 2**31}), id="a number that does not fit into the status"),
        pytest.param(json.dumps({"loss": 10**400}), id="a number that does not fit into a float"),
    ],
)
def test_not_a_report(message: str) -> None:
    assert parse(message) == NO_REPORT


def test_report() -> None:
    message = json.dumps({"reason": "Hang", "message": "m", "at": "t", "rank": 3, "step": 7, "inPlace": 2})
    assert parse(message) == ExitReport(reason="Hang", message="m", at="t", rank=3, step=7, in_place=2)


def test_last_numbers_of_the_run() -> None:
    found = parse('{"step": 9, "totalSteps": 9, "epoch": 2, "loss": 0.5, "samplesPerSecond": 80}')
    assert found == ExitReport(step=9, total_steps=9, epoch=2, loss=0.5, samples_per_second=80.0)


def test_a_field_of_another_type_does_not_hide_the_others() -> None:
    assert parse('{"reason": "Exception", "rank": null, "step": "7"}') == ExitReport(reason="Exception")
