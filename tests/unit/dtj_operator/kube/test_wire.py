"""Objects that no decoder takes: they are left out or cut, and the others are decoded."""

import json

import msgspec
import pytest

from dtj_operator.kube import pods, wire
from dtj_operator.kube.wire import DEEPEST

DEPTH = 10_000  # levels that the API server accepts


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("levels", [0, 1, DEEPEST - 1, DEEPEST])
def test_json_that_is_not_too_deep_is_not_pruned(levels: int) -> None:
    raw = nested(levels).encode()
    assert wire.pruned(raw) == raw


def test_what_is_too_deep_becomes_null_and_the_rest_stays() -> None:
    raw = f'{{"x": [1, "]}}{{[", "\\\\", "\\"["], "deep": {nested(DEPTH)}, "y": {{"z": [{nested(DEPTH)}]}}}}'
    pruned = json.loads(wire.pruned(raw.encode()))
    found, levels = pruned["deep"], 1
    while found is not None:
        found, levels = found["a"], levels + 1

    assert levels == DEEPEST
    assert pruned["x"] == [1, "]}{[", "\\", '"[']
    assert set(pruned) == {"x", "deep", "y"}


def test_name_is_read_from_an_object_of_any_depth() -> None:
    fields = f'{{"fieldsV1": {nested(DEPTH)}}}'
    raw = f'{{"metadata": {{"managedFields": [{fields}], "namespace": "ns", "name": "j"}}}}'
    page = f'{{"metadata": {{"resourceVersion": "7"}}, "items": [{raw}, {raw}]}}'
    event = f'{{"type": "ADDED", "object": {raw}}}'

    assert wire.decode_named(raw.encode()).metadata.name == "j"
    assert [item.metadata.name for item in wire.decode_names(page.encode()).items] == ["j", "j"]
    assert wire.decode_named(wire.decode_event(event.encode()).object).metadata.namespace == "ns"


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param('{"metadata": {"name": "bad", "labels": {"a": 1}}}', id="a wrong type"),
        pytest.param(f'{{"metadata": {{"name": "bad", "labels": {{"a": {nested(DEPTH)}}}}}}}', id="too deep"),
        pytest.param("[]", id="not an object"),
        pytest.param(
            '{"metadata": {"name": "bad", "deletionTimestamp": "0000-01-01T00:00:00Z"}}',
            id="a time that does not exist",
        ),
    ],
)
def test_object_that_cannot_be_decoded_is_left_out_of_its_page(
    pod: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = '{"metadata": {"name": "good"}}'
    raw = f'{{"metadata": {{"resourceVersion": "7"}}, "items": [{pod}, {good}]}}'
    page = pods.PODS.decode_list(raw.encode())

    assert [view.name for view in page.items] == ["good"]
    assert page.metadata.resource_version == "7"
    assert [record.getMessage() for record in caplog.records] == ["ignoring an object that cannot be decoded"]


def test_page_that_is_not_json_raises() -> None:
    with pytest.raises(msgspec.DecodeError):
        pods.PODS.decode_list(b"<html>")
