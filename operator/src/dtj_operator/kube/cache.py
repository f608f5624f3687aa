"""The objects in the cluster, as views. A cache compares versions, so late news cannot undo a newer write.

A reflector and the answers to our own writes fill it (read your writes); `gather.py` reads it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import Generic, TypeVar

from dtj_operator.engine.newest import Newest
from dtj_operator.kube.pods import PODS, seen
from dtj_operator.kube.unverified import UnverifiedNames
from dtj_operator.kube.wire import Source
from dtj_operator.model.names import Key
from dtj_operator.model.views import ObjectView, PodView

# A change of only these fields is not reported: the event after `removed` says that the object is gone.
_IGNORED_FIELDS = ("version", "removed")
TOMBSTONES = 10_000  # deleted objects to remember, so that an answer later than the watch does not revive one


V = TypeVar("V", bound=ObjectView)


class Cache(Generic[V]):
    """Views by key and name.

    source      which objects, and how to read them
    on_change   called with the key of each change
    unverified  names of objects that may exist although they are not in the cache
    """

    def __init__(self, source: Source[V], on_change: Callable[[Key], None] = lambda _: None) -> None:
        self.source, self._on_change = source, on_change
        self.unverified = UnverifiedNames()
        self._views: dict[Key, dict[str, V]] = {}
        self._tombstones = Newest[str, str](TOMBSTONES)  # uid -> version at which it was gone

    def __len__(self) -> int:
        return sum(map(len, self._views.values()))

    def keys(self) -> list[Key]:
        return list(self._views)

    def of(self, key: Key) -> tuple[V, ...]:
        return tuple(self._views.get(key, {}).values())

    def latest(self, view: V) -> V | None:
        """Return the newest known state of the object; None: it is gone."""
        known = self._views.get(view.key, {}).get(view.name)
        if known is not None and known.uid == view.uid:
            return known
        hidden = view.name in self.unverified.of(view.key)
        return None if view.uid in self._tombstones and not hidden else view

    def observe(self, view: V, *, quiet: bool = False, found: bool = False) -> None:
        """Store an object, unless the cache knows a newer version of it.

        quiet   do not report the change: the caller is reconciling the job right now
        found   the object was read by name, whatever label it has
        """
        known = self._views.get(view.key, {}).get(view.name)
        outdated = known is not None and known.uid == view.uid and not later(view.version, known.version)
        if outdated or self._is_dead(view, found):
            return
        view = self._stamped(view, known)
        self.unverified.discard(view.key, view.name)
        self._views.setdefault(view.key, {})[view.name] = view
        self._update_indexes(known, view)
        compared = _compared_fields(type(view))
        if not quiet and (known is None or compared(view) != compared(known)):
            self._notify(view, known)

    def remove_from_watch(self, view: V) -> None:
        """Remove an object that the watch reports as deleted: it is gone, or it only lost its label."""
        known = self._views.get(view.key, {}).get(view.name)
        ours = known is not None and known.uid == view.uid
        if ours and known is not None and later(known.version, view.version):
            return  # a newer version was read after this event
        self.remove(view)
        if ours and not view.removed:
            self.unverified.add(view.key, view.name)

    def remove(self, view: V, *, quiet: bool = False) -> None:
        """Remove an object that is gone: a call has deleted it, or did not find it.

        quiet   do not report the change: no decision depends on it
        """
        self.unverified.discard(view.key, view.name)
        if not self._is_dead(view, found=False):  # a 404 may come with an older version than the watch event
            self._tombstones[view.uid] = view.version
        views = self._views.get(view.key, {})
        known = views.get(view.name)
        if known is None or known.uid != view.uid:
            return
        del views[view.name]
        if not views:
            del self._views[view.key]
        self._update_indexes(known, None)
        if not quiet:
            self._notify(known, known, gone=True)

    def remove_name(self, key: Key, name: str) -> None:
        """Remove the object of this name, if the cache has one: the API server has none."""
        known = self._views.get(key, {}).get(name)
        if known is not None:
            self.remove(known)

    def replace(
        self, views: Iterable[V], version: str, key: Key | None = None, *, namespace: str | None = None
    ) -> None:
        """Store a list made at `version`; remove objects that it lacks, unless they are newer than the list.

        key         the list has only this job's objects, and all of them, whatever their labels
        namespace   the list has only objects of this namespace
        """
        listed = set()
        for view in views:
            self.observe(view, found=key is not None)
            listed.add(view.uid)
        keys = [each for each in self._views if namespace in (None, each.namespace)]
        known = [view for each in ([key] if key else keys) for view in self.of(each)]
        for view in known:
            if view.uid not in listed and not later(view.version, version):
                self.remove(view)
                if key is None and not view.removed:
                    self.unverified.add(view.key, view.name)

    def on_reconnected(self) -> None:
        """Report again what decisions depend on: the cache was out of date and is current again."""

    def _is_dead(self, view: V, found: bool) -> bool:
        """Whether the object is known to be gone.

        A watch with a label selector also reports an object as deleted when it only loses its label. A read
        by name can still find it at that same version.
        """
        died = self._tombstones.get(view.uid)
        if died is None or (found and view.version == died):
            return False
        return not later(view.version, died)

    def _stamped(self, view: V, known: V | None) -> V:
        """The view to store, such as with the moment at which this process first saw a state."""
        return view

    def _update_indexes(self, old: V | None, new: V | None) -> None:
        """Called for every change."""

    def _notify(self, view: V, before: V | None, *, gone: bool = False) -> None:
        """Called for changes that a decision may depend on.

        before   the last state that the cache knew
        gone     the object is gone, and `view` is its last state
        """
        self._on_change(view.key)


class PodCache(Cache[PodView]):
    """Pods by the job that owns them.

    on_change       called with the key of each change, and whether it can wait: a starting pod changes often
    on_reconnected  called when the cache is current again after an outage of the API server
    clock           monotonic, in seconds
    """

    def __init__(
        self,
        on_change: Callable[[Key, bool], None],
        on_reconnected: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(PODS)
        self._clock = clock
        self._on_pod, self._on_reconnected = on_change, on_reconnected
        self._on_node: dict[str, Counter[Key]] = {}
        self._last_node = Newest[tuple[Key, str], str](TOMBSTONES)  # of deleted pods

    def on_reconnected(self) -> None:
        self._on_reconnected()

    def jobs_on(self, node: str) -> list[Key]:
        """Jobs that have pods on this node."""
        return list(self._on_node.get(node, ()))

    def last_node(self, key: Key, name: str) -> str:
        """Node of the last pod with this name; empty if this process did not see it."""
        return self._last_node.get((key, name), "")

    def _stamped(self, view: PodView, known: PodView | None) -> PodView:
        return seen(view, known, self._clock())

    def _update_indexes(self, old: PodView | None, new: PodView | None) -> None:
        if old is not None and old.node:
            jobs = self._on_node[old.node]
            jobs[old.key] -= 1
            if not jobs[old.key]:
                del jobs[old.key]
            if not jobs:
                del self._on_node[old.node]
            if new is None:
                self._last_node[old.key, old.name] = old.node
        if old is None and new is not None:
            self._last_node.pop((new.key, new.name), None)
        if new is not None and new.node:
            self._on_node.setdefault(new.node, Counter())[new.key] += 1

    def _notify(self, view: PodView, before: PodView | None, *, gone: bool = False) -> None:
        self._on_pod(view.key, not (gone or view.ended or view.deleting))


def later(version: str, than: str) -> bool:
    """Compare resourceVersions as numbers; if one is not a number, treat a different version as later.

    An object without a version was never stored in this state, so it is never later.
    """
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version not in ("", than)


@cache
def _compared_fields(kind: type[ObjectView]) -> Callable[[ObjectView], object]:
    """Return a function that reads all compared fields at once: it runs for every event of every pod."""
    return attrgetter(*(name for name in kind.__struct_fields__ if name not in _IGNORED_FIELDS))
