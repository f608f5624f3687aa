"""Runs actions: slow start, 409 on our own name is success, deletes carry the uid, answers enter the cache.

What the API server refuses becomes a `Refusal` for the status, in its own words; what may be tried again is
raised.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dtj_operator import names
from dtj_operator.gather import Children, left_behind, owned_by
from dtj_operator.kube import views
from dtj_operator.kube.api import Api, Json, decode
from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.errors import Conflict, NotFound, Refused
from dtj_operator.names import Key
from dtj_operator.plan.actions import (
    Action,
    CreateNetworkPolicy,
    CreatePod,
    CreateService,
    DeleteJob,
    DeleteNetworkPolicy,
    DeletePod,
    DeleteService,
)
from dtj_operator.plan.planner import name_conflict
from dtj_operator.plan.snapshot import Child, Refusal

T = TypeVar("T")

AT_ONCE = 32  # calls in flight; more only queue up in the API server


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of the actions: refusals to tell, and whether something must go first."""

    refusals: tuple[Refusal, ...] = ()
    blocked: bool = False


class Applier:
    def __init__(self, api: Api, cache: PodCache, children: Children) -> None:
        self._api, self._cache, self._children = api, cache, children
        self._in_flight = asyncio.Semaphore(AT_ONCE)

    async def apply(self, key: Key, uid: str, actions: Sequence[Action]) -> Outcome:
        """Do everything, network before pods; stop creating at the first refusal.

        uid   of the job, where it exists: what it controls is ours
        """
        deletes = [a for a in actions if isinstance(a, DeletePod)]
        creates = [a for a in actions if isinstance(a, CreatePod)]
        await self._all(self._delete_pod(action) for action in deletes)
        for action in actions:
            if not isinstance(action, DeletePod | CreatePod):
                refusal = await self._other(key, uid, action)
                if refusal is not None:
                    return Outcome(refusals=(refusal,))
        return await self._create_pods(creates, uid)

    async def _create_pods(self, creates: Sequence[CreatePod], uid: str) -> Outcome:
        """In batches of 1, 2, 4, ...: a quota that is spent is met by one request, not by a thousand."""
        done, size, blocked = 0, 1, False
        while done < len(creates):
            batch = creates[done : done + size]
            results = await self._all(self._create_pod(action.body, uid) for action in batch)
            refusals = [result for result in results if isinstance(result, Refusal)]
            if refusals:
                return Outcome(refusals=(refusals[0],), blocked=blocked)
            blocked = blocked or False in results
            done, size = done + size, size * 2
        return Outcome(blocked=blocked)

    async def _create_pod(self, body: Json, uid: str) -> Refusal | bool:
        """Return True where the pod exists now, False where an old one is in its place."""
        folder = names.pods_path(body["metadata"]["namespace"])
        try:
            raw = await self._api.create(folder, body)
        except Conflict:
            return await self._occupied(f"{folder}/{body['metadata']['name']}", body, uid)
        except Refused as error:
            return refusal_of(error)
        self._cache.observe(views.decode_pod(raw), quiet=True)
        return True

    async def _occupied(self, path: str, body: Json, uid: str) -> Refusal | bool:
        """Who has the name: ourselves, before a restart or a lost answer; an old pod of ours; a stranger?"""
        try:
            found = views.decode_pod(await self._api.get(path))
        except NotFound:
            return False
        labels = body["metadata"]["labels"]
        if not found.owner_uid or found.job != labels[names.JOB_NAME]:
            return name_conflict("Pod", found.name)
        self._cache.observe(found, quiet=True)
        return found.owner_uid == uid and str(found.attempt) == labels[names.ATTEMPT] and not found.deleting

    async def _delete_pod(self, action: DeletePod) -> None:
        pod = action.pod
        path = f"{names.pods_path(pod.namespace)}/{pod.name}"
        version = pod.version if action.unchanged else None
        try:
            raw = await self._api.delete(path, uid=pod.uid, version=version, grace_s=action.grace_s)
        except NotFound:
            self._cache.forget(pod)
            return
        except Conflict:
            if not action.unchanged:  # the name belongs to a younger pod
                self._cache.forget(pod)
            return
        left = views.decode_pod(raw)
        if left.uid == pod.uid and left.deleting:
            self._cache.observe(left, quiet=True)
        else:  # it had ended or never started, and was removed at once
            self._cache.forget(pod)

    async def _other(self, key: Key, uid: str, action: Action) -> Refusal | None:
        services, policies = names.services_path(key.namespace), names.policies_path(key.namespace)
        match action:
            case CreateService(body):
                refusal = await self._create(services, body, uid)
                self._children.learn(key, uid, service=Child.UNKNOWN if refusal else Child.PRESENT)
                return refusal
            case CreateNetworkPolicy(body):
                refusal = await self._create(policies, body, uid)
                self._children.learn(key, uid, policy=Child.UNKNOWN if refusal else Child.PRESENT)
                return refusal
            case DeleteService(known):
                await self._delete(f"{services}/{key.name}", known, uid)
                self._children.learn(key, uid, service=Child.ABSENT)
            case DeleteNetworkPolicy(known):
                await self._delete(f"{policies}/{key.name}", known, uid)
                self._children.learn(key, uid, policy=Child.ABSENT)
            case DeleteJob():
                await self._delete(names.job_path(key), uid, uid)
        return None

    async def _create(self, folder: str, body: Json, uid: str) -> Refusal | None:
        name = body["metadata"]["name"]
        try:
            try:
                await self._api.create(folder, body)
            except Conflict:
                found = decode(await self._api.get(f"{folder}/{name}"))
                if owned_by(found, uid):
                    return None
                # A job deleted and made again at once: what the first one left may be there for a while.
                if (old := left_behind(found, name)) is None:
                    return name_conflict(body["kind"], name)
                await self._delete(f"{folder}/{name}", old, uid)
                await self._api.create(folder, body)
        except Refused as error:
            return refusal_of(error)
        return None

    async def _delete(self, path: str, known: str | None, uid: str) -> None:
        """Delete the object of the known uid, or whichever the job controls; one that is gone is fine."""
        try:
            if known is None:
                found = decode(await self._api.get(path))
                if not owned_by(found, uid):
                    return
                known = found["metadata"]["uid"]
            await self._api.delete(path, uid=known)
        except (NotFound, Conflict):
            return

    async def _all(self, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Run all to their end, a few at a time; the first failure is raised after the last answer."""

        async def bounded(call: Coroutine[Any, Any, T]) -> T:
            async with self._in_flight:
                return await call

        results = await asyncio.gather(*map(bounded, calls), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]


def refusal_of(error: Refused) -> Refusal:
    """The API server's words under one of PodsReady's reasons."""
    reason = "QuotaExceeded" if "exceeded quota" in error.message else "PodRejected"
    return Refusal(reason=reason, message=error.message)
