"""The crashes of `blame` on real kubelets: does the job's status tell what died, where, and of what?

Each crash is a job of two pods with two ranks each. The truth is what the first rank to die recorded on a
folder that all nodes share. The section is written after each crash.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.blame_plan import HOWS, PLACES, PROCESSES, RANKS, Crash, draw
from tests.bench.recovery_jobs import namespace
from tests.cluster import install, kind
from tests.e2e.conftest import TRAINER, config_map
from tests.support.kubectl import Json, Kubectl, KubectlError, NeverHappenedError
from tests.support.pool import Pool

NAMESPACE = "bench-blame"
CRASHES = int(os.environ.get("DTJ_BLAME_CRASHES", "200"))
SKIPPED = int(os.environ.get("DTJ_BLAME_SKIPPED", "0"))  # the first of them, made in an earlier run
SEED = int(os.environ.get("DTJ_BLAME_SEED", "1"))
AT_ONCE = int(os.environ.get("DTJ_BLAME_AT_ONCE", "2"))
ASPECTS = ("rank", "replica", "node", "reason", "exitCode")
_FILES = ("blame_program.py", "blame_plan.py")
_WITHIN_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the status said of one crash, and what was expected; both are empty if no rank died after all.

    A job whose status does not tell how it ended is wrong in every aspect.
    """

    crash: Crash
    expected: Mapping[str, object]
    said: Mapping[str, object]

    @property
    def wrong(self) -> list[str]:
        """The aspects in which the status is wrong."""
        return [name for name in ASPECTS if self.said.get(name) != self.expected.get(name)]


def expect(truth: Mapping[str, Any], nodes: Mapping[int, str]) -> dict[str, object]:
    """The right status.failure. truth: recorded by the first rank to die; nodes: by replica."""
    replica = truth["rank"] // PROCESSES
    reason, code = HOWS[truth["how"]]
    return {
        "rank": truth["rank"],
        "replica": replica,
        "node": nodes[replica],
        "reason": reason,
        "exitCode": code,
    }


def manifest(name: str, crash: Crash) -> Json:
    """A job with as many restarts as the crash needs."""
    items = [{"key": file, "path": f"tests/bench/{file}"} for file in _FILES]
    container = {
        "name": "trainer",
        "image": TRAINER,
        "workingDir": "/app",
        "args": ["run", "--checkpoint", "/out/saved", "-m", "tests.bench.blame_program"],
        "env": [{"name": "OUT", "value": "/out"}, {"name": "DEATHS", "value": json.dumps(crash.to_json())}],
        "resources": {"requests": {"cpu": "10m", "memory": "300Mi"}},
        "volumeMounts": [{"name": "app", "mountPath": "/app"}, {"name": "out", "mountPath": "/out"}],
    }
    volumes = [
        {"name": "app", "configMap": {"name": "blame", "items": items}},
        {
            "name": "out",
            "hostPath": {"path": f"{install.SHARED_FOLDER}/{NAMESPACE}/{name}", "type": "Directory"},
        },
    ]
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "replicas": RANKS // PROCESSES,
            "processesPerReplica": PROCESSES,
            "template": {"spec": {"containers": [container], "volumes": volumes}},
            "recovery": {"maxRestarts": crash.restarts, "avoidNodeAfterFaults": "Never"},
        },
    }


def judge(kubectl: Kubectl, shared: Path, name: str, crash: Crash) -> Verdict:
    """Run the crash and compare."""
    folder = shared / NAMESPACE / name
    folder.mkdir(parents=True)
    folder.chmod(0o777)  # the container's user is not root
    kubectl.apply(manifest(name, crash))
    over = kubectl.until("dtj", name, _is_over, within_s=_WITHIN_S)
    pods = kubectl.list("pods", f"dtj.dev/job-name={name}")
    nodes = {int(pod["metadata"]["name"].rpartition("-")[2]): pod["spec"]["nodeName"] for pod in pods}
    notes = [json.loads(file.read_text()) for file in sorted(folder.glob("truth-*[0-9]"))]
    last_life = [note for note in notes if note["life"] == crash.deaths[-1].life]
    kubectl("delete", "dtj", name, "--wait=false", check=False)
    if not last_life:
        return Verdict(crash=crash, expected={}, said={})
    failure = over["status"].get("failure", {})
    return Verdict(
        crash=crash,
        expected=expect(last_life[0], nodes),
        said={name: failure.get(name) for name in ASPECTS},
    )


def _is_over(job: Json) -> bool:
    return job.get("status", {}).get("phase") in {"Failed", "Succeeded"}


def text(verdicts: list[Verdict]) -> str:
    """The section of the page."""
    judged = [verdict for verdict in verdicts if verdict.expected]
    rows: list[tuple[object, ...]] = []
    for place in (*PLACES, "all"):
        here = [verdict for verdict in judged if place in {verdict.crash.place, "all"}]
        rows.append((place, len(here), *(sum(name not in v.wrong for v in here) for name in ASPECTS)))
    right = sum(not verdict.wrong for verdict in judged)
    ways = Counter(verdict.crash.deaths[-1].how for verdict in judged)
    return (
        f"{report.table(('crash during', 'crashes', *(f'right {name}' for name in ASPECTS)), rows)}\n\n"
        f"All of them right in {right} of {len(judged)}"
        f" ({100 * right / max(1, len(judged)):.1f} %), seed {SEED}. "
        f"Ways to die: {', '.join(f'{way} {count}' for way, count in sorted(ways.items()))}."
    )


def main() -> None:
    """Run the crashes, some at a time, and write the section; each wrong verdict is printed in full."""
    root = install.with_operator()
    kind.create()
    verdicts: list[Verdict] = []
    lock = threading.Lock()
    shared = kind.shared_folder()
    shutil.rmtree(shared / NAMESPACE, ignore_errors=True)
    with namespace(root, NAMESPACE) as kubectl, Pool(AT_ONCE) as pool:
        here = Path(__file__).parent
        kubectl.apply(config_map("blame", {file: (here / file).read_text() for file in _FILES}))

        def run(number: int, crash: Crash) -> None:
            try:
                verdict = judge(kubectl, shared, f"crash-{number}", crash)
            except (KubectlError, NeverHappenedError) as error:
                print(f"crash {number}: {crash}: {error}", flush=True)
                verdict = Verdict(crash=crash, expected=dict.fromkeys(ASPECTS, "a status in time"), said={})
            print(f"crash {number}: {verdict.wrong or 'right'}", flush=True)
            if verdict.wrong:
                print(verdict, flush=True)
            with lock:
                verdicts.append(verdict)
                report.write("blame status", text(verdicts))

        crashes = list(enumerate(draw(CRASHES, SEED)))[SKIPPED:]
        for done in [pool.submit(run, number, crash) for number, crash in crashes]:
            done.result()
    shutil.rmtree(shared / NAMESPACE, ignore_errors=True)
