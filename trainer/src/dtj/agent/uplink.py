"""A node's connection to the coordinator: made, kept alive, and made again when its pod was replaced.

On replica 0 the coordinator is in this very process; the others find it under a name whose address changes.
"""

import selectors
import socket
import time
from collections.abc import Callable

from dtj.agent.dial import Dialer
from dtj.agent.link import BEAT_S, Link, Message

_REDIAL_S = 1.0


class Uplink:
    """At most one connection; without one, messages are lost, and the next hello says what still matters.

    address   where the coordinator listens, by name
    hello     what an agent says of itself on a new connection
    on_order  called with every message of the coordinator
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        address: tuple[str, int],
        *,
        hello: Callable[[], Message],
        on_order: Callable[[Message], None],
        say: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._address = address
        self._hello = hello
        self._on_order = on_order
        self._say = say
        self._link: Link | None = None
        self._dialer: Dialer | None = None
        self._redial_at: float | None = None
        self._beat_at = time.monotonic() + BEAT_S

    @property
    def peer(self) -> str:
        """Address of the coordinator as this node reaches it."""
        assert self._link is not None  # whoever asks has just heard of it
        return self._link.peer

    @property
    def deadline(self) -> float:
        """When `tick` has something to do."""
        return self._beat_at if self._redial_at is None else min(self._beat_at, self._redial_at)

    def tick(self) -> None:
        """Time has passed."""
        now = time.monotonic()
        if self._redial_at is not None and now >= self._redial_at:
            self.dial()
        if now < self._beat_at:
            return
        self._beat_at = now + BEAT_S
        self.tell({"beat": True})
        if self._link and (self._link.is_silent(now) or not self._link.is_open):
            self._lost("replica 0 is silent; trying to reach it anew")

    def dial(self) -> None:
        """Begin to connect, for as long as it takes."""
        self._redial_at = None
        self._dialer = Dialer(*self._address)
        self._selector.register(self._dialer, selectors.EVENT_READ, self._on_dialed)

    def connect(self, sock: socket.socket) -> None:
        """Take over a connected socket and introduce this agent."""
        self._link = Link(sock, now=time.monotonic())
        self._selector.register(self._link, selectors.EVENT_READ, self._on_message)
        self.tell({"hello": self._hello()})

    def tell(self, message: Message) -> None:
        """Say something to the coordinator."""
        if self._link:
            self._link.send(message)

    def hang_up(self, *, redial_in_s: float | None = None) -> None:
        """End the connection, or the attempt to get one."""
        for end in (self._link, self._dialer):
            if end:
                self._selector.unregister(end)
                end.close()
        self._link = self._dialer = None
        self._redial_at = None if redial_in_s is None else time.monotonic() + redial_in_s

    def _on_dialed(self) -> None:
        assert self._dialer is not None
        self._selector.unregister(self._dialer)
        sock, self._dialer = self._dialer.take(), None
        if sock:
            self.connect(sock)
        else:
            self._redial_at = time.monotonic() + _REDIAL_S

    def _on_message(self) -> None:
        link = self._link
        assert link is not None
        for message in link.receive(time.monotonic()):
            if "refused" in message and not message["forGood"]:
                self.hang_up(redial_in_s=_REDIAL_S)
            else:
                self._on_order(message)
        if self._link is link and not link.is_open:
            self._lost("lost replica 0; waiting for it to come back")

    def _lost(self, why: str) -> None:
        self._say(why)
        self.hang_up(redial_in_s=0.0)
