"""`kubectl dtj`: submit, follow and steer DistributedTrainingJobs.

It runs the user's own kubectl, so it has the user's rights and logins and nothing to configure, and needs
nothing on the cluster but the operator.

In Python, the same verbs:

    import dtj_client as dc

    job = dc.submit("train.py", replicas=2)
    for line in job.logs(follow=True):
        print(line)

For asyncio, `from dtj_client import aio as dc` has the same names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtj_client.api import cluster, get, submit, templates
    from dtj_client.errors import ClientError
    from dtj_client.job import Job, Status
    from dtj_client.show.events import Event
    from dtj_client.show.logs import Line
    from dtj_client.submission.template import Template

__all__ = [
    "ClientError",
    "Event",
    "Job",
    "Line",
    "Status",
    "Template",
    "__version__",
    "cluster",
    "get",
    "submit",
    "templates",
]
__version__ = "0.1.0"

_MODULES = {
    **dict.fromkeys(("cluster", "get", "submit", "templates"), "api"),
    **{"ClientError": "errors", "Event": "show.events", "Job": "job", "Status": "job", "Line": "show.logs"},
    "Template": "submission.template",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is used: `kubectl dtj --help` needs none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
