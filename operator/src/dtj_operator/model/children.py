"""What is known of a job's Service and NetworkPolicy, and why the API server rejected an object."""

from dataclasses import dataclass
from enum import Enum

QUOTA_EXCEEDED = "QuotaExceeded"


class Child(Enum):
    """The state of the Service or the NetworkPolicy."""

    ABSENT = "does not exist"
    PRESENT = "exists and is ours"
    EDITED = "exists and is ours, but was edited"
    FOREIGN = "exists and has another owner"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why the API server rejected a child, in its words; also the reason of the PodsReady condition."""

    reason: str  # NameConflict | QuotaExceeded | PodRejected
    message: str
