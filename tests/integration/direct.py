"""The API server without kubectl, for the many small requests of tests: a process of kubectl costs more."""

from __future__ import annotations

import contextlib
import http.client
import json
import time

from tests.integration.controlplane import ControlPlane, token
from tests.support.kubectl import Json

NAMESPACES = "/api/v1/namespaces"
STRICT = "fieldValidation=Strict"  # unknown fields are refused, as by `kubectl --validate=strict`


class RefusedError(AssertionError):
    """The API server refused a request; the message is its own."""


class Direct:
    """A control plane as admin, with a connection per request, so that the API server may restart."""

    def __init__(self, plane: ControlPlane) -> None:
        self._host, self._tls = plane.url.removeprefix("https://"), plane.tls()

    def get(self, path: str) -> Json:
        """Return an object or a list."""
        return self._call("GET", path)

    def create(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        """Create an object in a collection; return it as stored. Raises RefusedError."""
        return self._call("POST", f"{path}?{STRICT}{'&dryRun=All' if dry_run else ''}", body)

    def replace(self, path: str, body: Json) -> Json:
        """Replace an object, whichever its stored version is; return it as stored. Raises RefusedError."""
        version = self.get(path)["metadata"]["resourceVersion"]
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        return self._call("PUT", f"{path}?{STRICT}", body)

    def send(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """Send a request; return status code and answer. Waits where the API server asks for it."""
        headers = {"Authorization": f"Bearer {token('admin')}", "Content-Type": "application/json"}
        text = None if body is None else json.dumps(body)
        while True:
            connection = http.client.HTTPSConnection(self._host, context=self._tls, timeout=60)
            with contextlib.closing(connection):
                connection.request(method, path, text, headers)
                answer = connection.getresponse()
                if answer.status != 429:  # as after a change of a CRD, while its storage is set up again
                    return answer.status, json.loads(answer.read())
            time.sleep(float(answer.headers.get("Retry-After", "1")))

    def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        code, answer = self.send(method, path, body)
        if code >= 300:
            raise RefusedError(f"{method} {path}: {answer['message']}")
        return answer
