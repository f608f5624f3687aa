"""The shape of those parts of a pod template that the operator reads or extends.

The CRD passes most of a template on unchecked, so that it accepts fields of newer Kubernetes versions. The
API server checks it with the pod, but the operator has to build that pod first. Null counts as absent.
"""

from typing import Any

import msgspec

_Objects = list[dict[str, Any]]


class _Part(msgspec.Struct, rename="camel"):
    """Other fields are ignored."""


class _Capabilities(_Part):
    add: list[Any] | None = None


class _ContainerSecurity(_Part):
    capabilities: _Capabilities | None = None


class _Resources(_Part):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class _Named(_Part):
    name: str | None = None


class _Container(_Part):
    name: str
    env: list[_Named] | None = None
    resources: _Resources | None = None
    security_context: _ContainerSecurity | None = None
    volume_mounts: _Objects | None = None
    ports: _Objects | None = None


class _NodeTerm(_Part):
    match_fields: list[Any] | None = None


class _Required(_Part):
    node_selector_terms: list[_NodeTerm | None] | None = None


class _Near(_Part):
    """Affinity to pods: lists of terms."""

    required_during_scheduling_ignored_during_execution: list[Any] | None = None
    preferred_during_scheduling_ignored_during_execution: list[Any] | None = None


class _NodeAffinity(_Part):
    required_during_scheduling_ignored_during_execution: _Required | None = None
    preferred_during_scheduling_ignored_during_execution: list[Any] | None = None


class _Affinity(_Part):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _Near | None = None
    pod_anti_affinity: _Near | None = None


class _Spec(_Part):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    volumes: list[_Named] | None = None
    security_context: dict[str, Any] | None = None
    node_selector: dict[str, Any] | None = None
    affinity: _Affinity | None = None
    tolerations: list[Any] | None = None
    scheduling_gates: list[Any] | None = None
    termination_grace_period_seconds: int | None = None


class _Meta(_Part):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Template(_Part):
    spec: _Spec
    metadata: _Meta | None = None
