"""When a job is reconciled again after a reconcile; its status is written over a real socket."""

from collections.abc import Sequence
from random import Random

import pytest

from dtj_operator.apply import Applied
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.model.names import Key
from dtj_operator.plan.actions import Action
from dtj_operator.plan.snapshot import Snapshot
from dtj_operator.reconcile import Reconciler
from tests.support.builders import JobBuilder, job
from tests.unit.dtj_operator.kube.server import says, serving

KEY = Key("ns", "j")
DONE = Applied()
RUNNING = job().replicas(2).with_network().running().stored({})


class World:
    """A job as given; no action is refused, no Event is sent, no agent is polled."""

    def __init__(self, snapshot: Snapshot, outcome: Applied) -> None:
        self.snapshot, self.outcome = snapshot, outcome

    async def gather(self, _: Key) -> tuple[Snapshot, str]:
        return self.snapshot, "7"

    async def apply(self, _: Key, __: str, ___: Sequence[Action]) -> Applied:
        return self.outcome

    def of(self, _: Key) -> object:
        return self.snapshot.pods

    def record(self, *_: object, **__: object) -> None:
        pass

    def stop(self, _: Key) -> None:
        pass

    def may_write(self, _: Key) -> bool:
        return False

    def note_written(self, _: Key, __: object) -> None:
        pass


async def again_s(found: JobBuilder, outcome: Applied = DONE) -> float | None:
    """Seconds until the next reconcile, after one that wrote the status."""
    world = World(found.snapshot(), outcome)
    async with serving(says({"metadata": {"resourceVersion": "8"}})) as server:
        api = Api(server.config, Bucket(1e9), Random(0))
        reconcile = Reconciler(
            *(api, world, world, world, world, world),  # type: ignore[arg-type]
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
