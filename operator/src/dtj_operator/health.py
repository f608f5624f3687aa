"""Serves /healthz (the watches get data), /readyz (caches are filled) and /metrics (Prometheus).

They run on the event loop of the workers, so if the loop hangs the probe fails and the container is
restarted. Anyone who can connect may ask, and some clients send half a request, so connections are few.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], str | None]  # returns what is wrong, or None
Pages = Mapping[str, Callable[[], web.Response]]  # by path

MOST_OPEN = 64  # connections of each port; kubelets and Prometheus need a few

_log = logging.getLogger(__name__)


class _Server(web.Server):
    """Closes the oldest of too many connections; aiohttp would wait for the rest of a request forever."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        for oldest in self.connections[:-MOST_OPEN]:
            oldest.force_close()


async def serve(*, live: Check, ready: Check, health_port: int, metrics_port: int) -> list[web.ServerRunner]:
    """Listen on both ports; port 0 takes a free port, which is logged.

    If a port is in use, closes the other one and raises OSError with the flag to set.
    """
    probes = {"/healthz": lambda: _probe(live), "/readyz": lambda: _probe(ready)}
    first = await _listen(probes, "health", health_port)
    try:
        return [first, await _listen({"/metrics": _metrics}, "metrics", metrics_port)]
    except OSError:
        await first.cleanup()
        raise


async def _listen(pages: Pages, what: str, port: int) -> web.ServerRunner:
    async def answer(request: web.BaseRequest) -> web.Response:
        page = pages.get(request.path) if request.method in ("GET", "HEAD") else None
        return page() if page else web.Response(status=404)

    runner = web.ServerRunner(_Server(answer, access_log=None), shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
    except OSError as error:
        await runner.cleanup()
        message = f"cannot listen on port {port} ({what}): {error.strerror}; use --{what}-port"
        raise OSError(error.errno, message) from error
    _log.info("listening", extra={"what": what, "port": runner.addresses[0][1]})
    return runner


def _probe(check: Check) -> web.Response:
    wrong = check()
    return web.Response(status=503 if wrong else 200, text=f"{wrong or 'ok'}\n")


def _metrics() -> web.Response:
    return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})
