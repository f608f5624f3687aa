"""Taking the lead, with fakes of the API server's answers: what is queued, and what must not stop it."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from prometheus_client import REGISTRY

from dtj_operator import settings
from dtj_operator.app import BACKLOG_PATIENCE_S, App
from dtj_operator.job_metrics import JOBS as TABLE
from dtj_operator.kube import api, lease, optional, pods
from dtj_operator.kube.errors import Refused
from dtj_operator.model.names import Key
from tests.support.builders import job
from tests.unit.dtj_operator.kube.server import Json, stall

JOBS = "/apis/dtj.dev/v1alpha1/distributedtrainingjobs"
PODS = "/api/v1/pods"
KUEUE = ("kueue.x-k8s.io/v1beta2", "workloads")
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/dtj-operator"


class Lists:
    """An API server with lists by path; watches stay silent, the Lease is free, all else is not found.

    broken    paths that are answered with 500
    refused   the path that the operator has no right to read
    denied    what it may not do, such as "create pods"
    looked    the jobs that were read, in this order
    reviews   how often it has asked what it may do
    """

    def __init__(self) -> None:
        self.items: dict[str, list[Json]] = {}
        self.broken: set[str] = set()
        self.refused = ""
        self.denied: set[str] = set()
        self.looked: list[str] = []
        self.reviews = 0
        self.changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in self.broken:
            return web.json_response({"message": "exceeded max depth"}, status=500)
        if path.endswith("/selfsubjectaccessreviews"):
            self.reviews += 1
            self.changed.set()
            asked = (await request.json())["spec"]["resourceAttributes"]
            allowed = f"{asked['verb']} {asked['resource']}" not in self.denied
            return web.json_response({"status": {"allowed": allowed}}, status=201)
        if path == self.refused:
            return web.json_response({"reason": "Forbidden", "message": "cannot list"}, status=403)
        if path == LEASE:
            named = {"name": "dtj-operator", "kind": "leases"}
            return web.json_response({"reason": "NotFound", "details": named}, status=404)
        if path == LEASE.rpartition("/")[0]:
            return web.json_response(await request.json(), status=201)
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await stall(request)
        if "/namespaces/" in path and "distributedtrainingjobs" in path:
            self.looked.append(path.rpartition("/")[2])
            self.changed.set()
        elif "/namespaces/" not in path:
            return web.json_response(
                {"metadata": {"resourceVersion": "1"}, "items": self.items.get(path, [])}
            )
        return web.json_response({"reason": "NotFound"}, status=404)


def pod(job: str, *, failed: bool = False, ended: str = "") -> Json:
    labels = {"dtj.dev/job-name": job, "dtj.dev/replica-index": "0", "dtj.dev/attempt": "0"}
    meta = {"name": f"{job}-0", "namespace": "ns", "uid": job, "resourceVersion": "1", "labels": labels}
    state = {"terminated": {"exitCode": 0, "finishedAt": f"{ended}T00:00:00Z"}} if ended else {}
    containers = [{"name": "trainer", "state": state}]
    return {
        "metadata": meta,
        "status": {"phase": "Failed" if failed else "Running", "containerStatuses": containers},
    }


def changed(job: str, *, failed: bool = False) -> Json:
    """Return a newer version of its pod."""
    seen = pod(job, failed=failed)
    seen["metadata"]["resourceVersion"] = "2"
    seen["status"]["podIP"] = "10.0.0.1"
    return seen


def named(job: str) -> Json:
    return {"metadata": {"name": job, "namespace": "ns"}}


@contextlib.asynccontextmanager
async def running(lists: Lists, *flags: str, watched: bool = True) -> AsyncIterator[App]:
    """Run it without kopf, as if the jobs were `watched`."""
    site = web.Application()
    site.router.add_route("*", "/{rest:.*}", lists.handle)
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = Configuration()
    config.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    flags = ("--health-port=0", "--metrics-port=0", "--workers=1", *flags)
    app = App(settings.parse(flags, {}), config)
    if watched:
        app._no_jobs = ""
    await app.start()
    try:
        yield app
    finally:
        await app.stop()
        await runner.cleanup()


async def until(lists: Lists, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            lists.changed.clear()
            await lists.changed.wait()


async def test_follower_queues_nothing() -> None:
    lists = Lists()
    lists.items[PODS] = [pod("known")]
    lists.broken.add(LEASE)
    async with running(lists) as app:
        async with asyncio.timeout(60):
            while not len(app._caches.pods):  # noqa: ASYNC110 - filled by another task
                await asyncio.sleep(0.01)
        app.on_job(Key("ns", "new"), "1", gone=False, listed=False)
        app.on_job(Key("ns", "gone"), "1", gone=True, listed=False)

        assert (len(app.queue), app.queue._timers) == (0, {})
        assert Key("ns", "new") in app.jobs.shown


async def test_new_leader_handles_jobs_with_a_fault_first_and_then_all_others() -> None:
    lists = Lists()
    healthy = [f"healthy-{number}" for number in range(20)]
    lists.items[PODS] = [*map(pod, healthy), pod("faulty", failed=True)]
    lists.items[JOBS] = [named(job) for job in (*healthy, "faulty", "unseen")]
    async with running(lists, "--no-leader-election"):
        await until(lists, lambda: set(lists.looked) == {*healthy, "faulty", "unseen"})

    assert lists.looked[0] == "faulty"


class OneAtATime(Lists):
    """Answers no request for a job while `held`."""

    held = True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        answer = await super().handle(request)
        if request.path.rpartition("/")[2] in self.looked:
            await until(self, lambda: not self.held)
        return answer


@pytest.mark.parametrize("found_by", ["kopf", "list", "resync"])
async def test_jobs_of_a_list_yield_for_a_minute_to_jobs_that_changed(found_by: str) -> None:
    lists, busy = OneAtATime(), Key("ns", "busy")
    listed = [Key("ns", f"listed-{number}") for number in range(20)]
    async with running(lists, "--no-leader-election", "--resync-seconds=0.01") as app:
        async with asyncio.timeout(60):
            while not app._leads:  # noqa: ASYNC110 - set by another task
                await asyncio.sleep(0.01)
            app.on_job(busy, "1", gone=False, listed=False)
            await until(lists, lambda: lists.looked == ["busy"])  # the only worker waits for the answer
            if found_by == "kopf":
                for key in listed:
                    app.on_job(key, "1", gone=False, listed=True)
            elif found_by == "resync":
                app.jobs.shown.update(dict.fromkeys(listed, "1"))
            lists.items[JOBS] = [named(key.name) for key in (busy, *listed)]
            while not app.queue._waiting.keys() >= {*listed}:  # noqa: ASYNC110 - filled by another task
                await asyncio.sleep(0.01)
        patient_until = asyncio.get_running_loop().time() + BACKLOG_PATIENCE_S
        assert all(place.until > patient_until - 50 for place in app.queue._waiting.values())
        app.on_job(Key("ns", "changed"), "2", gone=False, listed=False)
        lists.held = False
        lists.changed.set()
        await until(lists, lambda: len(lists.looked) > 1)

    assert lists.looked[1] == "changed"


class SlowLists(Lists):
    """Grants the Lease; afterwards, answers no list of a kind before all kinds were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.again: set[str] = set()
        self.leads = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.leads |= path.endswith("/leases")
        if self.leads and "watch" not in request.query and path.rpartition("/")[2] in KINDS:
            self.again.add(path.rpartition("/")[2])
            self.changed.set()
            await until(self, lambda: self.again == KINDS)
        return await super().handle(request)


KINDS = {"pods", "services", "networkpolicies", "nodes"}


async def test_new_leader_asks_for_all_kinds_at_once_before_it_handles_a_job() -> None:
    lists = SlowLists()
    lists.items[PODS] = [pod("known")]
    async with running(lists):
        await until(lists, lambda: lists.looked == ["known"])

    assert lists.again == KINDS


class NoLists(SlowLists):
    """Once the Lease is granted it answers no list, and no request for a job before it may."""

    may_answer = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if self.leads and "watch" not in request.query and path.rpartition("/")[2] in KINDS:
            await stall(request)
        answer = await super().handle(request)
        if "/distributedtrainingjobs/" in path:
            await until(self, lambda: self.may_answer)
        return answer


async def test_new_leader_handles_jobs_with_a_fault_before_it_has_read_everything_again() -> None:
    lists, (first, second) = NoLists(), (Key("ns", "faulty"), Key("ns", "next"))
    lists.items[PODS] = [pod("healthy"), pod("faulty", failed=True), pod("next")]
    async with running(lists) as app:
        await until(lists, lambda: lists.looked == ["faulty"])
        assert app._caches.pods.unverified.of(first) == ("faulty-0",), "it is read: it may have been replaced"

        app._caches.pods.observe(pods.PODS.decode(json.dumps(changed("next", failed=True)).encode()))
        app._caches.pods.observe(pods.PODS.decode(json.dumps(changed("healthy")).encode()))
        assert app._caches.pods.unverified.of(second) == ("next-0",)
        lists.may_answer = True
        lists.changed.set()
        await until(lists, lambda: len(lists.looked) == 2)

        assert (lists.looked, len(app.queue)) == (["faulty", "next"], 0)


async def test_of_the_jobs_with_ended_pods_the_latest_comes_first() -> None:
    lists = Lists()
    lists.items[PODS] = [
        pod("kept", ended="2026-01-01"),
        pod("new", ended="2026-01-02"),
        pod("going", failed=True),
    ]
    async with running(lists, "--no-leader-election"):
        await until(lists, lambda: len(lists.looked) == 3)

    assert lists.looked == ["going", "new", "kept"], "when a pod without a container has ended is not known"


class Namespaces(Lists):
    """Has lists of every namespace; counts the watches that are open and the renewals of the Lease."""

    def __init__(self) -> None:
        super().__init__()
        self.watches = self.renewals = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == self.refused:
            return await super().handle(request)
        if request.method == "PUT":
            self.renewals += 1
            self.changed.set()
            return web.json_response(await request.json())
        if "watch" in request.query:
            self.watches += 1
            self.changed.set()
        elif path.rpartition("/")[2] in KINDS | {"distributedtrainingjobs"}:
            return web.json_response(
                {"metadata": {"resourceVersion": "1"}, "items": self.items.get(path, [])}
            )
        return await super().handle(request)


def jobs_of(namespace: str) -> str:
    return f"/apis/dtj.dev/v1alpha1/namespaces/{namespace}/distributedtrainingjobs"


async def test_all_jobs_are_handled_again_while_those_of_one_namespace_cannot_be_listed() -> None:
    lists = Namespaces()
    lists.items[jobs_of("ns")] = [named("listed")]
    lists.refused = jobs_of("deep")
    async with running(lists, "--namespace=deep,ns", "--no-leader-election", "--resync-seconds=0.01") as app:
        app.jobs.note(Key("deep", "known"), "1")
        await until(lists, lambda: {*lists.looked} == {"listed", "known"})
        assert app.doubtful() == {"deep"}


async def test_rights_are_asked_for_again_only_after_a_write_was_forbidden() -> None:
    lists = Lists()
    lists.items[JOBS] = [named("known")]
    async with running(lists, "--no-leader-election", "--resync-seconds=0.01") as app:
        await until(lists, lambda: lists.looked.count("known") > 4)
        assert lists.reviews == 7, "it is resynced, and asks no more"
        lists.refused = "/api/v1/namespaces/ns/pods"
        with pytest.raises(Refused):
            await app._api.create(lists.refused, {})
        await until(lists, lambda: lists.reviews == 14)


class Kinds(Namespaces):
    """Serves the jobs; answers nothing about those of one namespace before it is asked about all of them."""

    def __init__(self, namespaces: int) -> None:
        super().__init__()
        self.all = asyncio.Barrier(namespaces)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in self.broken:
            return await super().handle(request)
        if request.path == "/apis":
            return web.json_response({"groups": [{"name": "dtj.dev"}]})
        if request.path == "/apis/dtj.dev/v1alpha1":
            return web.json_response({"resources": [{"name": "distributedtrainingjobs"}]})
        if request.path.endswith("/distributedtrainingjobs"):
            if "watch" in request.query:
                return web.json_response({})
            await self.all.wait()
        return await super().handle(request)


async def test_operator_is_ready_once_it_may_read_the_jobs_of_all_namespaces() -> None:
    lists = Kinds(namespaces=2)
    lists.broken.add(LEASE)
    async with asyncio.timeout(60):
        async with running(lists, "--namespace=a,b", "--lease-namespace=default", watched=False) as app:
            assert app._readiness_problem() == "caches not filled yet: distributedtrainingjobs"
            await app.until_served()
            while app._readiness_problem() is not None:  # noqa: ASYNC110 - the other caches are filled too
                await asyncio.sleep(0.01)


async def test_operator_that_cannot_reach_the_api_server_says_so_in_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """kopf would log the traceback of each attempt."""
    monkeypatch.setattr(api, "FIRST_CALL_RETRY_S", 0.0)
    monkeypatch.setattr("dtj_operator.app.UNSERVED_PAUSE_S", 0.01)
    lists = Kinds(namespaces=1)
    lists.broken.add("/apis")
    async with running(lists, "--namespace=a", "--lease-namespace=default", watched=False) as app:
        waiting = asyncio.create_task(app.until_served())
        await until(lists, lambda: "cannot reach the API server" in str(app._readiness_problem()))
        lists.broken.remove("/apis")
        await waiting
    (line,) = (each for each in caplog.records if each.msg == "cannot watch the jobs; waiting")
    assert "GET /apis" in line.error  # type: ignore[attr-defined]


async def test_lease_is_renewed_beside_watches_of_many_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch holds its connection: nothing may wait for one that a watch has to free first."""
    monkeypatch.setattr(lease, "PERIOD_S", 0.01)
    lists = Namespaces()
    watched = ",".join(f"team-{number}" for number in range(50))
    async with running(lists, f"--namespace={watched}", "--lease-namespace=default"):
        await until(lists, lambda: lists.watches >= 150)
        before = lists.renewals
        await until(lists, lambda: lists.renewals > before)


@pytest.mark.parametrize(
    ("path", "problem"), [(PODS, "caches not filled yet: pods"), (LEASE, "cannot use the Lease")]
)
async def test_readiness_quotes_the_api_server_on_a_missing_right(
    path: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PERIOD_S", 0.01)
    lists = Lists()
    lists.refused = path
    async with running(lists) as app:
        expected = f"{problem}: GET {path}: 403 Forbidden: cannot list"
        async with asyncio.timeout(60):
            while app._readiness_problem() != expected:  # noqa: ASYNC110 - changed by another task
                await asyncio.sleep(0.01)

            lists.refused = ""
            while app._readiness_problem() is not None:  # noqa: ASYNC110 - the same
                await asyncio.sleep(0.01)


async def test_readiness_names_rights_to_write_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtj_operator.app.RIGHTS_PAUSE_S", 0.01)
    lists = Lists()
    lists.denied = {"create pods", "patch distributedtrainingjobs"}
    async with running(lists, "--no-leader-election") as app:
        expected = (
            "the operator may not patch distributedtrainingjobs/status in all namespaces,"
            " create pods in all namespaces: bind the roles of its chart to its ServiceAccount"
        )
        async with asyncio.timeout(60):
            while app._readiness_problem() != expected:  # noqa: ASYNC110 - changed by another task
                await asyncio.sleep(0.01)

            lists.denied = set()
            while app._readiness_problem() is not None:  # noqa: ASYNC110 - the same
                await asyncio.sleep(0.01)


async def test_known_jobs_are_handled_while_the_api_server_cannot_list_the_jobs() -> None:
    """One custom resource that is too deep can keep the API server from listing all of its kind."""
    lists = Lists()
    lists.items[PODS] = [pod("known")]
    lists.broken.add(JOBS)
    async with running(lists, "--no-leader-election"):
        await until(lists, lambda: lists.looked == ["known"])


class OptionalKind(Lists):
    """Serves an optional kind until it is `removed`; the watch of it ends then."""

    def __init__(self, version: str, plural: str) -> None:
        super().__init__()
        self.version, self.plural = f"/apis/{version}", plural
        self.watched, self.removed = asyncio.Event(), asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not request.path.startswith(self.version):
            return await super().handle(request)
        if self.removed.is_set():
            return web.json_response({"reason": "NotFound"}, status=404)
        if "watch" in request.query:
            self.watched.set()
            await self.removed.wait()
            return web.StreamResponse()
        if request.path == self.version:
            return web.json_response({"resources": [{"name": self.plural}]})
        return await super().handle(request)


async def test_optional_kind_that_is_installed_later_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional, "LOOK_S", 0.01)
    lists = OptionalKind(*KUEUE)
    lists.removed.set()
    async with running(lists, "--no-leader-election") as app, asyncio.timeout(60):
        await app._caches.kueue.settled.wait()
        lists.removed.clear()
        await lists.watched.wait()


def leads(lease: str = "default/dtj-operator") -> float | None:
    return REGISTRY.get_sample_value("dtj_leader", {"lease": lease})


async def test_leader_and_follower_say_of_which_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PERIOD_S", 0.01)
    lists = Lists()
    lists.broken.add(LEASE)
    async with running(lists), asyncio.timeout(60):
        assert leads() == 0
        lists.broken.clear()
        while leads() != 1:  # noqa: ASYNC110 - set by another task
            await asyncio.sleep(0.01)

    assert leads() is None, "the next start may need other Leases"


async def test_operator_of_two_namespaces_leads_in_none_before_it_has_both_leases() -> None:
    lists = Lists()
    async with running(lists, "--namespace=a,b") as app:
        app._leases[0]._renewed_at = asyncio.get_running_loop().time()
        assert (leads("a/dtj-operator"), leads("b/dtj-operator")) == (0, 0)


async def test_all_leases_are_released_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be hundreds, and the process is killed 10 s after SIGTERM."""
    both = asyncio.Barrier(2)
    async with asyncio.timeout(60), running(Lists(), "--namespace=a,b") as app:
        for each in app._leases:
            monkeypatch.setattr(each, "release", both.wait)


async def test_operator_that_has_stopped_counts_no_jobs() -> None:
    """Its process may start again as a follower."""
    async with running(Lists()):
        TABLE.saw(Key("ns", "a"), job().snapshot(), {"phase": "Running"})
        assert REGISTRY.get_sample_value("dtj_jobs", {"namespace": "ns", "phase": "Running"}) == 1

    assert REGISTRY.get_sample_value("dtj_jobs", {"namespace": "ns", "phase": "Running"}) is None


class Unlisted(OptionalKind):
    """While `unlisted`, the kind is served and watched, but cannot be listed."""

    unlisted = True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        listed = request.path.startswith(f"{self.version}/") and "watch" not in request.query
        if listed and self.unlisted:
            return web.json_response({"message": "conversion webhook failed"}, status=404)
        return await super().handle(request)


async def test_operator_starts_while_an_optional_kind_cannot_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optional, "FIRST_LISTS_S", 0.01)
    lists = Unlisted(*KUEUE)
    lists.items[PODS] = [pod("known")]
    async with running(lists) as app:
        await until(lists, lambda: "known" in lists.looked)

    assert "conversion webhook failed" in app._caches.kueue.problem


async def test_follower_takes_over_while_an_optional_kind_cannot_be_listed() -> None:
    lists = Unlisted(*KUEUE)
    lists.items[PODS] = [pod("known")]
    lists.unlisted = False
    lists.broken.add(LEASE)
    async with running(lists), asyncio.timeout(60):
        await lists.watched.wait()
        lists.unlisted = True
        lists.broken.clear()
        await until(lists, lambda: "known" in lists.looked)


@pytest.mark.parametrize(
    ("version", "plural"),
    [
        pytest.param("scheduling.k8s.io/v1alpha2", "podgroups", id="Kubernetes was upgraded"),
        pytest.param("kueue.x-k8s.io/v1beta2", "workloads", id="Kueue was uninstalled"),
    ],
)
async def test_operator_starts_again_when_an_optional_kind_is_gone(
    version: str, plural: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exits: asyncio.Queue[int] = asyncio.Queue()
    monkeypatch.setattr(os, "_exit", exits.put_nowait)
    monkeypatch.setattr(optional, "GONE_PAUSE_S", 0.01)
    lists = OptionalKind(version, plural)
    async with running(lists, "--no-leader-election"), asyncio.timeout(60):
        await lists.watched.wait()
        lists.removed.set()
        assert await exits.get() == 1

    assert f"the API server no longer serves {plural} of {version}" in caplog.text


def test_peers_that_may_read_the_agents_of_all_jobs_are_a_json_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert settings.parse(["--agent-readers", '[{"ipBlock": {"cidr": "10.0.0.0/8"}}]'], {}).agent_readers == [
        {"ipBlock": {"cidr": "10.0.0.0/8"}}
    ]
    for wrong in ("{}", '["prometheus"]', "prometheus"):
        with pytest.raises(SystemExit):
            settings.parse(["--agent-readers", wrong], {})
        assert "--agent-readers" in capsys.readouterr().err
