"""The Services and NetworkPolicies of jobs as views: which job owns one, and whether it was edited.

Of the spec, a view keeps only a fingerprint of the fields that we set. So a view is small, and fields that
the API server fills in do not count as an edit.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dtj_operator.kube import paths
from dtj_operator.kube.cache import Cache
from dtj_operator.kube.wire import Meta, Wire, source
from dtj_operator.model import names
from dtj_operator.model.json import Json
from dtj_operator.model.names import Key
from dtj_operator.model.views import ObjectView

# Of NetworkPolicyPeers. All others mean something: an empty podSelector selects every pod.
_LEFT_OUT_IF_EMPTY = ("matchLabels", "matchExpressions", "values", "except")
_EMPTY: tuple[Any, ...] = ({}, [], None)


class _Child(Wire):
    metadata: Meta
    spec: dict[str, Any] = {}


class ChildView(ObjectView, frozen=True, gc=False, kw_only=True):
    """A Service or a NetworkPolicy that carries our label."""

    owner: str = ""  # name of the job that controls it; empty: no job of ours does
    label: str = ""  # the job named in its label
    fingerprint: str = ""  # of its spec

    @property
    def key(self) -> Key:
        """A child has the same name as its job."""
        return Key(self.namespace, self.name)


class ChildKind:
    """One of the two kinds, and how to read it.

    fields   of the spec, those that we set
    """

    def __init__(self, kind: str, what: str, path: Callable[[str | None], str], *fields: str) -> None:
        self.kind, self._fields = kind, fields
        self.source = source(_Child, self._view, what=what, path=path)

    def fingerprint(self, spec: Mapping[str, Any]) -> str:
        """Return the fingerprint of the fields that we set."""
        ours = msgspec.json.encode([_as_stored(spec.get(name)) for name in self._fields], order="sorted")
        return hashlib.sha256(ours).hexdigest()[:16]

    def is_edited(self, found: ChildView, wanted: Json) -> bool:
        """Whether it differs in what we set; our watch does not see an object without our label."""
        return found.label != found.name or found.fingerprint != self.fingerprint(wanted["spec"])

    def _view(self, child: _Child) -> ChildView:
        meta = child.metadata
        return ChildView(
            **meta.identity(),
            owner=meta.job.name,
            label=meta.labels.get(names.JOB_NAME, ""),
            fingerprint=self.fingerprint(child.spec),
        )


def _as_stored(value: Any) -> Any:
    """The value without empty parts of selectors and blocks: the API server does not store them."""
    if isinstance(value, dict):
        kept = {name: _as_stored(each) for name, each in value.items()}
        return {
            name: each for name, each in kept.items() if each not in _EMPTY or name not in _LEFT_OUT_IF_EMPTY
        }
    return [_as_stored(each) for each in value] if isinstance(value, list | tuple) else value


SERVICE = ChildKind(
    "Service",
    "services",
    paths.services,
    "type",
    "clusterIP",
    "publishNotReadyAddresses",
    "selector",
    "ports",
)
# Its policyTypes do not have Egress, so `egress` would have no effect.
NETWORK_POLICY = ChildKind(
    "NetworkPolicy", "networkpolicies", paths.policies, "podSelector", "policyTypes", "ingress"
)


class ChildCache(Cache[ChildView]):
    """The objects of one kind.

    reverted_at   when an edit of the object was last reverted, by the monotonic clock, so that the operator
                  does not revert it endlessly if another controller keeps editing the object
    """

    def __init__(self, kind: ChildKind, on_change: Callable[[Key], None]) -> None:
        super().__init__(kind.source, on_change)
        self.kind = kind
        self.reverted_at: dict[Key, float] = {}

    def get(self, key: Key) -> ChildView | None:
        return self._views.get(key, {}).get(key.name)
