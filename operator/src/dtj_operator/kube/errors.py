"""Errors of calls to the API server.

ApiError
  Answered      the API server has answered, and as things are, it would answer the same again
    NotFound    404 that names the object; any other 404 is a plain Answered: the API server does not serve
                this kind or version, which says nothing about the object
    Conflict    409: the object exists, or changed since it was read
    Refused     400, 403, 413, 422, or a webhook that fails; the message is the API server's
    Expired     410: a list or watch must start again
  Unavailable   429, 5xx, timeouts, broken connections: may be retried
  Withheld      not sent: this process may not write now
"""


class ApiError(Exception):
    """A failed call, with the API server's message.

    status    HTTP status, or 0 if there was no answer
    reason    the API server's machine-readable reason, such as AlreadyExists
    after_s   seconds to wait before the next try, from Retry-After
    """

    def __init__(self, call: str, status: int, reason: str, message: str, after_s: float = 0.0) -> None:
        super().__init__(f"{call}: {status or 'no answer'} {reason}: {message}".rstrip(": "))
        self.status, self.reason, self.message, self.after_s = status, reason, message, after_s


class Answered(ApiError):  # noqa: N818 - named as in the API conventions
    pass


class NotFound(Answered):
    pass


class Conflict(Answered):
    pass


class Refused(Answered):
    pass


class Expired(Answered):
    pass


class Unavailable(ApiError):  # noqa: N818
    pass


class Withheld(ApiError):  # noqa: N818
    pass


# In the message of a 500 for which the API server itself is not the cause.
_REFUSALS = ("failed calling webhook", "request is too large")


def kind_of(status: int, message: str = "", *, names_object: bool) -> type[ApiError]:
    """Return the class for an HTTP status of 400 or more, with the API server's message.

    names_object   whether the answer names the object of the request
    """
    if status == 404:
        return NotFound if names_object else Answered
    if status in (400, 403, 413, 422) or any(words in message for words in _REFUSALS):
        return Refused
    if status == 429 or status >= 500:
        return Unavailable
    return {409: Conflict, 410: Expired}.get(status, Answered)
