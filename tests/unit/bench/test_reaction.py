"""The stages of a reaction, from the lines of an audit log."""

from typing import Any

import pytest

from tests.bench.reaction import reactions
from tests.integration.controlplane import OPERATOR_USER


def line(began: int, ended: int, verb: str, resource: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "verb": verb,
        "user": {"username": more.pop("user", OPERATOR_USER)},
        "objectRef": {"resource": resource, "name": name, **more},
        "requestReceivedTimestamp": f"2026-01-01T00:00:{began:02}.000000Z",
        "stageTimestamp": f"2026-01-01T00:00:{ended:02}.000000Z",
    }


FAILED = line(0, 1, "patch", "pods", "a-0", user="loop", subresource="status")
WRITES = [
    line(6, 10, "patch", "distributedtrainingjobs", "a", subresource="status"),
    line(10, 15, "delete", "pods", "a-0"),
    line(16, 22, "create", "pods", "a-0"),
]


def test_stages_add_up_to_the_time_between_failure_and_replacement() -> None:
    log = [FAILED, line(3, 5, "get", "distributedtrainingjobs", "a"), *WRITES]
    (found,) = reactions(log)
    assert list(found.stages) == [2, 7, 5, 7]
    assert found.total_s == 21


def test_requests_before_the_failure_and_about_other_jobs_do_not_count() -> None:
    earlier = [line(0, 0, each["verb"], each["objectRef"]["resource"], "a-0") for each in WRITES]
    others = [line(2, 3, "get", "distributedtrainingjobs", "b"), line(2, 3, "create", "pods", "b-0")]
    (found,) = reactions([*earlier, FAILED, *others, *WRITES])
    assert list(found.stages) == [0, 9, 5, 7], "the operator had read the job already"


def test_pod_that_was_not_replaced_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="a-0 failed and was not replaced"):
        reactions([FAILED, *WRITES[:2]])
