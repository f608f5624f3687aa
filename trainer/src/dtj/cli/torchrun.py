"""torchrun's options for `dtj run`: the same names, so that a command line only changes its first word.

What has no counterpart is refused with the reason, instead of being ignored. Only what has no effect here is
accepted and ignored.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from dtj import contract
from dtj.errors import RecipeError
from dtj.ranks.device_files import gpus_visible

_LOGS = "the output of all ranks is on stdout and stderr, with the rank in front of each line"
_REFUSED = {
    "--rdzv-conf": "the agents of dtj meet without a configurable rendezvous",
    "--local-addr": "machine 0 sees from where the others connect; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME "
    "choose the network of the ranks",
    "--no-python": "the ranks are forked from a process that has torch imported, so they run Python",
    "--log-dir": _LOGS,
    "--redirects": _LOGS,
    "--tee": _LOGS,
    "--log-line-prefix-template": _LOGS,
    "--logs-specs": _LOGS,
    "--duplicate-stdout-filters": _LOGS,
    "--duplicate-stderr-filters": _LOGS,
    "--local-ranks-filter": "use --ranks to print the lines of some ranks only",
    "--event-log-handler": "the log and GET /status tell what torchrun's events tell",
    "--numa-binding": "ranks are not bound to processors",
    "--virtual-local-rank": "each rank sees all GPUs of the machine, and uses that of its LOCAL_RANK",
    "--signals-to-handle": "SIGTERM and SIGINT reach the ranks, other signals do not",
    "--shutdown-timeout": "ranks have 5 s after a signal, or until they have saved",
    "--print-completion": "`_DTJ_COMPLETE=bash_source dtj` prints the completion of dtj for bash",
}
_SHORT = {"--redirects": "-r", "--tee": "-t"}
_REFUSED_FLAGS = {"--no-python", "--virtual-local-rank"}  # the others have a value
# How torchrun starts ranks and looks after them: ranks of dtj start faster, and their end is noticed at once.
_WITHOUT_EFFECT = ("--start-method", "--monitor-interval")
_BACKENDS = ("c10d", "static")


class Processes(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A number of ranks, or cpu, gpu or auto, as torchrun counts them."""

    name = "INTEGER|auto|gpu|cpu"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        if value in {"auto", "gpu", "cpu"}:
            return _count(value)
        return click.IntRange(min=1).convert(value, param, ctx)


def options(command: Any) -> Any:
    """Add the options to a click command; `environment` reads their values."""
    added: list[Callable[[Any], Any]] = [
        click.option(*_both("--nnodes"), help="Number of machines. [default: from the job, else 1]"),
        click.option(*_both("--node-rank"), type=click.IntRange(min=0), help="Number of this machine."),
        click.option(*_both("--master-addr"), help="Address of machine 0."),
        click.option(*_both("--master-port"), type=click.IntRange(1, 65535), help="Port on machine 0."),
        click.option(*_both("--rdzv-backend"), hidden=True),
        click.option(*_both("--rdzv-endpoint"), help="HOST:PORT: --master-addr and --master-port in one."),
        click.option(*_both("--rdzv-id"), help="Name of the run, TORCHELASTIC_RUN_ID."),
        click.option("--standalone", is_flag=True, help="One machine, whatever the environment says."),
        click.option("--role", default="default", help="ROLE_NAME of the ranks."),
    ]
    added += [click.option(*_both(name), expose_value=False, hidden=True) for name in _WITHOUT_EFFECT]
    added += [click.option(*_both("--run-path"), is_flag=True, expose_value=False, hidden=True)]  # as always
    added += [_refusing(name, why) for name, why in _REFUSED.items()]
    for one in reversed(added):
        command = one(command)
    return command


def environment(given: Mapping[str, Any]) -> dict[str, str]:
    """The variables that these options stand for; RecipeError if one has no counterpart."""
    found: dict[str, Any] = {"ROLE_NAME": given["role"]}
    if (backend := given["rdzv_backend"]) and backend not in _BACKENDS:
        raise RecipeError(
            f"--rdzv-backend is {backend}; dtj run has none of the others: its agents meet at machine 0",
            fix=f"leave it out, or use {' or '.join(_BACKENDS)}",
        )
    if given["standalone"]:
        return found | {contract.NNODES: "1", contract.NODE_RANK: "0"}
    if given["nnodes"]:
        found[contract.NNODES] = _machines(given["nnodes"])
    if given["rdzv_endpoint"]:
        host, port = _address(given["rdzv_endpoint"])
        found |= {contract.MASTER_ADDR: host} | ({contract.MASTER_PORT: port} if port else {})
    names = {
        "node_rank": contract.NODE_RANK,
        "master_addr": contract.MASTER_ADDR,
        "master_port": contract.MASTER_PORT,
        "rdzv_id": contract.RUN_ID,
    }
    found |= {variable: given[name] for name, variable in names.items() if given[name] is not None}
    if int(found.get(contract.NNODES, 1)) > 1 and contract.NODE_RANK not in {*found, *os.environ}:
        raise RecipeError(
            f"--nnodes is {found[contract.NNODES]}, but the number of this machine is not known",
            fix="pass --node-rank, from 0 on; dtj run does not let the machines choose it",
        )
    return {name: str(value) for name, value in found.items()}


def of_program(words: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments of the program: torchrun takes a `--` right behind its name for itself."""
    return words[1:] if words[:1] == ("--",) else words


def _machines(text: str) -> str:
    least, _, most = text.partition(":")
    if not least.isdecimal() or (most and most != least):
        raise RecipeError(
            f"--nnodes is {text!r}, expected one number",
            fix="for a size that changes, use spec.elastic of a job; else --nnodes 2",
        )
    return least


def _address(endpoint: str) -> tuple[str, str]:
    """Host and port; no port for 0, "any" in torchrun's examples for one machine, which needs none here."""
    host, colon, port = endpoint.rpartition(":")
    return (host.strip("[]"), "" if port == "0" else port) if colon else (endpoint, "")


def _count(what: str) -> int:
    gpus = gpus_visible(os.environ)
    if what == "gpu" and not gpus:
        raise RecipeError("--nproc-per-node is gpu, but this machine has none", fix="use cpu, or a number")
    if gpus and what != "cpu":
        return gpus
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _refusing(name: str, why: str) -> Callable[[Any], Any]:
    def refuse(_context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            raise RecipeError(f"dtj run has no option {name}: {why}", fix=f"leave out {name}")

    names = (*_both(name), _SHORT[name]) if name in _SHORT else _both(name)
    how: dict[str, Any] = {"is_flag": True, "default": None} if name in _REFUSED_FLAGS else {}
    return click.option(*names, callback=refuse, expose_value=False, hidden=True, **how)


def _both(name: str) -> tuple[str, ...]:
    """Both spellings, as torchrun takes them."""
    other = "--" + name[2:].replace("-", "_")
    return (name,) if other == name else (name, other)
