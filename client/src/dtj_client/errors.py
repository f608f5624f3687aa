"""The one error that commands raise: what is wrong, and how to fix it."""


class ClientError(Exception):
    """A sentence for the user.

    fix   what to do, as a second sentence; may be empty
    """

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(f"{message}\n  fix: {fix}" if fix else message)
        self.message, self.fix = message, fix
