"""What the cache believes when news comes late, twice, or not at all."""

from typing import Any

import msgspec
import pytest

from dtj_operator.kube.cache import PodCache
from dtj_operator.kube.views import PodView
from dtj_operator.names import Key
from tests.support.builders import NAME, NAMESPACE, pod

KEY = Key(NAMESPACE, NAME)


class Watched:
    """A cache and the keys that it announced."""

    def __init__(self) -> None:
        self.news: list[Key] = []
        self.patient: list[bool] = []
        self.cache = PodCache(self._tell)

    def _tell(self, key: Key, can_wait: bool) -> None:
        self.news.append(key)
        self.patient.append(can_wait)

    def names(self) -> list[str]:
        return sorted(view.name for view in self.cache.pods(KEY))


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


def test_the_node_of_a_pod_that_is_gone_is_remembered(watched: Watched) -> None:
    watched.cache.observe(at(5, node="worker-1"))
    watched.cache.remove(at(6, node="worker-1"))

    assert watched.cache.last_node(KEY, "digits-0") == "worker-1"
    assert watched.cache.last_node(KEY, "digits-1") == ""

    watched.cache.observe(at(7, uid="young"))
    watched.cache.remove(at(8, uid="young"))
    assert watched.cache.last_node(KEY, "digits-0") == "", "the one after it never came to a node"


@pytest.mark.parametrize(
    ("change", "can_wait"),
    [
        pytest.param({"node": "worker-1"}, True, id="placed on a node"),
        pytest.param({"phase": "Running"}, True, id="running"),
        pytest.param({"phase": "Failed"}, False, id="failed"),
        pytest.param({"phase": "Succeeded"}, False, id="done"),
        pytest.param({"deleting": True}, False, id="being deleted"),
        pytest.param({"uid": "another", "phase": "Failed"}, False, id="another one, which failed"),
    ],
)
def test_only_the_news_of_a_pod_on_its_way_up_can_wait(
    watched: Watched, change: dict[str, Any], can_wait: bool
) -> None:
    watched.cache.observe(at(5))
    watched.cache.observe(at(6, **change))

    assert watched.patient == [True, can_wait]


def test_that_a_pod_was_found_failed_cannot_wait(watched: Watched) -> None:
    watched.cache.observe(at(5, phase="Failed"))

    assert watched.patient == [False]


def test_that_a_pod_is_gone_cannot_wait(watched: Watched) -> None:
    watched.cache.observe(at(5, phase="Running"))
    watched.cache.remove(at(6))

    assert watched.patient == [True, False]


def test_older_news_do_not_undo_newer(watched: Watched) -> None:
    watched.cache.observe(at(7, phase="Running"))
    watched.cache.observe(at(5, phase="Pending"))

    assert watched.cache.pods(KEY)[0].phase == "Running"


def test_versions_are_compared_as_numbers(watched: Watched) -> None:
    watched.cache.observe(at(9))
    watched.cache.observe(at(10, phase="Running"))

    assert watched.cache.pods(KEY)[0].phase == "Running"


def test_a_change_that_no_decision_needs_is_no_news(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.observe(at(6))

    assert watched.news == [KEY]


def test_what_our_own_write_returned_wakes_nobody(watched: Watched) -> None:
    watched.cache.observe(at(5), quiet=True)

    assert (watched.names(), watched.news) == (["digits-0"], [])


def test_an_answer_that_the_watch_overtook_does_not_revive_a_dead_pod(watched: Watched) -> None:
    watched.cache.remove(at(9))
    watched.cache.observe(at(5))

    assert watched.names() == []


def test_a_pod_whose_label_was_taken_off_and_put_back_is_known_again(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))  # to a watch by label it was gone
    watched.cache.observe(at(12))

    assert watched.names() == ["digits-0"]


def test_a_pod_that_only_lost_its_label_can_be_found_by_asking(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))
    watched.cache.observe(at(9, mislabelled=True), found=True)

    assert watched.names() == ["digits-0"]


def test_the_answer_to_a_deletion_that_the_watch_overtook_revives_nothing(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))
    watched.cache.observe(at(9, deleting=True), quiet=True)

    assert watched.names() == []


def test_an_answer_without_a_version_revives_nothing(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))
    watched.cache.observe(msgspec.structs.replace(at(5), version="", deleting=True), quiet=True)

    assert watched.names() == []


def test_a_list_removes_what_has_no_version(watched: Watched) -> None:
    watched.cache.observe(msgspec.structs.replace(at(5), version=""))
    watched.cache.replace([], "9")

    assert watched.names() == []


def test_who_finds_a_pod_missing_does_not_unlearn_when_it_went(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(9))
    watched.cache.remove(at(5))  # a deletion of what was known then, answered with 404
    watched.cache.observe(at(7, deleting=True))  # from a list that was under way

    assert watched.names() == []


def test_news_that_come_twice_do_not_revive_what_a_call_found_missing(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(5))
    watched.cache.observe(at(5))

    assert watched.names() == []


def test_the_end_of_an_old_pod_does_not_take_the_new_one_of_its_name(watched: Watched) -> None:
    watched.cache.observe(at(9, uid="new"))
    watched.cache.remove(at(5, uid="old"))

    assert [view.uid for view in watched.cache.pods(KEY)] == ["new"]


def test_a_new_pod_replaces_the_old_one_of_its_name(watched: Watched) -> None:
    watched.cache.observe(at(5, uid="old"))
    watched.cache.observe(at(9, uid="new"))

    assert [view.uid for view in watched.cache.pods(KEY)] == ["new"]
    assert len(watched.cache) == 1


def test_a_list_removes_what_it_does_not_hold(watched: Watched) -> None:
    watched.cache.observe(at(5, pod(0).pod))
    watched.cache.observe(at(6, pod(1).pod))
    watched.cache.replace([at(6, pod(1).pod)], version="8")

    assert watched.names() == ["digits-1"]
    assert watched.news == [KEY] * 3


def test_a_list_does_not_remove_what_is_younger_than_it(watched: Watched) -> None:
    watched.cache.observe(at(9))
    watched.cache.replace([], version="8")

    assert watched.names() == ["digits-0"]


def test_a_list_of_one_job_leaves_the_others_alone(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.observe(at(5, pod(0, job="other").pod))
    watched.cache.replace([], version="8", key=KEY)

    assert watched.cache.keys() == [Key(NAMESPACE, "other")]


def test_what_leaves_the_watch_may_only_have_lost_its_label(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9))

    assert (watched.names(), watched.cache.unverified.of(KEY)) == ([], ("digits-0",))


@pytest.mark.parametrize(
    "last",
    [
        pytest.param({"deleting": True, "removed": True}, id="its time was over"),
        pytest.param({"uid": "old"}, id="a younger one has its name"),
    ],
)
def test_what_is_certainly_gone_leaves_no_doubt(watched: Watched, last: dict[str, Any]) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9, **last))

    assert watched.cache.unverified.of(KEY) == ()


def test_what_a_call_found_missing_leaves_no_doubt(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove(at(5))
    watched.cache.remove_from_watch(at(9))

    assert watched.cache.unverified.of(KEY) == ()


def test_what_a_call_has_deleted_is_in_doubt_no_more(watched: Watched) -> None:
    """The watch is often faster than the answer."""
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9))
    watched.cache.remove(at(5))

    assert watched.cache.unverified.of(KEY) == ()


def test_what_was_seen_since_has_not_left(watched: Watched) -> None:
    """Its label was taken off, and our deletion met it afterwards."""
    watched.cache.observe(at(5))
    watched.cache.observe(at(12, deleting=True, mislabelled=True))
    watched.cache.remove_from_watch(at(9))

    assert watched.names() == ["digits-0"]


def test_what_a_new_list_lacks_may_only_have_lost_its_label(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.replace([], version="9")

    assert (watched.names(), watched.cache.unverified.of(KEY)) == ([], ("digits-0",))


def test_a_list_of_all_that_a_job_has_settles_it(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9))
    watched.cache.replace([at(9, mislabelled=True)], version="10", key=KEY)

    assert (watched.names(), watched.cache.unverified.of(KEY)) == (["digits-0"], ())


def test_what_is_seen_again_is_in_doubt_no_more(watched: Watched) -> None:
    watched.cache.observe(at(5))
    watched.cache.remove_from_watch(at(9))
    watched.cache.observe(at(12))

    assert watched.cache.unverified.of(KEY) == ()
