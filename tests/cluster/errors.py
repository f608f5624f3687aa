"""The error of this package: a failure that the user can fix."""


class ClusterError(Exception):
    """Something outside this code is missing or failed.

    what    what happened, to which thing
    fix     what the reader can do about it
    """

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what if not fix else f"{what}\n  fix: {fix}")
