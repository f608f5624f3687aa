"""The operator's Prometheus metrics. Every label has few values: never the name of a job or a pod."""

from prometheus_client import Counter, Gauge, Histogram

# result: done | later | error
RECONCILES = Counter("dtj_reconciles_total", "Reconciles of jobs, by result.", ["result"])
RECONCILE = Histogram("dtj_reconcile_seconds", "Seconds for one reconcile of a job.")
QUEUE_WAIT = Histogram("dtj_queue_wait_seconds", "Seconds that a job waited in the queue for a worker.")
QUEUE_DEPTH = Gauge("dtj_queue_depth", "Jobs in the queue, waiting for a worker.")
API_REQUESTS = Counter(
    "dtj_api_requests_total", "Requests to the API server, by method and HTTP status.", ["method", "code"]
)
API_WAIT = Histogram(
    "dtj_api_rate_limit_seconds", "Seconds that requests waited because of the operator's own rate limit."
)
CACHED_PODS = Gauge("dtj_cached_pods", "Pods of jobs in the cache.")
RELISTS = Counter(
    "dtj_relists_total", "Times a cache was refilled from a list.", ["what"]
)  # pods | nodes | ...
LEADER = Gauge("dtj_leader", "1 while this process holds the lease.")
RESTARTS = Counter(
    "dtj_job_restarts_total", "Restarts of jobs, by whether they count against maxRestarts.", ["counted"]
)  # true | false
FINISHED = Counter("dtj_jobs_finished_total", "Finished jobs, by phase.", ["phase"])  # Succeeded | Failed
# result: answer | nothing
POLLS = Counter("dtj_agent_polls_total", "Polls of agents for their progress, by result.", ["result"])
