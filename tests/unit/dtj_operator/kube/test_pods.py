"""The views of pods."""

import json
from typing import Any

import msgspec
import pytest

from dtj_operator.kube import pods, wire
from dtj_operator.model.names import Key
from dtj_operator.model.views import ContainerView, PodView

FULL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "j-1",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "42",
        "labels": {"dtj.dev/job-name": "j", "dtj.dev/replica-index": "1", "dtj.dev/attempt": "3"},
        "ownerReferences": [
            {"kind": "Other", "name": "x", "uid": "not the controller", "apiVersion": "v1"},
            {
                "kind": "DistributedTrainingJob",
                "name": "j",
                "uid": "job",
                "controller": True,
                "apiVersion": "dtj.dev/v1",
            },
        ],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"a": "megabyte"}],
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "trainer"}]},
    "status": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "low on memory",
        "podIP": "10.0.0.7",
        "fieldFromTheFuture": {"x": 1},
        "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None}],
        "initContainerStatuses": [
            {"name": "fetch", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}
        ],
        "containerStatuses": [
            {"name": "up", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
            {
                "name": "trainer",
                "state": {
                    "terminated": {
                        "exitCode": 137,
                        "reason": "OOMKilled",
                        "message": "bye",
                        "finishedAt": "2026-01-01T00:00:00Z",
                        "startedAt": None,
                    }
                },
            },
        ],
    },
}


def decode(pod: dict[str, Any]) -> PodView:
    return pods.PODS.decode(json.dumps(pod).encode())


def test_job_of_a_pod_is_its_owner_whatever_its_label_says() -> None:
    meta = {**FULL["metadata"], "labels": {"dtj.dev/job-name": "another"}}
    view = pods.PODS.decode(json.dumps({**FULL, "metadata": meta}).encode())

    assert (view.key, view.mislabelled) == (Key("ns", "j"), True)


@pytest.mark.parametrize("label", ["0", "7", "garbage", None])
def test_index_of_a_pod_is_in_its_name_whatever_its_label_says(label: str | None) -> None:
    labels = {**FULL["metadata"]["labels"], "dtj.dev/replica-index": label}
    view = decode(
        {**FULL, "metadata": {**FULL["metadata"], "labels": {k: v for k, v in labels.items() if v}}}
    )

    assert view.index == 1


def test_view_has_the_fields_that_decisions_need() -> None:
    view = decode(FULL)

    assert (view.key, view.name, view.uid, view.version) == (Key("ns", "j"), "j-1", "u", "42")
    assert (view.index, view.attempt, view.owner_uid) == (1, 3, "job")
    assert (view.phase, view.reason, view.message) == ("Failed", "Evicted", "low on memory")
    assert (view.node, view.address, view.deleting, view.ready) == ("n1", "10.0.0.7", True, True)
    assert view.containers == (
        ContainerView(name="fetch", init=True, waiting="ErrImagePull", message="no"),
        ContainerView(name="up"),
        ContainerView(
            name="trainer", exit_code=137, reason="OOMKilled", message="bye", finished_at=1_767_225_600.0
        ),
    )


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="no owner"),
        pytest.param(
            [{"kind": "DistributedTrainingJob", "uid": "job"}], id="an owner that is not the controller"
        ),
        pytest.param(
            [{"apiVersion": "dtj.dev/v1", "kind": "Job", "uid": "job", "controller": True}],
            id="another kind of controller",
        ),
        pytest.param(
            [{"apiVersion": "a.dev/v1", "kind": "DistributedTrainingJob", "uid": "job", "controller": True}],
            id="a kind of that name in another API group",
        ),
    ],
)
def test_pod_that_no_job_controls_has_no_owner(owners: list[dict[str, Any]]) -> None:
    assert decode({"metadata": {"name": "x", "ownerReferences": owners}}).owner_uid == ""


@pytest.mark.parametrize(
    ("fields", "removed", "held_by"),
    [
        pytest.param({}, True, "", id="its kubelet is done with it"),
        pytest.param({"deletionGracePeriodSeconds": 30}, False, "", id="in its grace period"),
        pytest.param({"finalizers": ["a.io/b"]}, False, "a.io/b", id="a finalizer keeps it"),
        pytest.param(
            {"finalizers": ["a.io/b"], "deletionGracePeriodSeconds": 30},
            False,
            "",
            id="its kubelet is not done",
        ),
    ],
)
def test_deleted_pod_is_gone_once_neither_kubelet_nor_finalizer_keeps_it(
    fields: dict[str, Any], removed: bool, held_by: str
) -> None:
    meta = {**FULL["metadata"], "deletionGracePeriodSeconds": 0, **fields}
    view = decode({**FULL, "metadata": meta})

    assert (view.removed, view.held_by) == (removed, held_by)


def test_view_of_a_new_pod_has_defaults() -> None:
    view = decode({"metadata": {"name": "x", "namespace": "ns", "uid": "u"}})

    assert (view.phase, view.ready, view.deleting, view.index, view.containers) == (
        "Pending",
        False,
        False,
        -1,
        (),
    )


def test_object_that_is_not_a_pod_is_rejected() -> None:
    with pytest.raises(msgspec.DecodeError):
        pods.PODS.decode(b"[]")


def test_a_view_is_small() -> None:
    view = decode(FULL)

    assert len(msgspec.json.encode(view)) < 1600


def test_empty_list_of_metadata_has_null_for_its_items() -> None:
    page = wire.decode_names(b'{"metadata": {"resourceVersion": "7"}, "items": null}')

    assert page.items == []
    assert json.loads(msgspec.json.encode(page))["items"] == []
