"""Metadata of every child: name, labels, and the job as its controller."""

from dtj_operator.model import names
from dtj_operator.model.json import Json
from dtj_operator.model.spec import Job


def metadata(job: Job, name: str) -> Json:
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": names.child_labels(job.name, job.uid),
        "ownerReferences": [owner],
    }
