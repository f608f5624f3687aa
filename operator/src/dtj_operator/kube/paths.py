"""Paths of the REST API: of a kind in one namespace, or in all if it is None."""

from functools import partial

from dtj_operator.model.names import API_VERSION, KUEUE_API, PLURAL, POD_GROUPS, WORKLOADS, Key

NODES = "/api/v1/nodes"
NODE_LEASES = "kube-node-lease"  # the namespace of the kubelets' Leases


def _collection(root: str, plural: str, namespace: str | None) -> str:
    """Path of all objects of a kind in a namespace, or in the whole cluster if it is None."""
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


jobs = partial(_collection, f"/apis/{API_VERSION}", PLURAL)
pods = partial(_collection, "/api/v1", "pods")
services = partial(_collection, "/api/v1", "services")
policies = partial(_collection, "/apis/networking.k8s.io/v1", "networkpolicies")
events = partial(_collection, "/apis/events.k8s.io/v1", "events")
workloads = partial(_collection, f"/apis/{KUEUE_API}", WORKLOADS)
flavors = f"/apis/{KUEUE_API}/resourceflavors"
leases = partial(_collection, "/apis/coordination.k8s.io/v1", "leases")


def job(key: Key) -> str:
    return f"{jobs(key.namespace)}/{key.name}"


def pod_groups(api_version: str, namespace: str | None) -> str:
    return _collection(f"/apis/{api_version}", POD_GROUPS, namespace)
