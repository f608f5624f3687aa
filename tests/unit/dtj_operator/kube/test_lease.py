"""Leader election on fake time: one operator leads, another takes over, none acts on a lost lease."""

import asyncio
import copy
import json
from typing import Any

import pytest

from dtj_operator.kube.errors import ApiError, Conflict, NotFound, Unavailable
from dtj_operator.kube.lease import DURATION_S, PERIOD_S, RENEW_DEADLINE_S, Lease, Lost, acquire_all

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]
Json = dict[str, Any]


class OneLease:
    """A fake API server: one object with optimistic locking, and switches for outages.

    In memory, because fake time does not work with real sockets; tests/integration uses a real API server.
    """

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.version = 0
        self.unreachable = False
        self.hangs = False
        self.takes_s = 0.0
        self.reads = 0

    async def _answer(self) -> None:
        await asyncio.sleep(self.takes_s)
        if self.hangs:
            await asyncio.Event().wait()
        if self.unreachable:
            raise Unavailable("LEASE", 0, "ClientConnectionError", "no route")

    async def get(self, path: str, **_: Any) -> bytes:
        self.reads += 1
        await self._answer()
        if self.lease is None:
            raise NotFound(path, 404, "NotFound", "no lease")
        return _json(self.lease)

    async def create(self, path: str, body: Json) -> bytes:
        await self._answer()
        if self.lease is not None:
            raise Conflict(path, 409, "AlreadyExists", "taken")
        return self._store(body)

    async def update(self, path: str, body: Json, **_: Any) -> bytes:
        await self._answer()
        if self.lease is None or body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict(path, 409, "Conflict", "changed")
        return self._store(body)

    def edit(self, **spec: str) -> None:
        """Change it as another client would."""
        assert self.lease is not None
        self._store({**self.lease, "spec": {**self.lease["spec"], **spec}})

    def _store(self, body: Json) -> bytes:
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return _json(self.lease)

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


def _json(body: Json) -> bytes:
    return json.dumps(body).encode()


def lease(server: OneLease, identity: str) -> Lease:
    return Lease(server, "ops", "dtj", identity, lambda: 1_800_000_000.0 + now())  # type: ignore[arg-type]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_first_operator_leads_at_once() -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()

    assert (server.holder, first.held, now()) == ("a", True, 0)


async def test_second_operator_waits_while_the_first_renews() -> None:
    server = OneLease()
    first, second = lease(server, "a"), lease(server, "b")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000):
            await second.acquire()

    assert (server.holder, second.held, first.held) == ("a", False, True)
    keeping.cancel()


async def test_next_operator_leads_after_the_lease_of_a_dead_leader_expires() -> None:
    server = OneLease()
    await lease(server, "a").acquire()
    await lease(server, "b").acquire()

    assert server.holder == "b"
    assert DURATION_S <= now() <= DURATION_S + 2 * PERIOD_S


async def test_leases_of_many_namespaces_take_no_longer_to_expire_than_one() -> None:
    servers = [OneLease() for _ in range(3)]
    keeping: list[asyncio.Task[None]] = []

    async def lead(identity: str) -> None:
        async for each in acquire_all([lease(server, identity) for server in servers]):
            keeping.append(asyncio.create_task(each.keep()))

    await lead("a")
    follower = asyncio.create_task(lead("b"))
    await asyncio.sleep(50)
    assert {server.holder for server in servers} == {"a"}

    for task in keeping:
        task.cancel()
    died = now()
    await follower

    assert {server.holder for server in servers} == {"b"}
    assert DURATION_S - PERIOD_S <= now() - died <= DURATION_S + 4 * PERIOD_S
    for task in keeping:
        task.cancel()


async def test_follower_reads_only_the_lease_that_it_waits_for_while_its_holder_renews() -> None:
    first, later = OneLease(), OneLease()
    leader = lease(first, "a")
    await leader.acquire()
    keeping = asyncio.create_task(leader.keep())
    following = asyncio.create_task(lease(first, "b").acquire([lease(later, "b")]))
    await asyncio.sleep(100 * PERIOD_S)
    assert later.reads == 0

    keeping.cancel()
    await following
    assert later.reads > 0


async def test_many_leases_that_are_free_are_acquired_in_batches() -> None:
    servers = [OneLease() for _ in range(100)]
    for server in servers:
        server.takes_s = 1.0
    async for each in acquire_all([lease(server, "a") for server in servers]):
        assert each.held

    assert {server.holder for server in servers} == {"a"}
    assert now() < 20


async def test_operator_that_waits_for_a_lease_holds_no_later_one() -> None:
    """Another operator may hold that one, and wait for this."""
    servers = [OneLease() for _ in range(4)]
    theirs = lease(servers[2], "b")
    await theirs.acquire()
    keeping = [asyncio.create_task(theirs.keep())]

    async def lead() -> None:
        async for each in acquire_all([lease(server, "a") for server in servers]):
            keeping.append(asyncio.create_task(each.keep()))

    waiting = asyncio.create_task(lead())
    await asyncio.sleep(1000)
    assert [server.holder for server in servers] == ["a", "a", "b", ""]

    keeping[0].cancel()
    await theirs.release()
    await waiting
    assert {server.holder for server in servers} == {"a"}
    for task in keeping:
        task.cancel()


async def test_lease_is_acquired_while_a_later_one_cannot_be_read() -> None:
    first, later = OneLease(), OneLease()
    await lease(first, "a").acquire()
    later.unreachable = True
    async for each in acquire_all([lease(first, "b"), lease(later, "b")]):
        assert (first.holder, each.held) == ("b", True)
        break


async def test_next_operator_leads_at_once_after_a_release() -> None:
    server = OneLease()
    first, second = lease(server, "a"), lease(server, "b")
    await first.acquire()
    await first.release()
    await second.acquire()

    assert (server.holder, first.held) == ("b", False)
    assert now() <= PERIOD_S


async def test_release_waits_for_a_slow_api_server() -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()
    server.takes_s = 2.0
    await first.release()

    assert server.holder == ""


async def test_release_is_tried_again_after_a_renewal_that_was_still_on_its_way() -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()
    server.takes_s = 1.0
    asyncio.get_running_loop().call_later(1.5, lambda: server.edit(renewTime="late"))  # after the read
    await first.release()

    assert server.holder == ""


async def test_restarted_container_of_the_same_pod_leads_at_once() -> None:
    server = OneLease()
    await lease(server, "a").acquire()
    await lease(server, "a").acquire()

    assert now() == 0


@pytest.mark.parametrize("how", ["unreachable", "hangs"])
async def test_leader_that_cannot_renew_stops_before_another_may_start(how: str) -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()
    setattr(server, how, True)
    with pytest.raises(Lost, match="not renewed"):
        await first.keep()

    assert RENEW_DEADLINE_S <= now() < DURATION_S
    assert not first.held


async def test_leader_keeps_the_lease_during_a_short_outage() -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    server.unreachable = True
    await asyncio.sleep(RENEW_DEADLINE_S / 2)
    server.unreachable = False
    await asyncio.sleep(100)

    assert first.held
    keeping.cancel()


async def test_process_that_was_frozen_may_not_act() -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()
    await asyncio.sleep(RENEW_DEADLINE_S + 1)  # the process was frozen

    assert not first.held


async def test_lease_is_lost_if_another_operator_holds_it() -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()
    server.edit(holderIdentity="b")
    with pytest.raises(Lost, match="held by b"):
        await first.keep()


async def test_a_renewal_is_one_request() -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    before, began = server.version, server.reads
    await asyncio.sleep(10 * PERIOD_S + 0.1)
    keeping.cancel()

    assert (server.version - before, server.reads - began) == (10, 0)


async def test_leader_keeps_the_lease_with_a_slow_api_server() -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()
    server.takes_s = 4.0
    keeping = asyncio.create_task(first.keep())
    await asyncio.sleep(1000)

    assert first.held
    keeping.cancel()


async def test_only_one_of_two_concurrent_operators_gets_the_lease() -> None:
    server = OneLease()
    both = [lease(server, "a"), lease(server, "b")]
    tries = [asyncio.create_task(one.acquire()) for one in both]
    await asyncio.wait(tries, timeout=DURATION_S / 2)

    assert [one.held for one in both].count(True) == 1
    for task in tries:
        task.cancel()


async def test_unknown_fields_of_the_lease_are_kept() -> None:
    server = OneLease()
    first = lease(server, "a")
    await first.acquire()
    server.edit(strategy="from the future", holderIdentity="")
    await lease(server, "b").acquire()

    assert server.lease is not None
    assert (server.lease["spec"]["strategy"], server.holder) == ("from the future", "b")
    assert server.lease["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize(
    ("error", "quoted"),
    [
        (ApiError("POST leases", 404, "", "the server could not find the requested resource"), True),
        (Unavailable("POST leases", 503, "", "etcd is away"), False),
    ],
    ids=["not served", "unavailable"],
)
async def test_answer_that_another_try_does_not_change_is_quoted(error: ApiError, quoted: bool) -> None:
    server = OneLease()

    async def create(path: str, body: Json) -> bytes:
        raise error

    server.create = create  # type: ignore[method-assign]
    waiting = lease(server, "a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await waiting.acquire()

    assert waiting.refused == (str(error) if quoted else "")
