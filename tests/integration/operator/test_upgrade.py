"""Upgrades from the chart before, in both orders, and to a new version of the API: no running job notices.

The control plane is one of its own: the tests install charts and change the stored version of the CRD.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chaos.witness import Witness
from tests.integration import controlplane
from tests.integration.chart.conftest import CHART, Helm
from tests.integration.controlplane import CRD, ControlPlane
from tests.integration.kubelet import Kubelet
from tests.integration.operator import process
from tests.integration.operator.conftest import Cluster
from tests.support.kubectl import KubectlError
from tests.support.predicates import phase

Json = dict[str, Any]
pytestmark = pytest.mark.xdist_group("upgrade")
RELEASE = "dtj"  # its ServiceAccount is the operator's user
# What the chart before did not have: fields with defaults, so that stored jobs get them by the upgrade.
SPEC_FIELDS = ("hang", "network", "scheduling", "cleanPodPolicy")
STATUS_FIELDS = ("worldSize", "failures", "replicaStatuses")


@pytest.fixture(scope="module")
def plane(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return a control plane without our CRD and without our roles."""
    with controlplane.running(tmp_path_factory.mktemp("controlplane")) as plane:
        for name in (process.NAMESPACE, "kube-node-lease"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            plane.kubectl("apply", "-f", "-", given=json.dumps(namespace))
        yield plane


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the chart of the version before, with a CRD and roles that lack what is new."""
    chart = tmp_path_factory.mktemp("charts") / "dtj-operator"
    shutil.copytree(CHART, chart)
    (chart / "templates/fence.yaml").unlink()
    described = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**described, "version": "0.0.9"}))
    crd = yaml.safe_load((chart / "files/crd.yaml").read_text())
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for fields, part in ((SPEC_FIELDS, properties["spec"]), (STATUS_FIELDS, properties["status"])):
        for field in fields:
            del part["properties"][field]
    (chart / "files/crd.yaml").write_text(yaml.safe_dump(crd, sort_keys=False))
    return chart


class Release:
    """The release of the chart in the control plane."""

    def __init__(self, helm: Helm, plane: ControlPlane) -> None:
        self._helm = helm
        self._flags = (f"--namespace={process.NAMESPACE}", f"--kubeconfig={plane.kubectl.kubeconfig}")

    def becomes(self, chart: Path, *, keep: str = "--reset-values", **values: Any) -> None:
        """Install this chart, or upgrade to it.

        keep   Helm's flag for the values of the release
        """
        self._helm("upgrade", RELEASE, str(chart), "--install", keep, *self._flags, given=values)

    def values(self) -> Json:
        """Return the values that were given to the release."""
        given: Json = json.loads(self._helm("get", "values", RELEASE, "--output=json", *self._flags))
        return given

    def roll_back(self) -> None:
        """Return to the chart and the values before the last upgrade."""
        self._helm("rollback", RELEASE, *self._flags)

    def remove(self) -> None:
        """Uninstall it; the CRD and the jobs stay."""
        self._helm("uninstall", RELEASE, *self._flags)


@pytest.fixture
def release(helm: Helm, plane: ControlPlane, previous: Path) -> Iterator[Release]:
    """Return a release of the chart before."""
    release = Release(helm, plane)
    release.becomes(previous)
    yield release
    release.remove()


@pytest.fixture
def granted(release: Release, plane: ControlPlane) -> ControlPlane:
    """Return the control plane, with the CRD and the roles of the chart before."""
    plane.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=60s")
    return plane


async def reconciled(cluster: Cluster, **change: Any) -> Json:
    """Change a job and wait until an operator has seen the change."""
    generation = (await cluster.change(**change))["metadata"]["generation"]
    return await cluster.until(lambda job: job["status"]["observedGeneration"] == generation)


def untouched(job: Json, kubelet: Kubelet) -> bool:
    """Whether the job runs with the two pods that it began with."""
    return phase("Running")(job) and job["status"]["restarts"]["total"] == 0 and len(kubelet.born) == 2


async def test_job_runs_on_when_the_chart_is_upgraded_before_the_operator(
    release: Release, granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    async with process.running(granted, watch=cluster.namespace, identity="older") as older:
        await cluster.submit()
        before = await cluster.until(phase("Running"))
        assert not {*SPEC_FIELDS} & {*before["spec"]}
        assert not {*STATUS_FIELDS} & {*before["status"]}

        release.becomes(CHART)

        await cluster.until(lambda job: "cleanPodPolicy" in job["spec"])
        assert untouched(await reconciled(cluster, activeDeadlineSeconds=86_400), kubelet)
        await older.stop()
    async with process.kept(granted, watch=cluster.namespace, identity="newer"):
        job = await cluster.until(lambda job: "worldSize" in job["status"])
        assert untouched(job, kubelet)


async def test_job_runs_on_when_the_operator_is_upgraded_before_the_crd(
    release: Release, granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    async with process.running(granted, watch=cluster.namespace, identity="older") as older:
        await cluster.submit()
        await cluster.until(phase("Running"))
        await older.stop()
    async with process.kept(granted, watch=cluster.namespace, identity="newer"):
        release.becomes(CHART, crds={"install": False})
        job = await reconciled(cluster, activeDeadlineSeconds=86_400)
        assert untouched(job, kubelet)
        assert "worldSize" not in job["status"], "the CRD before has no such field"

        release.becomes(CHART)

        await cluster.until(lambda job: "cleanPodPolicy" in job["spec"])
        job = await reconciled(cluster, activeDeadlineSeconds=43_200)
        assert untouched(job, kubelet)
        assert job["status"]["worldSize"] == 2


async def test_job_runs_on_when_the_chart_is_rolled_back(
    release: Release,
    granted: ControlPlane,
    cluster: Cluster,
    kubelet: Kubelet,
    witness: Witness,
    previous: Path,
):
    """Helm restores the CRD before too; what the older one does not have is removed from stored jobs."""
    release.becomes(previous, replicas=1)
    release.becomes(CHART, keep="--reset-then-reuse-values")
    assert release.values() == {"replicas": 1}
    async with process.running(granted, watch=cluster.namespace, identity="newer") as newer:
        await cluster.submit()
        await cluster.until(lambda job: phase("Running")(job) and "worldSize" in job["status"])

        release.roll_back()

        await cluster.until(lambda job: "cleanPodPolicy" not in job["spec"])
        assert untouched(await reconciled(cluster, activeDeadlineSeconds=86_400), kubelet)
        await newer.stop()
    async with process.kept(granted, watch=cluster.namespace, identity="older"):
        assert untouched(await reconciled(cluster, activeDeadlineSeconds=43_200), kubelet)
        await kubelet.finish("job-0")
        await kubelet.finish("job-1")
        await cluster.until(phase("Succeeded"))


def with_versions(stored: str, *served: str) -> Json:
    """Return the CRD with these versions served, all with one schema, and one of them stored."""
    crd: Json = yaml.safe_load((CHART / "files/crd.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    crd["spec"]["versions"] = [
        {**version, "name": name, "served": name in served, "storage": name == stored}
        for name in ("v1alpha1", "v1beta1")
    ]
    return crd


async def test_new_version_of_the_api_reaches_the_storage_and_no_job_notices(
    release: Release, granted: ControlPlane, cluster: Cluster, kubelet: Kubelet, witness: Witness
):
    newer = cluster.jobs.replace("v1alpha1", "v1beta1")
    release.becomes(CHART)
    async with process.running(granted, watch=cluster.namespace, identity="before") as operator:
        await cluster.submit()
        before = await cluster.until(phase("Running"))

        # 1. Both versions are served; the operator still uses the old one.
        granted.kubectl(
            "apply",
            "--server-side",
            "--force-conflicts",
            "-f",
            "-",
            given=json.dumps(with_versions("v1alpha1", "v1alpha1", "v1beta1")),
        )
        await cluster.api.until_answered(f"{newer}/job", 200)
        job = await cluster.api.get(f"{newer}/job")
        assert (job["apiVersion"], job["spec"]) == ("dtj.dev/v1beta1", before["spec"])

        # 2. The new one is stored, and every object is written once more.
        granted.kubectl(
            "apply",
            "--server-side",
            "--force-conflicts",
            "-f",
            "-",
            given=json.dumps(with_versions("v1beta1", "v1alpha1", "v1beta1")),
        )
        await until_stored_as(granted, cluster, "v1beta1")
        granted.kubectl.set_status("crd", CRD, storedVersions=["v1beta1"])
        with pytest.raises(KubectlError, match="storedVersions"):  # no way back to the chart before
            granted.kubectl(
                "apply", "--server-side", "--force-conflicts", "-f", str(CHART / "files/crd.yaml")
            )
        job = await reconciled(cluster, activeDeadlineSeconds=86_400)
        assert untouched(job, kubelet)
        await operator.stop()
    # An operator that starts now reads objects that it did not write in its version.
    async with process.kept(granted, watch=cluster.namespace, identity="restarted"):
        assert untouched(await reconciled(cluster, activeDeadlineSeconds=43_200), kubelet)
        await kubelet.finish("job-0")
        await kubelet.finish("job-1")
        await cluster.until(phase("Succeeded"))


async def until_stored_as(plane: ControlPlane, cluster: Cluster, version: str) -> None:
    """Write the job without a change until the API server stores it in this version."""
    key = f"/registry/dtj.dev/distributedtrainingjobs/{cluster.namespace}/job"
    while plane.stored(key)["apiVersion"] != f"dtj.dev/{version}":
        await cluster.api.patch(f"{cluster.jobs}/job", {})
        await asyncio.sleep(0.05)  # until the API server uses the changed CRD
