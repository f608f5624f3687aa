"""Which optional APIs the API server serves."""

from collections.abc import Iterable

from dtj_operator.kube.api import Api, decode
from dtj_operator.kube.errors import ApiError, Unavailable


async def first_served(api: Api, versions: Iterable[str], plural: str) -> str:
    """Return the first of these versions in which a kind is served; empty: none. Raises Unavailable."""
    for version in versions:
        try:
            found = decode(await api.get(f"/apis/{version}")).get("resources", ())
        except Unavailable:
            raise
        except ApiError:  # not served
            continue
        if any(resource["name"] == plural for resource in found):
            return version
    return ""
