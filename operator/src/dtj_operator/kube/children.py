"""The Services and NetworkPolicies of jobs as views: which job owns one, and whether it was edited.

Of the spec, a view keeps only a fingerprint of the fields that we set. So a view is small, and fields that
the API server fills in do not count as an edit.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from dtj_operator import names
from dtj_operator.kube.cache import Cache
from dtj_operator.kube.unverified import UnverifiedNames
from dtj_operator.kube.wire import Meta, Page, Wire
from dtj_operator.names import Key

S = TypeVar("S")


class _Port(Wire):
    name: str = ""
    port: int | str = 0
    protocol: str = "TCP"


class _ServiceSpec(Wire):
    cluster_i_p: str = msgspec.field(default="", name="clusterIP")
    type: str = "ClusterIP"
    publish_not_ready_addresses: bool = False
    selector: dict[str, str] = {}
    ports: list[_Port] = []


class _PolicySpec(Wire):
    pod_selector: dict[str, Any] = {}
    policy_types: list[str] = []
    ingress: list[Any] = []
    egress: list[Any] = []


class _Child(Wire, Generic[S]):
    metadata: Meta
    spec: S


class ChildView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A Service or a NetworkPolicy that carries our label."""

    namespace: str
    name: str
    uid: str
    version: str = ""  # resourceVersion
    owner: str = ""  # name of the job that controls it; empty: no job of ours does
    owner_uid: str = ""
    label: str = ""  # the job named in its label
    deleting: bool = False
    fingerprint: str = ""  # of its spec

    @property
    def key(self) -> Key:
        """A child has the same name as its job."""
        return Key(self.namespace, self.name)

    @property
    def removed(self) -> bool:
        """Always False: the last state of a deleted object looks like that of one that lost its label."""
        return False


class ChildKind(Generic[S]):
    """How to decode one of the two kinds."""

    def __init__(self, kind: str, spec: type[S], path: Callable[[str | None], str]) -> None:
        self.kind, self.path, self._spec = kind, path, spec
        self._one = msgspec.json.Decoder(_Child[spec])  # type: ignore[valid-type]
        self._page = msgspec.json.Decoder(Page[_Child[spec]])  # type: ignore[valid-type]

    def decode(self, raw: bytes | msgspec.Raw) -> ChildView:
        """Decode one object; raises msgspec.DecodeError if it is not one."""
        return self._view(self._one.decode(raw))

    def decode_list(self, raw: bytes) -> Page[ChildView]:
        """Decode a page of a list."""
        return self._page.decode(raw).each(self._view)

    def fingerprint(self, spec: Mapping[str, Any]) -> str:
        """Return the fingerprint of an object created with this spec."""
        return _digest(msgspec.convert(spec, self._spec))

    def _view(self, child: _Child[S]) -> ChildView:
        meta = child.metadata
        return ChildView(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            version=meta.resource_version,
            owner=meta.job.name,
            owner_uid=meta.job.uid,
            label=meta.labels.get(names.JOB_NAME, ""),
            deleting=meta.deletion_timestamp is not None,
            fingerprint=_digest(child.spec),
        )


SERVICE = ChildKind("Service", _ServiceSpec, names.services_path)
NETWORK_POLICY = ChildKind("NetworkPolicy", _PolicySpec, names.policies_path)


class ChildCache(Cache[ChildView]):
    """The objects of one kind; `on_change` is called with the key of each change.

    It also remembers when an edited object was last recreated, so that the operator does not recreate it
    endlessly if another controller keeps editing it.
    """

    def __init__(
        self,
        kind: ChildKind[Any],
        on_change: Callable[[Key], None],
        unverified: UnverifiedNames | None = None,
    ) -> None:
        super().__init__(unverified)
        self.kind, self._on_change = kind, on_change
        self._recreated_at: dict[Key, float] = {}

    def get(self, key: Key) -> ChildView | None:
        return self._views.get(key, {}).get(key.name)

    def note_recreated(self, key: Key) -> None:
        """Remember that the job's object is recreated now because it was edited."""
        self._recreated_at[key] = asyncio.get_running_loop().time()

    def since_recreated(self, key: Key) -> float:
        """Seconds since it was last recreated; infinite if it never was."""
        at = self._recreated_at.get(key)
        return float("inf") if at is None else asyncio.get_running_loop().time() - at

    def forget_job(self, key: Key) -> None:
        """Forget when the object of a deleted job was recreated."""
        self._recreated_at.pop(key, None)

    def _notify(self, old: ChildView | None, new: ChildView | None) -> None:
        view = new or old
        if view is not None:
            self._on_change(view.key)


def _digest(spec: object) -> str:
    return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:16]
