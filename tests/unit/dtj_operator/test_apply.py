"""Requests to the API server for a decision, and results of its answers; over a real socket."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from dtj_operator.apply import APPLY_S, CALLS_IN_FLIGHT, Applied, Applier
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.cache import Cache, PodCache
from dtj_operator.kube.caches import Caches
from dtj_operator.kube.children import NETWORK_POLICY, SERVICE, ChildCache
from dtj_operator.kube.errors import ApiError
from dtj_operator.kube.pod_groups import Gangs, pod_groups_of
from dtj_operator.kube.workloads import WORKLOADS, decode_workload, kueue
from dtj_operator.model.children import Refusal
from dtj_operator.model.names import Key
from dtj_operator.model.views import WorkloadView
from dtj_operator.plan.actions import (
    Action,
    AdoptWorkload,
    Create,
    CreatePod,
    Delete,
    DeleteChild,
    DeletePod,
    UpdateWorkload,
)
from dtj_operator.plan.children.meta import metadata
from dtj_operator.plan.children.networking import network_policy, service
from dtj_operator.plan.children.podgroup import pod_group
from dtj_operator.plan.children.workload import workload, workload_metadata
from dtj_operator.plan.planner import name_conflict
from tests.support.builders import job, pod
from tests.unit.dtj_operator.kube.server import Handler, Server, lacks, refuses, says, serving

param = pytest.param
Json = dict[str, Any]

JOB = job().snapshot().job
KEY = Key(JOB.namespace, JOB.name)
GONE = lacks("pods", "digits-0")
TAKEN = refuses(409, "AlreadyExists")
REMOVED = says({"kind": "Status", "metadata": {}})
QUOTA = refuses(403, "Forbidden", "exceeded quota: small")


def wanted(index: int = 0) -> Json:
    """The parts of a pod's body that applying it needs."""
    meta = metadata(JOB, f"{JOB.name}-{index}")
    labels = {**meta["labels"], "dtj.dev/replica-index": str(index), "dtj.dev/attempt": "0"}
    return {"metadata": {**meta, "labels": labels}, "spec": {}}


def making(body: Json) -> CreatePod:
    return CreatePod(lambda: body)


def stored(body: Json, uid: str = "u", **meta: Any) -> Json:
    raw: Json = json.loads(json.dumps(body))
    return {**raw, "metadata": {**raw["metadata"], "uid": uid, "resourceVersion": "7", **meta}}


def reason_of(outcome: Applied) -> str | None:
    return outcome.refusal.reason if outcome.refusal else None


def owned_before() -> Json:
    """Metadata of an object of a deleted job that had the same name."""
    (owner,) = metadata(JOB, "digits")["ownerReferences"]
    return {"ownerReferences": [{**owner, "uid": "earlier"}]}


def foreign(body: Json) -> Json:
    return stored(body, ownerReferences=[])


class Doing:
    """An applier, its caches and its API server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.api = Api(server.config, Bucket(1e9), Random(1))
        self.again: list[Key] = []  # jobs that are reconciled because a pod or a Workload changed
        self.pods = PodCache(lambda key, _soon: self.again.append(key), clock=time.monotonic)
        self.reported: list[Key] = []  # changes of Services that trigger a reconcile
        self.services = ChildCache(SERVICE, self.reported.append)
        self.policies = ChildCache(NETWORK_POLICY, lambda _: None)
        self.gangs = Gangs(time.monotonic)
        self.gangs.api_version = "scheduling.k8s.io/v1beta1"
        self.pod_groups = Cache(pod_groups_of("scheduling.k8s.io/v1beta1"))
        self.workloads = Cache(WORKLOADS, self.again.append)
        caches = Caches(
            pods=self.pods,
            services=self.services,
            policies=self.policies,
            pod_groups=self.pod_groups,
            gangs=self.gangs,
            workloads=self.workloads,
            kueue=kueue(),
        )
        self.now = 100.0
        self._applier = Applier(self.api, caches, lambda: self.now)

    async def __call__(self, *actions: Action, key: Key = KEY) -> Applied:
        return await self._applier.apply(key, JOB.uid, actions)

    def asked(self) -> list[str]:
        """The requests, as `METHOD last-part-of-the-path`."""
        return [f"{method} {path.rpartition('/')[2]}" for method, path, _, _ in self.server.asked]


@asynccontextmanager
async def doing(*script: Handler) -> AsyncIterator[Doing]:
    async with serving(*script) as server:
        done = Doing(server)
        yield done
        await done.api.close()


async def test_created_pod_is_in_the_cache_before_its_watch_event() -> None:
    async with doing(says(stored(wanted()))) as do:
        assert await do(making(wanted())) == Applied()
        assert [view.name for view in do.pods.of(KEY)] == ["digits-0"]


async def test_only_pods_are_created_with_strict_validation_because_only_they_have_fields_of_the_user() -> (
    None
):
    async with doing(says(stored(service(JOB))), says(stored(wanted()))) as do:
        await do(Create(service(JOB)), making(wanted()))

        queries = [query for _, _, query, _ in do.server.asked]
        assert queries == [{}, {"fieldValidation": "Strict"}]


@pytest.mark.parametrize(
    ("actions", "answer"),
    [
        param([making(wanted(index)) for index in range(9)], says(stored(wanted())), id="creates"),
        param([DeletePod(pod(index).pod) for index in range(99)], REMOVED, id="deletions"),
        param(
            [*(DeletePod(pod(index).pod) for index in range(99)), Create(service(JOB))],
            REMOVED,
            id="a Service after deletions",
        ),
    ],
)
async def test_calls_end_after_a_minute_and_the_next_reconcile_does_the_rest(
    actions: list[Action], answer: Handler
) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        do.now += APPLY_S
        return await answer(request)

    async with doing(*[answer] * 3, *[slow] * 99) as do:
        assert await do(*actions) == Applied(unfinished=True)
        assert 3 < len(do.server.asked) < len(actions)
        assert "POST services" not in do.asked()


async def test_used_up_quota_costs_one_request() -> None:
    async with doing(QUOTA) as do:
        outcome = await do(*[making(wanted(index)) for index in range(100)])

    assert (reason_of(outcome), len(do.server.asked)) == ("QuotaExceeded", 1)


async def test_creates_grow_in_parallel_and_a_slow_one_does_not_delay_the_rest() -> None:
    others, in_flight, seen = asyncio.Event(), 0, [0]

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal in_flight
        in_flight += 1
        number = len(do.server.asked)
        seen.append(in_flight)
        if number == 2:
            await others.wait()
        in_flight -= 1
        if number == 100:
            others.set()
        return await says(stored(wanted(number), f"u{number}"))(request)

    async with doing(*[answer] * 100) as do:
        async with asyncio.timeout(60):
            assert await do(*[making(wanted(index)) for index in range(100)]) == Applied()

    assert seen[1] == 1, "the first create is alone"
    assert max(seen) <= CALLS_IN_FLIGHT / 2


async def test_slow_webhook_of_a_namespace_delays_no_other_namespace() -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "elsewhere" not in request.path:
            if len(do.server.asked) == CALLS_IN_FLIGHT / 2:
                begun.set()
            await done.wait()
        return await REMOVED(request)

    async with doing(*[answer] * 2 * CALLS_IN_FLIGHT) as do, asyncio.timeout(10):
        many = [DeletePod(pod(index).pod) for index in range(CALLS_IN_FLIGHT)]
        waiting = asyncio.create_task(do(*many))
        await begun.wait()
        elsewhere = replace(pod(0).pod, namespace="elsewhere")
        await do(DeletePod(elsewhere), key=Key("elsewhere", JOB.name))
        last = do.server.asked[-1][1]
        done.set()
        assert await waiting == Applied()

    assert last == "/api/v1/namespaces/elsewhere/pods/digits-0"


async def test_pod_that_may_have_been_created_is_unverified() -> None:
    async with doing(refuses(503, Retry_After="60")) as do:
        with pytest.raises(ApiError):
            await do(making(wanted(0)))

        assert do.pods.unverified.of(KEY) == ("digits-0",)


async def test_creation_stops_at_a_refusal() -> None:
    async with doing(*[says(stored(wanted(), f"u{i}")) for i in range(2)], QUOTA) as do:
        outcome = await do(*[making(wanted(index)) for index in range(3)])

    assert len(do.server.asked) == 3
    assert outcome.refusal == Refusal(reason="QuotaExceeded", message="exceeded quota: small")


async def test_refused_deletion_is_reported_and_no_pod_is_created() -> None:
    async with doing(refuses(403, "Forbidden", "policy: pods stay")) as do:
        outcome = await do(DeletePod(pod(0).pod), making(wanted(1)))

    assert outcome.refusal == Refusal(reason="PodRejected", message="policy: pods stay")
    assert do.asked() == ["DELETE digits-0"]


@pytest.mark.parametrize(
    "labels",
    [
        param({}, id="removed"),
        param({**wanted()["metadata"]["labels"], "dtj.dev/attempt": "x"}, id="changed"),
    ],
)
async def test_new_pod_whose_labels_a_webhook_changed_is_deleted_and_reported(labels: Json) -> None:
    async with doing(says(stored(wanted(), labels=labels)), REMOVED) as do:
        outcome = await do(making(wanted()))

    refusal = outcome.refusal
    assert refusal is not None
    assert (refusal.reason, "new pods such as digits-0" in refusal.message) == ("PodRejected", True)
    assert do.asked() == ["POST pods", "DELETE digits-0"]
    assert (do.pods.of(KEY), do.again) == ((), []), "it is tried again after the back-off, not at once"


async def test_unknown_priority_class_is_reported_with_the_fix() -> None:
    said = 'pods "digits-0" is forbidden: no PriorityClass with name urgent was found'
    async with doing(refuses(403, "Forbidden", said)) as do:
        outcome = await do(making(wanted()))

    refusal = outcome.refusal
    assert refusal is not None
    assert refusal.reason == "PodRejected"
    assert refusal.message.startswith(f"{said}; create that class")


@pytest.mark.parametrize(
    ("found", "blocked", "reason"),
    [
        param(stored(wanted()), False, None, id="ours: the answer to our create was lost"),
        param(
            stored(wanted(), deletionTimestamp="2026-01-01T00:00:00Z"), True, None, id="ours, being deleted"
        ),
        param(
            stored(wanted(), labels={**wanted()["metadata"]["labels"], "dtj.dev/attempt": "3"}),
            True,
            None,
            id="ours, of another attempt",
        ),
        param(stored(wanted(), labels={}), True, None, id="ours, without its labels"),
        param(foreign(wanted()), False, "NameConflict", id="of another owner"),
    ],
)
async def test_pod_name_already_in_use(found: Json, blocked: bool, reason: str | None) -> None:
    async with doing(TAKEN, says(found)) as do:
        outcome = await do(making(wanted()))

    assert outcome.blocked == blocked
    assert reason_of(outcome) == reason
    assert do.asked() == ["POST pods", "GET digits-0"], "nothing was deleted"


@pytest.mark.parametrize(("grace_s", "logged"), [(0, ["ForceDelete"]), (5, []), (None, [])])
async def test_only_a_forced_deletion_of_a_pod_is_logged(
    grace_s: int | None, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dtj_operator.apply")
    async with doing(says(stored(wanted(1)))) as do:
        await do(DeletePod(pod(1).pod, grace_s))
    assert [vars(record)["decision"] for record in caplog.records] == logged
    assert [vars(record)["replica"] for record in caplog.records] == [1] * len(logged)


async def test_deletion_of_a_pod_carries_its_uid() -> None:
    gone = {**stored(wanted(), deletionTimestamp="2026-01-01T00:00:00Z")}
    async with doing(says(gone)) as do:
        await do(DeletePod(pod(0).pod, 5))

    (_, _, _, body) = do.server.asked[0]
    assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": pod(0).pod.uid}, 5)


@pytest.mark.parametrize(
    ("answer", "unchanged", "blocked"),
    [
        param(GONE, False, False, id="already gone"),
        param(TAKEN, False, False, id="a newer pod has the name"),
        param(TAKEN, True, True, id="changed, to be deleted only if unchanged"),
    ],
)
async def test_deletion_of_a_pod_that_has_changed(answer: Handler, unchanged: bool, blocked: bool) -> None:
    view = msgspec.structs.replace(pod(0).pod, version="5", uid="old")
    async with doing(answer) as do:
        do.pods.observe(view)
        outcome = await do(DeletePod(view, unchanged=unchanged))

    assert outcome.blocked == blocked
    assert bool(do.pods.of(view.key)) == blocked
    assert do.server.asked[0][3]["preconditions"].get("resourceVersion") == ("5" if unchanged else None)


DELETED = {"deleting": True, "version": "9"}


@pytest.mark.parametrize(
    ("reported", "requests", "blocked"),
    [
        param(DELETED, 0, False, id="it terminates"),
        param({**DELETED, "removed": True}, 0, False, id="it is gone"),
        param({"owner_uid": "", "version": "9"}, 0, True, id="it has no owner now"),
        param({"version": "9"}, 1, False, id="it is the same pod in another state"),
    ],
)
async def test_pod_that_another_deletes_first_costs_no_request(
    reported: Json, requests: int, blocked: bool
) -> None:
    """The garbage collector deletes the pods of a large job while the operator is busy deleting them."""
    view = msgspec.structs.replace(pod(0).pod, version="5", uid="u0")
    newer = msgspec.structs.replace(view, **reported)

    async with doing(GONE) as do:
        do.pods.observe(view)
        if newer.removed:
            do.pods.remove_from_watch(newer)
        else:
            do.pods.observe(newer)
        outcome = await do(DeletePod(view, unchanged=True))

    assert (len(do.server.asked), outcome.blocked) == (requests, blocked)
    assert [body["preconditions"]["resourceVersion"] for *_, body in do.server.asked] == ["9"] * requests


async def test_deletion_of_a_pod_that_may_only_have_lost_its_label_is_asked_for() -> None:
    view = msgspec.structs.replace(pod(0).pod, version="5", uid="u0")
    async with doing(GONE) as do:
        do.pods.observe(view)
        do.pods.remove_from_watch(msgspec.structs.replace(view, version="9"))
        await do(DeletePod(view))

    assert do.asked() == ["DELETE digits-0"]


@pytest.mark.parametrize(
    "watch_first", [param(True, id="the watch is first"), param(False, id="the answer is first")]
)
async def test_pod_that_its_kubelet_removed_during_the_deletion_is_gone(watch_first: bool) -> None:
    """The API server then answers with the object that it was about to write, which has no version."""
    view = msgspec.structs.replace(pod(0).pod, version="5", uid="old")
    left = stored(wanted(), "old", deletionTimestamp="2026-01-01T00:00:00Z", resourceVersion="")

    async def answer(request: web.Request) -> web.StreamResponse:
        if watch_first:
            do.pods.remove(msgspec.structs.replace(view, version="9"))
        return await says(left)(request)

    async with doing(answer) as do:
        do.pods.observe(view)
        outcome = await do(DeletePod(view, 5))

    assert (outcome, do.pods.of(view.key)) == (Applied(), ())


EDIT: Json = {"selector": {"a": "b"}}


async def test_edit_of_a_service_is_reverted_in_place(caplog: pytest.LogCaptureFixture) -> None:
    wanted = service(JOB)
    edited = stored(wanted, labels={"theirs": "kept"}, annotations={"theirs": "kept"}) | {"spec": EDIT}
    edited["metadata"]["managedFields"] = [{"manager": "mesh", "time": "2026-01-01T00:00:00Z"}]
    restored = stored(wanted, resourceVersion="8")
    async with doing(TAKEN, says(edited), says(edited), says(restored)) as do:
        assert await do(Create(wanted)) == Applied()

        assert do.asked()[-1] == "PUT digits"
        put = do.server.asked[-1][3]
        assert (put["spec"], put["metadata"]["resourceVersion"]) == (wanted["spec"], "7")
        assert put["metadata"]["labels"] == {"theirs": "kept", **wanted["metadata"]["labels"]}
        assert put["metadata"]["annotations"] == {"theirs": "kept"}
        assert vars(caplog.records[-1])["written_by"] == "mesh"
        view = do.services.get(KEY)
        assert view is not None
        assert view.version == "8"
        assert do.services.reverted_at == {KEY: 100.0}


async def test_service_whose_edit_cannot_be_reverted_is_deleted_so_that_the_next_reconcile_creates_it() -> (
    None
):
    edited = stored(service(JOB)) | {"spec": {"clusterIP": "10.0.0.7"}}
    async with doing(TAKEN, says(edited), says(edited), refuses(422, "Invalid"), REMOVED) as do:
        assert await do(Create(service(JOB))) == Applied(blocked=True)

        assert do.asked()[-2:] == ["PUT digits", "DELETE digits"]
        assert do.server.asked[-1][3]["preconditions"] == {"uid": "u"}
        assert do.services.get(KEY) is None
        assert do.services.reverted_at == {KEY: 100.0}


@pytest.mark.parametrize(
    ("status", "blocked"), [param(403, False, id="webhook"), param(409, True, id="raced")]
)
async def test_edited_service_is_not_deleted_if_its_update_fails(status: int, blocked: bool) -> None:
    edited = stored(service(JOB)) | {"spec": EDIT}
    async with doing(TAKEN, says(edited), says(edited), refuses(status, "No")) as do:
        outcome = await do(Create(service(JOB)))

    assert (outcome.blocked, bool(outcome.refusal)) == (blocked, not blocked)
    assert do.asked()[-1] == "PUT digits"


INVALID = refuses(422, "Invalid", "spec.ingress[1].from[0].ipBlock.cidr: Invalid value: 10.0.0.7")


@pytest.mark.parametrize(
    ("known", "creates_pods"),
    [
        param({}, True, id="the old one is in place"),
        param({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False, id="it is being deleted"),
        param(owned_before(), False, id="it is that of an earlier job"),
        param(None, False, id="there is none"),
    ],
)
async def test_pods_are_created_beside_the_old_policy_if_its_change_is_refused(
    known: Json | None, creates_pods: bool
) -> None:
    policy = network_policy(JOB, ())
    async with doing(INVALID, says(stored(wanted()))) as do:
        if known is not None:
            do.policies.observe(NETWORK_POLICY.source.decode(json.dumps(stored(policy, **known)).encode()))
        outcome = await do(Create(policy), making(wanted()))

    assert outcome.refusal is not None
    assert "Invalid value: 10.0.0.7" in outcome.refusal.message
    assert do.asked() == ["POST networkpolicies", *["POST pods"] * creates_pods]


async def test_refused_pod_is_reported_before_a_refused_change_of_the_policy() -> None:
    policy = network_policy(JOB, ())
    async with doing(INVALID, QUOTA) as do:
        do.policies.observe(NETWORK_POLICY.source.decode(json.dumps(stored(policy)).encode()))
        outcome = await do(Create(policy), making(wanted()))

    assert reason_of(outcome) == "QuotaExceeded"


async def test_unedited_service_of_ours_counts_as_created() -> None:
    async with doing(TAKEN, says(stored(service(JOB)))) as do:
        assert await do(Create(service(JOB))) == Applied()
        assert not do.services.reverted_at


async def test_service_of_an_earlier_job_is_deleted_so_that_the_next_reconcile_creates_ours() -> None:
    old = stored(service(JOB), **owned_before())
    async with doing(TAKEN, says(old), REMOVED) as do:
        assert await do(Create(service(JOB))) == Applied(blocked=True)
        assert do.asked() == ["POST services", "GET digits", "DELETE digits"]


async def test_pod_waits_for_service_and_network_policy_which_do_not_wait_for_each_other() -> None:
    policy = network_policy(JOB, ())
    both = asyncio.Barrier(2)

    async def create(request: web.Request) -> web.StreamResponse:
        await both.wait()
        return await says(stored(await request.json()))(request)

    async with doing(create, create, says(stored(wanted()))) as do, asyncio.timeout(60):
        await do(making(wanted()), Create(service(JOB)), Create(policy))

    assert sorted(do.asked()[:2]) == ["POST networkpolicies", "POST services"]
    assert do.asked()[2:] == ["POST pods"]


async def test_children_of_a_deleted_job_are_deleted_at_the_same_time() -> None:
    view = SERVICE.source.decode(json.dumps(stored(service(JOB))).encode())
    both = asyncio.Barrier(2)

    async def delete(request: web.Request) -> web.StreamResponse:
        await both.wait()
        return await REMOVED(request)

    async with doing(delete, delete) as do, asyncio.timeout(60):
        do.services.observe(view)
        await do(DeletePod(pod(0).pod, unchanged=True), DeleteChild("Service", view.uid))

    assert sorted(do.asked()) == ["DELETE digits", "DELETE digits-0"]


async def test_own_deletion_of_a_service_triggers_no_reconcile() -> None:
    view = SERVICE.source.decode(json.dumps(stored(service(JOB))).encode())
    async with doing(REMOVED) as do:
        do.services.observe(view, quiet=True)
        await do(DeleteChild("Service", view.uid))

        assert (do.services.get(KEY), do.reported) == (None, [])


async def test_service_of_another_owner_prevents_pods() -> None:
    async with doing(TAKEN, says(foreign(service(JOB)))) as do:
        outcome = await do(Create(service(JOB)), making(wanted()))

    assert reason_of(outcome) == "NameConflict"
    assert do.asked() == ["POST services", "GET digits"], "nothing was deleted, no pod was created"


async def test_service_that_is_being_deleted_delays_pods() -> None:
    going = stored(service(JOB), deletionTimestamp="2026-01-01T00:00:00Z")
    async with doing(TAKEN, says(going), TAKEN) as do:
        outcome = await do(Create(service(JOB)), making(wanted()))

    assert outcome == Applied(blocked=True)


async def test_leftover_of_a_job_is_deleted_only_if_unchanged() -> None:
    view = SERVICE.source.decode(json.dumps(stored(service(JOB))).encode())
    async with doing(TAKEN) as do:
        do.services.observe(view)
        assert await do(DeleteChild("Service", "u")) == Applied(blocked=True)
        assert do.server.asked[0][3]["preconditions"] == {"uid": "u", "resourceVersion": "7"}

        assert await do(DeleteChild("Service", "another")) == Applied()
        assert len(do.server.asked) == 1, "an object with another uid is not in the cache"


async def test_failure_is_raised_after_all_calls_have_ended() -> None:
    """Otherwise calls would still be in flight during the next reconcile of the job."""
    slow = asyncio.Event()

    async def late(request: Any) -> Any:
        slow.set()
        return await says(stored(wanted(2), "u2"))(request)

    script = [says(stored(wanted(0), "u0")), refuses(418), late]
    async with doing(*script) as do:
        with pytest.raises(ApiError):
            await do(*[making(wanted(index)) for index in range(3)])
        assert slow.is_set()
        assert len(do.pods.of(KEY)) == 2


GROUP = pod_group(JOB, 0, "scheduling.k8s.io/v1beta1")


async def test_pod_that_loses_its_group_on_the_way_shows_that_its_namespace_has_no_gangs() -> None:
    """The API server serves PodGroups, but its feature gate for pods is off, or a webhook drops the field."""
    asked = {**wanted(), "spec": {"schedulingGroup": {"podGroupName": "digits-0"}}}
    older = [refuses(409), says(stored(wanted()))]  # created before PodGroups were served
    async with doing(says(stored(asked)), *older, says(stored(wanted()))) as do:
        for _ in range(2):
            assert await do(making(asked)) == Applied()
            assert not do.gangs.off(KEY.namespace)

        assert await do(making(asked)) == Applied()
        assert "GenericWorkload" in do.gangs.off(KEY.namespace)
        assert not do.gangs.off("other")


@pytest.mark.parametrize(
    ("found", "expected", "requests"),
    [
        param([], Applied(), ["POST podgroups"], id="new"),
        param(
            [TAKEN, says(stored(GROUP))], Applied(), ["POST podgroups", "GET digits-0"], id="already there"
        ),
        param(
            [TAKEN, says(stored(GROUP, ownerReferences=[]))],
            Applied(refusal=name_conflict("PodGroup", "digits-0")),
            ["POST podgroups", "GET digits-0"],
            id="of another controller",
        ),
        param(
            [TAKEN, says(stored(pod_group(job().named("digits").job(), 0, "v"), **owned_before())), REMOVED],
            Applied(blocked=True),
            ["POST podgroups", "GET digits-0", "DELETE digits-0"],
            id="of an earlier job of this name",
        ),
    ],
)
async def test_pod_group_of_the_attempt(found: list[Handler], expected: Applied, requests: list[str]) -> None:
    async with doing(*(found or [says(stored(GROUP))])) as do:
        assert await do(Create(GROUP)) == expected
        assert do.asked() == requests


async def test_pod_group_is_remembered_until_the_last_of_its_pods_has_ended() -> None:
    leaving = stored(GROUP, deletionTimestamp="2026-01-01T00:00:00Z", resourceVersion="8")
    async with doing(says(stored(GROUP)), says(leaving), REMOVED) as do:
        await do(Create(GROUP))
        (group,) = do.pod_groups.of(KEY)
        await do(Delete(group))
        (group,) = do.pod_groups.of(KEY)
        assert group.deleting

        await do(Delete(group))
        assert not do.pod_groups.of(KEY)


QUEUED = job().labelled(queue_name="gpus").job()
assert QUEUED.queue is not None
WORKLOAD = workload(QUEUED, QUEUED.queue, None)
READY = {"type": "PodsReady", "status": "True", "reason": "Started", "message": "", "lastTransitionTime": "t"}


async def test_workload_is_remembered_until_it_is_gone() -> None:
    async with doing(says(stored(WORKLOAD)), REMOVED) as do:
        assert await do(Create(WORKLOAD)) == Applied()
        (found,) = do.workloads.of(KEY)

        await do(Delete(found))
        assert not do.workloads.of(KEY)


@pytest.mark.parametrize(
    ("answers", "expected", "requests"),
    [
        param([says(stored(WORKLOAD)), says(stored(WORKLOAD))], Applied(), ["GET", "PATCH"], id="as known"),
        param(
            [says(stored(WORKLOAD, uid="another"))], Applied(blocked=True), ["GET"], id="another of its name"
        ),
        param(
            [says(stored(WORKLOAD)), TAKEN], Applied(blocked=True), ["GET", "PATCH"], id="changed meanwhile"
        ),
        param([lacks("workloads", WORKLOAD["metadata"]["name"])], Applied(blocked=True), ["GET"], id="gone"),
    ],
)
async def test_condition_is_set_only_on_the_workload_that_the_decision_was_about(
    answers: list[Handler], expected: Applied, requests: list[str]
) -> None:
    known = decode_workload(json.dumps(stored(WORKLOAD)).encode())
    async with doing(*answers) as do:
        assert await do(UpdateWorkload(known, (READY,))) == expected
        assert [method for method, _, _, _ in do.server.asked] == requests


@pytest.mark.parametrize(
    ("action", "answers"),
    [
        param(
            lambda known: AdoptWorkload(known, workload_metadata(JOB, known.name)),
            [says(stored(WORKLOAD)), says(stored(WORKLOAD, resourceVersion="8"))],
            id="adopted, and admitted before",
        ),
        param(
            lambda known: UpdateWorkload(known, (READY,)),
            [says(stored(WORKLOAD)), says(stored(WORKLOAD, resourceVersion="8"))],
            id="changed, and evicted meanwhile",
        ),
        param(
            lambda _: Create(WORKLOAD),
            [TAKEN, says(stored(WORKLOAD))],
            id="created before, and admitted meanwhile",
        ),
    ],
)
async def test_what_kueue_wrote_meanwhile_is_acted_on_although_the_watch_reports_it_late(
    action: Callable[[WorkloadView], Action], answers: list[Handler]
) -> None:
    known = decode_workload(json.dumps(stored(WORKLOAD)).encode())
    async with doing(*answers) as do:
        await do(action(known))
        (answer,) = do.workloads.of(KEY)
        do.workloads.observe(answer)  # the event of the watch says nothing new

        assert do.again == [KEY]


async def test_state_of_a_pod_that_exists_already_is_acted_on_although_the_watch_reports_it_late() -> None:
    """The answer to an earlier create was lost, and the pod may have failed since."""
    async with doing(TAKEN, says(stored(wanted()))) as do:
        await do(making(wanted()))
        (found,) = do.pods.of(KEY)
        do.pods.observe(found)  # the event of the watch says nothing new

        assert do.again == [KEY]


async def test_answer_to_a_create_is_not_acted_on() -> None:
    async with doing(says(stored(WORKLOAD))) as do:
        await do(Create(WORKLOAD))

        assert not do.again
