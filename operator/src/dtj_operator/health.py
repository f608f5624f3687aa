"""Serves /healthz (the watches get data), /readyz (caches are filled) and /metrics (Prometheus).

They run on the event loop of the workers, so if the loop hangs the probe fails and the container is
restarted.
"""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], str | None]  # returns what is wrong, or None

_log = logging.getLogger(__name__)


async def serve(*, live: Check, ready: Check, health_port: int, metrics_port: int) -> list[web.AppRunner]:
    """Listen on both ports; port 0 takes a free port, which is logged.

    If a port is in use, closes the other one and raises OSError with the flag to set.
    """
    probes = web.Application()
    probes.router.add_get("/healthz", _probe(live))
    probes.router.add_get("/readyz", _probe(ready))
    numbers = web.Application()
    numbers.router.add_get("/metrics", _metrics)
    first = await _listen(probes, "health", health_port)
    try:
        return [first, await _listen(numbers, "metrics", metrics_port)]
    except OSError:
        await first.cleanup()
        raise


async def _listen(app: web.Application, what: str, port: int) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
    except OSError as error:
        await runner.cleanup()
        message = f"cannot listen on port {port} ({what}): {error.strerror}; use --{what}-port"
        raise OSError(error.errno, message) from error
    _log.info("listening", extra={"what": what, "port": runner.addresses[0][1]})
    return runner


def _probe(check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        wrong = check()
        return web.Response(status=503 if wrong else 200, text=f"{wrong or 'ok'}\n")

    return answer


async def _metrics(_: web.Request) -> web.Response:
    return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})
