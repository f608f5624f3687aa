"""The trainer's half of docs/contract.md: environment variables, exit codes, report fields.

The operator has its own half and does not import this one; a test compares both with the page.
"""

from typing import Final

# Identity of this process. The names are those of torchrun, so any script with `env://` works.
RANK: Final = "RANK"
LOCAL_RANK: Final = "LOCAL_RANK"
WORLD_SIZE: Final = "WORLD_SIZE"
LOCAL_WORLD_SIZE: Final = "LOCAL_WORLD_SIZE"
MASTER_ADDR: Final = "MASTER_ADDR"
MASTER_PORT: Final = "MASTER_PORT"
NODE_RANK: Final = "NODE_RANK"
NNODES: Final = "NNODES"
NPROC_PER_NODE: Final = "NPROC_PER_NODE"

# Set by the operator in a pod.
JOB: Final = "DTJ_JOB"
JOB_UID: Final = "DTJ_JOB_UID"
ATTEMPT: Final = "DTJ_ATTEMPT"
REPLICA_INDEX: Final = "DTJ_REPLICA_INDEX"
POD: Final = "DTJ_POD"
AGENT_PORT: Final = "DTJ_AGENT_PORT"
GRACE_SECONDS: Final = "DTJ_GRACE_SECONDS"
CHECKPOINT_DIR: Final = "DTJ_CHECKPOINT_DIR"
RESUME_DIR: Final = "DTJ_RESUME_DIR"
HANG_SECONDS: Final = "DTJ_HANG_SECONDS"
HANG_WORKING_SECONDS: Final = "DTJ_HANG_WORKING_SECONDS"
HANG_ACTION: Final = "DTJ_HANG_ACTION"
MIN_REPLICAS: Final = "DTJ_MIN_REPLICAS"
MAX_REPLICAS: Final = "DTJ_MAX_REPLICAS"
SUCCESS_REPLICAS: Final = "DTJ_SUCCESS_REPLICAS"
RESTARTS: Final = "DTJ_RESTARTS"
MAX_RESTARTS: Final = "DTJ_MAX_RESTARTS"
RESTARTS_IN_PLACE: Final = "DTJ_RESTARTS_IN_PLACE"
RESTART_WINDOW_SECONDS: Final = "DTJ_RESTART_WINDOW_SECONDS"
MAX_RESTARTS_WITHOUT_PROGRESS: Final = "DTJ_MAX_RESTARTS_WITHOUT_PROGRESS"
RESTARTS_WITHOUT_PROGRESS: Final = "DTJ_RESTARTS_WITHOUT_PROGRESS"
BACKOFF_SECONDS: Final = "DTJ_BACKOFF_SECONDS"
HIGHEST_STEP: Final = "DTJ_HIGHEST_STEP"

PRELOAD: Final = "DTJ_PRELOAD"  # 0: the agent imports nothing for its ranks; set by the user or by the agent

# Set by the agent for its ranks, in addition to the names above; torchrun sets the first five, too.
USE_AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
RUN_ID: Final = "TORCHELASTIC_RUN_ID"  # shows scripts and libraries that a launcher started them
RESTART_COUNT: Final = "TORCHELASTIC_RESTART_COUNT"
TORCHRUN_RESTARTS: Final = "TORCHELASTIC_MAX_RESTARTS"
ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"  # for torch's @record
GENERATION: Final = "DTJ_GENERATION"
HEALING: Final = "DTJ_HEALING"  # 1 if other ranks of this generation hold the state in memory
CONNECT_SECONDS: Final = "DTJ_CONNECT_SECONDS"  # time limit for a rank to connect to all others
INCARNATION: Final = "DTJ_INCARNATION"  # id of the agent process, which owns the run's folder
BUDDY: Final = "DTJ_BUDDY"  # where copies of this replica's state are kept; empty without one

# Exit codes.
EXIT_DONE: Final = 0
EXIT_STOPPED: Final = 75
EXIT_PEER_LOST: Final = 76
EXIT_BAD_RECIPE: Final = 78
EXIT_SIGNAL: Final = 128  # plus the signal number

# The termination message.
TERMINATION_LOG: Final = "/dev/termination-log"
TERMINATION_BYTES: Final = 4096
TERMINATION_FIELDS: Final = (
    *("step", "totalSteps", "epoch", "loss", "samplesPerSecond"),
    "reason",
    "rank",
    "exitCode",
    "message",
    "checkpoint",
    "generation",
    "inPlace",
    "withoutProgress",
    "identicalFailures",
    "at",
    "culprit",
)
REASONS: Final = (
    *("Done", "Stopped", "Exception", "ExitCode", "Signal", "OOMKilled", "Hang"),
    *("DeviceFault", "PeerLost", "Superseded", "BadRecipe"),
)

# What rank 0 reports about the run; /status has the same names.
RUN_FIELDS: Final = (
    *("step", "totalSteps", "epoch", "loss", "metrics", "samplesPerSecond", "tokensPerSecond", "mfu"),
    *("dataWait", "stepSecondsP50", "stepSecondsP99", "memoryBytes", "etaSeconds"),
    *("checkpoint", "saveFailure"),
)
# Fields of /status.
STATUS_FIELDS: Final = (
    *("job", "jobUid", "replica", "attempt", "generation", "state", "worldSize"),
    *RUN_FIELDS,
    *("ranks", "slowestRank", "slowest", "hang", "missing", "waiting", "unheardSeconds", "rejoin"),
    *("restarts", "failure", "ledger", "at"),
)
STATES: Final = ("Starting", "Running", "Recovering", "Stopping", "Done", "Failed")
