"""Every flag of the operator with its unit, default and reason, and kopf's own settings in one block."""

import argparse
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kopf


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The command line, read once."""

    namespace: str | None
    operator_namespace: str
    identity: str
    lease_name: str
    leader_election: bool
    requests_per_second: float
    workers: int
    progress_s: float
    agent_poll_s: float
    resync_s: float
    health_port: int
    metrics_port: int
    log_level: str
    log_format: str


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Read the flags; a flag that makes no sense ends the program with a sentence and code 2."""
    flags = vars(_parser(env).parse_args(argv))
    return Settings(identity=_identity(env), **flags)


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dtj-operator", description="Runs DistributedTrainingJobs.")
    add = parser.add_argument
    add("--namespace", help="serve this namespace only (default: all)")
    # Ranks let the operator's namespace through to their agents, and the lease lives there.
    add(
        "--operator-namespace", default=env.get("POD_NAMESPACE", "dtj-system"), help="where the operator runs"
    )
    add("--lease-name", default="dtj-operator", help="name of the Lease that operators agree by")
    add(
        "--no-leader-election",
        dest="leader_election",
        action="store_false",
        help="work at once; one process only",
    )
    # High enough not to be what a burst of jobs waits for; the API server's own fairness protects it.
    add("--requests-per-second", type=_positive, default=500.0, help="to the API server, on average (500)")
    # Workers mostly wait for answers; more of them only lengthen each other's bursts.
    add("--workers", type=_count, default=16, help="jobs that are looked at at once (16)")
    add(
        "--progress-seconds",
        dest="progress_s",
        type=_positive,
        default=60.0,
        help="between progress writes (60)",
    )
    add(
        "--agent-poll-seconds",
        dest="agent_poll_s",
        type=_positive,
        default=10.0,
        help="between questions (10)",
    )
    # Nothing should ever need it: it bounds the harm of an event that is lost by a bug.
    add(
        "--resync-seconds",
        dest="resync_s",
        type=_positive,
        default=600.0,
        help="between looks at all jobs (600)",
    )
    add("--health-port", type=_port, default=8081, help="/healthz and /readyz (8081)")
    add("--metrics-port", type=_port, default=8080, help="/metrics (8080)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    add("--log-format", choices=("json", "text"), default="json")
    return parser


def _identity(env: Mapping[str, str]) -> str:
    """A pod keeps its name when its container restarts, and takes its own lease back without waiting."""
    return env.get("POD_NAME") or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:  # 0: any free one, which is then logged
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return number


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf watches the jobs and nothing else: it must write nothing and keep nothing."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # our Events are deduplicated, its are not
    settings.peering.standalone = True  # leader election is the Lease's
    settings.scanning.disabled = True  # no watch of namespaces and CRDs: less to be permitted
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.enforce_retry_after = True
    settings.networking.error_backoffs = (1, 1, 2, 3, *[5] * 600)  # back soon when the API server is
    settings.queueing.idle_timeout = 0.2  # a task per job seen lives this long
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
    settings.process.ultimate_exiting_timeout = 10  # below the pod's grace period
    return settings


class _NoDiffBase(kopf.DiffBaseStorage):
    """kopf compares every object with its last handled state, five deep copies an event; we never ask."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


class _NoProgress(kopf.ProgressStorage):
    """There are no handlers whose progress could be kept."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass

    def purge(self, **_: Any) -> None:
        pass

    def touch(self, **_: Any) -> None:
        pass

    def clear(self, *, essence: Any) -> Any:
        return essence
