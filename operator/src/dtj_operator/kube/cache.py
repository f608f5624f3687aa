"""The pods of all jobs as views, by job. Knows what is newer, so late news cannot undo what a write said.

Filled by the reflector and by the answers to our own writes (read your writes); read by gather.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from dtj_operator.kube.views import PodView
from dtj_operator.names import Key

REMEMBERED_DEAD = 10_000  # uids of deleted pods: an answer that is overtaken by the watch must not revive one


class PodCache:
    """Views of pods by the job that their label names; `on_change` is called with the key of each change."""

    def __init__(self, on_change: Callable[[Key], None]) -> None:
        self._on_change = on_change
        self._jobs: dict[Key, dict[str, PodView]] = {}
        self._dead: OrderedDict[str, None] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def keys(self) -> list[Key]:
        return list(self._jobs)

    def pods(self, key: Key) -> tuple[PodView, ...]:
        return tuple(self._jobs.get(key, {}).values())

    def observe(self, pod: PodView, *, quiet: bool = False) -> None:
        """Take in a pod as somebody saw it, unless something newer is known of it.

        quiet   the job is being looked at right now, by whoever brings this: it need not be looked at again
        """
        known = self._jobs.get(pod.key, {}).get(pod.name)
        if pod.uid in self._dead or (known is not None and not _newer(pod, known)):
            return
        self._count += known is None
        self._jobs.setdefault(pod.key, {})[pod.name] = pod
        if not quiet and (known is None or _matters(pod, known)):
            self._on_change(pod.key)

    def forget(self, pod: PodView) -> None:
        """A pod is gone: the watch said so, or a call found it missing."""
        self._dead[pod.uid] = None
        if len(self._dead) > REMEMBERED_DEAD:
            self._dead.popitem(last=False)
        job = self._jobs.get(pod.key, {})
        if pod.name not in job or job[pod.name].uid != pod.uid:
            return
        del job[pod.name]
        self._count -= 1
        if not job:
            del self._jobs[pod.key]
        self._on_change(pod.key)

    def replace(self, pods: Iterable[PodView], version: str, key: Key | None = None) -> None:
        """Take in a list made at `version`: what it does not hold is gone, unless it is younger.

        key   the list is of this job's pods only
        """
        seen = {pod.uid for pod in self._observed(pods)}
        known = [pod for job in ([key] if key else list(self._jobs)) for pod in self.pods(job)]
        for pod in known:
            if pod.uid not in seen and not _later(pod.version, version):
                self.forget(pod)

    def _observed(self, pods: Iterable[PodView]) -> Iterable[PodView]:
        for pod in pods:
            self.observe(pod)
            yield pod


def _newer(pod: PodView, known: PodView) -> bool:
    return pod.uid != known.uid or _later(pod.version, known.version)


def _later(version: str, than: str) -> bool:
    """Resource versions of one resource are ordered numbers; where one is not, the last word counts."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than


def _matters(pod: PodView, known: PodView) -> bool:
    """Whether anything but the version changed."""
    return pod != known and (pod.uid != known.uid or _fields(pod) != _fields(known))


def _fields(pod: PodView) -> tuple[object, ...]:
    return tuple(getattr(pod, name) for name in pod.__struct_fields__ if name != "version")
