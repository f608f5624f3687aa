"""The minor versions of Kubernetes that place gangs, as pods of a PodGroup."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tests.cluster import config, tools
from tests.cluster.errors import ClusterError

CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
TOPOLOGY_GATE = "TopologyAwareWorkloadScheduling"


@dataclass(frozen=True, kw_only=True)
class GangRelease:
    """How a minor version of Kubernetes places gangs.

    version      like "1.36"
    api_version  of its PodGroups
    gates        the feature gates that gangs need
    more_gates   those for preemption of whole gangs and for domains
    """

    version: str
    api_version: str
    gates: Sequence[str]
    more_gates: Sequence[str]

    @property
    def programs(self) -> dict[str, str]:
        """The programs of its control plane -> their names in `tools`."""
        return {name: f"{name}-{self.version}" for name in CONTROL_PLANE}

    @property
    def served_flag(self) -> str:
        """The flag of the API server that serves PodGroups."""
        return f"--runtime-config={self.api_version}=true"

    def gates_flag(self, *, more: bool) -> str:
        """The flag of all three programs; `more` adds `more_gates`."""
        gates = (*self.gates, *(self.more_gates if more else ()))
        return f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"


# A program refuses to start with a feature gate that its version does not know.
RELEASES = (
    GangRelease(
        version="1.36",
        api_version="scheduling.k8s.io/v1alpha2",
        gates=("GenericWorkload", "GangScheduling"),
        more_gates=("WorkloadAwarePreemption", TOPOLOGY_GATE),
    ),
    GangRelease(
        version="1.37",
        api_version="scheduling.k8s.io/v1beta1",
        gates=("GenericWorkload",),
        more_gates=(TOPOLOGY_GATE,),
    ),
)


def chosen() -> GangRelease:
    """The release of DTJ_TEST_KUBERNETES if it places gangs, else the oldest one that does."""
    return asked() or RELEASES[0]


def asked() -> GangRelease | None:
    """The release of DTJ_TEST_KUBERNETES, if that is set and places gangs."""
    version = os.environ.get(tools.KUBERNETES)
    return next((each for each in RELEASES if each.version == version), None)


def of_cluster() -> GangRelease | None:
    """The release whose control plane the test cluster gets; None if it keeps that of its node image.

    Raises ClusterError for a version in DTJ_TEST_KUBERNETES that it cannot have.
    """
    version, release = os.environ.get(tools.KUBERNETES), asked()
    if version and release is None and not config.kubernetes_version().startswith(f"v{version}."):
        known = ", ".join(each.version for each in RELEASES)
        raise ClusterError(
            f"the test cluster cannot have the control plane of Kubernetes {version}",
            fix=f"use one of {known}, or none: make e2e K8S={RELEASES[0].version}",
        )
    return release
