"""What is done with a cluster, by what can be seen of it."""

import pytest

from tests.cluster.health import Health, Observed, judge

NODES = frozenset({"c", "w", "w2"})
UP = dict.fromkeys(NODES, "running")


def seen(**facts) -> Observed:
    """A good cluster but for these facts."""
    return Observed(**({"containers": UP, "answering": NODES, "ready": NODES, "key": "new"} | facts))


@pytest.mark.parametrize(
    ("observed", "health"),
    [
        pytest.param(seen(), Health.GOOD, id="everything is as it should be"),
        pytest.param(seen(containers={}), Health.ABSENT, id="no container, no cluster"),
        pytest.param(seen(containers=UP | {"w": "exited"}), Health.DEAD, id="one node was killed"),
        pytest.param(
            seen(containers={"c": "running", "w": "running"}), Health.DEAD, id="one node was removed"
        ),
        pytest.param(
            seen(answering=NODES - {"w"}), Health.DEAD, id="the engine did not notice that a node died"
        ),
        pytest.param(
            seen(containers=UP | {"w": "paused"}, answering=NODES - {"w"}), Health.PAUSED, id="one is paused"
        ),
        pytest.param(
            seen(containers=UP | {"w": "paused", "w2": "exited"}),
            Health.DEAD,
            id="waking one does not help the other",
        ),
        pytest.param(seen(key="old"), Health.OUTDATED, id="made by an earlier version"),
        pytest.param(seen(ready=NODES - {"w2"}), Health.UNREADY, id="one node is not ready"),
        pytest.param(seen(ready=frozenset(), key=None), Health.UNREADY, id="the API server does not answer"),
    ],
)
def test_verdict(observed, health):
    assert judge(observed, expected=NODES, key="new") is health
