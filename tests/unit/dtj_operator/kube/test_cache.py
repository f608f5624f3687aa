"""The contents of the cache when events arrive late, twice, or not at all."""

from typing import Any

import msgspec
import pytest

from dtj_operator.kube.cache import PodCache
from dtj_operator.model.names import Key
from dtj_operator.model.views import PodView, Seen
from tests.support.builders import NAME, NAMESPACE, pod

KEY = Key(NAMESPACE, NAME)


class Watched:
    """A cache and the keys that it reported."""

    def __init__(self) -> None:
        self.news: list[Key] = []
        self.can_wait: list[bool] = []
        self.now = 100.0
        self.cache = PodCache(self._on_change, clock=lambda: self.now)

    def _on_change(self, key: Key, can_wait: bool) -> None:
        self.news.append(key)
        self.can_wait.append(can_wait)

    def names(self) -> list[str]:
        return sorted(view.name for view in self.cache.of(KEY))


def at(version: int, view: PodView | None = None, **changes: object) -> PodView:
    return msgspec.structs.replace(view or pod().pod, version=str(version), **changes)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_pod_is_found_by_its_job(watched: Watched) -> None:
    watched.cache.observe(at(5))

    assert watched.names() == ["digits-0"]
    assert watched.news == [KEY]
    assert len(watched.cache) == 1


def test_states_are_timed_by_the_clock_of_this_process(watched: Watched) -> None:
    """The timestamps in a pod come from clocks of other machines: here they are a minute ahead."""
    pending, placed = pod().unschedulable(since=160).pod, pod().running().on("n1").pod
    steps = [
        (100, at(5, pending), Seen(unschedulable=100)),
        (110, at(6, pending), Seen(unschedulable=100)),
        (120, at(7, placed), Seen(bound=120)),
        (130, at(8, placed, deleting=True), Seen(bound=120, terminating=130)),
        (
            140,
            at(9, pod().crashed(at=200).on("n1").deleting().pod),
            Seen(bound=120, terminating=130, exited=140),
        ),
        (150, at(10, placed, uid="another"), Seen(bound=150)),
    ]
    for now, view, expected in steps:
        watched.now = now
        watched.cache.observe(view)
        assert watched.cache.of(KEY)[0].seen == expected


def test_node_of_a_deleted_pod_is_remembered(watched: Watched) -> None:
    watched.cache.observe(at(5, node="worker-1"))
    watched.cache.remove(at(6, node="worker-1"))

    assert watched.cache.last_node(KEY, "digits-0") == "worker-1"
    assert watched.cache.last_node(KEY, "digits-1") == ""

    watched.cache.observe(at(7, uid="young"))
    watched.cache.remove(at(8, uid="young"))
    assert watched.cache.last_node(KEY, "digits-0") == "", "the pod after it was never placed on a node"


@pytest.mark.parametrize(
    ("change", "can_wait"),
    [
        pytest.param({"node": "worker-1"}, True, id="placed on a node"),
        pytest.param({"phase": "Running"}, True, id="running"),
        pytest.param({"phase": "Failed"}, False, id="failed"),
        pytest.param({"phase": "Succeeded"}, False, id="succeeded"),
        pytest.param({"deleting": True}, False, id="being deleted"),
        pytest.param({"uid": "another", "phase": "Failed"}, False, id="another pod, which has failed"),
    ],
)
def test_only_changes_of_a_starting_pod_can_wait(
    watched: Watched, change: dict[str, Any], can_wait: bool
) -> None:
    watched.cache.observe(at(5))
    watched.cache.observe(at(6, **change))

    assert watched.can_wait == [True, can_wait]


def test_new_pod_that_has_failed_cannot_wait(watched: Watched) -> None:
    watched.cache.observe(at(5, phase="Failed"))

    assert watched.can_wait == [False]


def test_deletion_of_a_pod_cannot_wait(watched: Watched) -> None:
    watched.cache.observe(at(5, phase="Running"))
    watched.cache.remove(at(6))

    assert watched.can_wait == [True, False]


def test_older_version_does_not_replace_a_newer_one(watched: Watched) -> None:
    watched.cache.observe(at(7, phase="Running"))
    watched.cache.observe(at(5, phase="Pending"))

    assert watched.cache.of(KEY)[0].phase == "Running"


def test_versions_are_compared_as_numbers(watched: Watched) -> None:
    watched.cache.observe(at(9))
    watched.cache.observe(at(10, phase="Running"))

    assert watched.cache.of(KEY)[0].phase == "Running"


def test_change_that_no_decision_needs_is_not_reported(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.observe(at(6))

    assert watched.news == [KEY]


def test_answer_to_our_own_write_is_not_reported(watched: Watched) -> None:
    watched.cache.observe(at(5), quiet=True)

    assert (watched.names(), watched.news) == (["digits-0"], [])


def test_answer_later_than_the_watch_does_not_revive_a_deleted_pod(watched: Watched) -> None:
    watched.cache.remove(at(9))
    watched.cache.observe(at(5))

    assert watched.names() == []


def test_pod_whose_label_was_removed_and_restored_is_known_again(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))  # the watch reported it as deleted
    watched.cache.observe(at(12))

    assert watched.names() == ["digits-0"]


def test_pod_that_only_lost_its_label_can_be_read_by_name(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))
    watched.cache.observe(at(9, mislabelled=True), found=True)

    assert watched.names() == ["digits-0"]


def test_answer_to_a_deletion_later_than_the_watch_revives_nothing(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))
    watched.cache.observe(at(9, deleting=True), quiet=True)

    assert watched.names() == []


def test_answer_without_a_version_revives_nothing(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))
    watched.cache.observe(msgspec.structs.replace(at(5), version="", deleting=True), quiet=True)

    assert watched.names() == []


def test_list_removes_an_object_without_a_version(watched: Watched) -> None:
    watched.cache.observe(msgspec.structs.replace(at(5), version=""))
    watched.cache.replace([], "9")

    assert watched.names() == []


def test_not_found_does_not_lower_the_version_of_the_deletion(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))
    watched.cache.remove(at(5))  # a deletion of the older version, answered with 404
    watched.cache.observe(at(7, deleting=True))  # from a list that was in progress

    assert watched.names() == []


def test_repeated_event_does_not_revive_a_pod_that_was_not_found(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(5))
    watched.cache.observe(at(5))

    assert watched.names() == []


def test_deletion_of_an_old_pod_does_not_remove_the_new_pod_of_its_name(watched: Watched) -> None:
    watched.cache.observe(at(9, uid="new"))
    watched.cache.remove(at(5, uid="old"))

    assert [view.uid for view in watched.cache.of(KEY)] == ["new"]


def test_new_pod_replaces_the_old_pod_of_its_name(watched: Watched) -> None:
    watched.cache.observe(at(5, uid="old"))
    watched.cache.observe(at(9, uid="new"))

    assert [view.uid for view in watched.cache.of(KEY)] == ["new"]
    assert len(watched.cache) == 1


def test_list_removes_objects_that_it_lacks(watched: Watched) -> None:
    watched.cache.observe(at(5, pod(0).pod))
    watched.cache.observe(at(6, pod(1).pod))
    watched.cache.replace([at(6, pod(1).pod)], version="8")

    assert watched.names() == ["digits-1"]
    assert watched.news == [KEY] * 3


def test_list_does_not_remove_objects_newer_than_the_list(watched: Watched) -> None:
    watched.cache.observe(at(9))
    watched.cache.replace([], version="8")

    assert watched.names() == ["digits-0"]


def test_list_of_one_job_leaves_other_jobs_alone(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.observe(at(5, pod(0, job="other").pod))
    watched.cache.replace([], version="8", key=KEY)

    assert watched.cache.keys() == [Key(NAMESPACE, "other")]


def test_list_of_one_namespace_leaves_other_namespaces_alone(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.observe(at(5, namespace="team-b"))
    watched.cache.replace([], "8", namespace=NAMESPACE)

    assert watched.cache.keys() == [Key("team-b", KEY.name)]


def test_pod_deleted_from_the_watch_is_unverified(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9))

    assert (watched.names(), watched.cache.unverified.of(KEY)) == ([], ("digits-0",))


@pytest.mark.parametrize(
    "last",
    [
        pytest.param({"deleting": True, "removed": True}, id="its grace period was over"),
        pytest.param({"uid": "old"}, id="a newer pod has its name"),
    ],
)
def test_pod_that_is_certainly_gone_is_not_unverified(watched: Watched, last: dict[str, Any]) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9, **last))

    assert watched.cache.unverified.of(KEY) == ()


def test_pod_that_was_not_found_is_not_unverified(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(5))
    watched.cache.remove_from_watch(at(9))

    assert watched.cache.unverified.of(KEY) == ()


def test_pod_that_a_call_deleted_is_no_longer_unverified(watched: Watched) -> None:
    """The watch event often arrives before the answer."""
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9))
    watched.cache.remove(at(5))

    assert watched.cache.unverified.of(KEY) == ()


def test_pod_read_after_the_watch_event_stays(watched: Watched) -> None:
    """Its label was removed, and our deletion read it afterwards."""
    watched.cache.observe(at(5))
    watched.cache.observe(at(12, deleting=True, mislabelled=True))
    watched.cache.remove_from_watch(at(9))

    assert watched.names() == ["digits-0"]


def test_pod_missing_in_a_new_list_is_unverified(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.replace([], version="9")

    assert (watched.names(), watched.cache.unverified.of(KEY)) == ([], ("digits-0",))


def test_list_of_all_pods_of_a_job_verifies_them(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9))
    watched.cache.replace([at(9, mislabelled=True)], version="10", key=KEY)

    assert (watched.names(), watched.cache.unverified.of(KEY)) == (["digits-0"], ())


def test_pod_that_is_seen_again_is_no_longer_unverified(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9))
    watched.cache.observe(at(12))

    assert watched.cache.unverified.of(KEY) == ()
