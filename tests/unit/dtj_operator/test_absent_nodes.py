"""Since when a node is gone: only for nodes that were seen, and only until they are back."""

from dtj_operator.gather import AbsentNodes
from dtj_operator.kube.nodes import NodeView
from tests.support.builders import pod

PODS = (pod(0).running().on("n0").pod, pod(1).running().on("n1").pod, pod(2).pod)
BOTH = {name: NodeView(name=name) for name in ("n0", "n1")}
ONE = {"n0": BOTH["n0"]}


def test_node_is_gone_since_the_first_time_it_is_missing() -> None:
    absent = AbsentNodes()

    assert dict(absent.since(BOTH, PODS, 10.0)) == {}
    assert dict(absent.since(ONE, PODS, 20.0)) == {"n1": 20.0}
    assert dict(absent.since(ONE, PODS, 30.0)) == {"n1": 20.0}


def test_node_that_is_back_counts_as_never_gone() -> None:
    absent = AbsentNodes()
    for nodes in (BOTH, ONE, BOTH):
        absent.since(nodes, PODS, 10.0)

    assert dict(absent.since(ONE, PODS, 50.0)) == {"n1": 50.0}


def test_node_that_was_never_seen_is_left_to_kubernetes() -> None:
    assert dict(AbsentNodes().since(ONE, PODS, 10.0)) == {}


def test_no_node_is_gone_if_nodes_are_unknown() -> None:
    absent = AbsentNodes()
    absent.since(BOTH, PODS, 10.0)

    assert dict(absent.since(None, PODS, 20.0)) == {}
