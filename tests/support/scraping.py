"""Scrape configurations that do what the Prometheus operator makes of a ServiceMonitor and a PodMonitor.

Only the fields that the chart uses; an unknown one raises KeyError.
"""

from __future__ import annotations

import re
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


def of_service_monitor(monitor: Json) -> Json:
    """Return the scrape configuration of a ServiceMonitor, which selects Services of its own namespace."""
    (endpoint,) = monitor["spec"]["endpoints"]
    selector = monitor["spec"]["selector"]
    relabelings = [
        *(keep(f"service_label_{name_of(key)}", value) for key, value in selector["matchLabels"].items()),
        keep("endpointslice_port_name", endpoint["port"]),
    ]
    namespaces = {"names": [monitor["metadata"]["namespace"]]}
    return configuration("endpointslice", namespaces, monitor, endpoint, relabelings)


def of_pod_monitor(monitor: Json) -> Json:
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
    chosen = monitor["spec"]["namespaceSelector"]
    namespaces = {} if chosen.get("any") else {"names": chosen["matchNames"]}
    return configuration("pod", namespaces, monitor, endpoint, relabelings)


def configuration(
    role: str, namespaces: Json, monitor: Json, endpoint: Json, relabelings: list[Json]
) -> Json:
    own = [{FIELDS[key]: value for key, value in each.items()} for each in endpoint.get("relabelings", ())]
    return {
        "job_name": f"{monitor['kind']}/{monitor['metadata']['name']}",
        "honor_labels": endpoint.get("honorLabels", False),
        "metrics_path": endpoint.get("path", "/metrics"),
        "kubernetes_sd_configs": [{"role": role, "namespaces": namespaces}],
        "relabel_configs": [*relabelings, *PLACE, *own],
    }


def keep(label: str, value: object) -> Json:
    """Return what drops all targets whose label has another value."""
    return {"action": "keep", "source_labels": [f"{META}_{label}"], "regex": str(value)}


def name_of(label: str) -> str:
    """Return a label of Kubernetes as Prometheus writes it."""
    return re.sub(r"\W", "_", label)
