"""The only module that uses kopf, for the watch of the jobs, start and stop. A handler only queues a key."""

import asyncio
import logging
import time
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from dtj_operator import names
from dtj_operator.app import App
from dtj_operator.kube import config
from dtj_operator.names import Key
from dtj_operator.settings import Settings, kopf_settings

RESTART_PAUSE_S = 2.0

_log = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    """Run until a signal arrives; raises NoCluster if no cluster is configured.

    kopf gives up if its watch gets an error that it does not expect, such as a plain 410. Then everything is
    stopped cleanly, the lease is released, and kopf is started again here, without a restart of the
    container.
    """
    asyncio.run(config.load())
    while True:
        try:
            _run_once(settings)
        except Exception as error:  # noqa: BLE001 - kopf's classes of API errors are not public
            _log.error(
                "kopf failed; restarting it", extra={"error": str(error), "retry_in_s": RESTART_PAUSE_S}
            )
            time.sleep(RESTART_PAUSE_S)
        else:
            return


def _run_once(settings: Settings) -> None:
    kopf.run(
        registry=_registry(settings),
        settings=kopf_settings(),
        standalone=True,
        # Otherwise kopf looks up the user's name, which may not exist in a container.
        identity=settings.identity,  # type: ignore[arg-type]  # a private NewType of str
        clusterwide=settings.namespace is None,
        namespaces=[settings.namespace] if settings.namespace else [],
        memo=kopf.Memo(),
    )


def _registry(settings: Settings) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, backoff=RESTART_PAUSE_S)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return _credentials(await config.load())

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def startup(memo: kopf.Memo, **_: Any) -> None:
        memo.app = App(settings, await config.load())
        await memo.app.start()

    @kopf.on.cleanup(registry=registry)
    async def cleanup(memo: kopf.Memo, **_: Any) -> None:
        await memo.app.stop()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def on_job(event: kopf.RawEvent, memo: Any, namespace: str | None, name: str, **_: Any) -> None:
        version = str(event["object"]["metadata"].get("resourceVersion"))
        kind = event["type"]
        memo.app.on_job(Key(str(namespace), name), version, gone=kind == "DELETED", listed=kind is None)

    return registry


def _credentials(loaded: Configuration) -> kopf.ConnectionInfo:
    """Convert the credentials for kopf, which calls login again when they expire."""
    scheme, _, token = str((loaded.api_key or {}).get("BearerToken") or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=loaded.host,
        ca_path=loaded.ssl_ca_cert,
        insecure=not loaded.verify_ssl,
        username=loaded.username,
        password=loaded.password,
        scheme=scheme or None,
        token=token or None,
        certificate_path=loaded.cert_file,
        private_key_path=loaded.key_file,
        proxy_url=loaded.proxy,
    )
