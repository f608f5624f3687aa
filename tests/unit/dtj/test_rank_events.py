"""What an agent adds to the errors of gloo."""

import pytest

from dtj.agent.replica.rank_events import hint

REFUSED = "timed out connecting: SO_ERROR: Connection refused, remote=[{}]:39122"


@pytest.mark.parametrize(
    ("address", "env", "is_given"),
    [
        pytest.param("127.0.1.1", {"NNODES": "2"}, True, id="the host name of Ubuntu"),
        pytest.param("::1", {"NNODES": "2"}, True, id="IPv6"),
        pytest.param("10.0.0.2", {"NNODES": "2"}, False, id="another machine"),
        pytest.param("127.0.0.1", {}, False, id="one machine"),
        pytest.param(
            "127.0.0.1", {"NNODES": "2", "GLOO_SOCKET_IFNAME": "lo"}, False, id="an interface is set"
        ),
    ],
)
def test_peer_on_loopback_is_explained(address: str, env: dict[str, str], is_given: bool) -> None:
    found = hint(REFUSED.format(address), env)
    assert ("set GLOO_SOCKET_IFNAME on each machine" in found) == is_given


def test_rank_that_cannot_start_a_thread_is_explained() -> None:
    assert "raise the limit of processes and threads (pids)" in hint("Resource temporarily unavailable", {})
