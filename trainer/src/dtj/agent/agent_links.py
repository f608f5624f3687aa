"""The coordinator's connections to the agents of all replicas.

membership.py decides which agents belong to the job; this module only knows the hello of each.
"""

import selectors
import socket
import time
from collections.abc import Callable

from dtj.agent.link import Link, Message, encode
from dtj.agent.protocol import Hello
from dtj.errors import MachineError

_LINGER_S = 5.0


class AgentLinks:
    """All connections.

    hellos      the hello of the agent behind each connection; None until it arrives
    on_message  called with each message
    on_heard    called after a connection has been read; the connection may be closed by then
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        *,
        on_message: Callable[[Link, Message], None],
        on_heard: Callable[[], None],
    ) -> None:
        self.hellos: dict[Link, Hello | None] = {}
        self._selector = selector
        self._on_message = on_message
        self._on_heard = on_heard
        self._listener: socket.socket | None = None

    def listen(self, port: int) -> None:
        """Accept agents from other machines; MachineError if the port is taken."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        try:
            self._listener = socket.create_server(("", port), family=family, dualstack_ipv6=both)
        except OSError as error:
            raise MachineError(
                f"cannot listen on port {port} for the other agents of this job: {error.strerror}",
                fix="free the port, or choose another one (spec.masterPort, MASTER_PORT)",
            ) from error
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def connect(self) -> socket.socket:
        """The agent's end of a new connection within this process."""
        ours, theirs = socket.socketpair()
        self._add(ours)
        return theirs

    def introduce(self, link: Link, hello: Hello) -> None:
        """Record who the agent is and close its previous connection, even if that still looks open."""
        for older in [known for known in self._of(hello.incarnation) if known is not link]:
            self._drop(older)
        self.hellos[link] = hello

    def broadcast(self, message: Message, *, to: Callable[[Hello], bool]) -> None:
        """Send one message to all agents for which `to` holds."""
        line = encode(message)  # encoded once: it may list each rank of a large job
        for link, hello in self.hellos.items():
            if hello and to(hello):
                link.write(line)

    def refuse(self, incarnation: str, message: Message) -> None:
        """Send a last message to an agent and drop its connections."""
        for link in self._of(incarnation):
            self.turn_away(link, message)

    def turn_away(self, link: Link, message: Message) -> None:
        """Send a last message over one connection and drop it."""
        link.send(message)
        self._drop(link)

    def keep_alive(self, message: Message, now: float) -> list[Hello | None]:
        """Write to every connection, close the silent ones and return their hellos."""
        line = encode(message)
        for link in self.hellos:
            link.write(line)
        silent = [link for link in self.hellos if link.is_silent(now)]
        for link in silent:
            link.close()
        return [self.hellos[link] for link in silent]

    def take_closed(self) -> list[Hello]:
        """Forget closed connections; return the hellos of their agents."""
        hellos = [self._drop(link) for link in [link for link in self.hellos if not link.is_open]]
        return [hello for hello in hellos if hello]

    def close(self) -> None:
        """Stop listening; give the agents, which know the result, time to hang up, then close."""
        if self._listener:
            self._listener.close()
        until = time.monotonic() + _LINGER_S
        for link in self.hellos:
            link.wait_closed(until)
            link.close()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the agent has hung up already
            return
        self._add(sock)

    def _add(self, sock: socket.socket) -> None:
        link = Link(sock, now=time.monotonic())
        self.hellos[link] = None
        link.watch(self._selector, lambda: self._on_ready(link))

    def _on_ready(self, link: Link) -> None:
        for message in link.receive(time.monotonic()):
            if link in self.hellos:  # else an earlier message led to its refusal
                self._on_message(link, message)
        self._on_heard()

    def _of(self, incarnation: str) -> list[Link]:
        return [link for link, hello in self.hellos.items() if hello and hello.incarnation == incarnation]

    def _drop(self, link: Link) -> Hello | None:
        link.close()
        return self.hellos.pop(link)
