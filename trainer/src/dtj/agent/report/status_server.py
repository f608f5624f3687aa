"""/status, /metrics, /stacks and /healthz over HTTP, read only.

A separate process, forked before the ranks, so that the agent has no threads and can fork again at any time.
The agent sends it the newest document, and stacks when it requests them. It dies with the agent, which starts
it again if it dies alone.
"""

import contextlib
import errno
import json
import os
import queue
import socket
import socketserver
import sys
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from dtj.agent.child_process import end_helper, fork_helper

_DOCUMENT_BYTES = 1 << 20
# A document is a JSON object; a message about stacks starts with this byte, in both directions.
_STACKS = b"S"
_STACKS_BYTES = 128 * 1024
STACKS_TIMEOUT_S = 20.0  # longer than the agent waits for a rank that writes none
# Connections, each with a thread: more would take the processes that the node allows the pod from its ranks.
_MOST_OPEN = 64
_ENDS_WITHIN_S = 1.0  # a thread whose connection was closed
_GAUGES = {
    "dtj_step": ("step", "Last completed step of rank 0."),
    "dtj_total_steps": ("totalSteps", "Total steps of the run."),
    "dtj_epoch": ("epoch", "Epoch of the data, from 0."),
    "dtj_loss": ("loss", "Last logged loss, mean over the global batch."),
    "dtj_samples_per_second": ("samplesPerSecond", "Samples per second over all ranks of the job."),
    "dtj_tokens_per_second": ("tokensPerSecond", "Tokens per second over all ranks of the job."),
    "dtj_mfu_ratio": ("mfu", "Model FLOPs utilization (MFU) of rank 0, 0 to 1."),
    "dtj_data_wait_ratio": ("dataWait", "Share of time that the ranks spent waiting for samples, 0 to 1."),
    "dtj_step_seconds_p50": ("stepSecondsP50", "Median duration of rank 0's last 1,000 steps."),
    "dtj_step_seconds_p99": (
        "stepSecondsP99",
        "99th percentile of the duration of rank 0's last 1,000 steps.",
    ),
    "dtj_memory_bytes": ("memoryBytes", "Peak memory of rank 0."),
}


class StatusServer:
    """The agent's side of the server."""

    def __init__(self, pid: int, documents: socket.socket) -> None:
        self.pid = pid
        self._documents = documents

    @classmethod
    def start(cls, host: str, port: int) -> Self:
        """Fork the process; OSError if the port is taken."""
        server = _HttpServer(host, port)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pid = fork_helper(lambda: _serve(server, theirs), keep=(server.fileno(), theirs.fileno()))
        server.server_close()
        theirs.close()
        ours.setblocking(False)
        return cls(pid, ours)

    def publish(self, document: dict[str, Any]) -> None:
        """Send the newest document; dropped if the server is behind, since the next one replaces it.

        One that is too large for a datagram, as metrics can make it, is sent without metrics and without the
        ranks of other pods.
        """
        with contextlib.suppress(OSError):
            try:
                self._documents.send(json.dumps(document).encode())
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    ours = [rank for rank in document["ranks"] if rank["pid"] is not None]
                    self._documents.send(json.dumps(document | {"metrics": {}, "ranks": ours}).encode())

    def fileno(self) -> int:
        """For a selector: readable when there may be a request to take."""
        return self._documents.fileno()

    def take_stacks_request(self) -> bool:
        """Whether a client waits for stacks."""
        with contextlib.suppress(OSError):
            return bool(self._documents.recv(1))
        return False

    def answer(self, stacks: str) -> None:
        """Send the stacks; if they are too long, without their beginning."""
        with contextlib.suppress(OSError):
            self._documents.send(_STACKS + stacks.encode(errors="replace")[-_STACKS_BYTES:])

    def stop(self) -> None:
        """Kill the process and reap it, if it is still there."""
        end_helper(self.pid)
        self.close()

    def close(self) -> None:
        """To be called if the process was reaped."""
        self._documents.close()


class _HttpServer(ThreadingHTTPServer):
    """Serves IPv4 and IPv6 if it listens on all interfaces: a pod may have either kind of address.

    Of too many connections it closes the oldest: a client that sends slowly must not keep others out.
    """

    def __init__(self, host: str, port: int) -> None:
        self._open: dict[Any, bool] = {}  # the oldest first; False once it was closed, until its thread ends
        self._ends = threading.Condition()  # of one of them; guards `_open`
        if not host and socket.has_dualstack_ipv6():
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)  # not HTTPServer's, whose name lookup can take seconds
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._ends:
            if len(self._open) >= _MOST_OPEN:
                self._close_oldest()
            is_free = self._ends.wait_for(lambda: len(self._open) < _MOST_OPEN, _ENDS_WITHIN_S)
            if is_free:
                self._open[request] = True
        if is_free:
            super().process_request(request, client_address)
        else:  # all of them wait for stacks
            self.shutdown_request(request)

    def _close_oldest(self) -> None:
        oldest = next((each for each, is_open in self._open.items() if is_open), None)
        if oldest is not None:
            self._open[oldest] = False
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def close_request(self, request: Any) -> None:
        super().close_request(request)
        with self._ends:
            self._open.pop(request, None)
            self._ends.notify()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """No traceback if a client hangs up, as health checks of load balancers do: the log is the ranks'."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _serve(server: ThreadingHTTPServer, documents: socket.socket) -> None:
    _Handler.document = json.loads(documents.recv(_DOCUMENT_BYTES))
    _Handler.agent = documents
    threading.Thread(target=_listen_or_end, args=(server,), daemon=True).start()
    while data := documents.recv(_DOCUMENT_BYTES):
        if data.startswith(_STACKS):
            _answer_waiting(data.removeprefix(_STACKS))
        else:
            _Handler.document = json.loads(data)


def _listen_or_end(server: ThreadingHTTPServer) -> None:
    try:
        server.serve_forever()
    finally:
        os._exit(1)  # a page that answers nothing would last; the agent starts the process again


def _answer_waiting(stacks: bytes) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            _Handler.waiting.get_nowait().put(stacks)


def metrics(document: dict[str, Any]) -> str:
    """The document in Prometheus' text format; unknown values are left out."""
    lines: list[str] = []

    def add(name: str, meaning: str, values: Mapping[str, Any]) -> None:
        known = [f"{name}{labels} {value}" for labels, value in values.items() if value is not None]
        if known:
            lines.extend([f"# HELP {name} {meaning}", f"# TYPE {name} gauge", *known])

    for name, (field, meaning) in _GAUGES.items():
        add(name, meaning, {"": document[field]})
    saved, slow = document["checkpoint"], document["slowest"]
    ranks = {f'{{rank="{each["rank"]}"}}': each for each in document["ranks"]}
    add("dtj_checkpoint_step", "Step of the newest committed checkpoint.", {"": saved and saved["step"]})
    failing = int(bool(document["saveFailure"])) if saved or document["saveFailure"] else None
    add("dtj_save_failing", "1 while no checkpoint can be written.", {"": failing})
    up = {labels: int(each["state"] == "Running") for labels, each in ranks.items()}
    add("dtj_rank_up", "1 while the rank's process runs.", up)
    if slow:
        add(
            "dtj_straggler_ratio",
            "Work per step of the slowest rank, divided by that of the other ranks.",
            {f'{{rank="{slow["rank"]}",replica="{slow["replica"]}"}}': slow["ratio"]},
        )
    steps = {labels: each["step"] for labels, each in ranks.items()}
    add("dtj_rank_step", "Last completed step of a rank.", steps)
    return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    document: dict[str, Any] = {}
    agent: socket.socket
    waiting: queue.SimpleQueue[queue.SimpleQueue[bytes]] = queue.SimpleQueue()  # clients that wait for stacks
    timeout = 10  # for a client that opens a connection and sends nothing

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/status":
            self._answer(json.dumps(self.document), "application/json")
        elif path == "/metrics":
            self._answer(metrics(self.document), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/stacks":
            self._answer_stacks()
        elif path == "/healthz":
            self._answer("ok\n", "text/plain")
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "known paths: /status, /metrics, /stacks, /healthz")

    def _answer_stacks(self) -> None:
        mine: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.waiting.put(mine)
        try:
            self.agent.send(_STACKS)
            self._answer(
                mine.get(timeout=STACKS_TIMEOUT_S).decode(errors="replace"), "text/plain; charset=utf-8"
            )
        except (OSError, queue.Empty):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the agent does not respond")

    def _answer(self, body: str, kind: str) -> None:
        data = body.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the base class
        """Log nothing: the log belongs to the ranks."""
