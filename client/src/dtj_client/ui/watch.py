"""Objects of one kind, kept up to date by a watch that kubectl does."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable

from dtj_client.errors import ClientError, ForbiddenError
from dtj_client.kube.kubectl import Json, Kubectl

_WATCH_S = 300  # then the objects are listed again
_RETRY_S = 2.0


class Watch:
    """What one path of the API lists.

    kubectl   runs with the user's rights
    path      such as /api/v1/namespaces/team/pods
    selector  a parameter of the query, such as labelSelector=a%3Db; empty: all objects
    changed   called for each object that is new or has changed, one at a time
    gone      called for each object that was deleted
    """

    def __init__(
        self,
        kubectl: Kubectl,
        path: str,
        selector: str = "",
        changed: Callable[[Json], None] = lambda _: None,
        gone: Callable[[Json], None] = lambda _: None,
    ) -> None:
        self.problem: ClientError | None = None  # None: the objects are current
        self._kubectl, self._path, self._selector = kubectl, path, selector
        self._changed, self._gone = changed, gone
        self._objects: dict[str, Json] = {}
        self._version = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, tries_again: bool = False) -> None:
        """List the objects, then watch them in a thread. Raises ClientError if they cannot be listed.

        tries_again  `problem` says why they cannot be listed, until they can, unless the user lacks the right
        """
        listed_at = ""
        try:
            listed_at = self._list()
        except ClientError as error:
            if not tries_again:
                raise
            self.problem = error
        if not isinstance(self.problem, ForbiddenError):
            threading.Thread(target=self._keep, args=(listed_at,), daemon=True).start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        if self._process is not None:
            self._process.kill()

    def objects(self) -> tuple[int, list[Json]]:
        """Return a number that grows with each change, and the objects."""
        with self._lock:
            return self._version, list(self._objects.values())

    def get(self, namespace: str, name: str) -> Json | None:
        """Return an object, or None if there is none of this name."""
        with self._lock:
            return self._objects.get(f"{namespace}/{name}")

    def _keep(self, listed_at: str) -> None:
        while not self._stopped.is_set():
            if listed_at:
                with contextlib.suppress(ClientError):  # listing says why kubectl cannot be started
                    self._follow(listed_at)
            try:
                listed_at = self._list()
                self.problem = None
            except ClientError as error:
                self.problem = error
            self._stopped.wait(_RETRY_S)

    def _list(self) -> str:
        """Replace the objects; return the version of the list, at which a watch continues."""
        listed = json.loads(self._kubectl.run("get", "--raw", self._url(self._selector)))
        found = {_key(each): each for each in listed["items"]}
        with self._lock:
            before, self._objects = self._objects, found
            for key in before.keys() - found.keys():
                self._version += 1
                self._gone(before[key])
            for key, each in found.items():
                if _version_of(each) != _version_of(before.get(key)):
                    self._version += 1
                    self._changed(each)
        return str(listed["metadata"]["resourceVersion"])

    def _follow(self, listed_at: str) -> None:
        """Take changes until the API server or the network ends the watch."""
        query = f"watch=1&resourceVersion={listed_at}&timeoutSeconds={_WATCH_S}"
        words = ("get", "--raw", self._url(query, self._selector))
        with self._kubectl.start(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            self._process = process
            if self._stopped.is_set():  # meanwhile
                process.kill()
            assert process.stdout is not None
            for line in process.stdout:
                if self._stopped.is_set() or not self._take(line):
                    break
            process.kill()

    def _take(self, line: bytes) -> bool:
        """Apply one event; False if it cannot be applied, so that the objects have to be listed again."""
        try:
            event = json.loads(line)
        except ValueError:  # the connection was cut within a line
            return False
        if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            return False
        each = event["object"]
        with self._lock:
            self._version += 1
            if event["type"] == "DELETED":
                self._objects.pop(_key(each), None)
                self._gone(each)
            else:
                self._objects[_key(each)] = each
                self._changed(each)
        return True

    def _url(self, *parameters: str) -> str:
        query = "&".join(each for each in parameters if each)
        return f"{self._path}?{query}" if query else self._path


def _key(each: Json) -> str:
    return f"{each['metadata']['namespace']}/{each['metadata']['name']}"


def _version_of(each: Json | None) -> str | None:
    return None if each is None else str(each["metadata"]["resourceVersion"])
