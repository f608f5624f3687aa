"""Who may write into the folder of a run: the writer that started last. `owner.json` names it.

claim   rank 0 writes the record when it starts; the writer that it named before is superseded for good
check   read the record again, before every commit and before every removal

A pod that the job has lost can still train on a node that reaches the storage, and a second agent can be
started by hand with the same folder. A superseded writer raises SupersededError, which
ends its whole job, and leaves the folder as it is. The record is replaced as a whole and read by its name,
so no locks are needed. Between a check and the commit or removal that follows it, another writer can claim
the folder: see "Two writers" in docs/recovery.md.
"""

import json
import math
import socket
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

from dtj import contract
from dtj.checkpoint import answers, paths, storage
from dtj.checkpoint.objects import Location
from dtj.errors import SupersededError

NO_SCORE = -math.inf
_MOST_REMEMBERED = 1000  # superseded writers in one record
_SHARED = 2  # folders between the volume and that of a job: of the namespace, and of the job's name


class Best(TypedDict):
    """The checkpoint with the highest score, which is kept besides the newest ones."""

    step: int
    score: float


class Owner:
    """Rank 0's claim on a run's folder.

    writer     id of the agent process that started this rank, so its restarted ranks are the same writer
    storage    how this run's checkpoints are committed
    leftovers  what was unfinished when this writer claimed the run: no owner needs it
    damaged    names of checkpoints that were found unreadable when this run was restored
    best       the checkpoint with the highest score; None if none has one
    """

    def __init__(self, run_dir: Location, env: Mapping[str, str]) -> None:
        self.run_dir = run_dir
        self.storage = storage.at(run_dir)
        self.writer = env.get(contract.INCARNATION) or uuid.uuid4().hex
        self.leftovers: frozenset[str] = frozenset()
        self.damaged: set[str] = set()
        self.best: Best | None = None
        self._is_noted = True  # in the file that says which one it is
        self._job = env.get(contract.JOB, "")
        self._shared = _SHARED if self._job else 0
        self._generation = int(env.get(contract.GENERATION) or 1)
        self._has_claimed = False

    def claim(self) -> None:
        """Become the owner; SupersededError if another writer has replaced this one, OSError of the disk."""
        self.storage.create(shared=self._shared)
        record = self._read()
        superseded = record.get("superseded", [])
        if self.writer in superseded:
            raise self._superseded_by(record)
        if record and record["writer"] != self.writer:
            superseded = [*superseded, record["writer"]][-_MOST_REMEMBERED:]
        self._write(superseded)
        names = self.storage.names()
        self.leftovers = frozenset(paths.unfinished(names))
        match self._content(paths.BEST_FILE):
            case {"step": int(step), "score": float(score)} if (
                self._is_noted and paths.name_of(step) in names
            ):
                self.best = Best(step=step, score=score)
        self._has_claimed = True

    def check(self) -> None:
        """Return if this writer still owns the folder; the first time, claim it. Errors as of `claim`."""
        record = self._read()
        if not self._has_claimed or not record:  # the record was removed: no other writer has claimed
            self.claim()
        elif record["writer"] != self.writer:
            raise self._superseded_by(record)

    def note_score(self, step: int, score: float) -> None:
        """The checkpoint of `step` is committed: it is the best one, if its score is the highest."""
        if score > (self.best["score"] if self.best else NO_SCORE):
            self.best, self._is_noted = Best(step=step, score=score), False
        if self.best and not self._is_noted:  # also if that failed after an earlier save
            self.storage.replace(paths.BEST_FILE, json.dumps(self.best).encode(), writer=self.writer)
            self._is_noted = True

    def _read(self) -> dict[str, Any]:
        found = self._content(paths.OWNER_FILE)
        return found if isinstance(found, dict) and isinstance(found.get("writer"), str) else {}

    def _content(self, name: str) -> Any:
        """What a file of JSON holds; None if there is none, or only a part of one."""
        try:
            with answers.awaited(self.run_dir):
                return json.loads((self.run_dir / name).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def _write(self, superseded: list[str]) -> None:
        record = {
            "writer": self.writer,
            "job": self._job,
            "host": socket.gethostname(),
            "generation": self._generation,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "superseded": superseded,
        }
        self.storage.replace(paths.OWNER_FILE, json.dumps(record).encode(), writer=self.writer)

    def _superseded_by(self, record: Mapping[str, Any]) -> SupersededError:
        job = f"job {record['job']}, " if record.get("job") else ""
        return SupersededError(
            f"{self.run_dir} belongs to a process that started later ({job}host {record.get('host')}, "
            f"{record.get('at')}): this run ends and leaves the folder as it is",
            fix="none is needed if that process replaced this one; else give each run its own --checkpoint",
        )


class Deputy(Owner):
    """A rank that saves one last time instead of rank 0, which is lost: it claims and removes nothing.

    Rank 0's next process, of the same agent or of another one, continues to own the folder.
    """

    def __init__(self, run_dir: Location, env: Mapping[str, str], *, rank: int) -> None:
        super().__init__(run_dir, env)
        self._agent, self.writer = self.writer, f"{self.writer}-{rank}"

    def check(self) -> None:
        """Return if the folder belongs to this job, or to this agent; SupersededError if it does not."""
        record = self._read()
        if record and record["writer"] != self._agent and (not self._job or record.get("job") != self._job):
            raise self._superseded_by(record)
