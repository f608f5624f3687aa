"""The operator's Prometheus metrics. Every label has few values: never the name of a job, a pod or a node.

docs/operations.md has the table of these definitions; a test compares the two. The gauges of jobs are in
job_metrics.py.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram, Info, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the number of series

WAITS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)  # seconds

BUILD = Info("dtj_build", "Always 1; the version of the operator and of Python.")
MEMORY_LIMIT = Gauge(
    "dtj_memory_limit_bytes", "Memory that the operator may use: the limit of its container, else the node's."
)
LEADER = Gauge(
    "dtj_leader", "1 while this process leads, else 0; for each Lease that it needs for that.", ["lease"]
)

RECONCILES = Counter("dtj_reconciles_total", "Reconciles of jobs: `done`, `later` or `error`.", ["result"])
RECONCILE = Histogram("dtj_reconcile_seconds", "Seconds for one reconcile of a job.")
QUEUE_WAIT = Histogram(
    "dtj_queue_wait_seconds",
    "Seconds that a job waited in the queue for a worker.",
    buckets=(0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300),
)
QUEUE_DEPTH = Gauge("dtj_queue_depth", "Jobs in the queue, waiting for a worker.")
API_REQUESTS = Counter(
    "dtj_api_requests_total", "Requests to the API server; `none`: no answer.", ["method", "code"]
)
API_WAIT = Histogram(
    "dtj_api_rate_limit_seconds", "Seconds that requests waited because of the operator's own rate limit."
)
CACHED_PODS = Gauge("dtj_cached_pods", "Pods of jobs in the cache.")
RELISTS = Counter(
    "dtj_relists_total", "How many times a cache (`pods`, `nodes`, ...) was refilled from a list.", ["what"]
)
AGENTS = Gauge(
    "dtj_agents",
    "Agents that are polled, one of each running job, by the last poll: `answer` or `nothing`.",
    ["result"],
)
POLLS = Counter("dtj_agent_polls_total", "Polls of agents for progress: `answer` or `nothing`.", ["result"])
STATUS_WRITE_FAILURES = Counter(
    "dtj_status_write_failures_total",
    "Writes of a job's status that failed. 409: the job had changed, which is normal; 0: no answer.",
    ["code"],
)
EVENTS_DROPPED = Counter(
    "dtj_events_dropped_total", "Events that were not recorded: `queue_full` or `refused`.", ["reason"]
)

FINISHED = Counter(
    "dtj_jobs_finished_total",
    "Finished jobs; the reason is that of the condition `Complete` or `Failed`.",
    ["namespace", "phase", "reason"],
)
RESTARTS = Counter(
    "dtj_job_restarts_total",
    "Restarts of jobs; `true`: counted against `recovery.maxRestarts`. Without those in place.",
    ["namespace", "counted"],
)
FAULTS = Counter(
    "dtj_faults_total",
    "Faults of jobs, whether healed in place or not, by the reason of `status.failure`.",
    ["namespace", "reason"],
)
NODES_LOST = Counter("dtj_nodes_lost_total", "Nodes that jobs lost; once for all jobs within 10 minutes.")
PODS_READY = Histogram(
    "dtj_job_pods_ready_seconds",
    "Seconds from the start of a job until all its pods run; first attempts only.",
    buckets=WAITS,
)
FIRST_STEP = Histogram(
    "dtj_job_first_step_seconds",
    "Seconds from the start of a job to its first step, if its agents report it; first attempts only.",
    buckets=WAITS,
)
RECOVERY = Histogram(
    "dtj_recovery_seconds",
    "Seconds from a fault until all pods run again. Scope `InPlace`: as the agents report it.",
    ["scope", "reason"],
    buckets=WAITS,
)
ACCELERATOR_SECONDS = Counter(
    "dtj_accelerator_seconds_total",
    "Seconds of `status.goodput` times accelerators of the job: `productive`, `startup`, `lost`,"
    " `recovering` or `queued`. The ninth kind of resource in a namespace is `Other`.",
    ["namespace", "resource", "state"],
)
_OF_NAMESPACES = (FINISHED, RESTARTS, FAULTS, ACCELERATOR_SECONDS)

# A series must begin with 0: Prometheus' increase() does not see the first value that a series has.
for _counter, _values in (
    (RECONCILES, ("done", "later", "error")),
    (POLLS, ("answer", "nothing")),
    (EVENTS_DROPPED, ("queue_full", "refused")),
):
    for _value in _values:
        _counter.labels(_value)

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_limit(files: Sequence[Path] = _LIMITS) -> int:
    """Return the limit of this container, as the kernel says in one of these files, or the node's memory."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in files:
        try:
            limit = min(limit, int(file.read_text()))
        except (OSError, ValueError):  # another version of cgroups, or "max"
            continue
    return limit


def forget_namespace(namespace: str) -> None:
    """Remove its series: a process would otherwise keep those of every namespace that it ever saw."""
    for counter in _OF_NAMESPACES:
        counter.remove_by_labels({"namespace": namespace})
