"""When pods were created and ran, nodes became NotReady and jobs blamed them, as seen by watches."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from tests.bench.recovery_times import Seen
from tests.support.kubectl import Json, Kubectl


class Watch:
    """Follows pods, nodes and jobs in the background; times are seconds since 1970, at arrival."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._pods: dict[str, list[str]] = {}  # name -> uids, the newest last
        self._created: dict[str, float] = {}
        self._running: dict[str, float] = {}
        self._unready: dict[str, list[float]] = {}
        self._was_ready: dict[str, bool] = {}
        self._blamed: dict[tuple[str, str], list[float]] = {}  # by job and node
        self._calls: dict[str, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        for kind, hear in (("pods", self._on_pod), ("nodes", self._on_node), ("dtj", self._on_job)):
            self._threads.append(threading.Thread(target=self._follow, args=(kind, hear), daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for call in self._calls.values():
            call.kill()
        for thread in self._threads:
            thread.join()

    def replacement(self, pod: str, *, besides: str, node: str, since: float) -> Seen:
        """What is known of a node, and of the newest pod of this name unless it is the old one."""
        uid = next((uid for uid in reversed(self._pods.get(pod, [])) if uid != besides), "")
        blamed = self._blamed.get((pod.rpartition("-")[0], node), [])
        return Seen(
            unready=next((at for at in self._unready.get(node, []) if at > since), None),
            blamed=next((at for at in blamed if at > since), None),
            created=self._created.get(uid),
            running=self._running.get(uid),
        )

    def _follow(self, kind: str, hear: Callable[[Json, float], None]) -> None:
        kubectl = replace(self._kubectl, namespace=None) if kind == "nodes" else self._kubectl
        while not self._is_over.is_set():  # the API server ends a watch after some time
            command = kubectl.command("get", kind, "-o", "json", "--watch", "--output-watch-events")
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as call:
                self._calls[kind] = call
                if self._is_over.is_set():  # started a moment ago, and only this thread stops it
                    call.kill()
                assert call.stdout
                for line in call.stdout:  # one event each
                    hear(json.loads(line)["object"], time.time())

    def _on_pod(self, pod: Json, now: float) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if uid not in self._created:
            self._created[uid] = now
            self._pods.setdefault(name, []).append(uid)
        statuses = pod.get("status", {}).get("containerStatuses", ())
        if any("running" in each.get("state", {}) for each in statuses):
            self._running.setdefault(uid, now)

    def _on_job(self, job: Json, now: float) -> None:
        failure = job.get("status", {}).get("failure", {})
        if failure.get("reason") == "NodeLost":
            self._blamed.setdefault((job["metadata"]["name"], failure["node"]), []).append(now)

    def _on_node(self, node: Json, now: float) -> None:
        name = node["metadata"]["name"]
        conditions = node.get("status", {}).get("conditions", ())
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        if self._was_ready.get(name, True) and not ready:
            self._unready.setdefault(name, []).append(now)
        self._was_ready[name] = ready
