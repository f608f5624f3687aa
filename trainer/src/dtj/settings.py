"""The job's flags. They reach a rank as DTJ_* variables and take precedence over arguments in the code.

So the same script runs unchanged on a laptop and in a pod. A flag is declared once, as a field of Settings;
the command line (cli/commands.py) is generated from the same declarations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from dtj.errors import RecipeError
from dtj.flags import (
    Choice,
    Flag,
    LocalPath,
    MetricTargets,
    OneOf,
    OneWithAmount,
    PathOrUrl,
    Positive,
    Switch,
    Text,
    Whole,
    flag,
)

# Axes of each strategy's grid of ranks, outermost first (parallel/layout.py).
STRATEGIES: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "ddp": ("ddp",),
    "zero1": ("ddp",),
    "fsdp": ("fsdp",),
    "hsdp": ("ddp", "fsdp"),
    "tp": ("tp",),
    "tp+ddp": ("ddp", "tp"),
    "tp+fsdp": ("fsdp", "tp"),
    "pp": ("pp",),
    "pp+ddp": ("pp", "ddp"),
}
# When ranks synchronize (parallel/local_sgd.py, stale.py), and how gradients are compressed (compress.py).
SYNCS = OneWithAmount({"every": "", "local": "K", "postlocal": "K", "diloco": "K", "stale": "K"})
COMPRESSIONS = OneWithAmount({"bf16": "", "fp16": "", "powersgd": "RANK", "topk": "PERCENT"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to run, as opposed to what to train. The variable for `save_every` is DTJ_SAVE_EVERY, and so on."""

    log_format: str = flag(
        OneOf(("text", "json")), "Format of log lines. [default: text]", default="text", option="--log"
    )
    log_every: int | None = flag(Whole(), "Log every N steps. [default: about once a second]")
    metrics: tuple[str, ...] = flag(
        MetricTargets("FILE.jsonl|FILE.csv|tensorboard:FOLDER"),
        "Also write each logged step to this file or TensorBoard folder; may be repeated.",
        default=(),
    )
    peak_tflops: float | None = flag(
        Positive(), "Peak TFLOP/s of one device at this precision; enables MFU in the log."
    )
    checkpoint_dir: str | None = flag(
        PathOrUrl("FOLDER|URL"),
        "Folder for checkpoints, or a URL such as s3://bucket/path. [default: none, state is in memory only]",
        option="--checkpoint",
    )
    resume_dir: str | None = flag(
        PathOrUrl("FOLDER|URL"),
        "Checkpoint folder of another run to start from; read only.",
        option="--resume",
    )
    # By time unless a number is given: the cost of saving then stays small, however short the steps are.
    save_every: int | None = flag(Whole(), "Save a checkpoint every N steps. [default: once a minute]")
    # At least two: the newest may be unreadable.
    keep: int = flag(Whole(2), "Number of newest checkpoints to keep. [default: 2]", default=2)
    async_save: bool = flag(Switch(), "Write checkpoints in the background.", default=False)
    memory_every: int | None = flag(
        Whole(0),
        "Copy state into the agent's memory every N steps, 0: never. [default: at most 3 % of the time]",
    )
    check_every: int | None = flag(
        Whole(), "Verify every N steps that all ranks have identical state. [default: never]"
    )
    weights: str | None = flag(
        LocalPath("FILE|FOLDER"),
        "Initial weights: .safetensors, .pt with a state_dict, or a folder as transformers writes it; "
        "ignored if there is a checkpoint.",
    )
    # Affects memory use only, not the result (except for rounding).
    micro_batch: int | None = flag(
        Whole(), "Maximum number of samples per forward pass of a rank; limits memory use."
    )
    reduce_once: bool = flag(
        Switch(),
        "With fsdp and several micro-batches: reduce gradients once a step; sends less, needs more memory.",
        default=False,
    )
    workers: int = flag(
        Whole(0),
        "Processes per rank that load samples in advance. [default: 0, the rank loads them itself]",
        default=0,
    )
    worker_start: str | None = flag(
        OneOf(("fork", "spawn")),
        "How --workers are started: spawn for a data set that uses CUDA or threads. [default: fork]",
    )
    parallel: str | None = flag(
        OneOf(STRATEGIES), "How to parallelize the model over the ranks. [default: ddp]"
    )
    mesh: str = flag(
        Text("AXIS=SIZE,..."),
        "Number of ranks along each axis of --parallel, e.g. tp=2. [default: derived]",
        default="",
    )
    devices: int = flag(
        Whole(), "Devices per rank, for a model that places its own parts on them. [default: 1]", default=1
    )
    precision: str = flag(
        OneOf(("fp32", "bf16", "fp16")),
        "Data type of forward and backward. [default: fp32]",
        default="fp32",
    )
    tf32: bool = flag(
        Switch(), "Use TF32 for float32 matrix products on CUDA: faster, less precise.", default=False
    )
    compile: bool = flag(Switch(), "Compile the model with torch.compile.", default=False)
    recompute: bool = flag(
        Switch(),
        "Recompute activations in backward instead of keeping them (activation checkpointing).",
        default=False,
    )
    sync: Choice | None = flag(SYNCS, "When ranks synchronize gradients or weights. [default: every step]")
    compress: Choice | None = flag(
        COMPRESSIONS, "Compress gradients before they are sent. [default: no compression]"
    )

    @classmethod
    def read(cls, env: Mapping[str, str], **in_code: Any) -> Self:
        """Settings from the job's flags (env); a keyword applies if its flag is not set, None: not given.

        in_code  names of flags without dashes (`checkpoint`, `save_every`) -> numbers, strings or booleans
        """
        names = {argument(name): name for name in FLAGS}
        if unknown := in_code.keys() - names.keys():
            raise RecipeError(
                f"dtj.init got {min(unknown)}, which is not a setting",
                fix=f"the settings are {', '.join(sorted(names))}",
            )
        found = {}
        for keyword, name in names.items():
            if text := env.get(variable(name)):
                found[name] = FLAGS[name].kind.read(f"{option(name)} ({variable(name)})", text)
            elif (value := in_code.get(keyword)) is not None:
                found[name] = FLAGS[name].kind.read(f"dtj.init({keyword}=...)", _as_text(value))
        return cls(**found)


FLAGS: Mapping[str, Flag] = {each.name: each.metadata["flag"] for each in fields(Settings)}


def variable(name: str) -> str:
    """Environment variable that passes a setting to the ranks."""
    return f"DTJ_{name.upper()}"


def option(name: str) -> str:
    """Command-line option of a setting."""
    return FLAGS[name].option or f"--{name.replace('_', '-')}"


def argument(name: str) -> str:
    """Argument of `dtj.init` for a setting: its option without dashes."""
    return option(name).removeprefix("--").replace("-", "_")


def _as_text(value: Any) -> str:
    """A value in code as its variable would have it."""
    if isinstance(value, bool):
        return str(int(value))
    return "\n".join(value) if isinstance(value, list | tuple) else str(value)
