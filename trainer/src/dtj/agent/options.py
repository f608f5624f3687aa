"""The agent's options, from the command's flags and the pod's variables; see placement.py for the ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dtj import contract, settings
from dtj.agent.placement import number
from dtj.agent.wire.protocol import CoordinatorState, RestartBudget
from dtj.errors import RecipeError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Everything except the placement.

    shown            ranks whose lines are printed; None prints all
    as_json          print every line as a JSON object
    port             for /status; None serves nothing
    host             interface of that port
    termination_log  file for the termination message; None writes none
    job, uid, attempt  the job, as set by the operator
    deciding         replicas that have to be done for the job to succeed; None: all
    budget           of in-place restarts
    past             what the operator knows of the restarts before this agent started
    grace_s          the pod's termination grace period; None if unknown
    hang_s           seconds without a step that count as a hang; None derives them from the steps
    working_s        seconds without a step until a rank at work counts as hung; None for the default
    restarts_hung    kill and restart a rank that causes a hang; else only name it
    has_buddy        another replica keeps copies of this one's state in memory
    """

    budget: RestartBudget
    past: CoordinatorState
    shown: frozenset[int] | None = None
    as_json: bool = False
    port: int | None = None
    host: str = LOOPBACK
    termination_log: Path | None = None
    job: str = ""
    uid: str = ""
    attempt: int = 0
    deciding: frozenset[int] | None = None
    grace_s: float | None = None
    hang_s: float | None = None
    working_s: float | None = None
    restarts_hung: bool = True
    has_buddy: bool = True

    @classmethod
    def read(
        cls,
        env: Mapping[str, str],
        *,
        shown: str | None,
        as_json: bool,
        port: int | None,
        termination_log: Path | None,
        max_restarts: int | None,
        no_buddy: bool = False,
    ) -> Self:
        """Flags take precedence over the operator's variables; RecipeError if a value is invalid."""
        in_job, deciding = contract.JOB in env, env.get(contract.SUCCESS_REPLICAS)
        port_in_job = number(env, contract.AGENT_PORT, default=0, least=0) if in_job else 0
        return cls(
            shown=None if shown is None else _numbers(shown, "--ranks"),
            as_json=as_json,
            port=port or port_in_job or None,
            host="" if in_job and env.get(contract.MASTER_ADDR) != LOOPBACK else LOOPBACK,
            termination_log=termination_log or (Path(contract.TERMINATION_LOG) if in_job else None),
            job=env.get(contract.JOB, ""),
            uid=env.get(contract.JOB_UID, ""),
            attempt=number(env, contract.ATTEMPT, default=0, least=0),
            deciding=_numbers(deciding, contract.SUCCESS_REPLICAS) if deciding else None,
            budget=_budget(max_restarts, env),
            past=_past(env),
            grace_s=_seconds(env, contract.GRACE_SECONDS),
            hang_s=_seconds(env, contract.HANG_SECONDS) or None,  # 0: derived from the steps
            working_s=_seconds(env, contract.HANG_WORKING_SECONDS),
            restarts_hung=_hang_action(env) == "Restart",
            has_buddy=not no_buddy and env.get(settings.variable("memory_every")) != "0",
        )


def _numbers(text: str, name: str) -> frozenset[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise RecipeError(
            f"{name} is {text!r}, expected comma-separated numbers", fix=f"for example {name} 0,2"
        )
    return frozenset(int(word) for word in words)


def _budget(flag: int | None, env: Mapping[str, str]) -> RestartBudget:
    left = number(env, contract.MAX_RESTARTS, default=0, least=0) if flag is None else flag
    spent = number(env, contract.RESTARTS_IN_PLACE, default=0, least=0)
    without = number(
        env, contract.MAX_RESTARTS_WITHOUT_PROGRESS, default=RestartBudget.without_progress, least=0
    )
    window_s = _seconds(env, contract.RESTART_WINDOW_SECONDS)
    backoff_s = _seconds(env, contract.BACKOFF_SECONDS) or 0.0
    return RestartBudget(
        restarts=left + spent, spent=spent, without_progress=without, window_s=window_s, backoff_s=backoff_s
    )


def _past(env: Mapping[str, str]) -> CoordinatorState:
    best_step = number(env, contract.HIGHEST_STEP, default=-1, least=0)
    return CoordinatorState(
        in_place=number(env, contract.RESTARTS_IN_PLACE, default=0, least=0),
        without_progress=number(env, contract.RESTARTS_WITHOUT_PROGRESS, default=0, least=0),
        best_step=None if best_step < 0 else best_step,
    )


def _seconds(env: Mapping[str, str], name: str) -> float | None:
    """None if unset."""
    text = env.get(name)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise RecipeError(
            f"{name} is {text!r}, expected a number of seconds", fix=f"correct {name}, or unset it"
        )
    return seconds


def _hang_action(env: Mapping[str, str]) -> str:
    action = env.get(contract.HANG_ACTION) or "Restart"
    if action not in {"Restart", "Report"}:
        raise RecipeError(
            f"{contract.HANG_ACTION} is {action!r}, expected Restart or Report",
            fix="Restart kills and restarts a hung rank, Report only names it",
        )
    return action
