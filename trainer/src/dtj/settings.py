"""The job's flags. They reach a rank as DTJ_* variables and win over what the code asks for.

So the same script runs in the small on a laptop and in the large in a pod without being edited.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from dtj.contract import CHECKPOINT_DIR, RESUME_DIR
from dtj.errors import RecipeError

MICRO_BATCH = "DTJ_MICRO_BATCH"
SAVE_EVERY = "DTJ_SAVE_EVERY"
LOG_EVERY = "DTJ_LOG_EVERY"
LOG_FORMAT = "DTJ_LOG"
PARALLEL = "DTJ_PARALLEL"
MESH = "DTJ_MESH"
PRECISION = "DTJ_PRECISION"
TF32 = "DTJ_TF32"
COMPILE = "DTJ_COMPILE"
RECOMPUTE = "DTJ_RECOMPUTE"
SYNC = "DTJ_SYNC"
COMPRESS = "DTJ_COMPRESS"
KEEP = "DTJ_KEEP"
CHECK_EVERY = "DTJ_CHECK_EVERY"
METRICS = "DTJ_METRICS"
WEIGHTS = "DTJ_WEIGHTS"
ASYNC_SAVE = "DTJ_ASYNC_SAVE"
WORKERS = "DTJ_WORKERS"
PEAK_TFLOPS = "DTJ_PEAK_TFLOPS"

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
PRECISIONS = ("fp32", "bf16", "fp16")
# Name -> what the number after the colon is, "" where none follows.
SYNCS = {"every": "", "local": "K", "postlocal": "K", "diloco": "K", "stale": "K"}
COMPRESSIONS = {"bf16": "", "fp16": "", "powersgd": "RANK", "topk": "PERCENT"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`diloco:20` as name and amount."""

    name: str
    amount: float | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to run, as opposed to what to train.

    micro_batch     samples a rank works on at once; None takes its whole share of the global batch. Only
                    memory depends on it, never the result (but for rounding).
    workers         processes of each rank that load samples ahead; 0 loads them when they are needed
    save_every      steps between checkpoints; None saves once a minute, which costs little at any step time.
    check_every     steps between comparisons of what the ranks hold (step/replicas.py); None never compares.
    log_every       steps between lines; None prints about one a second.
    log_json        one JSON object a line instead of text.
    metrics         files that every logged line is written to (telemetry/metric_files.py)
    peak_tflops     of one device at the precision in use, in 10^12 operations a second: gives MFU
    checkpoint_dir  where this run commits its checkpoints; None keeps state in memory only.
    resume_dir      folder of an earlier run to start from; read, never written.
    keep            newest checkpoints that are kept, at least 2: the last may turn out unreadable
    async_save      write checkpoints in the background, from a copy of the state in memory
    weights         file of weights that the model begins with (checkpoint/weights.py); a checkpoint wins
    parallel        one of STRATEGIES; None is ddp among several ranks (parallel/layout.py)
    mesh            sizes of its axes, e.g. "tp=2"; what is left out is derived from the world size
    precision       one of PRECISIONS, of forward and backward (step/precision.py)
    tf32            CUDA may round the inputs of float32 matrix products: faster, less exact
    compile         torch.compile the model
    sync            when ranks exchange what they learned, and every how many steps (sync/)
    compress        how gradients are made smaller, and how much (sync/compress.py)
    recompute       keep no activations inside blocks, compute them again in backward: memory for time
    """

    micro_batch: int | None = None
    workers: int = 0
    save_every: int | None = None
    check_every: int | None = None
    log_every: int | None = None
    log_json: bool = False
    metrics: tuple[str, ...] = ()
    peak_tflops: float | None = None
    checkpoint_dir: str | None = None
    resume_dir: str | None = None
    keep: int = 2
    async_save: bool = False
    weights: str | None = None
    parallel: str | None = None
    mesh: str = ""
    precision: str = "fp32"
    tf32: bool = False
    compile: bool = False
    recompute: bool = False
    sync: Choice | None = None
    compress: Choice | None = None

    @classmethod
    def read(
        cls,
        env: Mapping[str, str],
        *,
        micro_batch: int | None = None,
        save_every: int | None = None,
        log_every: int | None = None,
    ) -> Self:
        """The code's wishes (keywords) under the job's flags (env)."""
        return cls(
            micro_batch=_positive(MICRO_BATCH, env.get(MICRO_BATCH), micro_batch),
            workers=_count(WORKERS, env.get(WORKERS)),
            save_every=_positive(SAVE_EVERY, env.get(SAVE_EVERY), save_every),
            check_every=_positive(CHECK_EVERY, env.get(CHECK_EVERY), None),
            log_every=_positive(LOG_EVERY, env.get(LOG_EVERY), log_every),
            log_json=env.get(LOG_FORMAT) == "json",
            metrics=tuple(env.get(METRICS, "").splitlines()),
            peak_tflops=_amount(PEAK_TFLOPS, env.get(PEAK_TFLOPS)),
            checkpoint_dir=env.get(CHECKPOINT_DIR) or None,
            resume_dir=env.get(RESUME_DIR) or None,
            keep=max(2, _positive(KEEP, env.get(KEEP), None) or 2),
            async_save=env.get(ASYNC_SAVE) == "1",
            weights=env.get(WEIGHTS) or None,
            parallel=_one_of(PARALLEL, env.get(PARALLEL), STRATEGIES),
            mesh=env.get(MESH, ""),
            precision=_one_of(PRECISION, env.get(PRECISION), PRECISIONS) or "fp32",
            tf32=env.get(TF32) == "1",
            compile=env.get(COMPILE) == "1",
            sync=_choice(SYNC, env.get(SYNC), SYNCS),
            compress=_choice(COMPRESS, env.get(COMPRESS), COMPRESSIONS),
            recompute=env.get(RECOMPUTE) == "1",
        )


def _one_of(name: str, value: str | None, known: Collection[str]) -> str | None:
    if value and value not in known:
        raise RecipeError(f"{name} is {value!r}", fix=f"choose one of {', '.join(known)}")
    return value or None


def _choice(name: str, text: str | None, known: Mapping[str, str]) -> Choice | None:
    if not text:
        return None
    word, colon, number = text.partition(":")
    forms = ", ".join(f"{k}:{v}" if v else k for k, v in known.items())
    try:
        amount = float(number) if colon else None
    except ValueError:
        amount = 0.0
    takes = known.get(word)
    if takes is None or (amount is not None and (not takes or amount <= 0)):
        raise RecipeError(f"{name} is {text!r}", fix=f"choose one of {forms}")
    if takes in {"K", "RANK"} and amount is not None and amount != int(amount):
        raise RecipeError(f"{name} is {text!r}, expected a whole number", fix=f"choose one of {forms}")
    if takes == "K" and amount is None:
        raise RecipeError(f"{name} is {text!r}: every how many steps?", fix=f"for example {word}:8")
    return Choice(name=word, amount=amount)


def _amount(name: str, text: str | None) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise RecipeError(f"{name} is {text!r}, expected a number above 0", fix="correct it, or leave it out")
    return number


def _count(name: str, flag: str | None) -> int:
    return 0 if flag in {None, "", "0"} else _positive(name, flag, None) or 0


def _positive(name: str, flag: str | None, wish: int | None) -> int | None:
    value: int | str | None = flag if flag else wish
    if value is None:
        return None
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise RecipeError(
            f"{name} is {value!r}, expected a whole number of at least 1", fix="correct it, or leave it out"
        )
    return number
