"""Which children are read by name, or from a list of all pods of the namespace; over a real socket."""

import time
from random import Random
from typing import Any

from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.cache import Cache, PodCache
from dtj_operator.kube.caches import Caches
from dtj_operator.kube.children import NETWORK_POLICY, SERVICE, ChildCache
from dtj_operator.kube.pod_groups import Gangs, pod_groups_of
from dtj_operator.kube.workloads import WORKLOADS, kueue
from dtj_operator.model.names import Key
from dtj_operator.verify import FEW, Verifier
from tests.support.builders import NAME, NAMESPACE, UID, job
from tests.unit.dtj_operator.kube.server import says, serving

Json = dict[str, Any]
KEY = Key(NAMESPACE, NAME)
OWNER = {"apiVersion": "dtj.dev/v1alpha1", "kind": "DistributedTrainingJob", "name": NAME, "uid": UID}


def pod(name: str, **meta: Any) -> Json:
    return {"metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "resourceVersion": "5", **meta}}


async def test_many_uncertain_pods_are_listed_whatever_labels_they_have() -> None:
    pods = PodCache(lambda *_: None, clock=time.monotonic)
    caches = Caches(
        pods=pods,
        services=ChildCache(SERVICE, lambda _: None),
        policies=ChildCache(NETWORK_POLICY, lambda _: None),
        pod_groups=Cache(pod_groups_of("")),
        gangs=Gangs(time.monotonic),
        workloads=Cache(WORKLOADS),
        kueue=kueue(),
    )
    for index in range(FEW + 1):
        pods.unverified.add(KEY, f"digits-{index}")
    labelled = pod("digits-0", labels={"dtj.dev/job-name": NAME})
    unlabelled = pod("digits-1", ownerReferences=[{**OWNER, "controller": True}])
    listed = {"metadata": {"resourceVersion": "9"}, "items": [labelled, unlabelled, pod("stranger")]}
    async with serving(says(listed)) as server:
        api = Api(server.config, Bucket(1e9), Random(1))
        assert await Verifier(api, caches).verify(KEY, job().snapshot())
        await api.close()

    assert [view.name for view in pods.of(KEY)] == ["digits-0", "digits-1"]
    assert not pods.unverified.of(KEY)
    assert [asked[1:3] for asked in server.asked] == [
        (f"/api/v1/namespaces/{NAMESPACE}/pods", {"limit": "500"})
    ]
