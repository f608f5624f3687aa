"""Whether the operator lacks a right without which no job can run; every user may ask this about himself.

Rights to read show by themselves: a watch without them fails. A right to write would show only when a job
needs it.
"""

from collections.abc import Sequence
from functools import partial
from itertools import compress

from dtj_operator.kube import wire
from dtj_operator.kube.api import Api, decode
from dtj_operator.kube.bounded import bounded
from dtj_operator.kube.errors import ApiError
from dtj_operator.model import names
from dtj_operator.model.json import Json

Right = tuple[str | None, str, str, str]  # namespace (None: all), verb, API group, resource

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_NEEDED: Sequence[tuple[str, str, str]] = (  # verb, API group, resource
    ("patch", names.GROUP, f"{names.PLURAL}/status"),
    *(("create", "", "pods"), ("delete", "", "pods")),
    *(("create", "", "services"), ("delete", "", "services")),
    *(("create", "networking.k8s.io", "networkpolicies"), ("delete", "networking.k8s.io", "networkpolicies")),
)


def needed(namespaces: Sequence[str | None]) -> Sequence[Right]:
    """Return the rights without which no job can run in these namespaces (None: in all)."""
    return [(namespace, *right) for namespace in namespaces for right in _NEEDED]


async def denied(api: Api, asked: Sequence[Right]) -> Sequence[Right]:
    """Return those that the operator lacks, as far as the API server says."""
    return list(compress(asked, await bounded(partial(_lacks, api), asked)))


def sentence(lacking: Sequence[Right]) -> str:
    """Say which rights the operator lacks."""
    found = (
        f"{verb} {resource} {f'in namespace {namespace}' if namespace else 'in all namespaces'}"
        for namespace, verb, _, resource in lacking
    )
    return f"the operator may not {', '.join(found)}: bind the roles of its chart to its ServiceAccount"


async def _lacks(api: Api, right: Right) -> bool:
    namespace, verb, group, resource = right
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
