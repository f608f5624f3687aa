"""What the reports of a user's container have in common, which may contain anything."""

import msgspec
from msgspec.structs import force_setattr

from dtj_operator.model.printable import printable

MAX_IN_PLACE = 1_000_000  # restarts; a higher number does not come from an agent


class Reported(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Its texts cannot change what a terminal shows."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(text := getattr(self, name), str):
                force_setattr(self, name, printable(text))
