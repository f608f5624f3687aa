"""All that touches kopf: its watch of the jobs, start and stop. A handler only enqueues a key."""

from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from dtj_operator import names
from dtj_operator.core import Core
from dtj_operator.kube import config
from dtj_operator.names import Key
from dtj_operator.settings import Settings, kopf_settings


def run(settings: Settings) -> None:
    """Run until a signal comes."""
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

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return _credentials(await config.load())

    @kopf.on.startup(registry=registry)
    async def startup(memo: kopf.Memo, **_: Any) -> None:
        memo.core = Core(settings, await config.load())
        await memo.core.start()

    @kopf.on.cleanup(registry=registry)
    async def cleanup(memo: kopf.Memo, **_: Any) -> None:
        await memo.core.stop()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def on_job(event: kopf.RawEvent, memo: Any, namespace: str | None, name: str, **_: Any) -> None:
        version = str(event["object"]["metadata"].get("resourceVersion"))
        memo.core.seen(Key(str(namespace), name), version, gone=event["type"] == "DELETED")

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
