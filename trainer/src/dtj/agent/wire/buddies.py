"""Which replica keeps copies of which other's state: the one that is `shift` further on, in a ring. Pure."""

from collections.abc import Mapping

# Nodes run consecutive replicas, rarely more of one job than this.
_MOST = 64


def choose_shift(machines: Mapping[int, str], replicas: int) -> int:
    """How much further on the buddy of every replica is; 0 if there is only one replica.

    machines  replica -> machine that it runs on
    As many replicas as possible have their buddy on another machine, because machines are lost whole. Every
    replica is the buddy of exactly one other.
    """
    shifts = range(1, min(replicas, _MOST + 1))
    return max(shifts, key=lambda shift: (_apart(machines, replicas, shift), -shift), default=0)


def _apart(machines: Mapping[int, str], replicas: int, shift: int) -> int:
    known = [machines.get(replica, "") for replica in range(replicas)]
    return sum(one != other for one, other in zip(known, known[shift:] + known[:shift], strict=True))


def buddy_of(replica: int, *, shift: int, replicas: int) -> int:
    """The replica that keeps this one's copies."""
    return (replica + shift) % replicas


def ward_of(replica: int, *, shift: int, replicas: int) -> int:
    """The replica whose copies this one keeps."""
    return (replica - shift) % replicas
