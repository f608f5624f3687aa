"""What the Prometheus operator and Prometheus' discovery make of a ServiceMonitor and a PodMonitor.

Debian's Prometheus cannot ask Kubernetes for targets, so they are given as files, with the labels that
Prometheus itself would find. Only what the chart uses is here; a field that is unknown raises KeyError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]
META = "__meta_kubernetes"
PLACE = (  # labels that every target gets
    {"source_labels": [f"{META}_namespace"], "target_label": "namespace"},
    {"source_labels": [f"{META}_pod_container_name"], "target_label": "container"},
    {"source_labels": [f"{META}_pod_name"], "target_label": "pod"},
)
FIELDS = {
    "action": "action",
    "sourceLabels": "source_labels",
    "targetLabel": "target_label",
    "regex": "regex",
    "replacement": "replacement",
}


def of_service_monitor(monitor: Json, targets: Path) -> Json:
    """Return the scrape configuration of a ServiceMonitor, which selects Services of its own namespace.

    targets  file of all targets in the cluster
    """
    (endpoint,) = monitor["spec"]["endpoints"]
    selector = monitor["spec"]["selector"]
    relabelings = [
        *(keep(f"service_label_{name_of(key)}", value) for key, value in selector["matchLabels"].items()),
        keep("endpointslice_port_name", endpoint["port"]),
    ]
    relabelings.append(keep("namespace", monitor["metadata"]["namespace"]))
    return configuration(targets, monitor, endpoint, relabelings)


def of_pod_monitor(monitor: Json, targets: Path) -> Json:
    """Return the scrape configuration of a PodMonitor."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (selected,) = monitor["spec"]["selector"]["matchExpressions"]
    assert selected["operator"] == "Exists"
    relabelings = [
        keep(f"pod_labelpresent_{name_of(selected['key'])}", "true"),
        {"action": "drop", "source_labels": [f"{META}_pod_phase"], "regex": "Failed|Succeeded"},
        # Only ports that a container declares.
        *(keep("pod_container_port_name", endpoint["port"]) for _ in range("port" in endpoint)),
        *(keep("pod_container_port_number", endpoint["portNumber"]) for _ in range("portNumber" in endpoint)),
    ]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    return configuration(targets, monitor, endpoint, relabelings)


def configuration(targets: Path, monitor: Json, endpoint: Json, relabelings: list[Json]) -> Json:
    own = [{FIELDS[key]: value for key, value in each.items()} for each in endpoint.get("relabelings", ())]
    return {
        "job_name": f"{monitor['kind']}/{monitor['metadata']['name']}",
        "honor_labels": endpoint.get("honorLabels", False),
        "metrics_path": endpoint.get("path", "/metrics"),
        "file_sd_configs": [{"files": [str(targets)]}],
        "relabel_configs": [*relabelings, *PLACE, *own],
    }


def keep(label: str, value: object) -> Json:
    """Return what drops all targets whose label has another value."""
    return {"action": "keep", "source_labels": [f"{META}_{label}"], "regex": str(value)}


def name_of(label: str) -> str:
    """Return a label of Kubernetes as Prometheus writes it."""
    return re.sub(r"\W", "_", label)


def targets_of_pods(pods: list[Json]) -> Iterator[Json]:
    """Yield the targets of pods: one for each port that a container declares, or one if it declares none."""
    for pod in pods:
        status, meta = pod["status"], pod["metadata"]
        labels = {
            "namespace": meta["namespace"],
            "pod_name": meta["name"],
            "pod_ip": status["podIP"],
            "pod_phase": status["phase"],
            **{f"pod_label_{name_of(key)}": value for key, value in meta["labels"].items()},
            **{f"pod_labelpresent_{name_of(key)}": "true" for key in meta["labels"]},
        }
        for container in pod["spec"]["containers"]:
            own = labels | {"pod_container_name": container["name"]}
            for port in container.get("ports") or ():
                number = {"pod_container_port_number": str(port["containerPort"])}
                named = {"pod_container_port_name": port.get("name", "")}
                yield target(f"{status['podIP']}:{port['containerPort']}", own | number | named)
            if not container.get("ports"):
                yield target(status["podIP"], own)


def targets_of_service(service: Json, slices: list[Json]) -> Iterator[Json]:
    """Yield the targets of a Service: one for each endpoint and port of its EndpointSlices."""
    labels = {f"service_label_{name_of(key)}": value for key, value in service["metadata"]["labels"].items()}
    for each in slices:
        for port in each["ports"]:
            for endpoint in each["endpoints"]:
                own = {
                    "namespace": each["metadata"]["namespace"],
                    "endpointslice_port_name": port["name"],
                    "pod_name": endpoint["targetRef"]["name"],
                }
                yield target(f"{endpoint['addresses'][0]}:{port['port']}", labels | own)


def target(address: str, labels: dict[str, str]) -> Json:
    return {"targets": [address], "labels": {f"{META}_{name}": value for name, value in labels.items()}}
