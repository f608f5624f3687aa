"""Peers that the operator refuses at its start, and those that it takes, in a NetworkPolicy."""

from __future__ import annotations

import pytest

from tests.integration.direct import NAMESPACES, Direct, RefusedError
from tests.support.kubectl import Json
from tests.unit.dtj_operator.model.test_peers import ACCEPTED, REFUSED


def create(direct: Direct, peer: Json) -> None:
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]}
    body = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "a"},
        "spec": spec,
    }
    folder = NAMESPACES.replace("/api/v1", "/apis/networking.k8s.io/v1")
    direct.create(f"{folder}/default/networkpolicies", body, dry_run=True)


@pytest.mark.parametrize("peer", [pytest.param(peer, id=name) for name, peer in ACCEPTED])
def test_api_server_accepts_what_the_operator_takes(direct: Direct, peer: Json):
    create(direct, peer)


@pytest.mark.parametrize("peer", [pytest.param(peer, id=name) for name, peer, _ in REFUSED])
def test_api_server_refuses_what_the_operator_refuses(direct: Direct, peer: Json):
    with pytest.raises(RefusedError):
        create(direct, peer)
