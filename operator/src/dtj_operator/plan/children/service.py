"""The headless Service: a DNS name per replica, even before it is ready: ranks connect while starting."""

from typing import Any

from dtj_operator import names
from dtj_operator.plan.children.meta import metadata
from dtj_operator.spec import Job

Json = dict[str, Any]


def service(job: Job) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.child_labels(job.name, job.uid),
            "ports": [
                {"name": "master", "port": job.master_port, "protocol": "TCP"},
                {"name": "agent", "port": names.AGENT_PORT, "protocol": "TCP"},
            ],
        },
    }
