"""What the cluster holds, as views. Knows what is newer, so late news cannot undo what a write said.

Filled by a reflector and by the answers to our own writes (read your writes); read by gather.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import ClassVar, Generic, Protocol, TypeVar

from dtj_operator.kube.doubts import Doubts
from dtj_operator.kube.views import PodView
from dtj_operator.names import Key

_SILENT = ("version", "removed")  # fields whose change is no news: who is removed is gone in the next event
REMEMBERED_DEAD = 10_000  # deleted objects: an answer that is overtaken by the watch must not revive one


class View(Protocol):
    """What a cache needs to know of what it keeps."""

    __struct_fields__: ClassVar[tuple[str, ...]]

    @property
    def key(self) -> Key:
        """What it is looked up by, together with others."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def removed(self) -> bool:
        """Whether this is the last state of an object that is gone; False where one cannot tell."""


V = TypeVar("V", bound=View)


class Cache(Generic[V]):
    """Views by key and name.

    doubts  names of objects that may be there all the same
    """

    def __init__(self, doubts: Doubts | None = None) -> None:
        self.doubts = doubts or Doubts()
        self._kept: dict[Key, dict[str, V]] = {}
        self._dead: OrderedDict[str, str] = OrderedDict()  # uid -> version at which it was gone
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def keys(self) -> list[Key]:
        return list(self._kept)

    def of(self, key: Key) -> tuple[V, ...]:
        return tuple(self._kept.get(key, {}).values())

    def observe(self, view: V, *, quiet: bool = False, found: bool = False) -> None:
        """Take in an object as somebody saw it, unless something newer is known of it.

        quiet   its key is being looked at right now, by whoever brings this: no need to look again
        found   it was asked for by name and was there, whatever label it has
        """
        known = self._kept.get(view.key, {}).get(view.name)
        if self._died_later(view, found) or (known is not None and not _newer(view, known)):
            return
        self.doubts.settle(view.key, view.name)
        self._count += known is None
        self._kept.setdefault(view.key, {})[view.name] = view
        self._moved(known, view)
        if not quiet and (known is None or _matters(view, known)):
            self._changed(known, view)

    def leave(self, view: V) -> None:
        """A watch by label sees an object no more: it is gone, or lost its label."""
        known = self._kept.get(view.key, {}).get(view.name)
        ours = known is not None and known.uid == view.uid
        if ours and known is not None and _later(known.version, view.version):
            return  # it was seen since
        self.forget(view)
        if ours and not view.removed:
            self.doubts.add(view.key, view.name)

    def forget(self, view: V) -> None:
        """An object is gone: a call has deleted it, or found it missing."""
        self.doubts.settle(view.key, view.name)
        if not self._died_later(view, found=False):  # who only finds it missing knows an older version
            self._dead[view.uid] = view.version
        if len(self._dead) > REMEMBERED_DEAD:
            self._dead.popitem(last=False)
        kept = self._kept.get(view.key, {})
        known = kept.get(view.name)
        if known is None or known.uid != view.uid:
            return
        del kept[view.name]
        self._count -= 1
        if not kept:
            del self._kept[view.key]
        self._moved(known, None)
        self._changed(known, None)

    def missing(self, key: Key, name: str) -> None:
        """There is nothing of this name."""
        known = self._kept.get(key, {}).get(name)
        if known is not None:
            self.forget(known)

    def replace(self, views: Iterable[V], version: str, key: Key | None = None) -> None:
        """Take in a list made at `version`: what it does not hold is gone, unless it is younger.

        key   the list is of this key only, and of all that there is, whatever label it has
        """
        seen = {view.uid for view in self._observed(views, found=key is not None)}
        known = [view for each in ([key] if key else list(self._kept)) for view in self.of(each)]
        for view in known:
            if view.uid not in seen and not _later(view.version, version):
                self.forget(view)
                if key is None and not view.removed:
                    self.doubts.add(view.key, view.name)

    def recall(self) -> None:
        """What is known had been in doubt and is certain again; tell again what decisions depend on."""

    def _observed(self, views: Iterable[V], *, found: bool) -> Iterable[V]:
        for view in views:
            self.observe(view, found=found)
            yield view

    def _died_later(self, view: V, found: bool) -> bool:
        """Whether this is old news of something that is gone.

        A watch by label calls gone what lost its label: at that very version it can still be found.
        """
        died = self._dead.get(view.uid)
        if died is None or (found and view.version == died):
            return False
        return not _later(view.version, died)

    def _moved(self, old: V | None, new: V | None) -> None:
        """For indices: what is kept has changed, in whatever way."""

    def _changed(self, old: V | None, new: V | None) -> None:
        """For those who wait for news: something that a decision may depend on has changed."""


class PodCache(Cache[PodView]):
    """Pods by the job that owns them.

    on_change   called with the key of each change, and whether it can wait: a pod on its way up changes
                several times in a row
    on_recall   called when the API server, and with it the certainty, is back
    """

    def __init__(
        self,
        on_change: Callable[[Key, bool], None],
        on_recall: Callable[[], None] = lambda: None,
        doubts: Doubts | None = None,
    ) -> None:
        super().__init__(doubts)
        self._on_change, self._on_recall = on_change, on_recall
        self._on_node: dict[str, Counter[Key]] = {}
        self._last_node: OrderedDict[tuple[Key, str], str] = OrderedDict()  # of pods that are gone

    def pods(self, key: Key) -> tuple[PodView, ...]:
        return self.of(key)

    def recall(self) -> None:
        self._on_recall()

    def jobs_on(self, node: str) -> list[Key]:
        """Whose pods are on this node."""
        return list(self._on_node.get(node, ()))

    def last_node(self, key: Key, name: str) -> str:
        """Where the pod was that had this name last; empty where this process did not see it."""
        return self._last_node.get((key, name), "")

    def _moved(self, old: PodView | None, new: PodView | None) -> None:
        if old is not None and old.node:
            jobs = self._on_node[old.node]
            jobs[old.key] -= 1
            if not jobs[old.key]:
                del jobs[old.key]
            if not jobs:
                del self._on_node[old.node]
            if new is None:
                self._last_node[old.key, old.name] = old.node
                if len(self._last_node) > REMEMBERED_DEAD:
                    self._last_node.popitem(last=False)
        if old is None and new is not None:
            self._last_node.pop((new.key, new.name), None)
        if new is not None and new.node:
            self._on_node.setdefault(new.node, Counter())[new.key] += 1

    def _changed(self, old: PodView | None, new: PodView | None) -> None:
        view = new or old
        if view is not None:
            on_its_way = new is not None and not (new.ended or new.deleting)
            self._on_change(view.key, on_its_way)


def _newer(view: View, known: View) -> bool:
    return view.uid != known.uid or _later(view.version, known.version)


def _later(version: str, than: str) -> bool:
    """Resource versions of one resource are ordered numbers; where one is not, the last word counts.

    What has no version was never stored as it is, and is no news.
    """
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version not in ("", than)


def _matters(view: View, known: View) -> bool:
    """Whether anything but the version changed."""
    told = _told(type(view))
    return told(view) != told(known)


@cache
def _told(kind: type[View]) -> Callable[[View], object]:
    """What reads the fields that matter, all at once: this is done for every event of every pod."""
    return attrgetter(*(name for name in kind.__struct_fields__ if name not in _SILENT))
