"""Workloads of Kueue as views, as far as decisions need them."""

import json
from typing import Any

from dtj_operator.kube.workloads import NOT_SERVED, decode_flavor, decode_workload, kueue
from dtj_operator.model.views import AdmissionView, PodSettings, PodSetView

Json = dict[str, Any]


def decoded(**fields: Any) -> Any:
    raw = {"metadata": {"name": "digits-1", "namespace": "ns", "uid": "u"}, **fields}
    return decode_workload(json.dumps(raw).encode())


def test_admission_names_each_flavor_once() -> None:
    pods = {"name": "main", "count": 3, "flavors": {"cpu": "spot", "memory": "spot", "gpu": "a100"}}
    found = decoded(status={"admission": {"clusterQueue": "all", "podSetAssignments": [pods]}})
    assert found.admission == AdmissionView(
        cluster_queue="all", pod_set="main", count=3, flavors=("spot", "a100"), chooses_nodes=False
    )


def test_topology_assignment_means_that_kueue_chooses_the_nodes() -> None:
    pods: Json = {"name": "main", "topologyAssignment": {"levels": ["rack"], "slices": []}}
    found = decoded(status={"admission": {"clusterQueue": "all", "podSetAssignments": [pods]}})
    assert found.admission.chooses_nodes
    pods["topologyAssignment"] = None
    again = decoded(status={"admission": {"clusterQueue": "all", "podSetAssignments": [pods]}})
    assert not again.admission.chooses_nodes


def test_only_checks_that_are_ready_change_the_pods() -> None:
    update = {"name": "main", "nodeSelector": {"pool": "a"}}
    checks = [
        {"name": "a", "state": "Ready", "podSetUpdates": [update]},
        {"name": "b", "state": "Pending", "podSetUpdates": [{"name": "main", "labels": {"no": "no"}}]},
        {"name": "c", "state": "Pending", "message": "ETA 9:00"},
    ]
    found = decoded(status={"admissionChecks": checks})
    assert found.updates == (PodSettings(node_selector={"pool": "a"}),)
    assert found.unchecked == (("b", ""), ("c", "ETA 9:00"))


def test_workload_of_another_controller_has_its_owner() -> None:
    other = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "b", "controller": True}
    found = decoded(metadata={"name": "x", "uid": "u", "ownerReferences": [other]}, spec={"active": False})
    assert (found.owner_uid, found.job, found.active) == ("b", "", False)


def test_what_a_workload_asks_for_is_known_while_it_has_no_owner() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "b", "controller": True}
    sets = [{"name": "main", "count": 3, "template": {"spec": {"containers": []}}}]
    free = decoded(spec={"podSets": sets})
    owned = decoded(metadata={"name": "x", "uid": "u", "ownerReferences": [owner]}, spec={"podSets": sets})
    assert (free.asked, owned.asked) == (PodSetView(count=3, spec={"containers": []}), None)
    assert decoded(spec={}).asked is None


def test_flavor_is_its_labels_and_tolerations() -> None:
    spec = {"nodeLabels": {"kind": "spot"}, "tolerations": [{"key": "spot", "tolerationSeconds": 3}]}
    assert decode_flavor(json.dumps({"spec": spec}).encode()) == PodSettings(
        node_selector={"kind": "spot"}, tolerations=[{"key": "spot", "tolerationSeconds": 3}]
    )


def test_problem_says_what_is_missing() -> None:
    assert kueue().problem == NOT_SERVED
