"""The simulated kubelet sees pods that went while its watch was cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.integration.api import Api
from tests.integration.kubelet import Kubelet

POD = {"metadata": {"name": "a", "uid": "1"}, "spec": {}, "status": {"phase": "Running"}}


class Server:
    """Lists one pod, then none; each watch is cut once someone waits."""

    def __init__(self) -> None:
        self.lists: list[list[dict[str, Any]]] = [[POD], []]
        self.cut = asyncio.Event()

    async def get(self, _: str) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "1"}, "items": self.lists.pop(0) if self.lists else []}

    async def follow(self, *_: object) -> AsyncIterator[tuple[str, Any]]:
        await self.cut.wait()
        if not self.lists:
            await asyncio.Event().wait()
        for event in list[tuple[str, Any]]():
            yield event


@pytest.mark.asyncio
async def test_pods_that_went_during_a_cut_watch_are_noticed():
    server = Server()
    kubelet = Kubelet(cast(Api, server), "ns")
    running = asyncio.create_task(kubelet.run())
    await kubelet.until(lambda pods: "a" in pods)
    gone = asyncio.create_task(kubelet.until(lambda pods: not pods))
    await asyncio.sleep(0)  # it waits now
    server.cut.set()
    assert await gone == {}
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
