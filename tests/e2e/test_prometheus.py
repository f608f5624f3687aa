"""A Prometheus in the cluster finds the operator and the agents by the chart's monitors, and scrapes them."""

from __future__ import annotations

import json
import shutil
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import debian, install, kind
from tests.cluster.kind import Cluster
from tests.e2e.conftest import TRAINER, config_map, workload_job
from tests.support.kubectl import Json, Kubectl
from tests.support.scraping import (
    of_pod_monitor,
    of_service_monitor,
    targets_of_pods,
    targets_of_service,
)

PROGRAM = "prometheus-of-tests"
ALERTS = install.CHART / "files/alerts.yaml"
SCRAPED_WITHIN_S = 60
FOLDER = Path("/etc/prometheus")
SCRAPES = {
    "ServiceMonitor": (of_service_monitor, FOLDER / "endpoints.json"),
    "PodMonitor": (of_pod_monitor, FOLDER / "pods.json"),
}


@pytest.fixture
def program(cluster: Cluster) -> Iterator[str]:
    """Return the name of Prometheus' program in the folder that all nodes share."""
    if cluster.engine is None:
        pytest.skip("the nodes of another cluster share no folder with this machine")
    target = kind.shared_folder() / PROGRAM
    shutil.copy(debian.program("prometheus", package="prometheus"), target)
    yield PROGRAM
    target.unlink()


def monitors() -> list[Json]:
    """Return the monitors that the chart renders for the release."""
    on = "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true"
    rendered = install.helm(
        "template", install.RELEASE, str(install.CHART), f"--namespace={install.NAMESPACE}", f"--set={on}"
    )
    found = [each for each in yaml.safe_load_all(rendered) if each]
    return [each for each in found if each["kind"] in SCRAPES]


def prometheus_pod(program: str) -> Json:
    """Return a pod that runs Prometheus with the ConfigMap of its name."""
    hardened = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "prometheus",
        "image": TRAINER,
        "command": [
            f"/runs/{program}",
            *(f"--config.file={FOLDER}/prometheus.yaml", "--storage.tsdb.path=/tmp/tsdb"),
        ],
        "securityContext": hardened,
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": 9090}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [
            {"name": "config", "mountPath": str(FOLDER)},
            {"name": "runs", "mountPath": "/runs", "readOnly": True},
        ],
    }
    volumes = [
        {"name": "config", "configMap": {"name": "prometheus"}},
        {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}},
    ]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "prometheus"}, "spec": spec}


def asked(kubectl: Kubectl, path: str, **query: str) -> Any:
    """Return the data of an answer of Prometheus."""
    proxy = f"/api/v1/namespaces/{kubectl.namespace}/pods/prometheus:9090/proxy/api/v1"
    return json.loads(kubectl("get", "--raw", f"{proxy}/{path}?{urllib.parse.urlencode(query)}"))["data"]


def trained(job: Json) -> bool:
    """Whether the operator has read from an agent that there were steps."""
    return int(job.get("status", {}).get("progress", {}).get("step", 0)) > 3


@pytest.mark.usefixtures("runs")
def test_prometheus_scrapes_the_operator_and_the_agents(kubectl: Kubectl, installed: Kubectl, program: str):
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(FOLDER / "alerts.yaml")],
        "scrape_configs": [
            scrape(each, targets) for each in monitors() for scrape, targets in [SCRAPES[each["kind"]]]
        ],
    }
    job = workload_job("watched", "--steps=100000")
    sidecar = {"name": "sidecar", "image": TRAINER, "command": ["sleep", "infinity"]}
    job["spec"]["template"]["spec"]["containers"].append(sidecar)
    kubectl.apply(job)
    kubectl.until("dtj", "watched", trained)
    system = replace(installed, namespace=install.NAMESPACE)
    (service,) = system.list("services", "app.kubernetes.io/name=dtj-operator")
    slices = system.list("endpointslices", f"kubernetes.io/service-name={service['metadata']['name']}")
    pods = kubectl.list("pods", "dtj.dev/job-name=watched")
    files = {
        "prometheus.yaml": json.dumps(config),
        "alerts.yaml": ALERTS.read_text(),
        "pods.json": json.dumps([*targets_of_pods(pods)]),
        "endpoints.json": json.dumps([*targets_of_service(service, slices)]),
    }
    kubectl.apply(config_map("prometheus", files))
    kubectl.apply(prometheus_pod(program))
    kubectl("wait", "--for=condition=Ready", "pod/prometheus", "--timeout=120s")
    operators = {
        pod["metadata"]["name"] for pod in system.list("pods", "app.kubernetes.io/name=dtj-operator")
    }

    def up() -> set[tuple[str, str]]:
        result = asked(kubectl, "query", query="up == 1")["result"]
        ours = (install.NAMESPACE, str(kubectl.namespace))
        found = [each["metric"] for each in result if each["metric"]["namespace"] in ours]
        assert len(found) == len({each["pod"] for each in found}), "one target for each pod"
        return {(each["namespace"], each["pod"]) for each in found}

    expected = {(install.NAMESPACE, name) for name in operators}
    expected |= {(str(kubectl.namespace), name) for name in ("watched-0", "watched-1")}
    deadline = time.monotonic() + SCRAPED_WITHIN_S
    while (found := up()) != expected:
        assert time.monotonic() < deadline, found
    steps = asked(kubectl, "query", query=f'dtj_step{{namespace="{kubectl.namespace}"}}')["result"]
    of = [(each["metric"]["dtj_job"], each["metric"]["dtj_replica"]) for each in steps]
    assert sorted(of) == [("watched", "0"), ("watched", "1")]
    (jobs,) = asked(kubectl, "query", query=f'dtj_jobs{{namespace="{kubectl.namespace}"}}')["result"]
    assert (jobs["metric"]["phase"], jobs["value"][1]) == ("Running", "1")
    (group,) = asked(kubectl, "rules")["groups"]
    assert [rule["name"] for rule in group["rules"] if rule.get("lastError")] == []
