"""The command line of accelerate launch with the place of each pod, which differs from pod to pod. Pure.

Kubernetes replaces the variables, which the operator sets. All else, such as a config file, stays.
"""

from collections.abc import Sequence

from dtj_client.programs.torchrun import Launch, length_of_program, take_option

PLACE = {
    "num_machines": "$(NNODES)",
    "num_processes": "$(WORLD_SIZE)",
    "machine_rank": "$(NODE_RANK)",
    "main_process_ip": "$(MASTER_ADDR)",
    "main_process_port": "$(MASTER_PORT)",
}
ON_CPUS = (
    "on CPUs accelerate launch starts one rank a pod: for more write torchrun instead, and "
    'ACCELERATE_USE_CPU: "true" into env'
)
_PROGRAMS = (
    ("accelerate", "launch"),
    ("accelerate-launch",),
    ("python", "-m", "accelerate.commands.launch"),
)
_SWITCHES = (  # options without a value
    *("cpu", "debug", "dynamo-use-dynamic", "dynamo-use-fullgraph", "dynamo-use-regional-compilation"),
    *("enable-cpu-affinity", "m", "module", "multi-gpu", "no-python", "q", "quiet", "same-network", "tpu"),
    *("tpu-cluster", "tpu-use-sudo", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-xpu", "ipex"),
    *("no-tpu-cluster", "use-parallelism-config", "downcast-bf16", "fp8-use-autocast-during-eval"),
)


def clean(words: Sequence[str], *, on_cpus: bool = False) -> Launch | None:
    """Return the command with the place of its pod; None if it does not begin with accelerate launch.

    on_cpus  of pods without accelerators: without its option --cpu it trains in each of them for itself
    """
    size = length_of_program(words, _PROGRAMS)
    if not size:
        return None
    given: dict[str, str] = {}
    launch, others, rest = Launch(list(words[:size]), size), list[str](), list(words[size:])
    while rest and rest[0].startswith("-"):
        name, value, taken = take_option(rest, _SWITCHES)
        if (place := name.replace("-", "_")) in PLACE:
            given[place] = value
            launch.leave_out(place, value)
        else:
            others += taken
    cpu = ["--cpu"] if on_cpus and "--cpu" not in others else []
    launch.words += [*(f"--{name}={value}" for name, value in PLACE.items()), *cpu, *others, *rest]
    ranks, machines = given.get("num_processes", ""), given.get("num_machines", "1")
    if not on_cpus and ranks.isdigit() and machines.isdigit() and int(ranks) % max(1, int(machines)) == 0:
        launch.processes = max(1, int(ranks) // max(1, int(machines)))
    return launch
