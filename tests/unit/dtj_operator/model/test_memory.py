"""Whose status the stored one is."""

import pytest

from dtj_operator.model.json import Json
from dtj_operator.model.memory import Memory


@pytest.mark.parametrize(
    ("status", "counts"),
    [
        pytest.param({"phase": "Running", "selector": "dtj.dev/job-uid=mine"}, True, id="its own"),
        pytest.param({"phase": "Failed"}, True, id="of an invalid job, which selects no pods"),
        pytest.param({"phase": "Running", "selector": "dtj.dev/job-uid=other"}, False, id="restored"),
        pytest.param({"phase": "Failed", "selector": "dtj.dev/job-uid=other"}, True, id="restored and final"),
    ],
)
def test_unfinished_status_of_an_earlier_job_does_not_count(status: Json, counts: bool) -> None:
    """Such as after a restore from a backup: a deadline and steps without progress would count from it."""
    memory = Memory.of(status, "mine", is_remote=False)
    assert (memory.raw, memory.restored) == ((status, {}) if counts else ({}, status))


def test_status_of_the_copy_in_another_cluster_counts() -> None:
    status = {"phase": "Running", "selector": "dtj.dev/job-uid=of-the-copy"}
    assert Memory.of(status, "mine", is_remote=True).raw == status
