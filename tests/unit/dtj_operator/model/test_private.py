"""status.memory: what is written is read back, whatever the API server or a person did to it."""

import json
from typing import Any

import pytest

from dtj_operator.model import private
from dtj_operator.model.private import Private, Shortage

param = pytest.param
FULL = Private(
    rejoins=True,
    wanted_replicas=3,
    replacing={1: "uid-1", 10: ""},
    done="0-3,7",
    shortage=Shortage(replicas=4, tries=2, retry_at=1_800_000_000),
    in_place_of_attempt=1,
    identical=2,
    counted_at=(1_800_000_000,),
    highest_step=7,
    earlier_seconds={"lostSeconds": 3},
)


@pytest.mark.parametrize("known", [param(FULL, id="all fields"), param(Private(), id="no field")])
def test_memory_survives_the_api_server(known: Private) -> None:
    stored = json.loads(json.dumps({"memory": private.write(known)}))

    assert private.read(stored) == known
    assert private.write(known) == stored["memory"], "else each reconcile would write it again"


def test_empty_memory_takes_no_space() -> None:
    assert private.write(Private()) == {}


@pytest.mark.parametrize(
    "memory",
    [
        param({"wantedReplicas": "many"}, id="a value of another type"),
        param({"shortage": {}}, id="a part of an object"),
        param({"wantedReplicas": 4_000_000_000}, id="more replicas than a job may have"),
        param({"wantedReplicas": -1}, id="fewer than none"),
        param([1], id="a list"),
    ],
)
def test_memory_that_does_not_decode_counts_as_empty(memory: Any) -> None:
    assert private.read({"memory": memory}) == Private()


def test_fields_of_a_newer_operator_are_ignored() -> None:
    assert private.read({"memory": {"done": "1", "later": {"a": 1}}}) == Private(done="1")
