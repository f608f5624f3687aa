"""The operator's flags, each with its unit, default and reason."""

import argparse
import json
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from dtj_operator.model.peers import problem

LEASE = "dtj-operator"  # name of the leader election Lease
ALWAYS_THERE = "default"  # the API server does not let anyone delete this namespace


def positive_number(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}")
    return number


def positive_integer(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def namespaces(text: str) -> Sequence[str]:
    """Parse name,name: sorted, and each name once."""
    found = sorted({name.strip() for name in text.split(",")})
    if not all(found):
        raise argparse.ArgumentTypeError(f"must be name,name, got {text!r}")
    return found


def labels(text: str) -> Mapping[str, str]:
    """Parse name=value,name=value."""
    found = dict(part.partition("=")[::2] for part in text.split(","))
    if not all(found) or "=" not in text:
        raise argparse.ArgumentTypeError(f"must be name=value,name=value, got {text!r}")
    return found


def peers(text: str) -> Sequence[dict[str, Any]]:
    """Parse a JSON list of NetworkPolicyPeers."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise argparse.ArgumentTypeError(f"must be a JSON list of NetworkPolicyPeers, got {text!r}")
    for peer in found:
        if wrong := problem(peer):
            raise argparse.ArgumentTypeError(f"the NetworkPolicyPeer {json.dumps(peer)} {wrong}")
    return found


def port_number(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:  # 0: a free port, which is logged
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, got {text}")
    return number


def flag(option: str, **how: Any) -> Any:
    """A field that is a flag; how: as of argparse's add_argument."""
    return field(metadata={"option": option, "how": how})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parsed command line."""

    identity: str
    namespaces: Sequence[str] = flag(
        "--namespace",
        type=namespaces,
        default=[],
        help="watch only these namespaces, separated by commas (default: all namespaces)",
    )
    # NetworkPolicies of jobs let the pods of this namespace with these labels reach the agents.
    operator_namespace: str = flag(
        "--operator-namespace",
        help="namespace in which the operator runs (default: POD_NAMESPACE, else dtj-system)",
    )
    operator_labels: Mapping[str, str] = flag(
        "--operator-labels",
        type=labels,
        default=labels("app.kubernetes.io/name=dtj-operator"),
        help="labels of the operator's pods (app.kubernetes.io/name=dtj-operator)",
    )
    agent_readers: Sequence[dict[str, Any]] = flag(
        "--agent-readers",
        type=peers,
        default=[],
        help="JSON list of NetworkPolicyPeers that may read the agents of all jobs, such as Prometheus ([])",
    )
    # Not in the operator's own namespace: all operators that serve the same jobs need one Lease.
    lease_namespace: str | None = flag(
        "--lease-namespace",
        help=f"namespace of the leader election Lease (default: one in each --namespace or {ALWAYS_THERE})",
    )
    leader_election: bool = flag(
        "--no-leader-election", action="store_false", help="start without a Lease; run only one process"
    )
    # High enough that a burst of jobs does not wait for it; API Priority and Fairness protects the server.
    requests_per_second: float = flag(
        "--requests-per-second",
        type=positive_number,
        default=500.0,
        help="limit of requests to the API server, averaged over one second (500)",
    )
    # Workers mostly wait for answers. More workers only lengthen each other's bursts.
    workers: int = flag(
        "--workers",
        type=positive_integer,
        default=32,
        help="jobs reconciled in parallel (32); those of one namespace take at most half of them",
    )
    progress_s: float = flag(
        "--progress-seconds",
        type=positive_number,
        default=60.0,
        help="least seconds between two writes of a job's progress to its status (60)",
    )
    agent_poll_s: float = flag(
        "--agent-poll-seconds",
        type=positive_number,
        default=10.0,
        help="seconds between two polls of a job's agent (10)",
    )
    # Nothing should need the resync: it limits the harm if a bug loses an event.
    resync_s: float = flag(
        "--resync-seconds",
        type=positive_number,
        default=600.0,
        help="seconds between two full relists, after which all jobs are reconciled (600)",
    )
    health_port: int = flag(
        "--health-port",
        type=port_number,
        default=8081,
        help="port of /healthz and /readyz; 0 takes a free port (8081)",
    )
    metrics_port: int = flag(
        "--metrics-port", type=port_number, default=8080, help="port of /metrics; 0 takes a free port (8080)"
    )
    log_level: str = flag(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="lowest level that is logged (info)",
    )
    log_format: str = flag(
        "--log-format", choices=("json", "text"), default="json", help="json: one object a line (json)"
    )

    @property
    def holder(self) -> str:
        """Name of this process in the Lease, in which operators of several namespaces may compete."""
        return f"{self.operator_namespace}/{self.identity}"

    @property
    def lease_namespaces(self) -> Sequence[str]:
        """Where the Leases are that this process needs in order to act, in the order in which it awaits them.

        Every operator waits in this order, so no two wait for each other.
        """
        return [self.lease_namespace] if self.lease_namespace else self.namespaces or [ALWAYS_THERE]


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Parse the flags; an invalid flag prints an error and exits with code 2."""
    parser = argparse.ArgumentParser(
        prog="dtj-operator", description="Operator for DistributedTrainingJob objects."
    )
    for each in fields(Settings):
        if each.metadata:
            parser.add_argument(each.metadata["option"], dest=each.name, **each.metadata["how"])
    parser.set_defaults(operator_namespace=env.get("POD_NAMESPACE", "dtj-system"))
    # The pod name: after a container restart the operator takes its own lease back without waiting.
    identity = env.get("POD_NAME") or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    return Settings(identity=identity, **vars(parser.parse_args(argv)))
