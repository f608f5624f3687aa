"""What can go wrong with a call to the API server.

ApiError
  NotFound      404
  Conflict      409: the object exists, or changed since it was read
  Refused       400, 403, 422: the request as it is will not be taken; the message is the API server's
  Expired       410: a list or watch must begin anew
  Unavailable   429, 5xx, timeouts, broken connections: may be tried again
  Withheld      not sent: this process may not write now
"""


class ApiError(Exception):
    """A call that failed: which one, with what status, in the API server's words.

    status    HTTP status, or 0 where no answer came
    reason    the machine-readable word of the API server, such as AlreadyExists
    after_s   seconds that the API server asks to wait before the next try, at least
    """

    def __init__(self, call: str, status: int, reason: str, message: str, after_s: float = 0.0) -> None:
        super().__init__(f"{call}: {status or 'no answer'} {reason}: {message}".rstrip(": "))
        self.status, self.reason, self.message, self.after_s = status, reason, message, after_s


class NotFound(ApiError):  # noqa: N818 - the names of the API conventions
    pass


class Conflict(ApiError):  # noqa: N818
    pass


class Refused(ApiError):  # noqa: N818
    pass


class Expired(ApiError):  # noqa: N818
    pass


class Unavailable(ApiError):  # noqa: N818
    pass


class Withheld(ApiError):  # noqa: N818
    pass


def kind_of(status: int) -> type[ApiError]:
    """The class for an HTTP status of 400 or more, or 0 for no answer."""
    if status in (400, 403, 422):
        return Refused
    if status in (0, 429) or status >= 500:
        return Unavailable
    return {404: NotFound, 409: Conflict, 410: Expired}.get(status, ApiError)
