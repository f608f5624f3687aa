"""The nodes of the cluster: whether each node is ready, and if not, since when this process sees it.

Kubelets write the status of a node every few minutes even if nothing changes. Only readiness, cordons, labels
and the deletion of the node matter here.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from dtj_operator.engine.newest import Newest
from dtj_operator.kube import paths
from dtj_operator.kube.cache import TOMBSTONES, Cache
from dtj_operator.kube.wire import Meta, Wire, source
from dtj_operator.model.views import ConditionView, NodeView


class _Status(Wire):
    conditions: tuple[ConditionView, ...] = ()


class _Spec(Wire):
    unschedulable: bool = False


class _Node(Wire):
    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def _view(node: _Node) -> NodeView:
    meta = node.metadata
    condition = next((c for c in node.status.conditions if c.type == "Ready"), None)
    ready = condition is not None and condition.status == "True"
    return NodeView(
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        ready=ready,
        turned_at=condition.since if condition else None,
        unschedulable=node.spec.unschedulable,
        labels=meta.labels,
    )


NODES = source(_Node, _view, what="nodes", path=lambda _: paths.NODES, selector="", required=False)


class NodeCache(Cache[NodeView]):
    """Nodes by name.

    on_change   gets the name of a node that was deleted or whose readiness changed
    clock       monotonic, in seconds
    gone_since  when this process saw that a node that it knew was deleted
    """

    def __init__(self, on_change: Callable[[str], None], *, clock: Callable[[], float]) -> None:
        super().__init__(NODES)
        self._on_turn, self._clock = on_change, clock
        self._snapshot: Mapping[str, NodeView] | None = None
        self._ready = 0
        self.gone_since = Newest[str, float](TOMBSTONES)

    def snapshot(self) -> Mapping[str, NodeView]:
        """All nodes at this moment; rebuilt only after a change, because every reconcile asks for it."""
        if self._snapshot is None:
            self._snapshot = MappingProxyType(
                {name: view for views in self._views.values() for name, view in views.items()}
            )
        return self._snapshot

    def on_reconnected(self) -> None:
        """Report nodes that are not ready: during the outage no reconcile was given any nodes."""
        for name, view in self.snapshot().items():
            if not view.ready:
                self._on_turn(name)

    def _stamped(self, view: NodeView, known: NodeView | None) -> NodeView:
        if view.ready:
            return view
        same = known is not None and (known.uid, known.turned_at) == (view.uid, view.turned_at)
        since = known.away_since if known is not None and same else None
        return msgspec.structs.replace(view, away_since=self._clock() if since is None else since)

    def _update_indexes(self, old: NodeView | None, new: NodeView | None) -> None:
        self._snapshot = None
        if old is not None and new is None:
            self.gone_since[old.name] = self._clock()
        elif new is not None:
            self.gone_since.pop(new.name, None)
        before = self._ready
        self._ready += (new is not None and new.ready) - (old is not None and old.ready)
        if self._ready == 1 and not before:
            self._restart_counting()

    def _restart_counting(self) -> None:
        """The first node is ready again after none was: the others get the full time to come back too.

        While no node is ready, the control plane has lost contact with the nodes, and that says nothing about
        any of them.
        """
        now = self._clock()
        self.gone_since.update(dict.fromkeys(self.gone_since, now))
        for views in self._views.values():
            for name, view in views.items():
                if not view.ready:
                    views[name] = msgspec.structs.replace(view, away_since=now)
        for name in (*self.gone_since, *(name for name, view in self.snapshot().items() if not view.ready)):
            self._on_turn(name)

    def _notify(self, view: NodeView, before: NodeView | None, *, gone: bool = False) -> None:
        if gone or not view.ready or (before is not None and not before.ready):
            self._on_turn(view.name)
