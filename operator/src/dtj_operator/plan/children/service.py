"""The headless Service: a DNS name per replica, even before it is ready: ranks connect while starting."""

from dtj_operator.model import names
from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job
from dtj_operator.plan.children.meta import metadata


def service(job: Job) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.child_labels(job.name, job.uid),
            "ports": [_port("master", job.master_port), _port("agent", names.AGENT_PORT)],
        },
    }


def _port(name: str, number: int) -> Json:
    """With the fields that the API server would fill in, so that the stored port equals it."""
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}
