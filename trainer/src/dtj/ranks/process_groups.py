"""The process groups of one rank, and how it joins the next generation when they break.

    open    wait until all ranks are ready, then join the groups
    reform  after the loss of a peer: leave the broken groups, wait for the agent's order, join the new ones

Without an agent (plain `python` or torchrun) the groups are those of `env://`, and a lost peer ends the run.
"""

import contextlib
import ctypes
import faulthandler
import os
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

import torch
import torch.distributed as dist

from dtj import contract
from dtj.errors import is_peer_loss
from dtj.ranks import control_pipe, exchange, gloo_sockets, waits
from dtj.ranks.stop import StopFlag, leave
from dtj.ranks.world import RENDEZVOUS_TIMEOUT, World, open_group
from dtj.telemetry import heartbeat, report_pipe

# On which one rank's gloo listens: one for each group, and some of other threads that began at this moment.
_MOST_PORTS = 16
# Opening the groups has three parts, and each ends after the time to connect, or is left when the generation
# is replaced. A rank that takes longer than this many of these times hangs in the library, where no error and
# no other thread can reach it.
_LONGEST_OPEN = 4
# How often a rank that joins its groups checks whether they were replaced.
_CHECK_S = 1.0
# How much later than the end of the store the news of the next generation may come.
_NEWS_S = 1.0


@dataclass(eq=False)
class ProcessGroups:
    """The process groups of this rank, over all generations.

    control     CPU-only group for agreements, which must neither wait for the accelerator nor mix with DDP's
                messages; None if the world has one process
    in_place    every rank holds the whole state, so a lost rank can be replaced; else its loss ends all
    is_healing  other ranks hold the state in memory: send nothing before `compare` of handover.py
    """

    world: World
    devices: tuple[torch.device, ...]
    stop: StopFlag
    in_place: bool

    def __post_init__(self) -> None:
        self._pid = os.getpid()
        self.control: dist.ProcessGroup | None = None
        self.is_healing = False
        self._control_pipe: control_pipe.ControlPipe | None = None
        self._generation = 0
        self._own_ports: frozenset[int] = frozenset()  # of gloo, in this process
        self._ports: frozenset[int] = frozenset()  # of gloo, in all processes, and of the store
        self._retired = RetiredGroups()

    @property
    def can_heal(self) -> bool:
        """A lost peer can be replaced while this process continues; not with NCCL, whose state is lost."""
        return self.in_place and self._control_pipe is not None and self.devices[0].type == "cpu"

    def open(self) -> None:
        """Wait for the other ranks, without a time limit if there is an agent, and join the groups."""
        if self.world.size == 1:
            return
        # Ranks that share one model wait for each other throughout a step: their work cannot be compared.
        heartbeat.mine.is_compared = self.in_place
        self._control_pipe = control_pipe.listen(os.environ, on_change=self._break)
        if self._control_pipe is None:
            self.control = open_group(self.world, self.devices, store=None, timeout=RENDEZVOUS_TIMEOUT)
            return
        self.is_healing = os.environ.get(contract.HEALING) == "1"
        self._enter()

    def reform(self, error: RuntimeError) -> None:
        """Join the next generation after `error`; raise `error` if no peer was lost."""
        if self._control_pipe is None or not self.can_heal:
            raise error
        is_announced = self._control_pipe.newest.number > self._generation
        if not is_announced and not is_peer_loss(error):
            raise error
        if not is_announced:
            report_pipe.send({"lost": str(error)[:500], "generation": self._generation}, wait_s=1.0)
        self.close()
        self._control_pipe.wait_newer(self._generation, give_up=self._give_up)
        self._enter()
        heartbeat.mine.sign()

    def close(self) -> None:
        """Leave all groups; errors are ignored, as the groups are not used again."""
        if os.getpid() != self._pid:  # a process that the program forked shares the connections of the rank
            return
        self._break()
        self.control = None
        if dist.is_initialized():
            if self._control_pipe is not None:
                self._retired.add(list(dist.distributed_c10d._world.pg_map))
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        # torch names groups by their number, and that is their place in the store. It starts again at 0 only
        # if there was a default group: not if joining it failed, and then no newcomer would find this rank.
        dist.distributed_c10d._world.group_count = 0

    def _enter(self) -> None:
        assert self._control_pipe is not None
        while True:
            target = self._control_pipe.newest
            report_pipe.send({"ready": target.number}, wait_s=1.0)
            if not self._control_pipe.wait_complete(target.number, give_up=self._give_up):
                continue
            self._generation = target.number
            try:
                self._open(target)
            except RuntimeError as error:
                self.close()
                # The coordinator ends the store of a generation that it replaces; the news may come later.
                if not self._control_pipe.has_newer(target.number, within_s=_NEWS_S):
                    report_pipe.send({"unformed": target.number, "message": str(error)[:500]}, wait_s=1.0)
                self._control_pipe.wait_newer(target.number, give_up=self._give_up)
                continue
            return

    def _open(self, target: control_pipe.Generation) -> None:
        before = gloo_sockets.listening_ports()
        timeout = timedelta(seconds=target.connect_s) if self.can_heal else RENDEZVOUS_TIMEOUT
        with _bounded(_LONGEST_OPEN * target.connect_s if self.can_heal else None):
            join = self._join_in_thread if self.can_heal else self._join
            self.control = join(target, timeout)
            if self.devices[0].type != "cpu":  # NCCL's sockets are left alone: its groups end by themselves
                return
            self._own_ports = gloo_sockets.listening_ports() - before
            self._leave_if_replaced(target)  # later news shuts down the connections to these ports
            self._ports = _of_all(self._own_ports, self.control) | {target.port}
            self._leave_if_replaced(target)  # later news shuts down all connections

    def _join(self, target: control_pipe.Generation, timeout: timedelta) -> dist.ProcessGroup:
        # A client: it does not matter to it whether the server uses libuv, which torch may lack.
        store = dist.TCPStore(  # type: ignore[attr-defined]
            target.addr, target.port, is_master=False, timeout=timeout, use_libuv=False
        )
        self._leave_if_replaced(target)  # its store is gone, and the port may be that of the next
        return open_group(self.world, self.devices, store=store, timeout=timeout)

    def _join_in_thread(self, target: control_pipe.Generation, timeout: timedelta) -> dist.ProcessGroup:
        """As `_join`, but leave if the generation is replaced.

        torch waits up to three times the timeout for a store that is gone, gloo five times for a peer that
        died before it connected, and neither can be interrupted. The thread is left to itself then, and
        ends when it returns from there.
        """
        opening: futures.Future[dist.ProcessGroup] = futures.Future()

        def run() -> None:
            with contextlib.suppress(_LeftError, futures.InvalidStateError):
                try:
                    opening.set_result(self._join(target, timeout))
                except BaseException as error:  # noqa: BLE001 - raised by the main thread
                    opening.set_exception(error)

        thread = threading.Thread(target=run, name="dtj-opens-groups", daemon=True)
        thread.start()
        was_replaced = False
        while not futures.wait([opening], timeout=_CHECK_S).done:
            if was_replaced:  # at the second check: before it may have been about to fail
                _leave(thread)
                self._leave_if_replaced(target)
            was_replaced = self._is_replaced(target)
        return opening.result()

    def _break(self) -> None:
        """Make every collective in flight fail now, in any thread.

        gloo has no abort: it notices a dead peer only when the connection closes, and a lost node or a
        stopped process never closes it. So this side shuts its connections down.
        """
        if self._own_ports or self._ports:
            gloo_sockets.shut_down(own=self._own_ports, theirs=self._ports)
        waits.end_all()

    def _leave_if_replaced(self, target: control_pipe.Generation) -> None:
        if self._is_replaced(target):
            raise RuntimeError(f"generation {target.number} was replaced")

    def _is_replaced(self, target: control_pipe.Generation) -> bool:
        assert self._control_pipe is not None
        return self._control_pipe.newest.number > target.number

    def _give_up(self) -> None:
        """Called regularly while this rank waits for the others; raises Stopped after a stop signal."""
        if self.stop:
            leave(contract.EXIT_SIGNAL + (self.stop.signal or 15))


class RetiredGroups:
    """Process groups of the previous generation, kept until they are unused, then destroyed in a thread.

    Destroying a gloo group waits for its last collective. If its connection broke at the wrong moment, that
    takes the whole timeout, and training would block if it held the last reference.
    """

    def __init__(self) -> None:
        self._groups: list[object] = []

    def add(self, groups: list[object]) -> None:
        """Retire these groups; the groups that were added before are no longer in use and are destroyed."""
        unused, self._groups = self._groups, groups
        if unused:
            threading.Thread(target=unused.clear, name="dtj-retired-groups", daemon=True).start()


class _LeftError(BaseException):
    """Raised in a thread whose result is not needed any more; no handler of torch's takes it."""


def _leave(thread: threading.Thread) -> None:
    """Let a thread end before its next line of Python.

    A slow peer may yet connect to it. torch would then register the group of a generation that was replaced
    as the default group, and refuse that of the next one.
    """
    assert thread.ident is not None  # it was started
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_LeftError))


@contextlib.contextmanager
def _bounded(limit_s: float | None) -> Iterator[None]:
    """End this process with the stacks of all its threads if the block takes longer than `limit_s` seconds.

    It works while the GIL is held elsewhere. A timer that the program itself has set is lost.
    """
    if limit_s is not None:
        faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        yield
    finally:
        if limit_s is not None:
            faulthandler.cancel_dump_traceback_later()


def _of_all(ports: frozenset[int], group: "dist.ProcessGroup") -> frozenset[int]:
    """The ports of all ranks."""
    mine = (sorted(ports) + [0] * _MOST_PORTS)[:_MOST_PORTS]
    return frozenset(chain(*exchange.all_gather_numbers(mine, group=group))) - {0}
