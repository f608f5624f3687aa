"""The job's flags. They reach a rank as DTJ_* variables and take precedence over arguments in the code.

So the same script runs unchanged on a laptop and in a pod. A flag is declared once, as a field of Settings
with a type of click; the command line (cli/commands.py) is generated from the same declarations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import click

from dtj.errors import RecipeError


class LocalPath(click.Path):
    """A file or folder; form: how the help shows it. The command line makes it absolute for the ranks."""

    def __init__(self, form: str, **how: Any) -> None:
        super().__init__(readable=False, **how)  # of a network volume that may change
        self.form = form

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            self.fail("this must be a local path; download it, or mount the storage as a volume", param, ctx)
        return super().convert(value, param, ctx)


class FolderOrUrl(LocalPath):
    """A folder, or a URL of an object store, such as s3://bucket/path."""

    def __init__(self) -> None:
        super().__init__("FOLDER|URL", file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else super().convert(value, param, ctx)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`diloco:20` as name and amount."""

    name: str
    amount: float | None

    def __str__(self) -> str:
        return self.name if self.amount is None else f"{self.name}:{self.amount}"


class OneWithAmount(click.ParamType):  # type: ignore[type-arg]  # generic only in new versions of click
    """A known word, some followed by a number: word -> K (steps), RANK, PERCENT, or "" if it takes no number.

    K is required, the others have defaults. K and RANK are whole numbers; PERCENT is at most 100.
    """

    name = "choice"

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = known
        endings = {"": "", "K": ":K"}
        self.form = "|".join(word + endings.get(what, f"[:{what}]") for word, what in known.items())

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Choice:
        if isinstance(value, Choice):
            return value
        word, colon, number = str(value).partition(":")
        takes = self.known.get(word)
        if takes is None or (colon and not takes):
            self.fail(f"choose one of {self.form.replace('|', ', ')}", param, ctx)
        if takes == "K" and not colon:
            self.fail(f"it needs a number of steps, for example {word}:8", param, ctx)
        if not colon:
            return Choice(name=word, amount=None)
        try:
            amount = float(number)
        except ValueError:
            amount = 0.0
        if takes == "PERCENT":
            fits, wanted = 0 < amount <= 100, "a number above 0 and at most 100"
        else:
            fits, wanted = amount >= 1 and amount.is_integer(), "a whole number of at least 1"
        if not fits:
            self.fail(f"expected {wanted} after {word}:, for example {word}:8", param, ctx)
        return Choice(name=word, amount=amount)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """What the command line needs to know about a setting.

    option  if it differs from the field's name
    form    how the help shows the value; "" as click does it
    many    it may be repeated; its variable has a line for each
    """

    kind: "click.ParamType[Any]"
    help: str
    option: str = ""
    form: str = ""
    many: bool = False

    def read(self, name: str, text: str) -> Any:
        """The value; RecipeError with `name` in it for an invalid text."""
        try:
            values = [
                self.kind.convert(each, None, None) for each in (text.splitlines() if self.many else [text])
            ]
        except click.BadParameter as error:
            raise RecipeError(
                f"{name} is {text!r}: {error.message}", fix="correct it, or leave it out"
            ) from None
        return tuple(values) if self.many else values[0]


def flag(kind: "click.ParamType[Any]", help: str, *, default: Any = None, **how: Any) -> Any:  # noqa: A002
    """A data class field that is also a command-line flag. how: as of Flag."""
    how = {"form": getattr(kind, "form", "")} | how
    return field(default=default, metadata={"flag": Flag(kind=kind, help=help, **how)})


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
        click.Choice(["text", "json"]), "Format of log lines. [default: text]", default="text", option="--log"
    )
    log_every: int | None = flag(click.IntRange(1), "Log every N steps. [default: about once a second]")
    metrics: tuple[str, ...] = flag(
        click.STRING,
        "Also write each logged step to this file or TensorBoard folder; may be repeated.",
        default=(),
        form="FILE.jsonl|FILE.csv|tensorboard:FOLDER",
        many=True,
    )
    peak_tflops: float | None = flag(
        click.FloatRange(min=0, min_open=True),
        "Peak TFLOP/s of one device at this precision; enables MFU in the log.",
    )
    checkpoint_dir: str | None = flag(
        FolderOrUrl(),
        "Folder for checkpoints, or a URL such as s3://bucket/path. [default: none, state is in memory only]",
        option="--checkpoint",
    )
    resume_dir: str | None = flag(
        FolderOrUrl(),
        "Checkpoint folder of another run to start from; read only.",
        option="--resume",
    )
    # By time unless a number is given: the cost of saving then stays small, however short the steps are.
    save_every: int | None = flag(
        click.IntRange(1), "Save a checkpoint every N steps. [default: once a minute]"
    )
    # At least two: the newest may be unreadable.
    keep: int = flag(click.IntRange(2), "Number of newest checkpoints to keep. [default: 2]", default=2)
    async_save: bool = flag(click.BOOL, "Write checkpoints in the background.", default=False)
    memory_every: int | None = flag(
        click.IntRange(0),
        "Copy state into the agent's memory every N steps, 0: never. [default: at most 3 % of the time]",
    )
    check_every: int | None = flag(
        click.IntRange(1), "Verify every N steps that all ranks have identical state. [default: never]"
    )
    weights: str | None = flag(
        LocalPath("FILE|FOLDER"),
        "Initial weights: .safetensors, .pt with a state_dict, or a folder as transformers writes it; "
        "ignored if there is a checkpoint.",
    )
    # Affects memory use only, not the result (except for rounding).
    micro_batch: int | None = flag(
        click.IntRange(1), "Maximum number of samples per forward pass of a rank; limits memory use."
    )
    reduce_once: bool = flag(
        click.BOOL,
        "With fsdp and several micro-batches: reduce gradients once a step; sends less, needs more memory.",
        default=False,
    )
    workers: int = flag(
        click.IntRange(0),
        "Processes per rank that load samples in advance. [default: 0, the rank loads them itself]",
        default=0,
    )
    worker_start: str | None = flag(
        click.Choice(["fork", "spawn"]),
        "How --workers are started: spawn for a data set that uses CUDA or threads. [default: fork]",
    )
    parallel: str | None = flag(
        click.Choice(list(STRATEGIES)), "How to parallelize the model over the ranks. [default: ddp]"
    )
    mesh: str = flag(
        click.STRING,
        "Number of ranks along each axis of --parallel, e.g. tp=2. [default: derived]",
        default="",
        form="AXIS=SIZE,...",
    )
    devices: int = flag(
        click.IntRange(1),
        "Devices per rank, for a model that places its own parts on them. [default: 1]",
        default=1,
    )
    precision: str = flag(
        click.Choice(["fp32", "bf16", "fp16"]),
        "Data type of forward and backward. [default: fp32]",
        default="fp32",
    )
    tf32: bool = flag(
        click.BOOL, "Use TF32 for float32 matrix products on CUDA: faster, less precise.", default=False
    )
    compile: bool = flag(click.BOOL, "Compile the model with torch.compile.", default=False)
    recompute: bool = flag(
        click.BOOL,
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
                found[name] = FLAGS[name].read(f"{option(name)} ({variable(name)})", text)
            elif (value := in_code.get(keyword)) is not None:
                found[name] = FLAGS[name].read(f"dtj.init({keyword}=...)", as_text(value))
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


def as_text(value: Any) -> str:
    """A value as its variable has it."""
    if isinstance(value, bool):
        return str(int(value))
    return "\n".join(value) if isinstance(value, list | tuple) else str(value)
