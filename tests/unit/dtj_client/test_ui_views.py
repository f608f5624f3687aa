"""What the pages of `kubectl dtj ui` show of a job."""

from dtj_client.ui import views

META = {"namespace": "team", "name": "digits", "creationTimestamp": "2026-01-01T12:00:00Z"}


def test_row_of_a_job_that_trains() -> None:
    row = views.row(
        {
            "metadata": META,
            "status": {
                "phase": "Running",
                "step": "120/2000",
                "ready": "2/2",
                "progress": {"step": 120, "totalSteps": 2000, "loss": "0.21", "samplesPerSecond": "812"},
                "goodput": {"percent": "97.0"},
                "restarts": {"total": 2},
            },
        }
    )
    assert (row["namespace"], row["name"], row["phase"], row["restarts"]) == ("team", "digits", "Running", 2)
    assert (row["done"], row["step"], row["loss"], row["rate"]) == (0.06, "120/2000", 0.21, 812)
    assert (row["goodput"], row["problem"]) == (97.0, "")


def test_row_of_a_job_that_the_operator_has_not_seen() -> None:
    row = views.row({"metadata": META, "spec": {}})
    assert (row["phase"], row["done"], row["goodput"], row["restarts"]) == ("", None, None, 0)


def test_no_text_has_control_characters_or_changes_its_direction() -> None:
    hostile = {"a\x1b[2J": ["x\u202ey\tz\n\x00", {"b": "\x7f"}], "n": 1, "none": None}
    assert views.printable(hostile) == {"a?[2J": ["x?y\tz\n?", {"b": "?"}], "n": 1, "none": None}
