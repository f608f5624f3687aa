"""The picture of a job."""

import struct
from datetime import UTC, datetime
from pathlib import Path

import matplotlib.font_manager  # noqa: F401 - on a new machine it starts fc-list, which a test may not
import pytest

from dtj.telemetry.metrics import as_json, as_text
from dtj_client.errors import ClientError
from dtj_client.logs import Line
from dtj_client.plot import Reading, draw, failures, readings

AT = "2026-01-01T00:00:01.5Z"
WHEN = datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
JOB = {
    "metadata": {"name": "digits"},
    "status": {"phase": "Running", "failures": [{"at": "2026-01-01T00:00:01Z", "reason": "Hang $x^"}]},
}


def test_lines_of_the_trainer_are_read_in_both_formats() -> None:
    said = {"step": 23, "totalSteps": 69, "epoch": 0, "loss": 0.25, "metrics": {"accuracy": 0.87}}
    said |= {"samplesPerSecond": 2344.0, "tokensPerSecond": None, "mfu": None, "dataWait": 0.1}
    said |= {"etaSeconds": 8.0}
    texts = [f"[rank 0] {as_text(said)}", as_json({"rank": 0, **said})]
    expected = Reading(WHEN, 23, 0.25, 2344.0)
    assert list(readings(Line(AT, 0, text) for text in texts)) == [expected, expected]


@pytest.mark.parametrize(
    "text",
    ["", "dtj: generation 2", "[rank 0] step by step", "{", "[1]", '{"step": "a", "samplesPerSecond": 1}'],
)
def test_other_lines_are_left_out(text: str) -> None:
    assert not list(readings([Line(AT, 0, text)]))


def test_step_without_loss_is_a_step() -> None:
    assert list(readings([Line(AT, 0, "[rank 0] step 3/9  epoch 0  loss nothing")])) == [
        Reading(WHEN, 3, None, None)
    ]


def test_picture_is_a_png_with_a_panel_for_each_curve(tmp_path: Path) -> None:
    draw(JOB, [Reading(WHEN, 1, 0.5, None), Reading(WHEN, 2, 0.4, None)], tmp_path / "loss.png")
    data = (tmp_path / "loss.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (960, 528), "two panels, without one for the rate"
    assert failures(JOB) == [(datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), "Hang $x^")]


def test_nothing_to_draw_and_a_wrong_file_are_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="no log of digits has a line about a step"):
        draw(JOB, [], tmp_path / "loss.png")
    one = [Reading(WHEN, 1, 0.5, 3.0)]
    with pytest.raises(ClientError, match=r"loss\.abc: Format 'abc' is not supported"):
        draw(JOB, one, tmp_path / "loss.abc")
    with pytest.raises(ClientError, match="No such file"):
        draw(JOB, one, tmp_path / "nowhere" / "loss.png")
