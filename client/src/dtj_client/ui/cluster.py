"""What the pages read from the cluster, with the user's own rights."""

from dtj_client.kubectl import GROUP, VERSION, Json, Kubectl
from dtj_client.ui.views import row
from dtj_client.ui.watch import Watch


class Cluster:
    """The jobs of a namespace, or of all, kept up to date.

    kubectl         chooses cluster and namespace
    all_namespaces  whether to show all
    """

    def __init__(self, kubectl: Kubectl, *, all_namespaces: bool) -> None:
        self.namespace = "" if all_namespaces else kubectl.namespace()
        self.context = kubectl.context()
        within = f"/namespaces/{self.namespace}" if self.namespace else ""
        self._jobs = Watch(kubectl, f"/apis/{GROUP}/{VERSION}{within}/distributedtrainingjobs")

    def start(self) -> None:
        """Read the jobs once and watch them. Raises ClientError if they cannot be read."""
        self._jobs.start()

    def stop(self) -> None:
        """Stop reading."""
        self._jobs.stop()

    def jobs(self, after: int) -> Json | None:
        """All jobs, or None if nothing has changed.

        after  `version` of the last answer; -1 for the first one
        """
        version, found = self._jobs.objects()
        error = self._jobs.problem
        if version == after and error is None:
            return None
        return {
            "version": version,
            "context": self.context,
            "namespace": self.namespace,
            "problem": error and error.message,
            "jobs": [row(job) for job in found],
        }
