"""Plays Kueue's part of the contract with a controller of jobs: only what that controller can see.

The kinds have a minimal schema of our own. Each step names the file of Kueue 0.19.2 whose effect on a
Workload it has. A real Kueue decides by quota when a step happens (test_manager.py); here the test decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.integration.api import Api
from tests.integration.kubelet import now
from tests.support.predicates import condition as says

Json = dict[str, Any]
GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"
WORKLOADS = f"/apis/{GROUP}/{VERSION}/namespaces/{{}}/workloads"
FLAVORS = f"/apis/{GROUP}/{VERSION}/resourceflavors"
CLASSES = f"/apis/{GROUP}/{VERSION}/workloadpriorityclasses"
# kind, plural, scope, whether it has the subresource status
KINDS = (
    ("Workload", "workloads", "Namespaced", True),
    ("ResourceFlavor", "resourceflavors", "Cluster", False),
    ("WorkloadPriorityClass", "workloadpriorityclasses", "Cluster", False),
)


def crds() -> list[Json]:
    """Return the CRDs of the kinds that the operator uses; they accept any field."""
    return [crd(*kind) for kind in KINDS]


def crd(kind: str, plural: str, scope: str, has_status: bool) -> Json:
    """Return one CRD."""
    version: Json = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    if has_status:
        version["subresources"] = {"status": {}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": scope, "names": names, "versions": [version]},
    }


class Queue:
    """The Workloads of a namespace, and Kueue's steps with them."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.folder = api, WORKLOADS.format(namespace)

    async def of(self, job: str, holds: Callable[[Json], bool] = lambda _: True) -> Json:
        """Wait for the Workload of a job for which `holds` is true."""
        return await self.api.until_any(
            self.folder,
            lambda found: (
                any(owner["name"] == job for owner in found["metadata"].get("ownerReferences", ()))
                and holds(found)
            ),
        )

    async def admit(self, workload: Json, *, flavors: Json | None = None, count: int | None = None) -> Json:
        """Reserve quota and admit: pkg/workload/workload.go (SetQuotaReservation, SyncAdmittedCondition)."""
        pods = workload["spec"]["podSets"][0]
        assigned = {"name": pods["name"], "flavors": flavors or {}, "count": count or pods["count"]}
        admission = {"clusterQueue": "all", "podSetAssignments": [assigned]}
        over = (kind for kind in ("Evicted", "Preempted") if says(kind)(workload))
        return await self._set(
            workload,
            {"admission": admission},
            condition("QuotaReserved", "True", "QuotaReserved"),
            *(condition(kind, "False", "QuotaReserved") for kind in over),
            condition("Admitted", "True", "Admitted"),
        )

    async def keep_waiting(self, workload: Json, why: str) -> Json:
        """Say why there is no quota: pkg/scheduler/scheduler.go (requeueAndUpdate)."""
        return await self._set(workload, {}, condition("QuotaReserved", "False", "Pending", why))

    async def preempt(self, workload: Json) -> Json:
        """Take the quota back: pkg/scheduler/preemption/preemption.go, pkg/workload/evict/evict.go."""
        return await self._set(
            workload,
            {},
            condition("Evicted", "True", "Preempted", "for another job"),
            condition("Preempted", "True", "InClusterQueue", "for another job"),
        )

    async def _set(self, workload: Json, fields: Json, *conditions: Json) -> Json:
        path = f"{self.folder}/{workload['metadata']['name']}"
        found = (await self.api.get(path)).get("status", {}).get("conditions", ())
        changed = {each["type"]: each for each in (*found, *conditions)}
        return await self.api.patch(
            f"{path}/status", {"status": {**fields, "conditions": list(changed.values())}}
        )


def condition(kind: str, status: str, reason: str, message: str = "") -> Json:
    """Return a condition as Kueue writes it."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now(),
    }
