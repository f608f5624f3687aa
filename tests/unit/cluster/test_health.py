"""The state of a cluster follows from what is observed."""

import pytest

from tests.cluster.health import Health, Observed, judge

NODES = frozenset({"c", "w", "w2"})
UP = dict.fromkeys(NODES, "running")


def seen(**facts) -> Observed:
    """A good cluster, except for these facts."""
    return Observed(**({"containers": UP, "answering": NODES, "ready": NODES, "key": "new"} | facts))


@pytest.mark.parametrize(
    ("observed", "health"),
    [
        pytest.param(seen(), Health.GOOD, id="everything is as it should be"),
        pytest.param(seen(containers={}), Health.ABSENT, id="there are no containers"),
        pytest.param(seen(containers=UP | {"w": "exited"}), Health.DEAD, id="one node was killed"),
        pytest.param(
            seen(containers={"c": "running", "w": "running"}), Health.DEAD, id="one node was removed"
        ),
        pytest.param(
            seen(answering=NODES - {"w"}), Health.DEAD, id="the engine did not notice that a node died"
        ),
        pytest.param(
            seen(containers=UP | {"w": "paused"}, answering=NODES - {"w"}),
            Health.PAUSED,
            id="one node is paused",
        ),
        pytest.param(
            seen(containers=UP | {"w": "paused", "w2": "exited"}),
            Health.DEAD,
            id="unpausing one node does not restart the exited one",
        ),
        pytest.param(seen(key="old"), Health.OUTDATED, id="created by an earlier version"),
        pytest.param(seen(ready=NODES - {"w2"}), Health.UNREADY, id="one node is not ready"),
        pytest.param(seen(ready=frozenset(), key=None), Health.UNREADY, id="the API server does not answer"),
    ],
)
def test_health(observed, health):
    assert judge(observed, expected=NODES, key="new") is health
