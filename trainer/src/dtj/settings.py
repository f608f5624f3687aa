"""The job's flags. They reach a rank as DTJ_* variables and win over what the code asks for.

So the same script runs in the small on a laptop and in the large in a pod without being edited. A flag is
declared once, as a field of Settings; the command line (cli.py) is made of the same declarations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from dtj.flags import Choice, Flag, OneOf, OneWithAmount, Place, Places, Positive, Switch, Text, Whole, flag

# Axes of each strategy's grid of ranks, outermost first (parallel/layout.py).
STRATEGIES: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "ddp": ("ddp",),
    "zero1": ("ddp",),
    "fsdp": ("fsdp",),
    "hsdp": ("ddp", "fsdp"),
    "tp": ("tp",),
    "tp+ddp": ("ddp", "tp"),
    "pp": ("pp",),
    "pp+ddp": ("pp", "ddp"),
}
# How ranks exchange (sync/local_sgd.py, stale.py), and how gradients are made smaller (sync/compress.py).
SYNCS = OneWithAmount({"every": "", "local": "K", "postlocal": "K", "diloco": "K", "stale": "K"})
COMPRESSIONS = OneWithAmount({"bf16": "", "fp16": "", "powersgd": "RANK", "topk": "PERCENT"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to run, as opposed to what to train. The variable of `save_every` is DTJ_SAVE_EVERY, and so on."""

    log_format: str = flag(OneOf(("text", "json")), "Format of every line.", default="text", option="--log")
    log_every: int | None = flag(Whole(), "Steps between lines. [default: one a second]")
    metrics: tuple[str, ...] = flag(
        Places("FILE.jsonl|FILE.csv|tensorboard:FOLDER"),
        "Write every logged line there too; may be repeated.",
        default=(),
    )
    peak_tflops: float | None = flag(
        Positive(), "What one device can do at this precision, in TFLOP/s: the log then has MFU."
    )
    checkpoint_dir: str | None = flag(
        Place("FOLDER"),
        "Folder for this run's checkpoints. [default: state in memory only]",
        option="--checkpoint",
    )
    resume_dir: str | None = flag(Place("FOLDER"), "Earlier run to start from; only read.", option="--resume")
    # A save costs little at any step time, so without a number it goes by the clock.
    save_every: int | None = flag(Whole(), "Steps between checkpoints. [default: one a minute]")
    # Two at least: the last may turn out unreadable.
    keep: int = flag(Whole(2), "Newest checkpoints to keep. [default: 2]", default=2)
    async_save: bool = flag(Switch(), "Write checkpoints in the background.", default=False)
    check_every: int | None = flag(
        Whole(), "Steps between checks that all ranks hold the same state. [default: never]"
    )
    weights: str | None = flag(
        Place("FILE"), "Begin with these weights: .safetensors, or .pt with a state_dict; a checkpoint wins."
    )
    # Only memory depends on it, never the result (but for rounding).
    micro_batch: int | None = flag(Whole(), "Samples a rank takes at once, to save memory.")
    workers: int = flag(
        Whole(0), "Processes of each rank that load samples ahead. [default: 0, the rank itself]", default=0
    )
    parallel: str | None = flag(OneOf(STRATEGIES), "How ranks share the work. [default: ddp]")
    mesh: str = flag(
        Text("AXIS=SIZE,..."), "Ranks along the axes of --parallel, e.g. tp=2. [default: derived]", default=""
    )
    devices: int = flag(
        Whole(), "Devices of each rank, for a model that lays its own parts on them. [default: 1]", default=1
    )
    precision: str = flag(
        OneOf(("fp32", "bf16", "fp16")),
        "Type that forward and backward compute in. [default: fp32]",
        default="fp32",
    )
    tf32: bool = flag(Switch(), "Faster, less exact float32 matrix products on CUDA.", default=False)
    compile: bool = flag(Switch(), "torch.compile the model.", default=False)
    recompute: bool = flag(Switch(), "Keep fewer activations; compute them again in backward.", default=False)
    sync: Choice | None = flag(SYNCS, "When ranks exchange what they learned. [default: every step]")
    compress: Choice | None = flag(COMPRESSIONS, "Send smaller gradients. [default: as they are]")

    @classmethod
    def read(cls, env: Mapping[str, str], **wishes: int | None) -> Self:
        """The code's wishes (keywords) under the job's flags (env)."""
        texts = {name: env.get(variable(name)) or wishes.get(name) for name in FLAGS}
        given = {name: str(text) for name, text in texts.items() if text is not None and text != ""}
        return cls(**{name: FLAGS[name].kind.read(_both(name), text) for name, text in given.items()})


FLAGS: Mapping[str, Flag] = {each.name: each.metadata["flag"] for each in fields(Settings)}


def variable(name: str) -> str:
    """Under which a setting reaches the ranks."""
    return f"DTJ_{name.upper()}"


def option(name: str) -> str:
    """Of the command line."""
    return FLAGS[name].option or f"--{name.replace('_', '-')}"


def _both(name: str) -> str:
    """For errors: whoever gave the flag has never seen the variable."""
    return f"{option(name)} ({variable(name)})"
