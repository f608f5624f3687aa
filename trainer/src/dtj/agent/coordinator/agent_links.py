"""The coordinator's connections to the agents of all replicas.

membership.py decides which agents belong to the job; this module only knows the hello of each.
"""

import selectors
import socket
import time
from collections.abc import Callable

from dtj.agent.wire.link import Link, Message, encode, listen
from dtj.agent.wire.protocol import Hello
from dtj.errors import MachineError

# A connection must say within this time who it is. An agent does so at once.
_HELLO_S = 5.0
# Connections beside those of all replicas: agents that reconnect, and strangers until they are found out.
_SPARE = 64
# Agents connect at nearly the same time; the kernel cuts the number to net.core.somaxconn (4096).
_BACKLOG = 4096


class AgentLinks:
    """All connections.

    most        agents that the job may have
    hellos      the hello of the agent behind each connection; None until it arrives
    on_message  called with each message
    on_closed   called after a connection was found closed while it was read
    log         writes a line for the user
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        *,
        most: int,
        on_message: Callable[[Link, Message], None],
        on_closed: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self.hellos: dict[Link, Hello | None] = {}
        self._selector = selector
        self._most = most + _SPARE
        self._unnamed: dict[Link, float] = {}  # when they connected
        self._named: dict[str, Link] = {}  # by incarnation
        self._is_full = False
        self._has_said_why = False
        self._log = log
        self._on_message = on_message
        self._on_closed = on_closed
        self._listener: socket.socket | None = None

    def listen(self, port: int) -> None:
        """Accept agents from other machines; MachineError if the port is taken."""
        try:
            self._listener = listen(port, backlog=_BACKLOG)
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
        self.hellos[link], self._named[hello.incarnation] = hello, link
        self._unnamed.pop(link, None)

    def broadcast(self, message: Message, *, to: Callable[[Hello], bool]) -> None:
        """Send one message to all agents for which `to` holds."""
        line = encode(message)
        for link, hello in self.hellos.items():
            if hello and to(hello):
                link.write(line)

    def named(self) -> list[Hello]:
        """The hellos of all agents that are connected."""
        return [hello for hello in self.hellos.values() if hello]

    def addresses(self) -> list[tuple[Hello, str]]:
        """The hellos of all agents that are connected, with their addresses; "" for that of this process."""
        return [(hello, "" if link.is_local else link.peer) for link, hello in self.hellos.items() if hello]

    def tell(self, incarnation: str, message: Message) -> None:
        """Send a message to one agent."""
        for link in self._of(incarnation):
            link.send(message)

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
        for link, hello in self.hellos.items():
            if hello:  # say nothing to a stranger
                link.write(line)
        for link in self._overdue(now):
            # Its message may have waited for this process: behind thousands of hellos, or for a new store.
            self._on_ready(link)
        overdue = self._overdue(now)
        for link in overdue:
            link.close()
        self._resume_accepting()
        return [self.hellos[link] for link in overdue if link.is_silent(now)]

    def _overdue(self, now: float) -> list[Link]:
        """Silent connections, and those that have not said in time who they are."""
        late = {link for link, at in self._unnamed.items() if now - at > _HELLO_S}
        return [link for link in self.hellos if link in late or link.is_silent(now)]

    def take_closed(self) -> list[Hello]:
        """Forget closed connections; return the hellos of their agents."""
        hellos = [self._drop(link) for link in [link for link in self.hellos if not link.is_open]]
        return [hello for hello in hellos if hello]

    def close(self, *, linger_s: float) -> None:
        """Stop listening; give the agents so long to read what was sent and to hang up, then close."""
        if self._listener:
            self._listener.close()
        until = time.monotonic() + linger_s
        for link in self.hellos:
            link.wait_closed(until)
            link.close()

    def _accept(self) -> None:
        """Accept all that wait, within the bounds of connections and of file descriptors."""
        assert self._listener is not None
        while len(self.hellos) < self._most:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the agent has hung up already
                continue
            except OSError as error:  # too many open files
                if not self._has_said_why:
                    self._has_said_why = True
                    what = f"cannot accept another agent, beside {len(self.hellos)}: {error.strerror}"
                    self._log(f"{what}\n  fix: raise the limit of open files (ulimit -n) of replica 0")
                break
            self._add(sock)
        self._selector.unregister(self._listener)  # it stays readable; try again with the next keepalive
        self._is_full = True

    def _resume_accepting(self) -> None:
        if self._is_full and self._listener:
            self._is_full = False
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _add(self, sock: socket.socket) -> None:
        now = time.monotonic()
        link = Link(sock, now=now)
        self.hellos[link], self._unnamed[link] = None, now
        link.watch(self._selector, lambda: self._on_ready(link))

    def _on_ready(self, link: Link) -> None:
        for message in link.receive(time.monotonic()):
            if link in self.hellos:  # else an earlier message led to its refusal
                self._on_message(link, message)
        if not link.is_open:
            self._on_closed()

    def _of(self, incarnation: str) -> list[Link]:
        return [self._named[incarnation]] if incarnation in self._named else []

    def _drop(self, link: Link) -> Hello | None:
        link.close()
        self._unnamed.pop(link, None)
        hello = self.hellos.pop(link)
        if hello and self._named.get(hello.incarnation) is link:
            del self._named[hello.incarnation]
        return hello
