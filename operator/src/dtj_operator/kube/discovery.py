"""What the API server serves, and whether the operator may read the jobs."""

from collections.abc import Iterable

from dtj_operator.kube import paths, wire
from dtj_operator.kube.api import METADATA_LIST, Api, decode
from dtj_operator.kube.errors import Answered, ApiError, Refused
from dtj_operator.model import names

_SILENCE_S = 30.0  # of a watch, before its first byte


async def first_served(api: Api, versions: Iterable[str], plural: str) -> str:
    """Return the first of these versions in which a kind is served; empty: none. Raises Unavailable."""
    for version in versions:
        try:
            found = decode(await api.get(f"/apis/{version}")).get("resources", ())
        except Answered:  # not served
            continue
        if any(resource["name"] == plural for resource in found):
            return version
    return ""


async def serves_jobs(api: Api) -> bool:
    """Whether both documents name our kind in which kopf looks for it; kopf looks only once."""
    try:
        groups = decode(await api.get("/apis"))["groups"]
    except Answered:
        return False
    listed = any(group["name"] == names.GROUP for group in groups)
    return listed and bool(await first_served(api, (names.API_VERSION,), names.PLURAL))


async def missing_right(api: Api, namespace: str | None) -> str:
    """Return what the API server says if the jobs of a namespace (None: all) may not be listed or watched.

    Empty if they may, or if the answer is about something else.
    """
    path = paths.jobs(namespace)
    try:
        page = wire.decode_names(await api.get(path, [("limit", "1")], accept=METADATA_LIST))
        since = page.metadata.resource_version
        async with api.watch(path, [("watch", "true"), ("resourceVersion", since)], _SILENCE_S):
            return ""
    except Refused as error:
        return str(error)
    except (ApiError, *wire.UNREADABLE):
        return ""
