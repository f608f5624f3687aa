"""Shows the status over HTTP and on a terminal, updated a few times a second."""

import selectors
import time
from collections.abc import Callable
from typing import Any

from dtj.agent.report.console import Console
from dtj.agent.report.status_server import StatusServer

_EVERY_S = 0.25
_MOST_STARTS = 10  # of the server: one that always dies is left alone


class StatusPage:
    """Shows the newest document; without a port or a terminal nothing is ever due."""

    def __init__(self, host: str, port: int | None, *, console: Console, log: Callable[[str], None]) -> None:
        self._console = console
        self._address = host, port
        self._log = log
        self._server: StatusServer | None = None
        self._starts = 0
        self._watch: Callable[[StatusServer], None] = lambda _: None
        self.deadline: float | None = None
        self._start()

    def watch(self, selector: selectors.BaseSelector, on_stacks_requested: Callable[[], None]) -> None:
        """Call back if an HTTP client requests stacks; answer with `show_stacks`."""

        def register(server: StatusServer) -> None:
            selector.register(
                server,
                selectors.EVENT_READ,
                lambda: on_stacks_requested() if server.take_stacks_request() else None,
            )

        self._selector, self._watch = selector, register
        if self._server:
            register(self._server)

    def reaped(self, pid: int) -> bool:
        """A child process exited; return True if it was the server, which is started again."""
        server = self._server
        if server is None or pid != server.pid:
            return False
        self._selector.unregister(server)
        server.close()
        self._server = None
        again = self._starts < _MOST_STARTS
        self._log(f"the process of the status page has ended{': starting it again' if again else ''}")
        if again:
            self._start()
        return True

    def _start(self) -> None:
        host, port = self._address
        if port is None:
            return
        try:
            self._server = StatusServer.start(host, port)
        except OSError as error:  # training matters more than its status page
            self._log(f"cannot serve the status page on port {port}: {error.strerror}")
            return
        self._starts += 1
        self._watch(self._server)

    def show_stacks(self, text: str) -> None:
        """Answer all requests so far."""
        if self._server:
            self._server.answer(text)

    @property
    def is_due(self) -> bool:
        """Whether it is time for a new document."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def show(self, document: dict[str, Any]) -> None:
        """Replace the document."""
        self._console.progress(document)
        if self._server:
            self._server.publish(document)
        is_shown = self._server or self._console.is_live
        self.deadline = time.monotonic() + _EVERY_S if is_shown else None

    def close(self) -> None:
        """Stop serving."""
        if self._server:
            self._server.stop()
