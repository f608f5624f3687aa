"""Which replica is whose buddy."""

import pytest

from dtj.agent.wire.buddies import buddy_of, choose_shift, ward_of


@pytest.mark.parametrize(
    ("machines", "shift"),
    [
        pytest.param("a", 0, id="one replica has no buddy"),
        pytest.param("ab", 1, id="two machines"),
        pytest.param("aabb", 2, id="neighbours share a machine"),
        pytest.param("aaabbb", 3, id="three of each"),
        pytest.param("aaab", 1, id="one machine has most: some buddies are on it"),
        pytest.param("aaaa", 1, id="one machine: a pod can be lost, too"),
    ],
)
def test_buddy_is_on_another_machine_if_possible(machines: str, shift: int) -> None:
    assert choose_shift(dict(enumerate(machines)), len(machines)) == shift


def test_choice_for_a_very_large_job_tries_few_distances() -> None:
    assert choose_shift({replica: str(replica // 8) for replica in range(10_000)}, 10_000) == 8


def test_a_replica_is_the_ward_of_its_buddy() -> None:
    for replica in range(5):
        assert ward_of(buddy_of(replica, shift=2, replicas=5), shift=2, replicas=5) == replica
