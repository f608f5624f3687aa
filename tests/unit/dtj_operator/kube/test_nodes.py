"""The views of nodes, and which jobs a change of a node concerns."""

import asyncio
import json
import time
from random import Random
from typing import Any

import pytest

from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.errors import Refused
from dtj_operator.kube.nodes import NODES, NodeCache
from dtj_operator.kube.reflector import Reflector
from dtj_operator.model.names import Key
from dtj_operator.model.views import NodeView
from tests.support.builders import NAME, NAMESPACE, pod
from tests.unit.dtj_operator.kube.server import refuses, says, serving, stall, streams

param = pytest.param
Json = dict[str, Any]
BORN, TURNED = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def node(name: str = "a", ready: str = "True", version: int = 1, **spec: Any) -> Json:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": TURNED}
    meta = {"name": name, "uid": f"u-{name}", "resourceVersion": str(version), "creationTimestamp": BORN}
    return {"metadata": meta, "spec": spec, "status": {"conditions": [condition]}}


def view(*args: Any, **kwargs: Any) -> NodeView:
    return NODES.decode(json.dumps(node(*args, **kwargs)).encode())


@pytest.mark.parametrize(("ready", "expected"), [("True", True), ("False", False), ("Unknown", False)])
def test_readiness_is_parsed(ready: str, expected: bool) -> None:
    assert view(ready=ready).ready is expected


def test_node_without_a_condition_is_not_ready() -> None:
    raw = node()
    raw["status"] = {}
    assert not NODES.decode(json.dumps(raw).encode()).ready


def test_cordon_is_parsed() -> None:
    assert view(unschedulable=True).unschedulable
    assert not view().unschedulable


class Watched:
    """A cache, what it reported, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.news: list[str] = []
        self.cache = NodeCache(self.news.append, clock=lambda: self.now)

    def at(self, now: float, *views: NodeView) -> dict[str, float | None]:
        """Return since when each node is away, after these views."""
        self.now = now
        for each in views:
            self.cache.observe(each)
        return {name: node.away_since for name, node in self.cache.snapshot().items()} | dict(
            self.cache.gone_since
        )


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_heartbeats_and_cordons_are_not_reported(watched: Watched) -> None:
    watched.cache.observe(view())
    watched.cache.observe(view(version=2))
    watched.cache.observe(view(version=3, unschedulable=True))

    assert watched.news == []
    assert watched.cache.snapshot()["a"].unschedulable


def test_changes_of_readiness_and_deletion_are_reported(watched: Watched) -> None:
    watched.cache.observe(view())
    watched.cache.observe(view(ready="Unknown", version=2))
    watched.cache.observe(view(version=3))
    watched.cache.replace([], version="9")

    assert watched.news == ["a", "a", "a"]
    assert watched.cache.snapshot() == {}


LATER = "2026-01-01T02:00:00Z"


def test_node_is_away_since_this_process_saw_it_not_ready(watched: Watched) -> None:
    """Whatever the timestamp says: it comes from another clock."""
    assert watched.at(100, view(), view("b")) == {"a": None, "b": None}
    assert watched.at(110, view(ready="Unknown", version=2)) == {"a": 110, "b": None}
    assert watched.at(120, view(ready="False", version=3)) == {"a": 110, "b": None}
    assert watched.at(130, view(version=4)) == {"a": None, "b": None}
    assert watched.at(140, view(ready="Unknown", version=5)) == {"a": 140, "b": None}


def test_node_that_was_ready_between_two_lists_is_away_since_the_second(watched: Watched) -> None:
    watched.at(100, view(ready="Unknown"), view("b"))
    raw = node(ready="Unknown", version=9)
    raw["status"]["conditions"][0]["lastTransitionTime"] = LATER

    assert watched.at(150, NODES.decode(json.dumps(raw).encode()))["a"] == 150


def test_deleted_node_is_gone_since_this_process_saw_that(watched: Watched) -> None:
    watched.at(100, view(), view("b"))
    watched.cache.replace([view("b", version=2)], version="9")
    assert watched.at(120) == {"a": 100, "b": None}
    assert watched.at(130, view(version=10)) == {"a": None, "b": None}


def test_nodes_have_the_full_time_to_come_back_after_the_first_of_them(watched: Watched) -> None:
    """While no node was ready, the control plane had lost contact with all of them."""
    watched.at(100, view(ready="Unknown"), view("b", ready="Unknown"))
    watched.cache.gone_since["c"] = 100.0
    watched.news.clear()

    assert watched.at(500, view("b", version=2)) == {"a": 500, "b": None, "c": 500}
    assert sorted(watched.news) == ["a", "b", "c"], "jobs on nodes that are still away need a timer too"


def test_a_snapshot_does_not_change_afterwards(watched: Watched) -> None:
    watched.cache.observe(view())
    before = watched.cache.snapshot()
    watched.cache.observe(view(ready="False", version=2))

    assert before["a"].ready
    assert not watched.cache.snapshot()["a"].ready


def test_jobs_are_found_by_the_node_of_their_pods() -> None:
    pods = PodCache(lambda *_: None, clock=time.monotonic)
    pods.observe(pod(0).on("a").pod)
    pods.observe(pod(1).on("a").pod)
    pods.observe(pod(0, job="other").on("b").pod)
    assert (pods.jobs_on("a"), pods.jobs_on("b")) == ([Key(NAMESPACE, NAME)], [Key(NAMESPACE, "other")])

    pods.remove(pod(0).on("a").pod)
    assert pods.jobs_on("a") == [Key(NAMESPACE, NAME)], "the other pod is still there"
    pods.remove(pod(1).on("a").pod)
    assert pods.jobs_on("a") == []


async def test_without_the_right_to_read_nodes_they_are_unknown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right that is granted later is noticed."""
    monkeypatch.setattr("dtj_operator.kube.reflector.LIST_FORBIDDEN_PAUSE_S", 0.01)
    page = says({"metadata": {"resourceVersion": "5"}, "items": [node(ready="False")]})
    denied = refuses(403, "Forbidden", "nodes is forbidden")
    async with serving(denied, denied, page, streams(then=stall)) as server:
        reported = asyncio.Event()
        cache = NodeCache(lambda _: reported.set(), clock=time.monotonic)
        api = Api(server.config, Bucket(1e9), Random(1))
        reflector = Reflector(api, cache, "ns", Random(1))
        task = asyncio.create_task(reflector.run())
        async with asyncio.timeout(60):
            await reported.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()

    assert reflector.current
    assert [record.message for record in caplog.records] == [
        "no permission to read these objects; continuing without them"
    ]
    assert server.asked[0][1:3] == ("/api/v1/nodes", {"limit": "500"})


def test_right_that_is_granted_is_noticed_within_a_minute() -> None:
    nodes = NodeCache(lambda _: None, clock=time.monotonic)
    reflector = Reflector(Any, nodes, None, Random(1))  # type: ignore[arg-type]  # it sends nothing here
    denied = Refused("GET /api/v1/nodes", 403, "Forbidden", "nodes is forbidden")
    assert reflector._wait_after(denied, 10) * 1.2 < 60


async def test_nodes_are_unknown_while_the_api_server_is_unavailable() -> None:
    """A node that was not ready may be ready by now, so nothing may be concluded from it."""
    page = says({"metadata": {"resourceVersion": "5"}, "items": [node(ready="False")]})
    async with serving(page, streams(), *[refuses(503)] * 4, page, streams(then=stall)) as server:
        news: list[bool] = []
        thrice = asyncio.Event()

        def on_change(_: str) -> None:
            news.append(reflector.current)
            if len(news) == 3:
                thrice.set()

        cache = NodeCache(on_change, clock=time.monotonic)
        api = Api(server.config, Bucket(1e9), Random(1))
        reflector = Reflector(api, cache, None, Random(1))
        task = asyncio.create_task(reflector.run())
        async with asyncio.timeout(60):
            await thrice.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()

    assert news == [False] * 3, "reported when listed, when current, and again after the outage"
