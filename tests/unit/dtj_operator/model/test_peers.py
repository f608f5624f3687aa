"""Peers that every API server refuses; tests/integration/operator/test_peers.py asks one about these rows."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_operator import settings
from dtj_operator.model.peers import problem

Json = dict[str, Any]


def selects(**requirement: object) -> Json:
    return {"podSelector": {"matchExpressions": [{"key": "app", **requirement}]}}


def block(cidr: str, *parts: str) -> Json:
    return {"ipBlock": {"cidr": cidr, "except": [*parts]}}


ACCEPTED: list[tuple[str, Json]] = [
    ("all pods", {"podSelector": {}}),
    ("pods of namespaces", {"podSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {}}),
    ("a key with a domain", {"podSelector": {"matchLabels": {"kubernetes.io/metadata.name": ""}}}),
    ("one of some values", selects(operator="In", values=["a"])),
    ("any value", selects(operator="Exists")),
    ("any value, with an empty list", selects(operator="Exists", values=[])),
    ("a block", {"ipBlock": {"cidr": "10.0.0.0/8"}}),
    ("a block without a part", block("10.0.0.0/8", "10.1.0.0/16")),
    ("a block of the other family", block("fd00::/8", "fd00:1::/64")),
]
REFUSED: list[tuple[str, Json, str]] = [
    ("nothing", {}, "must be an object"),
    ("a misspelt field", {"podSelectors": {}}, "unknown field podSelectors"),
    ("an address", block("10.0.0.7"), "not like 10.0.0.0/8"),
    ("no address", block("all/8"), "not like"),
    ("too many bits", block("10.0.0.0/33"), "not like"),
    ("a mask", block("10.0.0.0/255.0.0.0"), "not like"),
    ("a block without cidr", {"ipBlock": {"except": ["10.0.0.0/8"]}}, "not like"),
    ("a part that is an address", block("10.0.0.0/8", "10.0.0.7"), "not like"),
    ("a part outside", block("10.0.0.0/8", "11.0.0.0/16"), "outside its cidr"),
    ("a part of the other family", block("10.0.0.0/8", "fd00::/64"), "outside its cidr"),
    ("a block without all of it", block("10.0.0.0/8", "10.0.0.0/8"), "all of it"),
    ("a block of some pods", {**block("10.0.0.0/8"), "podSelector": {}}, "a selector beside ipBlock"),
    ("one of no values", selects(operator="In"), "In without values"),
    ("none of no values", selects(operator="NotIn", values=[]), "NotIn without values"),
    ("any value, with values", selects(operator="Exists", values=["a"]), "Exists with values"),
    ("an unknown operator", selects(operator="Is", values=["a"]), "is not In, NotIn"),
    ("no key", selects(key="", operator="Exists"), "without a key"),
    (
        "a key with two slashes",
        selects(key="kubernetes.io/metadata/name", operator="Exists"),
        "invalid label key",
    ),
    ("a key that ends with a blank", {"podSelector": {"matchLabels": {"app ": "a"}}}, "label key 'app '"),
    ("a key with an empty part", selects(key="a..b/c", operator="Exists"), "invalid label key"),
    ("a domain that is too long", selects(key=f"{'a' * 254}/b", operator="Exists"), "invalid label key"),
    (
        "a value with a blank",
        {"podSelector": {"matchLabels": {"app": "a b"}}},
        "value 'a b' of the label app",
    ),
    ("a value that is too long", selects(operator="In", values=["a" * 64]), "invalid value"),
    ("a value that is a number", {"podSelector": {"matchLabels": {"app": 1}}}, "invalid value 1"),
    ("an unknown address", block("1:2.3/999"), "not like"),
]


@pytest.mark.parametrize("peer", [pytest.param(peer, id=name) for name, peer in ACCEPTED])
def test_peer_is_accepted(peer: Json) -> None:
    assert problem(peer) == ""


@pytest.mark.parametrize(
    ("peer", "message"), [pytest.param(peer, message, id=name) for name, peer, message in REFUSED]
)
def test_problem_of_a_peer_is_named(peer: Json, message: str) -> None:
    assert message in problem(peer)


def test_message_about_a_range_has_the_right_one() -> None:
    expected = "not like 10.0.0.0/8, because it has bits beyond its length: 10.1.2.3/8"
    assert expected in problem(block("10.1.2.3/8"))


@pytest.mark.parametrize(
    "peer",
    [
        {"podSelector": None},
        {"podSelector": {"matchLabel": {}}},
        {"podSelector": {"matchExpressions": ["app"]}},
        {"podSelector": {"matchLabels": ["app"]}},
        {"ipBlock": "10.0.0.0/8"},
        block("10.0.0.7/8"),
    ],
)
def test_peer_of_another_form_is_refused(peer: Json) -> None:
    """Of some the API server would ignore a part, and admit others than meant; one only newer ones refuse."""
    assert problem(peer)


def test_operator_does_not_start_with_a_wrong_peer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings.parse(["--agent-readers", '[{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.7"}}]'], {})

    said = capsys.readouterr().err
    assert "argument --agent-readers: the NetworkPolicyPeer" in said
    assert '{"ipBlock": {"cidr": "10.0.0.7"}} has an ipBlock with a range that is not like' in said
