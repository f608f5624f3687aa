"""Runs kubectl for tests and the demo, on a real cluster; returns dicts.

It waits with a watch and a deadline, never with a sleep: `until` returns as soon as the condition holds, and
at the deadline raises an error with the last state of the object.
"""

from __future__ import annotations

import codecs
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Json = dict[str, Any]
PATIENCE_S = 240.0  # two pods took more than 120 s for 12 steps, beside a load of 59


class KubectlError(AssertionError):
    """kubectl failed; the message is the one that kubectl printed."""


class NeverHappenedError(AssertionError):
    """The deadline passed; the message holds the last state that was seen."""


@dataclass(frozen=True, kw_only=True)
class Kubectl:
    """kubectl for one cluster and one namespace.

    binary      path of kubectl
    kubeconfig  path of the cluster's kubeconfig
    namespace   namespace of all commands; None for kubectl's default
    """

    binary: Path
    kubeconfig: Path
    namespace: str | None = None

    def command(self, *words: str) -> list[str]:
        """Return the argument vector of a command, for callers that start it themselves."""
        namespace = ["--namespace", self.namespace] if self.namespace else []
        return [str(self.binary), "--kubeconfig", str(self.kubeconfig), *namespace, *words]

    def __call__(self, *words: str, given: str | None = None, check: bool = True) -> str:
        """Run kubectl and return its output; `given` is its standard input."""
        done = subprocess.run(
            self.command(*words), input=given, capture_output=True, text=True, check=False, timeout=120
        )
        if check and done.returncode:
            raise KubectlError(f"kubectl {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def refusal(self, *words: str, given: str | None = None) -> str:
        """Run a command that must fail and return its error message."""
        done = subprocess.run(
            self.command(*words), input=given, capture_output=True, text=True, check=False, timeout=120
        )
        if not done.returncode:
            raise KubectlError(f"kubectl {' '.join(words)} succeeded, but must fail: {done.stdout}")
        return done.stderr

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Apply manifests as `kubectl apply -f -` does."""
        self("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))

    def set_status(self, kind: str, name: str, **status: object) -> None:
        """Change fields of an object's status."""
        patch = json.dumps({"status": status})
        self("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)

    def get(self, kind: str, name: str) -> Json | None:
        """Return one object, or None if it does not exist."""
        text = self("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, selector: str = "") -> list[Json]:
        """Return all objects of a kind that match a label selector."""
        items: list[Json] = json.loads(self("get", kind, "-l", selector, "-o", "json"))["items"]
        return items

    def until(
        self,
        kind: str,
        name: str,
        holds: Callable[[Json], bool],
        *,
        within_s: float = PATIENCE_S,
        hint: str = "",
    ) -> Json:
        """Watch one object until `holds` is true for it, and return it; it may not exist yet.

        Raises NeverHappenedError with the last state after `within_s` seconds.
        """
        deadline = time.monotonic() + within_s
        last: Json | None = None
        for seen in self.watch(kind, f"--field-selector=metadata.name={name}", deadline=deadline):
            if seen["type"] == "DELETED":
                continue
            last = seen["object"]
            if holds(last):
                return last
        state = json.dumps((last or {}).get("status"), indent=1)
        raise NeverHappenedError(
            f"{kind}/{name} {hint or 'never got there'} within {within_s} s; last: {state}"
        )

    def until_gone(self, kind: str, *, selector: str = "", within_s: float = 100) -> None:
        """Wait until no object of the kind matches the label selector."""
        deadline = time.monotonic() + within_s
        left = {item["metadata"]["name"] for item in self.list(kind, selector)}
        while left and time.monotonic() < deadline:
            name = min(left)
            self("wait", "--for=delete", f"{kind}/{name}", f"--timeout={within_s}s", check=False)
            left = {item["metadata"]["name"] for item in self.list(kind, selector)}
        if left:
            raise NeverHappenedError(f"{kind} {sorted(left)} still exist after {within_s} s")

    def follow(self, pod: str, text: str, *, within_s: float = PATIENCE_S) -> str:
        """Follow a pod's log until it contains `text`, and return the log so far."""
        deadline = time.monotonic() + within_s
        log, of = "", ""
        while time.monotonic() < deadline:
            left_s = deadline - time.monotonic()
            # If a pod's log ended without the text, wait for the next pod of that name: it may have it.
            begun = partial(_started, besides=of)
            of = self.until("pod", pod, begun, within_s=left_s)["metadata"]["uid"]
            log = ""
            for chunk in self.stream("logs", "--follow", pod, deadline=deadline):
                log += chunk
                if text in log:
                    return log
        raise NeverHappenedError(f"{text!r} not in the log of {pod} within {within_s} s; last: {log[-2000:]}")

    def watch(self, kind: str, *flags: str, deadline: float) -> Iterator[Json]:
        """Yield watch events, `type` and `object`; a watch that ends is restarted.

        flags       flags of `kubectl get`, such as `--selector=a=b`
        deadline    when to stop, in monotonic seconds
        """
        decoder = json.JSONDecoder()
        while time.monotonic() < deadline:
            text = ""
            words = ("get", kind, *flags, "-o", "json", "--watch", "--output-watch-events")
            for chunk in self.stream(*words, deadline=deadline):
                text += chunk
                while text := text.lstrip():
                    try:
                        event, end = decoder.raw_decode(text)
                    except json.JSONDecodeError:
                        break  # the rest of it has not arrived yet
                    text = text[end:]
                    yield event

    def stream(self, *words: str, deadline: float) -> Iterator[str]:
        """Yield the output of a long-running command, until it ends or the deadline passes."""
        with (
            subprocess.Popen(
                self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as process,
            selectors.DefaultSelector() as ready,
        ):
            assert process.stdout is not None
            decode = codecs.getincrementaldecoder("utf-8")().decode
            ready.register(process.stdout, selectors.EVENT_READ)
            try:
                while (left_s := deadline - time.monotonic()) > 0 and ready.select(timeout=left_s):
                    chunk = os.read(process.stdout.fileno(), 1 << 16)
                    if not chunk:
                        return
                    yield decode(chunk)
            finally:
                process.kill()


def _started(pod: Json, *, besides: str) -> bool:
    """Whether the pod has a log to read and is not the pod with this uid."""
    phase = pod.get("status", {}).get("phase")
    return phase in ("Running", "Succeeded", "Failed") and pod["metadata"]["uid"] != besides
