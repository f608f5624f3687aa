"""Carries out actions with calls to the API server.

Creates start slowly, a 409 on an object of our own counts as success, deletes carry the uid, and answers go
into the cache. A request that the API server refuses becomes a `Refusal` with the server's message, for the
status. An error that may be retried is raised.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dtj_operator.engine.shares import Shares
from dtj_operator.kube import paths
from dtj_operator.kube.api import Api, Query, decode
from dtj_operator.kube.cache import Cache
from dtj_operator.kube.caches import Caches
from dtj_operator.kube.children import ChildCache, ChildView
from dtj_operator.kube.errors import ApiError, Conflict, NotFound, Refused, Unavailable
from dtj_operator.kube.workloads import decode_workload
from dtj_operator.model import names
from dtj_operator.model.children import QUOTA_EXCEEDED, Refusal
from dtj_operator.model.json import Json
from dtj_operator.model.names import Key
from dtj_operator.model.views import ObjectView, PodGroupView, PodView
from dtj_operator.plan.actions import (
    Action,
    AdoptWorkload,
    Create,
    CreatePod,
    Delete,
    DeleteChild,
    DeleteJob,
    DeletePod,
    UpdateWorkload,
)
from dtj_operator.plan.children.networking import writer_of
from dtj_operator.plan.children.workload import status_change
from dtj_operator.plan.node_loss import FORCED_GRACE_S
from dtj_operator.plan.planner import name_conflict

_log = logging.getLogger(__name__)

CALLS_IN_FLIGHT = 64  # of all namespaces; half for one: more calls would only queue up in the API server
NO_CLASS = "no PriorityClass with name"  # in the API server's message
RELABELLED = (
    "a webhook changes the labels dtj.dev/* or the owner of new pods such as {}; exclude pods of jobs from it"
)
NO_CLASS_FIX = "create that class, or delete the job and create it with another priorityClassName"
APPLY_S = 60.0  # a large job needs longer under a low rate limit; its status is written in between


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The result of the actions.

    refusal     what the API server refused first
    blocked     an old object has to be deleted first
    unfinished  there was no time for all of them: the next reconcile continues
    """

    refusal: Refusal | None = None
    blocked: bool = False
    unfinished: bool = False


@dataclass(frozen=True)
class _Kept:
    """Why the API server refuses a change of a Service or NetworkPolicy that stays as it is."""

    refusal: Refusal


class Applier:
    def __init__(self, api: Api, caches: Caches, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._caches, self._pods, self._clock = api, caches, caches.pods, clock
        self._in_flight: Shares[str] = Shares(CALLS_IN_FLIGHT)  # by namespace: a webhook may be slow
        self._kinds: dict[str, Cache[Any]] = {
            "Pod": caches.pods,
            "PodGroup": caches.pod_groups,
            "Workload": caches.workloads,
            **{cache.kind.kind: cache for cache in caches.children},
        }

    async def apply(self, key: Key, uid: str, actions: Sequence[Action]) -> Applied:
        """Carry out all actions; stop creating pods at the first refusal.

        Every write waits for the API server's disk, so everything else is done at once. Pods are created
        last, so that none runs without its NetworkPolicy. If only a change of it is refused, pods are created
        beside the old one: else no lost pod would be replaced. No call is begun after APPLY_S seconds.

        uid   of the job, if it exists: the objects that it controls are ours
        """
        creates = [a for a in actions if isinstance(a, CreatePod)]
        others = [a for a in actions if not isinstance(a, CreatePod)]
        until = self._clock() + APPLY_S
        try:
            results = await self._act_on_all(key, uid, others, until)
            if None in results:
                return Applied(unfinished=True)
            refusal = next((result for result in results if isinstance(result, Refusal)), None)
            if refusal or False in results:
                return Applied(refusal=refusal, blocked=refusal is None)
            made = await self._create_pods(key.namespace, creates, uid, until)
            kept = (result.refusal for result in results if isinstance(result, _Kept))
            return replace(made, refusal=made.refusal or next(kept, None))
        except Refused as error:
            return Applied(refusal=refusal_of(error))

    async def _create_pods(
        self, namespace: str, creates: Sequence[CreatePod], uid: str, until: float
    ) -> Applied:
        """Start with one create in flight and allow one more after each success.

        So a used-up quota refuses one request, not all of them. If a create is refused or fails, those in
        flight still finish.
        """
        left, in_flight = iter(creates), 1
        failures: list[ApiError] = []
        refusal: Refusal | None = None
        blocked = False

        async def create() -> None:
            nonlocal blocked, in_flight, refusal
            while not (refusal or failures or self._clock() >= until):
                action = next(left, None)
                if action is None:
                    return
                try:
                    async with self._in_flight.hold(namespace):
                        result = await self._create_pod(action.body, uid)
                except ApiError as error:
                    failures.append(error)
                    return
                if isinstance(result, Refusal):
                    refusal = refusal or result
                    return
                blocked = blocked or not result
                if in_flight < CALLS_IN_FLIGHT:
                    in_flight += 1
                    group.create_task(create())

        async with asyncio.TaskGroup() as group:
            group.create_task(create())
        if failures:
            raise failures[0]
        unfinished = refusal is None and next(left, None) is not None
        return Applied(refusal=refusal, blocked=blocked, unfinished=unfinished)

    async def _act_on_all(
        self, key: Key, uid: str, actions: Iterable[Action], until: float
    ) -> list[Refusal | _Kept | bool | None]:
        """Return what `_act` returns, None if it is too late; raise the first failure once all have ended."""

        async def act(action: Action) -> Refusal | _Kept | bool | None:
            async with self._in_flight.hold(key.namespace):
                return None if self._clock() >= until else await self._act(key, uid, action)

        results = await asyncio.gather(*map(act, actions), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _act(self, key: Key, uid: str, action: Action) -> Refusal | _Kept | bool:
        """Return False if an old object has to be deleted first."""
        match action:
            case DeletePod():
                return await self._delete_pod(action)
            case Create(body):
                try:
                    return await self._create_child(body, uid)
                except Refused as error:
                    if not self._has_child(key, uid, body):
                        raise
                    return _Kept(refusal_of(error))
            case Delete(view):
                await self._delete("PodGroup" if isinstance(view, PodGroupView) else "Workload", view)
            case UpdateWorkload() | AdoptWorkload():
                return await self._change_workload(action)
            case DeleteChild(kind, known):
                found = self._caches.of(kind).get(key)
                if found is not None and (found.uid == known if known else found.owner_uid == uid):
                    return await self._delete(kind, found, unchanged=known is not None)
            case DeleteJob():
                with contextlib.suppress(NotFound, Conflict):
                    await self._api.delete(paths.job(key), uid=uid)
        return True

    async def _create_pod(self, body: Json, uid: str) -> Refusal | bool:
        """Return True if the wanted pod exists now, False if an old pod has its name."""
        meta = body["metadata"]
        labels = meta["labels"]
        try:
            # Otherwise the API server drops a misspelled field of the template, such as a GPU limit.
            made = await self._create("Pod", body, [("fieldValidation", "Strict")])
        except Unavailable:  # the API server may have created it
            self._pods.unverified.add(Key(meta["namespace"], labels[names.JOB_NAME]), meta["name"])
            raise
        if not isinstance(made, tuple):
            return made
        found, existed = made
        usable = found.owner_uid == uid and not found.deleting and not found.mislabelled
        usable = usable and str(found.attempt) == labels[names.ATTEMPT]
        if not existed and not usable:  # else it would be replaced again and again, without a pause
            await self._delete("Pod", found)
            return Refusal(reason="PodRejected", message=RELABELLED.format(meta["name"]))
        if not usable:
            return False
        if "schedulingGroup" in body["spec"] and not existed and not found.pod_group:
            self._caches.gangs.note_dropped(found.namespace)
        return True

    def _has_child(self, key: Key, uid: str, body: Json) -> bool:
        """Whether the job has its own child of this name, edited or not, which stays as it is."""
        named = (view for view in self._kinds[body["kind"]].of(key) if view.name == body["metadata"]["name"])
        return any(view.owner_uid == uid and not view.deleting for view in named)

    async def _create_child(self, body: Json, uid: str) -> Refusal | bool:
        """Create any child but a pod; return False if its name is not free yet.

        An edit of it is reverted; what an earlier job of this name left is deleted.
        """
        made = await self._create(body["kind"], body)
        if not isinstance(made, tuple):
            return made
        found, existed = made
        if found.deleting:
            return False
        if found.owner_uid != uid:
            await self._delete(body["kind"], found)
            return False
        if existed and isinstance(found, ChildView):
            cache = self._caches.of(body["kind"])
            return not cache.kind.is_edited(found, body) or await self._revert(cache, found, body)
        return True

    async def _create(self, name: str, body: Json, query: Query = ()) -> tuple[Any, bool] | Refusal | bool:
        """Return the object, and whether it existed before; False if it was deleted a moment ago.

        It exists if we created it before the operator restarted, or if the answer was lost. Then the job is
        reconciled again: the object may have changed since, and the watch reports nothing known.
        """
        cache, meta = self._kinds[name], body["metadata"]
        folder, decode_one = cache.source.path(meta["namespace"]), cache.source.decode
        try:
            try:
                found, existed = decode_one(await self._api.create(folder, body, query)), False
            except Conflict:
                found, existed = decode_one(await self._api.get(f"{folder}/{meta['name']}")), True
        except NotFound:
            return False
        if not found.owner_uid or found.job != meta["labels"][names.JOB_NAME]:
            return name_conflict(name, meta["name"])
        cache.observe(found, quiet=not existed, found=existed)
        return found, existed

    async def _delete_pod(self, action: DeletePod) -> bool:
        """Return whether it is deleted; False: it has changed and had to be unchanged.

        A deleted job's pods are deleted by the garbage collector too: no call for one that was faster.
        """
        pod = self._pods.latest(action.pod)
        if pod is None or (pod.deleting and not action.pod.deleting):
            return True
        if action.unchanged and pod.owner_uid != action.pod.owner_uid:
            return False
        # Not quiet: the watch may have reported its end already, and does not report it again.
        return await self._delete("Pod", pod, unchanged=action.unchanged, grace_s=action.grace_s, quiet=False)

    async def _delete(
        self,
        name: str,
        view: ObjectView,
        *,
        unchanged: bool = False,
        grace_s: int | None = None,
        quiet: bool = True,
    ) -> bool:
        """Delete an object; return False if it has changed and had to be unchanged.

        quiet   the job need not be reconciled when the object is gone
        """
        cache, left = self._kinds[name], None
        path = f"{cache.source.path(view.namespace)}/{view.name}"
        version = view.version if unchanged else None
        try:
            answer = await self._api.delete(path, uid=view.uid, version=version, grace_s=grace_s)
            left = cache.source.decode(answer)
        except NotFound:
            pass
        except Conflict:  # it has changed, or a newer object has its name
            if unchanged:
                return False
        if left is not None and grace_s == FORCED_GRACE_S and isinstance(view, PodView):
            at = {"attempt": view.attempt, "replica": view.index, "node": view.node}
            _log.info("decided", extra={"decision": "ForceDelete", **at})
        # No version: a kubelet removed its pod between the two steps of this deletion.
        if left is not None and left.uid == view.uid and left.deleting and left.version:
            cache.observe(left, quiet=True)
        else:  # nothing delayed its end, so the API server removed it at once
            cache.remove(view, quiet=quiet)
        return True

    async def _change_workload(self, action: UpdateWorkload | AdoptWorkload) -> bool:
        """Return False if it changed or was deleted meanwhile: then the decision may be another one.

        The job is reconciled again afterwards: the answer may also show what Kueue wrote since the decision,
        and the watch reports nothing that the cache has from here.
        """
        view = action.workload
        path = f"{paths.workloads(view.namespace)}/{view.name}"
        try:
            raw = decode(await self._api.get(path))
            if raw["metadata"]["uid"] != view.uid:
                return False
            version = {"resourceVersion": raw["metadata"]["resourceVersion"]}
            if isinstance(action, AdoptWorkload):
                meta = action.metadata
                owned: Json = {"labels": meta["labels"], "ownerReferences": meta["ownerReferences"]}
                answer = await self._api.patch(path, {"metadata": owned | version})
            else:
                changes = status_change(raw, action.conditions, releases=action.releases)
                answer = await self._api.patch(f"{path}/status", {"metadata": version, "status": changes})
        except (Conflict, NotFound):
            return False
        self._caches.workloads.observe(decode_workload(answer), found=True)
        return True

    async def _revert(self, cache: ChildCache, found: ChildView, body: Json) -> bool:
        """Restore spec and labels in place: if the NetworkPolicy were deleted first, every pod could connect.

        Labels and annotations of others are kept. Returns False if it changed or was deleted a moment ago, or
        if only a new object can have this spec, such as after an edit that gave the Service an IP address.
        """
        path = f"{cache.source.path(found.namespace)}/{found.name}"
        try:
            raw = decode(await self._api.get(path))
            meta = raw["metadata"]
            meta["labels"] = (meta.get("labels") or {}) | body["metadata"]["labels"]
            answer = await self._api.update(path, raw | {"spec": body["spec"]})
        except (Conflict, NotFound):
            return False
        except Refused as error:
            if error.status != 422:
                raise
            await self._delete(cache.kind.kind, found)
            cache.reverted_at[found.key] = self._clock()
            return False
        cache.observe(cache.source.decode(answer), quiet=True)
        cache.reverted_at[found.key] = self._clock()
        fields = {"kind": cache.kind.kind, "written_by": writer_of(raw, body)}
        _log.warning("reverted an edit of a child object", extra=fields)
        return True


def refusal_of(error: Refused) -> Refusal:
    """Return the API server's message with one of the reasons of the condition PodsReady."""
    quota = "exceeded quota" in error.message
    fix = f"; {NO_CLASS_FIX}" if NO_CLASS in error.message else ""
    return Refusal(reason=QUOTA_EXCEEDED if quota else "PodRejected", message=f"{error.message}{fix}")
