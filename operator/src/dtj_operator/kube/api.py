"""A client of the API server: takes dicts and returns JSON.

It uses the official client's configuration, tokens and TLS, but not its model classes: they reject or drop
fields that are newer than the client. Every call has a timeout, takes a token from a bucket and raises an
error of `kube/errors.py`. Calls that are safe to repeat are retried a few times. A create is safe to repeat,
because our objects have fixed names and the API server rejects a second one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException

from dtj_operator import VERSION, metrics
from dtj_operator.kube import stream
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.errors import ApiError, Unavailable, Withheld, kind_of
from dtj_operator.kube.session import open_session
from dtj_operator.model.json import Json

Query = Sequence[tuple[str, str]]

CALL_TIMEOUT_S = 10.0
CREATE_TIMEOUT_S = 15.0  # a webhook has 10 s by default: the answer says which one was too slow
LIST_TIMEOUT_S = 60.0  # a page of 500 large pods from a busy API server
CALL_TRIES = 4
FIRST_CALL_RETRY_S = 0.1
LONGEST_CALL_RETRY_S = 5.0  # the work queue handles a longer Retry-After, without blocking a worker

MERGE_PATCH = "application/merge-patch+json"
JSON_BODY = "application/json"
_META = "g=meta.k8s.io;v=v1"
# Accept: of one object or of the events of a watch, and of the objects of a list, only the metadata.
METADATA = f"{JSON_BODY};as=PartialObjectMetadata;{_META}"
METADATA_LIST = f"{JSON_BODY};as=PartialObjectMetadataList;{_META}"


class Api:
    """A client of the API server. Watches and the lease use a second one, so that calls cannot starve them.

    identity    name of this process, for the API server's audit log
    may_write   called right before each request that changes something: a process that was frozen in the
                middle of its work must not continue

    forbidden   set by such a request that is answered with 403
    """

    def __init__(
        self,
        config: Configuration,
        bucket: Bucket,
        random: Random,
        *,
        identity: str = "",
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._config, self._session = config, open_session(config)
        # What stands before the slash is the manager of the fields that we write: for all our pods the same.
        self._session.headers["User-Agent"] = f"dtj-operator/{VERSION} ({identity})"
        self._bucket, self._random, self._may_write = bucket, random, may_write
        self.forbidden = asyncio.Event()

    async def close(self) -> None:
        await self._session.close()

    async def get(
        self, path: str, query: Query = (), timeout_s: float = CALL_TIMEOUT_S, *, accept: str = JSON_BODY
    ) -> bytes:
        return await self._with_retries("GET", path, query=query, timeout_s=timeout_s, accept=accept)

    async def create(self, path: str, body: Json, query: Query = ()) -> bytes:
        return await self._with_retries("POST", path, body, query=query, timeout_s=CREATE_TIMEOUT_S)

    async def update(
        self, path: str, body: Json, timeout_s: float = CALL_TIMEOUT_S, query: Query = ()
    ) -> bytes:
        """Replace; not retried: if the first try succeeded, the resourceVersion in `body` is outdated."""
        return await self._once("PUT", path, body, timeout_s=timeout_s, query=query)

    async def patch(self, path: str, body: Json) -> bytes:
        """Merge patch; retried: it has a resourceVersion, or changes nothing the second time."""
        return await self._with_retries("PATCH", path, body, content_type=MERGE_PATCH)

    async def delete(
        self, path: str, *, uid: str | None = None, version: str | None = None, grace_s: int | None = None
    ) -> bytes:
        """Delete only the object with this uid; with `version`, only if it has not changed since."""
        conditions = {"uid": uid, "resourceVersion": version}
        options: Json = {"preconditions": {k: v for k, v in conditions.items() if v}}
        options["propagationPolicy"] = "Background"
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self._with_retries("DELETE", path, options)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, query: Query, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream lines; ends when the server ends it, raises Unavailable after `silence_s` without a byte."""
        timeout = aiohttp.ClientTimeout(total=None, connect=CALL_TIMEOUT_S, sock_read=silence_s)
        response = await self._send("GET", path, query=query, timeout=timeout)
        try:
            yield self._lines(path, response)
        finally:
            response.close()

    async def _lines(self, path: str, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for line in stream.lines(response.content):
                yield line
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _unavailable(f"WATCH {path}", error) from error

    async def _with_retries(self, method: str, path: str, body: Json | None = None, **options: Any) -> bytes:
        for tried in range(1, CALL_TRIES):
            try:
                return await self._once(method, path, body, **options)
            except Unavailable as error:
                pause = max(error.after_s, FIRST_CALL_RETRY_S * 2.0**tried * self._random.uniform(0.8, 1.2))
                if error.after_s > LONGEST_CALL_RETRY_S:
                    raise
            await asyncio.sleep(pause)
        return await self._once(method, path, body, **options)

    async def _once(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        **options: Any,
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        response = await self._send(method, path, body, timeout=timeout, **options)
        try:
            return await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unavailable(f"{method} {path}", error) from error

    async def _send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Query = (),
        content_type: str = JSON_BODY,
        accept: str = JSON_BODY,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - of the transport, which has one for each phase
    ) -> aiohttp.ClientResponse:
        metrics.API_WAIT.observe(await self._bucket.take())
        call = f"{method} {path}"
        if method != "GET" and not self._may_write():
            raise Withheld(call, 0, "Withheld", "not sent: this process may no longer hold the lease")
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            # A token of a service account expires: this call reads it again if it is old.
            if token := await self._config.get_api_key_with_prefix("BearerToken", alias="authorization"):
                headers["Authorization"] = token
            response = await self._session.request(
                method,
                f"{self._config.host}{path}{'?' if query else ''}{urlencode(query)}",
                data=None if body is None else msgspec.json.encode(body),
                headers=headers,
                timeout=timeout,
                server_hostname=self._config.tls_server_name,
            )
            metrics.API_REQUESTS.labels(method, str(response.status)).inc()
            if response.status == 403 and method != "GET":
                self.forbidden.set()
            if response.status >= 400:
                raise _error(call, response, await response.read())
        except (aiohttp.ClientError, ConfigException, OSError, TimeoutError) as error:
            metrics.API_REQUESTS.labels(method, "none").inc()
            raise _unavailable(call, error) from error
        return response


decode = msgspec.json.Decoder(Json).decode  # one JSON object


def _unavailable(call: str, error: Exception) -> Unavailable:
    """There was no answer, or only a part of it."""
    return Unavailable(call, 0, type(error).__name__, str(error))


def _error(call: str, response: aiohttp.ClientResponse, raw: bytes) -> ApiError:
    try:
        status = decode(raw)
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
        details = status.get("details") or {}
        object_path = f"/{details.get('kind')}/{details.get('name')}"
    except (ValueError, AttributeError):
        reason, message = str(response.reason or ""), raw[:300].decode(errors="replace")
        object_path = ""
    names_object = bool(object_path) and call.endswith((object_path, f"{object_path}/status"))
    error = kind_of(response.status, message, names_object=names_object)
    after = response.headers.get("Retry-After", "")  # Kubernetes sends whole seconds; a date is ignored
    return error(call, response.status, reason, message, float(after) if after.isdecimal() else 0.0)
