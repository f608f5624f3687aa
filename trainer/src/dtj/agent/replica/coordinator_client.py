"""An agent's connection to the coordinator: connects, sends keepalives and reconnects.

On replica 0 the coordinator is in the same process. The other agents reach it by a DNS name whose address
changes when the pod is replaced.
"""

import selectors
import socket
import time
from collections.abc import Callable

from dtj.agent.replica.connector import Connector
from dtj.agent.wire.facts import Fact, as_message
from dtj.agent.wire.link import KEEPALIVE_S, SILENCE_S, Link, Message, pace_s

_RECONNECT_S = 1.0


class CoordinatorClient:
    """At most one connection. Without one, messages are dropped; the next hello repeats what still matters.

    address   host name and port of the coordinator
    agents    number of agents that the job may have
    hello     builds the first message on a new connection
    on_order  called with every message of the coordinator
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        address: tuple[str, int],
        *,
        agents: int,
        hello: Callable[[], Message],
        on_order: Callable[[Message], None],
        log: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._address = address
        self._agents = agents
        self._hello = hello
        self._on_order = on_order
        self._log = log
        self._link: Link | None = None
        self._connector: Connector | None = None
        self._reconnect_at: float | None = None
        self._unanswered = 0  # connections in a row
        self._sent_at = 0.0
        self._heard_at = time.monotonic()  # the last message but refusals
        self._keepalive_at = time.monotonic() + KEEPALIVE_S

    @property
    def peer(self) -> str:
        """Address of the coordinator as seen from this pod."""
        assert self._link is not None  # callers handle a message that came over it
        return self._link.peer

    def unheard_s(self, now: float) -> float:
        """Seconds without a word of the job's coordinator.

        Another process, which accepts connections or refuses this agent, may have replica 0's address by now.
        """
        return now - self._heard_at

    @property
    def deadline(self) -> float:
        """When `tick` has something to do."""
        known = [self._keepalive_at, self._reconnect_at]
        return min(at for at in known if at is not None)

    def tick(self) -> None:
        """Time has passed."""
        now = time.monotonic()
        if self._reconnect_at is not None and now >= self._reconnect_at:
            self.connect()
        if now < self._keepalive_at:
            return
        pace = pace_s(self._agents, least_s=KEEPALIVE_S)
        self._keepalive_at = now + pace
        if now - self._sent_at >= pace:  # else replica 0 knows that this agent is alive
            self._write({"keepalive": True})
        if self._link and not self._link.is_open:
            self._on_message()  # its last message may have arrived, for example that the job is over
        elif self._link and self._link.is_silent(now):
            self._lost(f"no message from replica 0 for {SILENCE_S:.0f} s; reconnecting")

    def connect(self) -> None:
        """Start to connect; retries until it succeeds."""
        self._reconnect_at = None
        self._connector = Connector(*self._address, agents=self._agents, log=self._log)
        self._selector.register(self._connector, selectors.EVENT_READ, self._on_connected)

    def attach(self, sock: socket.socket) -> None:
        """Take over a connected socket and send the hello."""
        self._unanswered += 1
        self._link = Link(sock, now=time.monotonic())
        self._link.watch(self._selector, self._on_message)
        self._write({"hello": self._hello()})

    def send(self, fact: Fact) -> None:
        """Send a fact to the coordinator."""
        self._write(as_message(fact))

    def _write(self, message: Message) -> None:
        if self._link:
            self._sent_at = time.monotonic()
            self._link.send(message)

    def disconnect(self, *, reconnect_in_s: float | None = None) -> None:
        """Close the connection, or stop trying to connect."""
        if self._link:
            self._link.close()
        if self._connector:
            self._selector.unregister(self._connector)
            self._connector.close()
        self._link = self._connector = None
        self._reconnect_at = None if reconnect_in_s is None else time.monotonic() + reconnect_in_s

    def _on_connected(self) -> None:
        assert self._connector is not None
        self._selector.unregister(self._connector)
        sock, self._connector = self._connector.take(), None
        if sock:
            self.attach(sock)
        else:
            self._reconnect_at = time.monotonic() + _RECONNECT_S

    def _on_message(self) -> None:
        link = self._link
        assert link is not None
        for message in link.receive(time.monotonic()):
            if "refused" in message and not message["forGood"]:
                self.disconnect(reconnect_in_s=_RECONNECT_S)
            else:
                self._heard_at, self._unanswered = time.monotonic(), 0
                self._on_order(message)
        if self._link is link and not link.is_open:
            self._lost("lost the connection to replica 0; waiting for it to come back")

    def _lost(self, why: str) -> None:
        """Reconnect, and not at once if a proxy accepts and closes connections while replica 0 is absent."""
        if self._unanswered <= 1:
            self._log(why)
        self.disconnect(reconnect_in_s=_RECONNECT_S if self._unanswered else 0.0)
