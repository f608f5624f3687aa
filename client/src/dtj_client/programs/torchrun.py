"""The command line of torchrun without what the operator decides. Pure."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# Where ranks meet, and which of them a pod has: the operator sets both.
_PLACE = ("nnodes", "node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint", "rdzv-id")
_FLAGS = ("standalone",)
SHELLS = ("bash", "sh")


@dataclass
class Launch:
    """A command line of a launcher.

    processes   ranks per pod; None: not said
    left_out    names and values of options that the operator sets
    size        of these words, how many name the launcher
    notes       what is different from the command that was given
    """

    words: list[str]
    size: int
    processes: int | str | None = None
    left_out: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, name: str, value: str = "") -> None:
        """Note that an option is left out."""
        self.left_out.append((name, value))
        self.notes.append(f"left out: {f'--{name} {value}'.strip()}: the operator sets it")


def clean(words: Sequence[str]) -> Launch | None:
    """Return the command without options that the operator sets; None if it does not begin with torchrun."""
    size = length_of_program(words, _PROGRAMS)
    return _clean(words, size, [words[0] if size == 1 else "torchrun"]) if size else None


def of_dtj(words: Sequence[str]) -> Launch | None:
    """The same for dtj run, which has torchrun's options, and for dtj train."""
    size = length_of_program(words, _DTJ)
    return _clean(words, size, list(words[:size])) if size else None


def _clean(words: Sequence[str], size: int, program: list[str]) -> Launch:
    launch = Launch(program, len(program))
    gives_local_rank = words[size - 1] == _LAUNCH
    is_train = words[size - 1] == "train"
    rest = list(words[size:])
    while rest and (is_train or rest[0].startswith("-")) and rest[0] not in ("-m", "--module", "--"):
        if not rest[0].startswith("-"):  # options of dtj train may stand behind the recipe
            launch.words.append(rest.pop(0))
            continue
        name, value, given = take_option(rest, (*_FLAGS, *_SWITCHES, *SWITCHES_OF_DTJ))
        if name in (*_FLAGS, *_PLACE):
            launch.leave_out(name, value)
        elif name == "use-env":  # only that of torch.distributed.launch; torchrun always does
            gives_local_rank = False
        elif name in ("nproc-per-node", "nproc"):
            launch.processes = int(value) if value.isdigit() else "auto"
            if not value.isdigit() and value not in ("auto", "gpu"):  # such as Slurm's number of tasks
                launch.notes.append(
                    f"not carried over: --{name} {value}: a rank for each GPU instead, see "
                    "spec.processesPerReplica"
                )
        else:
            launch.words += given
    launch.words += rest
    if gives_local_rank:
        launch.notes.append("torchrun passes no --local-rank to the program: read LOCAL_RANK instead")
    return launch


def length_of_program(words: Sequence[str], programs: Sequence[tuple[str, ...]]) -> int:
    """How many words of the command are the one of these programs that it begins with; 0 if it is none.

    Any version of python counts as python, with its switches in front of -m.
    """
    name = words[0].rpartition("/")[2] if words else ""
    if not re.fullmatch(PYTHON, name):
        return next((len(each) for each in programs if (name, *words[1 : len(each)]) == each), 0)
    others = (n for n, word in enumerate(words[1:]) if not re.fullmatch(f"-{OPTIONS_OF_PYTHON}+", word))
    switches = next(others, 0)
    begin = ("python", *words[1 + switches : 3 + switches])
    return switches + len(begin) if begin in programs else 0


def take_option(words: list[str], switches: Sequence[str]) -> tuple[str, str, list[str]]:
    """Take the first option off the words: return its name, its value, and the words that it had.

    switches  options without a value, written with - as the name is
    """
    word = words.pop(0)
    name, equals, value = word.lstrip("-").partition("=")
    name = name.replace("_", "-")
    if equals or name in switches or not words or words[0].startswith("-"):
        return name, value, [word]
    return name, words[0], [word, words.pop(0)]


def in_a_shell(
    words: Sequence[str], clean: Callable[[Sequence[str]], Launch | None] = clean
) -> Launch | None:
    """Return the command if it is one launcher in a shell, and what it is cleaned to needs no shell."""
    if len(words) != 3 or words[0].rpartition("/")[2] not in SHELLS or words[1] not in ("-c", "-lc"):
        return None
    text = words[2].replace("\\\n", " ").strip()
    try:
        launch = None if re.search(r"[|;&<>`\n]", text) else clean(shlex.split(text))
    except ValueError:  # a quote without its end
        return None
    return launch if launch and not any(_OF_THE_SHELL.search(word) for word in launch.words) else None


_LAUNCH = "torch.distributed.launch"
_PROGRAMS = (
    ("torchrun",),
    ("python", "-m", "torch.distributed.run"),
    ("python", "-m", _LAUNCH),
)
_DTJ = (("dtj", "run"), ("dtj", "train"))
SWITCHES_OF_DTJ = (
    *("async-save", "compile", "follow", "h", "help", "local", "m", "module", "no-buddy", "no-code"),
    *("recompute", "reduce-once", "tf32", "virtual-local-rank"),
)
_SWITCHES = ("no-python", "run-path", "use-env")
PYTHON = r"python[0-9.]*"
OPTIONS_OF_PYTHON = "[bBdEiIOPqsSuvx]"  # those without a value
_OF_THE_SHELL = re.compile(r"\$(?!\([A-Z_]+\))")  # Kubernetes replaces the others
