"""The control run with plain scripts: are there false alarms?

All jobs run at the same time, with two agents each and default settings. The section is written every
minute, so that a run that is cut short tells what it has seen.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.bench import report
from tests.bench.control import Job, measure, problems, text
from tests.bench.control_agents import AGENTS
from tests.bench.control_plan import PLAIN_KINDS

SECONDS = float(os.environ.get("DTJ_CONTROL_SECONDS", "7200"))  # of each job
# Who has the loop, usual step in seconds, ranks of each agent.
JOBS = (("own loop", 0.5, 2), ("Accelerate", 1.0, 1), ("transformers", 0.25, 1), ("Lightning", 2.0, 1))
_WRITE_S = 60.0
# Bytes a second of a download: by its length, so that slow and fast ones occur.
_SPEEDS = (2_000, 50_000, 500_000)
_BETWEEN_S = 0.5


class _Slow(BaseHTTPRequestHandler):
    """GET /SECONDS is an answer that takes so long."""

    def do_GET(self) -> None:
        seconds = int(self.path.removeprefix("/"))
        self.send_response(200)
        self.end_headers()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.wfile.write(b"x" * int(_SPEEDS[seconds % len(_SPEEDS)] * _BETWEEN_S))
            time.sleep(_BETWEEN_S)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        del code, size


@contextmanager
def slow_server() -> Iterator[str]:
    """The address of a server of slow downloads."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def main() -> None:
    """Run all jobs at the same time; fail if there was a false alarm or a real hang was missed."""
    jobs = [Job(name=name, step_s=step_s, ranks=AGENTS * nproc) for name, step_s, nproc in JOBS]
    with slow_server() as url, ThreadPoolExecutor(len(jobs)) as pool:
        runs = [
            pool.submit(
                measure,
                job,
                number,
                program="tests.bench.control_plain_program",
                seconds=SECONDS,
                FRAMEWORK=job.name,
                URL=url,
            )
            for number, job in enumerate(jobs, start=len(JOBS))
        ]
        while not all(run.done() for run in runs):
            time.sleep(_WRITE_S)
            report.write("control_plain", text(jobs, kinds=PLAIN_KINDS))
        report.write("control_plain", text(jobs, kinds=PLAIN_KINDS))
        for run in runs:
            run.result()
    if wrong := problems(jobs):
        raise SystemExit("\n".join(wrong))
