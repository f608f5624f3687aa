"""Asks the agent of a pod for /status through `kubectl port-forward`, to which no NetworkPolicy applies."""

import http.client
import json
import re
import subprocess
import threading

from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.show.stacks import AGENT_PORT

_TIMEOUT_S = 3.0
_RETRY_S = 10.0
_LIMIT = 1 << 20  # bytes of an answer
_FORWARDED = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ")


class Agent:
    """The agent of one pod.

    problem  why there is no answer; empty: there is one, or none yet
    """

    def __init__(self, kubectl: Kubectl, pod: str) -> None:
        self.problem = ""
        self._kubectl, self._pod = kubectl, pod
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Forward a free port of this machine to the pod, again and again, in a thread."""
        threading.Thread(target=self._forward, daemon=True).start()

    def stop(self) -> None:
        """End the forwarding."""
        self._stopped.set()
        if self._process is not None:
            self._process.kill()

    def status(self) -> Json | None:
        """The answer; None if there is none now."""
        if self._port is None:
            return None
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", "/status")
            found = json.loads(connection.getresponse().read(_LIMIT))
        except (OSError, ValueError, RecursionError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return found if isinstance(found, dict) else None

    def _forward_once(self, *words: str) -> None:
        with self._kubectl.start(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            self._process = process
            if self._stopped.is_set():  # meanwhile
                process.kill()
            assert process.stdout is not None
            for line in process.stdout:
                if ready := _FORWARDED.match(line):
                    self._port, self.problem = int(ready[1]), ""

    def _forward(self) -> None:
        words = ("port-forward", f"pod/{self._pod}", f":{AGENT_PORT}", "--address=127.0.0.1")
        may = False
        while not self._stopped.is_set():
            try:
                may = may or self._kubectl.may("create", "pods/portforward")
                if not may:
                    self.problem = "you may not create pods/portforward here"
                    return
                self._forward_once(*words)
            except ClientError as error:
                self.problem = error.message
            self._port = None
            self._stopped.wait(_RETRY_S)
