"""Whether the operator lacks a right without which no job can run; every user may ask this about himself.

Rights to read show by themselves: a watch without them fails. A right to write would show only when a job
needs it.
"""

from collections.abc import Sequence

from dtj_operator.kube import wire
from dtj_operator.kube.api import Api, decode
from dtj_operator.kube.errors import ApiError
from dtj_operator.model import names
from dtj_operator.model.json import Json

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_NEEDED: Sequence[tuple[str, str, str]] = (  # verb, API group, resource
    ("patch", names.GROUP, f"{names.PLURAL}/status"),
    *(("create", "", "pods"), ("delete", "", "pods")),
    *(("create", "", "services"), ("delete", "", "services")),
    *(("create", "networking.k8s.io", "networkpolicies"), ("delete", "networking.k8s.io", "networkpolicies")),
)


async def lacking(api: Api, namespaces: Sequence[str | None]) -> str:
    """Return the rights that the operator lacks in these namespaces (None: in all), as a sentence.

    Empty if it has them, or if the API server does not say.
    """
    found: dict[str, None] = {}
    for namespace in namespaces:
        for verb, group, resource in _NEEDED:
            if await _denied(api, namespace, verb, group, resource):
                where = f"in namespace {namespace}" if namespace else "in all namespaces"
                found[f"{verb} {resource} {where}"] = None
    if not found:
        return ""
    return f"the operator may not {', '.join(found)}: bind the roles of its chart to its ServiceAccount"


async def _denied(api: Api, namespace: str | None, verb: str, group: str, resource: str) -> bool:
    resource, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    asked: Json = {"resourceAttributes": {**attributes, "namespace": namespace or ""}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": asked}
    try:
        answer = decode(await api.create(_REVIEWS, review))
    except (ApiError, *wire.UNREADABLE):
        return False
    status = answer.get("status")
    return isinstance(status, dict) and status.get("allowed") is False and not status.get("evaluationError")
