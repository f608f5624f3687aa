"""The views of Services and NetworkPolicies, and what counts as an edit."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dtj_operator.kube.children import NETWORK_POLICY, SERVICE, ChildKind, ChildView
from dtj_operator.plan.children.networking import network_policy, service
from tests.support.builders import job

param = pytest.param
Json = dict[str, Any]

_JOB = job().snapshot().job
MADE = {SERVICE: service(_JOB), NETWORK_POLICY: network_policy(_JOB, ())}


def stored(kind: ChildKind, change: Callable[[Json], object] = lambda _: None) -> ChildView:
    """The object as the API server returns it, after a change."""
    body: Json = json.loads(json.dumps(MADE[kind]))
    body["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    if kind is SERVICE:  # fields that the API server fills in
        body["spec"] |= {"clusterIPs": ["None"], "sessionAffinity": "None"}
    change(body)
    return kind.source.decode(json.dumps(body).encode())


@pytest.mark.parametrize("kind", [param(SERVICE, id="Service"), param(NETWORK_POLICY, id="NetworkPolicy")])
def test_unedited_object_has_the_expected_fingerprint(kind: ChildKind) -> None:
    view = stored(kind)

    assert view.fingerprint == kind.fingerprint(MADE[kind]["spec"])
    assert (view.owner, view.owner_uid, view.label) == (_JOB.name, _JOB.uid, _JOB.name)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        param(SERVICE, lambda b: b["spec"]["selector"].clear(), id="selector emptied"),
        param(SERVICE, lambda b: b["spec"]["selector"].update(a="b"), id="selector narrowed"),
        param(SERVICE, lambda b: b["spec"].update(publishNotReadyAddresses=False), id="only ready pods"),
        param(SERVICE, lambda b: b["spec"]["ports"].pop(), id="a port removed"),
        param(SERVICE, lambda b: b["spec"].update(type="NodePort"), id="type NodePort"),
        param(NETWORK_POLICY, lambda b: b["spec"]["ingress"].append({}), id="all ingress allowed"),
        param(NETWORK_POLICY, lambda b: b["spec"].update(podSelector={}), id="other pods selected"),
        param(NETWORK_POLICY, lambda b: b["spec"]["policyTypes"].append("Egress"), id="egress denied"),
    ],
)
def test_edit_changes_the_fingerprint(kind: ChildKind, change: Callable[[Json], object]) -> None:
    assert stored(kind, change).fingerprint != kind.fingerprint(MADE[kind]["spec"])


def test_empty_parts_that_the_api_server_does_not_store_do_not_matter() -> None:
    """Else the operator would revert its own policy once a minute."""
    given: list[Json] = [
        {"podSelector": {"matchLabels": {}}, "namespaceSelector": {"matchExpressions": []}},
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": []}]}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": []}},
    ]
    kept: list[Json] = [
        {"podSelector": {}, "namespaceSelector": {}},
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
        {"ipBlock": {"cidr": "10.0.0.0/8"}},
    ]
    prints = [NETWORK_POLICY.fingerprint(network_policy(_JOB, peers)["spec"]) for peers in (given, kept)]
    assert prints[0] == prints[1]
    other = [{"podSelector": {}}, *kept[1:]]  # without namespaceSelector: only pods of the namespace
    assert NETWORK_POLICY.fingerprint(network_policy(_JOB, other)["spec"]) != prints[0]


def test_annotations_do_not_matter() -> None:
    view = stored(SERVICE, lambda body: body["metadata"].update(annotations={"a": "b"}))
    assert view == stored(SERVICE)


@pytest.mark.parametrize("kind", [param(SERVICE, id="Service"), param(NETWORK_POLICY, id="NetworkPolicy")])
@pytest.mark.parametrize(
    ("label", "edited"),
    [
        param(_JOB.name, False, id="our label"),
        param("other", True, id="the label of another job"),
        param(None, True, id="without our label, so no watch shows it"),
    ],
)
def test_object_without_the_label_of_its_job_is_edited(
    kind: ChildKind, label: str | None, edited: bool
) -> None:
    def relabel(body: Json) -> None:
        labels = body["metadata"]["labels"]
        labels.pop("dtj.dev/job-name")
        if label:
            labels["dtj.dev/job-name"] = label

    assert kind.is_edited(stored(kind, relabel), MADE[kind]) is edited


def test_another_spec_is_an_edit() -> None:
    assert SERVICE.is_edited(stored(SERVICE, lambda body: body["spec"]["ports"].pop()), MADE[SERVICE])
