"""The jobs as this process last read or wrote them, so that a job is read once per change.

The status of a job is the operator's memory, so only the latest state will do. The watch and the lists say
which version is the latest; a copy of an older one is not used. A silent watch is noticed after a minute, so
no copy is used for longer. A status is written with the version that it was computed from: if the job has
changed unnoticed, nothing is written and the job is read again.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dtj_operator.kube import paths, wire
from dtj_operator.kube.api import METADATA, Api, decode
from dtj_operator.kube.cache import later
from dtj_operator.kube.errors import NotFound
from dtj_operator.model.json import Json
from dtj_operator.model.names import Key

KEEP_S = 60.0
MOST = 1000  # copies; a job has some kilobytes
LARGEST_COPY = 64 * 1024  # bytes: a thousand larger ones would not fit into the memory of the operator
# Bytes of a spec: as Python objects it takes sixty times as much, in each of the jobs that are worked on.
LARGEST_SPEC = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class _Copy:
    """A job as JSON, because callers may change what they get; None: it does not exist. Used until then."""

    raw: bytes | None
    until: float


class TooLargeError(Exception):
    """The spec of a job has more than LARGEST_SPEC bytes."""


class Jobs:
    """Reads jobs, and writes their status.

    shown      every job that the watch or a list has shown, with the version that it had there
    on_change  called with a job that changed while its status was written
    clock      monotonic, in seconds
    """

    def __init__(self, api: Api, on_change: Callable[[Key], None], clock: Callable[[], float]) -> None:
        self._api, self._on_change, self._clock = api, on_change, clock
        self.shown: dict[Key, str] = {}
        self._known: dict[Key, str] = {}  # the version that this process read or wrote last
        self._copies: OrderedDict[Key, _Copy] = OrderedDict()
        self._writing: dict[Key, str] = {}  # jobs whose status is being written: the version shown meanwhile

    def note(self, key: Key, version: str) -> bool:
        """Note a version that the watch or a list shows; return whether it is news to this process."""
        self.shown[key] = version
        if key in self._writing:  # most likely it is this write; else `on_change` is called after it
            self._writing[key] = version
            return False
        news = key not in self._known or later(version, self._known[key])
        if news:
            self._copies.pop(key, None)
        return news

    def note_gone(self, key: Key) -> None:
        """Note that the watch shows the job as deleted."""
        self.shown.pop(key, None)
        self._known.pop(key, None)
        self._copies.pop(key, None)

    def note_all(self, listed: Mapping[Key, str], version: str, namespace: str | None = None) -> list[Key]:
        """Note a list of all jobs of a namespace (None: of all), made at this version; return what is news.

        The watch may have shown more since.
        """
        newer = {key for key, shown in self.shown.items() if later(shown, version)}
        for key in self.shown.keys() - listed.keys() - newer:
            if namespace in (None, key.namespace):
                self.note_gone(key)
        return [key for key, each in listed.items() if key not in newer and self.note(key, each)]

    async def read(self, key: Key) -> Json:
        """Return the job; raises NotFound or TooLargeError."""
        copy = self._copies.get(key)
        if copy is None or self._clock() >= copy.until:
            return await self._read(key)
        if copy.raw is None:
            raise NotFound(f"GET {paths.job(key)}", 404, "NotFound", "as found a moment ago")
        return decode(copy.raw)

    async def uid(self, key: Key) -> str:
        """Return the uid of a job that is too large or nested too deeply to be read as a whole."""
        return wire.decode_named(await self._api.get(paths.job(key), accept=METADATA)).metadata.uid

    async def write_status(self, key: Key, version: str, status: Json) -> Json:
        """Merge a patch into the status of this version of the job; return the job as written."""
        self._writing[key] = written = ""
        try:
            patch = {"metadata": {"resourceVersion": version}, "status": status}
            job = self._keep(key, await self._api.patch(f"{paths.job(key)}/status", patch))
            written = self._known[key]
        except BaseException:
            self._copies.pop(key, None)
            raise
        finally:
            if later(self._writing.pop(key), written):
                self._copies.pop(key, None)
                self._on_change(key)
        return job

    async def _read(self, key: Key) -> Json:
        shown = self.shown.get(key)
        try:
            raw = await self._api.get(paths.job(key))
        except NotFound:
            self._known.pop(key, None)
            if self.shown.get(key) == shown:  # else it was created since
                self._put(key, None)
            raise
        # Most jobs are smaller in all, and are not looked through for their spec.
        if len(raw) > LARGEST_SPEC and (size := len(wire.decode_spec(raw))) > LARGEST_SPEC:
            raise TooLargeError(
                f"the spec has {size >> 10} KiB, but the operator reads at most {LARGEST_SPEC >> 10}: "
                "move long texts into a ConfigMap that the pods mount"
            )
        return self._keep(key, raw)

    def _keep(self, key: Key, raw: bytes) -> Json:
        job = decode(raw)
        self._known[key] = version = str(job["metadata"]["resourceVersion"])
        if later(self.shown.get(key, ""), version):  # it has changed since it was read
            self._copies.pop(key, None)
        else:
            self._put(key, raw)
        return job

    def _put(self, key: Key, raw: bytes | None) -> None:
        self._copies.pop(key, None)
        if raw is not None and len(raw) > LARGEST_COPY:
            return
        now = self._clock()
        while self._copies and (len(self._copies) >= MOST or next(iter(self._copies.values())).until <= now):
            self._copies.popitem(last=False)
        self._copies[key] = _Copy(raw=raw, until=now + KEEP_S)
