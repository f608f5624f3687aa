"""The command line of accelerate launch with the place of each pod, which differs from pod to pod. Pure.

Kubernetes replaces the variables, which the operator sets. All else, such as a config file, stays.
"""

from collections.abc import Sequence

from dtj_client.torchrun import Launch

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
    *((python, "-m", "accelerate.commands.launch") for python in ("python", "python3")),
)
_SWITCHES = (  # options without a value
    *("cpu", "debug", "dynamo_use_dynamic", "dynamo_use_fullgraph", "dynamo_use_regional_compilation"),
    *("enable_cpu_affinity", "m", "module", "multi_gpu", "no_python", "q", "quiet", "same_network", "tpu"),
    *("tpu_cluster", "tpu_use_sudo", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_xpu", "ipex"),
    *("use_parallelism_config", "downcast_bf16", "fp8_use_autocast_during_eval"),
)


def clean(words: Sequence[str], *, on_cpus: bool = False) -> Launch | None:
    """Return the command with the place of its pod; None if it does not begin with accelerate launch.

    on_cpus  of pods without accelerators: without its option --cpu it trains in each of them for itself
    """
    begin = (*(words[0].rpartition("/")[2:] if words else ()), *words[1:3])
    size = next((len(p) for p in _PROGRAMS if begin[: len(p)] == p), 0)
    if not size:
        return None
    given: dict[str, str] = {}
    launch, others, rest = Launch(list(words[:size])), list[str](), list(words[size:])
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and name not in _SWITCHES and rest:
            value = rest.pop(0)
        if name in PLACE:
            given[name] = value
            launch.leave_out(name, value)
        else:
            others += [word] if equals or not value else [word, value]
    cpu = ["--cpu"] if on_cpus and "--cpu" not in others else []
    launch.words += [*(f"--{name}={value}" for name, value in PLACE.items()), *cpu, *others, *rest]
    ranks, machines = given.get("num_processes", ""), given.get("num_machines", "1")
    if not on_cpus and ranks.isdigit() and machines.isdigit() and int(ranks) % max(1, int(machines)) == 0:
        launch.processes = max(1, int(ranks) // max(1, int(machines)))
    return launch
