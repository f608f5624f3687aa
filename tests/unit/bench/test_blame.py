"""The blame benchmark: its plan of crashes, and whether it counts a blame as right."""

from typing import Any

import pytest

from tests.bench.blame_plan import HOWS, PLACES, RANKS, draw, is_right
from tests.bench.blame_status import Verdict, expect

TRUTH = {"rank": 2, "how": "SIGSEGV", "life": 1}
CAUSE: dict[str, Any] = {"rank": 2, "reason": "Signal", "exitCode": 139}
LOST: dict[str, Any] = {"rank": None, "reason": "PeerLost", "exitCode": 76}
RIGHT: dict[int, dict[str, Any]] = {
    0: {**LOST, "culprit": CAUSE, "at": "2026-01-01T00:00:00.100Z"},
    1: {**CAUSE, "culprit": None, "at": "2026-01-01T00:00:00.200Z"},
}
EARLIER = {"rank": 0, "reason": "Signal", "exitCode": 137, "culprit": None}


def test_plan_depends_only_on_the_seed_and_covers_all_places_faults_and_ranks() -> None:
    crashes = draw(200, 1)
    assert crashes == draw(200, 1)
    assert crashes != draw(200, 2)
    assert {crash.place for crash in crashes} == set(PLACES)
    assert {crash.deaths[-1].how for crash in crashes} == set(HOWS)
    assert {crash.deaths[0].rank for crash in crashes} == set(range(RANKS))
    assert all(crash.deaths[0].how in PLACES[crash.place] for crash in crashes if crash.place != "healing")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        pytest.param({}, (True, True), id="right"),
        pytest.param({1: {"rank": 3}}, (False, True), id="another rank"),
        pytest.param({1: LOST}, (True, True), id="only the pod that lost its peer names the rank"),
        pytest.param({0: {"culprit": None}, 1: LOST}, (False, False), id="only consequences"),
        pytest.param({1: {"reason": "Exception"}}, (True, False), id="another class"),
        pytest.param({1: {"exitCode": 1}}, (True, False), id="another exit code"),
        pytest.param({0: EARLIER}, (False, False), id="an earlier failure of the other pod"),
        pytest.param({0: EARLIER | {"at": "2026-01-01T00:00:00.300Z"}}, (True, True), id="a later one"),
    ],
)
def test_blame_is_right_or_wrong(wrong: dict[int, dict[str, Any]], expected: tuple[bool, bool]) -> None:
    messages = {replica: message | wrong.get(replica, {}) for replica, message in RIGHT.items()}
    assert is_right(TRUTH, messages) == expected


def test_status_is_wrong_about_the_node_of_a_replica_that_only_lost_its_peer() -> None:
    crash = draw(1, seed=1)[0]
    expected = expect({"rank": 3, "how": "raise"}, {0: "worker", 1: "worker2"})
    said = {"rank": 3, "replica": 1, "node": "worker", "reason": "PeerLost", "exitCode": 76}
    assert Verdict(crash=crash, expected=expected, said=said).wrong == ["node", "reason", "exitCode"]
    assert Verdict(crash=crash, expected=expected, said=expected).wrong == []
