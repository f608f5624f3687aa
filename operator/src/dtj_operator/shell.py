"""All that touches kopf: its watch of the jobs, start and stop. A handler only enqueues a key."""

import asyncio
import logging
import time
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from dtj_operator import names
from dtj_operator.core import Core
from dtj_operator.kube import config
from dtj_operator.names import Key
from dtj_operator.settings import Settings, kopf_settings

AGAIN_S = 2.0

_log = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    """Run until a signal comes; raises NoCluster where there is nothing to run against.

    kopf gives up when its watch is answered with an error that it does not expect, such as a plain 410. All
    is then stopped in good order, the lease given back, and begun anew here: the container need not crash
    for it.
    """
    asyncio.run(config.load())
    while True:
        try:
            _run_once(settings)
        except Exception as error:  # noqa: BLE001 - of kopf's errors those of the API are not public
            _log.error("kopf failed; restarting it", extra={"error": str(error), "retry_in_s": AGAIN_S})
            time.sleep(AGAIN_S)
        else:
            return


def _run_once(settings: Settings) -> None:
    kopf.run(
        registry=_registry(settings),
        settings=kopf_settings(),
        standalone=True,
        # Else kopf looks up the user's name, which in a container need not exist.
        identity=settings.identity,  # type: ignore[arg-type]  # a NewType of str that kopf keeps to itself
        clusterwide=settings.namespace is None,
        namespaces=[settings.namespace] if settings.namespace else [],
        memo=kopf.Memo(),
    )


def _registry(settings: Settings) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, backoff=AGAIN_S)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return _credentials(await config.load())

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def startup(memo: kopf.Memo, **_: Any) -> None:
        memo.core = Core(settings, await config.load())
        await memo.core.start()

    @kopf.on.cleanup(registry=registry)
    async def cleanup(memo: kopf.Memo, **_: Any) -> None:
        await memo.core.stop()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def on_job(event: kopf.RawEvent, memo: Any, namespace: str | None, name: str, **_: Any) -> None:
        version = str(event["object"]["metadata"].get("resourceVersion"))
        kind = event["type"]
        memo.core.seen(Key(str(namespace), name), version, gone=kind == "DELETED", listed=kind is None)

    return registry


def _credentials(loaded: Configuration) -> kopf.ConnectionInfo:
    """Kopf asks again when they expire."""
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
