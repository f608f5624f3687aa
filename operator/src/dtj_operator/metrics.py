"""What Prometheus may ask. No label without a bound: never a job's or a pod's name."""

from prometheus_client import Counter, Gauge, Histogram

# result: done | later | error
RECONCILES = Counter("dtj_reconciles_total", "Looks at a job, by how they ended.", ["result"])
RECONCILE = Histogram("dtj_reconcile_seconds", "Time of one look at a job.")
QUEUE_WAIT = Histogram("dtj_queue_wait_seconds", "Time that a job waited for a worker.")
QUEUE_DEPTH = Gauge("dtj_queue_depth", "Jobs that wait for a worker.")
API_REQUESTS = Counter("dtj_api_requests_total", "Requests to the API server.", ["method", "code"])
API_WAIT = Histogram(
    "dtj_api_rate_limit_seconds", "Time that requests waited for the operator's own rate limit."
)
PODS = Gauge("dtj_cached_pods", "Pods of jobs in the cache.")
RELISTS = Counter("dtj_relists_total", "Times a cache was filled anew.", ["what"])  # pods | nodes | ...
LEADER = Gauge("dtj_leader", "1 while this process holds the lease.")
RESTARTS = Counter("dtj_job_restarts_total", "Restarts of jobs.", ["counted"])  # true | false
FINISHED = Counter("dtj_jobs_finished_total", "Jobs that ended.", ["phase"])  # Succeeded | Failed
# result: answer | nothing
POLLS = Counter("dtj_agent_polls_total", "Questions to agents about progress.", ["result"])
