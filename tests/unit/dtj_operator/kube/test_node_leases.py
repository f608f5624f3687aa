"""Since when the Lease of a node is unchanged: only time between repeated reads counts."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dtj_operator.kube.errors import ApiError, NotFound, Refused, Unavailable
from dtj_operator.kube.node_leases import NodeLeases

param = pytest.param
pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"
EARLY, LATE = "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:10.123456Z"
EARLY_S = 1767225600.0


class Kubelets:
    """The API server's answers by node; an exception is raised."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.takes_s = 0.0

    async def get(self, path: str) -> bytes:
        assert path.startswith(PATH)
        node = path.removeprefix(PATH)
        self.asked.append(node)
        await asyncio.sleep(self.takes_s)
        answer = self.answers[node]
        if isinstance(answer, Exception):
            raise answer
        return str(answer).encode()

    def renew(self, node: str, at: str = EARLY) -> None:
        self.answers[node] = f'{{"spec": {{"renewTime": "{at}", "leaseDurationSeconds": 40}}}}'


@pytest.fixture
def kubelets() -> Kubelets:
    return Kubelets()


def failure(kind: type[ApiError], status: int) -> ApiError:
    return kind("GET", status, "why", "because")


async def unchanged_s(leases: NodeLeases, node: str = "n1") -> float | None:
    found = (await leases.read([node])).get(node)
    return None if found is None else found.unchanged_s


async def test_unchanged_time_counts_from_the_first_read_until_a_renewal(kubelets: Kubelets) -> None:
    leases = NodeLeases(kubelets.get)
    kubelets.renew("n1")
    kubelets.takes_s = 0.5
    (found,) = (await leases.read(["n1"])).values()
    kubelets.takes_s = 0.0
    assert (found.renewed_at, found.duration_s, found.unchanged_s) == (EARLY_S, 40, 0)
    await asyncio.sleep(4)
    assert await unchanged_s(leases) == 4
    await asyncio.sleep(4)
    assert await unchanged_s(leases) == 8
    kubelets.renew("n1", LATE)
    await asyncio.sleep(4)
    assert await unchanged_s(leases) == 0


@pytest.mark.parametrize(
    "disturb",
    [
        param(lambda k: k.answers.update(n1=failure(Unavailable, 0)), id="the API server was unavailable"),
        param(lambda k: k.answers.update(n1=failure(NotFound, 404)), id="it did not exist"),
        param(lambda k: k.answers.update(n1=failure(Refused, 403)), id="it could not be read"),
        param(lambda k: k.answers.update(n1="<html>"), id="invalid JSON"),
        param(lambda k: k.answers.update(n1='{"spec": {}}'), id="a lease without a renewal"),
    ],
)
async def test_failed_read_restarts_the_unchanged_time(
    kubelets: Kubelets, disturb: Callable[[Kubelets], Any]
) -> None:
    leases = NodeLeases(kubelets.get)
    kubelets.renew("n1")
    await leases.read(["n1"])
    await asyncio.sleep(4)
    disturb(kubelets)
    assert await unchanged_s(leases) is None
    kubelets.renew("n1")
    await asyncio.sleep(4)
    assert await unchanged_s(leases) == 0


async def test_gap_between_reads_restarts_the_unchanged_time(kubelets: Kubelets) -> None:
    leases = NodeLeases(kubelets.get)
    kubelets.renew("n1")
    await leases.read(["n1"])
    await asyncio.sleep(60)
    assert await unchanged_s(leases) == 0


async def test_jobs_that_ask_about_the_same_node_share_a_read(kubelets: Kubelets) -> None:
    leases = NodeLeases(kubelets.get)
    for node in ("n1", "n2"):
        kubelets.renew(node)
    await leases.read(["n1"])
    assert (await leases.read(["n1", "n2"])).keys() == {"n1", "n2"}
    assert kubelets.asked == ["n1", "n2"]


async def test_concurrent_reads_do_not_restart_the_unchanged_time(kubelets: Kubelets) -> None:
    leases = NodeLeases(kubelets.get)
    kubelets.renew("n1")
    kubelets.takes_s = 0.5
    for _ in range(4):
        found = await asyncio.gather(*(leases.read(["n1"]) for _ in range(3)))
        await asyncio.sleep(3.5)
    assert {each["n1"].unchanged_s for each in found} == {11.5}
