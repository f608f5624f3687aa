"""The error that commands raise: what is wrong, and how to fix it.

ClientError
    UnreachableError   no answer: asking again later may help
        UnansweredError    and the cluster may have done what was asked
    ForbiddenError     the user lacks a right: asking again will not help
    ExistsError        there is an object of this name
    GoneError          there is no job of this name
    SilentNodeError    the API server answered, but the node of a pod did not
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 300.0
_RETRY_S = 2.0


class ClientError(Exception):
    """A sentence for the user.

    fix   what to do, as a second sentence; may be empty
    """

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(f"{message}\n  fix: {fix}" if fix else message)
        self.message, self.fix = message, fix


class UnreachableError(ClientError):
    """The cluster gave no answer."""


class UnansweredError(UnreachableError):
    """The cluster gave no answer, and may have done what was asked."""


class ForbiddenError(ClientError):
    """The cluster refused, because the user lacks a right."""


class ExistsError(ClientError):
    """There is an object of this name."""


class GoneError(ClientError):
    """There is no job of this name; there may have been one."""


class SilentNodeError(ClientError):
    """The API server answered, but the kubelet of a pod did not."""


class Patience:
    """For calls that wait for hours: a cluster that gives no answer is asked again for some minutes.

    kind  the errors after which it is asked again
    over  once this is set, `ask` raises TimeoutError instead
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        kind: type[UnreachableError] = UnreachableError,
        over: threading.Event | None = None,
    ) -> None:
        self._clock, self._silent_since, self._kind = clock, 0.0, kind
        self._over = over or threading.Event()

    @contextlib.contextmanager
    def forgiving(self) -> Iterator[None]:
        """Suppress these errors, unless there has been no answer since PATIENCE_S."""
        try:
            yield
        except self._kind:
            self._silent_since = self._silent_since or self._clock()
            if self._clock() > self._silent_since + PATIENCE_S:
                raise
        else:
            self._silent_since = 0.0

    def ask(self, question: Callable[[], T], ends: float | None = None) -> T:
        """Ask until there is an answer; the last error if there is none for PATIENCE_S.

        ends  of the clock: then it raises TimeoutError
        """
        answers: list[T] = []
        while True:
            with self.forgiving():
                answers.append(question())
            if answers:
                return answers[0]
            left = math.inf if ends is None else ends - self._clock()
            if left <= 0 or self._over.wait(min(_RETRY_S, left)):
                raise TimeoutError("no answer so far")
