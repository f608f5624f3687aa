"""The picture of a job."""

import struct
from datetime import UTC, datetime
from pathlib import Path

import matplotlib.font_manager  # noqa: F401 - on a new machine it starts fc-list, which a test may not
import pytest

from dtj_client.errors import ClientError
from dtj_client.job import Job
from dtj_client.show.logs import Line
from dtj_client.show.plot import draw, failures
from dtj_client.show.readings import Reading

AT = "2026-01-01T00:00:01.5Z"
JOB = {
    "metadata": {"name": "digits"},
    "status": {"phase": "Running", "failures": [{"at": "2026-01-01T00:00:01Z", "reason": "Hang $x^"}]},
}


def test_picture_is_a_png_with_a_panel_for_each_curve(tmp_path: Path) -> None:
    draw(JOB, [Reading(AT, 1, 0.5, None), Reading(AT, 2, 0.4, None)], tmp_path / "loss.png")
    data = (tmp_path / "loss.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (960, 528), "two panels, without one for the rate"
    assert failures(JOB) == [(datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), "Hang $x^")]


def test_only_the_log_of_the_replica_with_rank_0_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may have thousands of others; one that prints in all ranks would be drawn as many times."""

    def logs(_job: Job, *, replicas: set[int]) -> list[Line]:
        return [Line(AT, replica, "step 1/2  loss 0.5") for replica in replicas]

    monkeypatch.setattr(Job, "logs", logs)
    monkeypatch.setattr(Job, "manifest", JOB)
    assert Job("digits").plot(tmp_path / "loss.png") == 1


def test_nothing_to_draw_and_a_wrong_file_are_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="no log of digits has a line about a step"):
        draw(JOB, [], tmp_path / "loss.png")
    one = [Reading(AT, 1, 0.5, 3.0)]
    with pytest.raises(ClientError, match=r"loss\.abc: Format 'abc' is not supported"):
        draw(JOB, one, tmp_path / "loss.abc")
    with pytest.raises(ClientError, match="No such file"):
        draw(JOB, one, tmp_path / "nowhere" / "loss.png")
