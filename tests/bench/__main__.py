"""`python -m tests.bench NAME...`: run benchmarks and write their sections of docs/benchmarks.md."""

from __future__ import annotations

import importlib
import sys

from tests.support.ending import clean_up_on_sigterm

NAMES = (
    "first_step",
    "creation",
    "reconcile",
    "life",
    "gangs",
    "gang_large",
    "fleet",
    "stream",
    "takeover",
    "peers",
    "chaos",
    "demo",
    "exchange",
    "throughput",
    "launch",
    "client",
    "saving",
    "libraries",
    "sampler",
    "memory",
    "mistakes",
)
# These take hours, need a Kueue or a GPU, so they run only when named.
BY_NAME_ONLY = (
    "recovery",
    "recovery_local",
    "recovery_copies",
    "recovery_strategies",
    "recovery_peer",
    "goodput",
    "control",
    "control_plain",
    "hangs",
    "blame",
    "blame_status",
    "agents",
    "many_agents",
    "preemption",
    "placement",
    "gpu",
)

if unknown := set(sys.argv[1:]) - {*NAMES, *BY_NAME_ONLY}:
    known = ", ".join(NAMES + BY_NAME_ONLY)
    sys.exit(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {known}")
clean_up_on_sigterm()
for name in sys.argv[1:] or NAMES:
    importlib.import_module(f"tests.bench.{name}").main()
