"""The only module that uses kopf, for the watch of the jobs, start and stop. A handler only queues a key."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from dtj_operator import scope
from dtj_operator.app import App
from dtj_operator.kube import config, job_stream
from dtj_operator.model import names
from dtj_operator.model.names import Key
from dtj_operator.settings import Settings

# While nothing listens, the liveness probe of the chart fails; after 20 to 30 s the container is killed.
RESTART_PAUSE_S = 2.0  # before kopf is started again; doubles up to LONGEST_PAUSE_S
LONGEST_PAUSE_S = 10.0
# At a start, a namespace about which there is no answer by then stays as it was; at first it is served.
NAMESPACES_S = 5.0
CALM_S = 60.0  # kopf has worked if it fails only after this time

_log = logging.getLogger(__name__)


class CannotStart(Exception):  # noqa: N818
    """The operator could not start; the message says why and what to do."""


def run(settings: Settings) -> None:
    """Run until a signal arrives; raises NoCluster if no cluster is configured, or CannotStart.

    kopf gives up if it gets an answer that it does not expect, such as a 404 after the CRD was deleted. Then
    everything is stopped cleanly, the lease is released, and kopf is started again here, without a restart of
    the container.
    """
    asyncio.run(config.load())
    pause_s, served = RESTART_PAUSE_S / 2, settings.namespaces
    while True:
        memo, began = kopf.Memo(served=served), time.monotonic()
        try:
            _run_once(settings, memo)
        except Exception as error:
            if "app" not in memo:
                raise CannotStart(memo.get("why", str(error))) from error
            calm = time.monotonic() - began > CALM_S
            pause_s = RESTART_PAUSE_S if calm else min(2 * pause_s, LONGEST_PAUSE_S)
            _log.error("kopf failed; restarting it", extra={"error": str(error), "retry_in_s": pause_s})
            # Not time.sleep: libfaketime, with which the tests set the clock, lets it fail.
            asyncio.run(asyncio.sleep(pause_s))
        else:
            if not memo.get("namespaces_changed"):
                return
            _log.warning("other namespaces can be served now; starting again")
        served = memo.served


def _run_once(configured: Settings, memo: kopf.Memo) -> None:
    settings = asyncio.run(_narrowed(configured, memo.served))
    memo.served = settings.namespaces

    async def check(app: App, loaded: Configuration) -> None:
        memo.served = await scope.until_changed(configured, loaded, settings.namespaces, app.doubtful)
        memo.namespaces_changed = True
        memo.stop.set()
        await asyncio.Event().wait()  # the process exits if a task of the App ends

    if configured.namespaces:
        memo.check_namespaces, memo.stop = check, asyncio.Event()
    kopf.run(
        registry=_registry(settings),
        settings=_kopf_settings(),
        standalone=True,
        # Otherwise kopf looks up the user's name, which may not exist in a container.
        identity=settings.identity,  # type: ignore[arg-type]  # a private NewType of str
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        stop_flag=memo.get("stop"),
        memo=memo,
    )


async def _narrowed(settings: Settings, before: Sequence[str]) -> Settings:
    """The settings with only those namespaces that can be served; `before`: as in scope.find."""
    if not settings.namespaces:
        return settings
    found = await scope.find(settings, await config.load(), before, within_s=NAMESPACES_S)
    return replace(settings, namespaces=found)


def _registry(settings: Settings) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, backoff=RESTART_PAUSE_S)
    async def login(memo: Any, **_: Any) -> kopf.AiohttpSession:
        await memo.app.until_served()  # kopf makes no request before this handler returns
        loaded = await config.load()
        return kopf.AiohttpSession(
            server=loaded.host, aiohttp_session=job_stream.session(loaded, memo.app.jobs.note)
        )

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def startup(memo: kopf.Memo, **_: Any) -> None:
        loaded = await config.load()
        app = App(settings, loaded)
        try:
            await app.start()
        except OSError as error:
            memo.why = str(error)
            await app.stop()
            raise
        memo.app = app
        if "check_namespaces" in memo:
            app.start_task("check of the namespaces", memo.check_namespaces(app, loaded))

    @kopf.on.cleanup(registry=registry)
    async def cleanup(memo: kopf.Memo, **_: Any) -> None:
        if "stop" in memo:
            memo.stop.set()  # else kopf gives its own task that waits for this another 5 s
        if "app" in memo:
            await memo.app.stop()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def on_job(event: kopf.RawEvent, memo: Any, namespace: str | None, name: str, **_: Any) -> None:
        version = str(event["object"]["metadata"].get("resourceVersion"))
        kind = event["type"]
        memo.app.on_job(Key(str(namespace), name), version, gone=kind == "DELETED", listed=kind is None)

    return registry


def _kopf_settings() -> kopf.OperatorSettings:
    """Let kopf only watch the jobs: without a handler of changes it writes nothing to the cluster."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # Recorder sends our Events and deduplicates them; kopf does not
    settings.peering.standalone = True  # kube/lease.py does leader election
    # It does not watch namespaces and CRDs, so the operator needs no rights to them.
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 5
    settings.watching.reconnect_backoff = 1.0  # between two lists, if each is followed by an error
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.enforce_retry_after = True
    settings.networking.error_backoffs = (1, 1, 2, 3, *[5] * 600)  # soon after the API server is back
    settings.queueing.idle_timeout = 0.2  # how long kopf keeps the task of each job without events
    # Less than terminationGracePeriodSeconds of the operator's pod.
    settings.process.ultimate_exiting_timeout = 10
    return settings
