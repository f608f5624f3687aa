"""The Services and NetworkPolicies of jobs as views: whose they are, and whether they are as we made them.

Of the specification only a fingerprint of the fields that we set is kept, so that a view is small and what
API servers fill in by themselves is no difference.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from dtj_operator import names
from dtj_operator.kube.cache import Cache
from dtj_operator.kube.doubts import Doubts
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
    owner: str = ""  # name of the job that controls it; empty: none of ours does
    owner_uid: str = ""
    label: str = ""  # the job that its label names
    deleting: bool = False
    fingerprint: str = ""  # of its specification

    @property
    def key(self) -> Key:
        """A child has its job's name."""
        return Key(self.namespace, self.name)

    @property
    def removed(self) -> bool:
        """Nothing in the last state of one that is gone tells it from one that lost its label."""
        return False


class ChildKind(Generic[S]):
    """How one of the two kinds is read."""

    def __init__(self, kind: str, spec: type[S], path: Callable[[str | None], str]) -> None:
        self.kind, self.path, self._spec = kind, path, spec
        self._one = msgspec.json.Decoder(_Child[spec])  # type: ignore[valid-type]
        self._page = msgspec.json.Decoder(Page[_Child[spec]])  # type: ignore[valid-type]

    def decode(self, raw: bytes | msgspec.Raw) -> ChildView:
        """Decode one object; raises msgspec.DecodeError where it is none."""
        return self._view(self._one.decode(raw))

    def decode_list(self, raw: bytes) -> Page[ChildView]:
        """Decode a page of a list."""
        return self._page.decode(raw).each(self._view)

    def fingerprint(self, spec: Mapping[str, Any]) -> str:
        """The fingerprint that an object made with this specification has."""
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

    Remembers too when one was made anew because somebody had edited it: not again and again, where
    something else in the cluster insists on its own idea of it.
    """

    def __init__(
        self, kind: ChildKind[Any], on_change: Callable[[Key], None], doubts: Doubts | None = None
    ) -> None:
        super().__init__(doubts)
        self.kind, self._on_change = kind, on_change
        self._mended: dict[Key, float] = {}

    def get(self, key: Key) -> ChildView | None:
        return self._kept.get(key, {}).get(key.name)

    def mended(self, key: Key) -> None:
        """It is being made anew now."""
        self._mended[key] = asyncio.get_running_loop().time()

    def since_mended(self, key: Key) -> float:
        """Seconds since it was made anew for the last time; endless where it never was."""
        at = self._mended.get(key)
        return float("inf") if at is None else asyncio.get_running_loop().time() - at

    def settle(self, key: Key) -> None:
        """The job is gone."""
        self._mended.pop(key, None)

    def _changed(self, old: ChildView | None, new: ChildView | None) -> None:
        view = new or old
        if view is not None:
            self._on_change(view.key)


def _digest(spec: object) -> str:
    return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:16]
