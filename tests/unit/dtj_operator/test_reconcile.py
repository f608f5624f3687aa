"""When a job is reconciled again after a reconcile; its status is written over a real socket."""

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from aiohttp import web

from dtj_operator.apply import Applied
from dtj_operator.engine.worker import TryLater
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.jobs import Jobs, TooLargeError
from dtj_operator.model.children import Refusal
from dtj_operator.model.memory import Memory
from dtj_operator.model.names import Key
from dtj_operator.plan.actions import Action, CreatePod, DeletePod
from dtj_operator.plan.snapshot import Gone, Snapshot
from dtj_operator.reconcile import Reconciler
from tests.support.builders import NOW, JobBuilder, at, job, pod
from tests.unit.dtj_operator.kube.server import says, serving

Json = dict[str, Any]

KEY = Key("ns", "j")
DONE = Applied()
RUNNING = job().replicas(2).with_network().running().stored({})
GONE = Gone(now=NOW, monotonic=NOW)


class World:
    """A job as given; no action is refused, no Event is sent, no agent is polled."""

    def __init__(self, snapshot: Snapshot | Gone, outcome: Applied) -> None:
        self.snapshot, self.outcome = snapshot, outcome
        self.written: Json = {}

    async def gather(self, _: Key, __: Json | None) -> tuple[Snapshot, Json] | Gone:
        found = self.snapshot
        return found if isinstance(found, Gone) else (found, {"metadata": {"resourceVersion": "7"}})

    async def apply(self, _: Key, __: str, ___: Sequence[Action]) -> Applied:
        return self.outcome

    def of(self, _: Key) -> object:
        return self.snapshot.pods

    def record(self, *_: object, **__: object) -> None:
        pass

    def stop(self, _: Key) -> None:
        pass

    def forget(self, _: Key) -> None:
        pass

    def may_write(self, _: Key) -> bool:
        return False

    def note_written(self, _: Key, __: object) -> None:
        pass

    async def write_status(self, _: Key, version: str, change: Json) -> Json:
        self.written = change
        return {"metadata": {"resourceVersion": f"{version}0"}}


def jobs_of(api: Api) -> Jobs:
    return Jobs(api, lambda _: None, time.monotonic)


async def again_s(found: JobBuilder, outcome: Applied = DONE) -> float | None:
    """Seconds until the next reconcile, after one that wrote the status."""
    world = World(found.snapshot(), outcome)
    async with serving(says({"metadata": {"resourceVersion": "8"}})) as server:
        api = Api(server.config, Bucket(1e9), Random(0))
        reconcile = Reconciler(
            *(jobs_of(api), world, world, world, world, world),  # type: ignore[arg-type]
            may_act=lambda: True,
        )
        try:
            next_s = await reconcile(KEY)
        finally:
            await api.close()
            assert [method for method, *_ in server.asked] == ["PATCH"]
    return next_s


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "found",
    [
        pytest.param(RUNNING.wants(activeDeadlineSeconds=9), id="the deadline counts from its startTime"),
        pytest.param(RUNNING.elastic(1, 3), id="the size is decided from its wantedReplicas"),
    ],
)
async def test_job_is_reconciled_again_if_decisions_depend_on_its_first_status(found: JobBuilder) -> None:
    """Pods may be faster than the status: then no later event triggers another reconcile."""
    assert await again_s(found) == 0


@pytest.mark.asyncio
async def test_first_status_of_any_other_job_needs_no_second_reconcile() -> None:
    assert await again_s(RUNNING) is None


@pytest.mark.asyncio
async def test_large_job_gets_its_status_between_two_reconciles_that_create_its_pods() -> None:
    assert await again_s(job().replicas(2).with_network(), Applied(unfinished=True)) == 0


@pytest.mark.asyncio
async def test_new_job_gets_a_status_although_an_old_object_has_to_go_first() -> None:
    """It may never go, and then the status says so."""
    with pytest.raises(TryLater, match="old objects of the job still exist"):
        await again_s(job().replicas(2).with_network(), Applied(blocked=True))


class TooLarge(World):
    """A job that is not read."""

    def __init__(self) -> None:
        super().__init__(GONE, DONE)
        self.said: list[Json] = []

    async def gather(self, _: Key, __: Json | None) -> tuple[Snapshot, Json] | Gone:
        raise TooLargeError("the spec has 300 KiB")

    async def uid(self, _: Key) -> str:
        return "u"

    def record(self, *_: object, **said: object) -> None:
        self.said.append(said)


@pytest.mark.asyncio
async def test_job_that_is_too_large_to_be_read_gets_an_event_that_says_so() -> None:
    world = TooLarge()
    with pytest.raises(TryLater):
        await Reconciler(*(world,) * 6, may_act=lambda: True)(KEY)  # type: ignore[arg-type]
    assert [(each["reason"], each["note"]) for each in world.said] == [("TooLarge", "the spec has 300 KiB")]


@pytest.mark.asyncio
@pytest.mark.parametrize("found", [RUNNING.deleted("example.com/audit"), GONE], ids=["being deleted", "gone"])
async def test_refused_deletion_for_a_job_without_a_status_is_logged_and_tried_again(
    found: JobBuilder | Gone, caplog: pytest.LogCaptureFixture
) -> None:
    refused = Applied(refusal=Refusal(reason="PodRejected", message="policy: pods stay"))
    world = World(found if isinstance(found, Gone) else found.snapshot(), refused)
    reconcile = Reconciler(*(world,) * 6, may_act=lambda: True)  # type: ignore[arg-type]

    with pytest.raises(TryLater):
        await reconcile(KEY)
    assert [vars(record)["error"] for record in caplog.records] == ["policy: pods stay"]
    if not isinstance(found, Gone):  # a finalizer keeps it
        assert world.written["phase"] == "Terminating"
        assert world.written["message"] == "the job is being deleted; policy: pods stay"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("found", "said"),
    [
        (RUNNING, "2 pods are still terminating; the grace period is 30 s"),
        (
            job().replicas(2).was("Running"),
            "it has the finalizer example.com/audit, which another controller",
        ),
    ],
)
async def test_job_that_a_finalizer_keeps_says_what_it_waits_for(found: JobBuilder, said: str) -> None:
    world = World(found.deleted("example.com/audit").snapshot(), DONE)
    reconcile = Reconciler(*(world,) * 6, may_act=lambda: True)  # type: ignore[arg-type]

    await reconcile(KEY)
    (ready,) = world.written["conditions"]
    assert (world.written["phase"], ready["status"], ready["reason"]) == (
        "Terminating",
        "False",
        "Terminating",
    )
    assert said in world.written["message"]
    assert ready["message"] == world.written["message"]


@pytest.mark.asyncio
async def test_job_that_had_finished_keeps_its_phase_while_a_finalizer_keeps_it() -> None:
    world = World(job().replicas(2).was("Succeeded").deleted("example.com/audit").snapshot(), DONE)
    assert await Reconciler(*(world,) * 6, may_act=lambda: True)(KEY) is None  # type: ignore[arg-type]
    assert world.written.get("phase", "Succeeded") == "Succeeded"


@pytest.mark.asyncio
async def test_status_of_an_earlier_job_is_replaced() -> None:
    """A backup restored it; nothing of it may stay, since a patch keeps what it does not name."""
    earlier = {"phase": "Running", "attempt": 5, "startTime": at(-9999), "failure": {"reason": "Hang"}}
    snapshot = job().replicas(2).wants(activeDeadlineSeconds=600).with_network().snapshot()
    memory = Memory.of(earlier | {"selector": "of another"}, "uid", is_remote=False)
    world = World(replace(snapshot, memory=memory), DONE)

    await Reconciler(*(world,) * 6, may_act=lambda: True)(KEY)  # type: ignore[arg-type]
    found = {name: world.written[name] for name in earlier}
    assert found == {"phase": "Pending", "attempt": 0, "startTime": at(0), "failure": None}


FAILED = job().replicas(2).with_network().recovery(scope="Replica", backoffSeconds=0).running()
FAILED = FAILED.but(pod(1).crashed())


class Cluster(World):
    """Pods are created and deleted as decided; `did` says in which order.

    lingering  a deleted pod stays Terminating
    """

    def __init__(self, found: JobBuilder, *, lingering: bool = False) -> None:
        super().__init__(found.snapshot(), DONE)
        self.found, self.lingering = found, lingering
        self.did: list[str] = []

    async def gather(self, _: Key, known: Json | None) -> tuple[Snapshot, Json]:
        if known is None:
            self.did.append("read the job")
        raw = known or self.found.raw()
        self.found = self.found.stored(raw["status"])
        return self.found.snapshot(), raw

    async def apply(self, _: Key, __: str, actions: Sequence[Action]) -> Applied:
        pods = {view.uid: view for view in self.found.pods}
        for action in actions:
            match action:
                case DeletePod(gone):
                    self.did.append(f"delete {gone.name}")
                    left = pods.pop(gone.uid)
                    if self.lingering:
                        pods[gone.uid] = replace(pod(left.index), pod=left).deleting().pod
                case CreatePod(body=body):
                    self.did.append(f"create {body['metadata']['name']}")
        self.found = replace(self.found, pods=tuple(pods.values()))
        return DONE

    def of(self, _: Key) -> object:
        return self.found.pods

    async def patch(self, request: web.Request) -> web.Response:
        change = await request.json()
        self.did.append(f"write {change['status']['phase']}")
        self.found = self.found.stored(self.found.status | change["status"])
        return web.json_response(self.found.raw() | {"metadata": {"resourceVersion": "8"}})


async def steps(cluster: Cluster) -> tuple[float | None, list[str]]:
    """Reconcile once; return the seconds until the next reconcile and what was done, in order."""
    async with serving(cluster.patch, cluster.patch) as server:
        api = Api(server.config, Bucket(1e9), Random(0))
        reconcile = Reconciler(
            *(jobs_of(api), cluster, cluster, cluster, cluster, cluster),  # type: ignore[arg-type]
            may_act=lambda: True,
        )
        try:
            return await reconcile(KEY), cluster.did
        finally:
            await api.close()


@pytest.mark.asyncio
async def test_failed_rank_is_replaced_in_one_reconcile_that_reads_the_job_once() -> None:
    """With a thousand jobs each further read of the job and each wait in the queue delays the replacement."""
    _, did = await steps(Cluster(FAILED))
    assert did == ["read the job", "write Recovering", "delete digits-1", "create digits-1"]


@pytest.mark.asyncio
async def test_reconcile_ends_where_a_deleted_pod_still_terminates() -> None:
    again_s, did = await steps(Cluster(FAILED, lingering=True))
    assert did == ["read the job", "write Recovering", "delete digits-1"]
    assert again_s != 0


@pytest.mark.asyncio
async def test_decision_is_logged_once_with_the_replica_at_fault(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dtj_operator.reconcile")
    await steps(Cluster(FAILED))
    decided = [vars(record) for record in caplog.records if record.message == "decided"]
    assert [(each["decision"], each["replica"], each["replaces"]) for each in decided] == [
        ("Replace", 1, [1])
    ]


@pytest.mark.asyncio
async def test_deletion_of_a_finished_job_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dtj_operator.reconcile")
    ended = job().wants(ttlSecondsAfterFinished=30).was("Succeeded", completionTime=at(-30))
    await steps(Cluster(ended))
    assert [vars(record)["decision"] for record in caplog.records] == ["DeleteJob"]
