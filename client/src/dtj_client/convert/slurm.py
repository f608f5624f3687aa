"""Reads an sbatch script in its common form: options, exports, and one srun, torchrun or python. Pure."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile

from dtj_client.amounts import GPU, limits_of
from dtj_client.convert import shell
from dtj_client.kube.kubectl import Json
from dtj_client.programs import accelerate, torchrun, wrappers
from dtj_client.submission.manifest import BY_THE_OPERATOR, about_secrets, as_name

_SHORT = {"J": "job-name", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "t": "time", "G": "gpus"}
_SHORT |= {"p": "partition", "A": "account", "q": "qos", "o": "output", "e": "error", "C": "constraint"}
_HINTS = {
    "partition": "use nodeSelector or tolerations",
    "constraint": "use nodeSelector",
    "output": "kubectl dtj logs prints the logs",
    "error": "kubectl dtj logs prints the logs",
    "requeue": "restarts are the default",
    "exclusive": "ask for all GPUs of a node in resources.limits",
}
_GPUS = re.compile(r"(?:gpu:)?(?:(?P<type>[a-zA-Z][\w.-]*):)?(?P<number>\d+)")
_PROGRAMS = ("srun", "torchrun", "python", "python3")
_CONTAINERS = ("singularity", "apptainer", "enroot", "shifter", "docker", "podman")
OF_RANKS = {"SLURM_PROCID": "RANK", "SLURM_LOCALID": "LOCAL_RANK", "SLURM_NODEID": "NODE_RANK"}
OF_RANKS |= {"SLURM_NTASKS": "WORLD_SIZE", "SLURM_NPROCS": "WORLD_SIZE"}
# Options of srun whose value may stand behind a space, and options that have none.
_SRUN_VALUES = re.compile(
    r"[nNcwoeDptJAG]|nodes|ntasks|ntasks-per-node|nodelist|cpus-per-task|gpus|gpus-per-node|gres|mem|mpi|output"
    r"|error|chdir|container-(image|mounts|workdir|name|env)"
)
_SRUN_FLAGS = re.compile(r"[luvQEKO]|label|unbuffered|exclusive|overlap|pty|exact|container-mount-home")
# Lines between these are run perhaps, or several times.
_OPENS = re.compile(
    r"(?:^|[;&|]\s*|\b(?:then|do|else)\s+)(?:(?:if|for|while|until|case|select)\b|\{(?:\s|$))"
    r"|\w\s*\(\)\s*\{|^function\s+[\w-]+\s*\{"
)
_CLOSES = re.compile(r"(?:^|[;&|]\s*)(?:(?:fi|done|esac)\b|\})")
_ARRAY = re.compile(
    r"(?:(?:export|readonly|declare)\s+(?:-\w+\s+)?)?(?P<name>\w+)(?P<more>\+?)=\((?P<words>.*)\)"
)
_DEFAULT = re.compile(r""":\s+(?P<quote>["']?)\$\{(?P<name>\w+):?=(?P<words>[^{}]*)\}(?P=quote)""")
_ASSIGNS = re.compile(r"(?:^|[\s;&|])(\w+)\+?=")
_COMPUTED = re.compile(r"\$\((?!\()|`")  # the output of a program; not $((1 + 1))
_END = re.compile(r"\s*(?:\|\s*tee\s+(?:-a\s+)?[^\s|;&<>]+|2>&1|[12&]?>>?\s*[^\s|;&<>]+|&)\s*$")
_NEXT = re.compile(r";|&&")
_TEST = re.compile(  # a command that may well fail, so that what follows && runs perhaps; $DEBUG may be false
    r"!|\[|\$\w+$|(?:\S*/)?(?:test|false|[efz]?grep|command|which|type|hash|cmp|diff|ls|stat|read|mountpoint|pgrep)"
    r"(?:\s|$)"
)
# What is quoted, and references: in these the shell expands no names of files.
_OF_THE_SHELL = re.compile(r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'|\$\(.*\)|\$\{[^{}]*\}|\$.|`[^`]*`""")
_EXPANDED = re.compile(r"(?:^|[=:])~|[*?]|\{[^{}]*(?:,|\.\.)[^{}]*\}")  # names of files, and lists
_QUOTED = re.compile(r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'""")


@dataclass
class Script:
    """What the script becomes."""

    name: str = "converted"
    spec: Json = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def parse(text: str) -> Script:
    """Read a script; all that has no counterpart is in the notes."""
    script = Script()
    container: Json = {"name": "trainer"}
    options = _options(text)
    _sizes(options, script, container)
    script.notes += [
        f"not carried over: #SBATCH --{name}{f'={value}' if value else ''}"
        + (f": {_HINTS[name]}" if name in _HINTS else "")
        for name, value in options.items()
    ]
    _lines(text, script, container, _options(text))
    if "command" not in container:
        script.notes.append("no line with srun, torchrun or python was found: write the command")
    names = [each["name"] for each in container.get("env", ())]
    script.notes += filter(None, [about_secrets(names, "take it from a Secret with valueFrom.secretKeyRef")])
    script.spec["template"] = {"spec": {"containers": [container]}}
    return script


def _options(text: str) -> dict[str, str]:
    """The options of the #SBATCH lines by their long names."""
    found: dict[str, str] = {}
    for line in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote without its end
            words = line.split()
        while words:
            word = words.pop(0)
            name, given, value = word.lstrip("-").partition("=")
            if not word.startswith("--") and len(name) > 1 and not given:  # -N2
                name, given, value = name[0], "=", name[1:]
            if not given and words and not words[0].startswith("-"):
                value = words.pop(0)
            found[_SHORT.get(name, name)] = value
    return found


def _sizes(options: dict[str, str], script: Script, container: Json) -> None:
    """Take out of the options what has a field."""
    if name := options.pop("job-name", ""):
        script.name = as_name(name)
    if re.fullmatch(r"gpu(:[a-zA-Z][\w.-]*)?", options.get("gres", "")):
        options["gres"] += ":1"
    if options.get("nodes", "").isdigit():
        script.spec["replicas"] = int(options.pop("nodes"))
    elif nodes := _nodes_of_totals(options):
        script.spec["replicas"] = nodes
    tasks = _tasks_per_node(options, script)
    if (seconds := _seconds(options.get("time", ""))) is not None:
        script.spec |= {"activeDeadlineSeconds": seconds} if seconds else {}  # 0: no limit
        del options["time"]
    limits: Json = {}
    requests: Json = {}
    nodes = script.spec.get("replicas") or 1
    for option, times in (
        ("gpus-per-node", nodes),
        ("gres", nodes),
        ("gpus-per-task", tasks * nodes),
        ("gpus", 1),
    ):
        gpu = _GPUS.fullmatch(options.get(option, ""))
        here, rest = divmod(int(gpu["number"]) * times if gpu else 0, nodes)
        if gpu and not rest and limits.setdefault(GPU, here) == here:  # else it is listed
            del options[option]
            if gpu["type"]:
                script.notes.append(f"not carried over: GPU type {gpu['type']}: use nodeSelector")
    if options.get("cpus-per-task", "").isdigit():
        requests["cpu"] = str(int(options.pop("cpus-per-task")) * tasks)
    memory = re.fullmatch(r"(\d+)([KMGT]?)B?", options.get("mem", ""), re.IGNORECASE)
    if memory and int(memory[1]):
        limits["memory"] = requests["memory"] = f"{memory[1]}{(memory[2] or 'M').upper()}i"
        del options["mem"]
    if limits or requests:
        container["resources"] = {k: v for k, v in (("requests", requests), ("limits", limits)) if v}


def _nodes_of_totals(options: Mapping[str, str]) -> int | None:
    """The number of nodes that Slurm derives from what all nodes and what one node has; None: it does not."""
    by_gres = options.get("gpus-per-node") or options.get("gres", "")
    for every, one in (
        (options.get("ntasks", ""), options.get("ntasks-per-node", "")),
        (options.get("gpus", ""), by_gres),
    ):
        found = [_GPUS.fullmatch(each) for each in (every, one)]
        total, share = (int(each["number"]) if each else 0 for each in found)
        if share and total and total % share == 0:
            return total // share
    return None


def _tasks_per_node(options: dict[str, str], script: Script) -> int:
    """Take out how many tasks a node has, directly or as a share of all tasks; 1 if it is not said."""
    nodes, every = script.spec.get("replicas") or 1, options.get("ntasks", "")
    if options.get("ntasks-per-node", "").isdigit():
        tasks = int(options.pop("ntasks-per-node"))
    elif every.isdigit() and int(every) and int(every) % nodes == 0:
        tasks = int(every) // nodes
    else:
        return 1
    script.spec["processesPerReplica"] = tasks
    if every == str(tasks * nodes):
        del options["ntasks"]
    return tasks


def _seconds(text: str) -> int | None:
    """Seconds of D-HH:MM:SS, D-HH:MM, D-HH, HH:MM:SS, MM:SS or MM; None: not a time."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None or len(numbers) == 3:
        hours, minutes, seconds = (*numbers, 0, 0, 0)[:3]
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _lines(text: str, script: Script, container: Json, options: Json) -> None:
    """Read the lines of the shell."""
    values: dict[str, Sequence[str]] = dict(_of_slurm(script, container, options))
    depth = 0
    for line in chain.from_iterable(map(_commands, shell.lines(text))):
        before, (command, here, _) = depth, line.partition(shell.HERE)
        opens = _OPENS.findall(command)
        depth = max(0, depth + len(opens) - len(_CLOSES.findall(command)))
        is_plain = not (before or depth or opens or here)
        if is_plain and _line(line, values, script, container):
            if found := [word for word in _OF_THE_SHELL.sub("_", line).split() if _EXPANDED.search(word)]:
                script.notes.append(f"no shell runs in the pod: write what these become: {', '.join(found)}")
        elif line:
            script.notes.append(_left_out(line))
            for name in _ASSIGNS.findall(line):  # perhaps
                values.pop(name, None)


def _commands(line: str) -> list[str]:
    """What a line runs one after the other: cd /app && srun train.py. A block, a condition and what depends
    on it, and a here document stay in one piece.
    """
    hidden = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), line)
    whole = ("(", "||", shell.HERE)
    if _OPENS.search(hidden) or _CLOSES.search(hidden) or any(each in hidden for each in whole):
        return [line]
    begin, found = 0, []
    for end in _NEXT.finditer(hidden):
        last = hidden[begin : end.start()].rpartition("|")[2].strip()  # of a pipe
        if end[0] == ";" or not _TEST.match(last):
            found.append(line[begin : end.start()].strip())
            begin = end.end()
    return [*found, line[begin:].strip()]


def _of_slurm(script: Script, container: Json, options: Json) -> Iterator[tuple[str, list[str]]]:
    """The variables that Slurm sets from the options."""
    nodes, tasks = script.spec.get("replicas"), script.spec.get("processesPerReplica")
    found = {
        "SLURM_JOB_NAME": options.get("job-name"),
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_NTASKS": nodes and tasks and nodes * tasks,
        "SLURM_CPUS_PER_TASK": options.get("cpus-per-task"),
        "SLURM_GPUS_ON_NODE": limits_of(container).get(GPU),
    }
    yield from ((name, [str(value)]) for name, value in found.items() if value)


def _line(line: str, values: dict[str, Sequence[str]], script: Script, container: Json) -> bool:
    """Read one line; return whether all of it was carried over or needs not be."""
    line = line.rstrip("; ")
    if not line or re.fullmatch(r"set [-+]\w+( \w+)?", line):
        return True
    try:
        if array := _ARRAY.fullmatch(line):
            before = values.get(array["name"], ()) if array["more"] else ()
            values[array["name"]] = [*before, *shell.words(array["words"], values)]
            return True
        if default := _DEFAULT.fullmatch(line):
            values.setdefault(default["name"], shell.words(default["words"], values))
            return True
        exported, words = _declared(shell.words(line, values))
        assigned = [word.partition("=") for word in words if re.match(r"\w+=", word)]
        if words and len(assigned) == len(words):
            if exported and not _COMPUTED.search(line) and any("$" in value for _, _, value in assigned):
                script.notes.append(_left_out(line))  # as a variable of the pod; the command may refer to it
                exported = False
            return _assign(assigned, values, container if exported else None)
        line, rest = _without_its_end(line)
        words = shell.words(line, values)
    except ValueError:
        return False
    variables = list(takewhile(re.compile(r"\w+=").match, words))
    words = words[len(variables) :]
    words = words[words[:1] == ["exec"] :]
    _, program = wrappers.split(words)
    is_program = program and (_base(program[0]) in _PROGRAMS or accelerate.clean(program))
    if "command" in container or not is_program or _has_operator(line):
        return False
    if not _assign([each.partition("=") for each in variables], {}, container):
        return False
    command = _with_values(_without_srun(words, script, container), values)
    if command and _base(command[0]) in _CONTAINERS:
        script.notes.append(
            f"{command[0]} starts a container, which a pod is already: write its image, and the command "
            "without it"
        )
    if _base(words[0]) == "srun" and script.spec.get("processesPerReplica", 1) > 1:
        command = _for_each_task(command, script)
    container["command"] = [word for word in command if word not in ("$@", "$*")]  # sbatch's: there are none
    script.notes += [_left_out(each) for each in rest]
    return True


def _declared(words: list[str]) -> tuple[bool, list[str]]:
    """Whether the variables of a line are exported, and the line without the word that says so."""
    if words[:1] not in (["export"], ["declare"], ["readonly"]):
        return False, words
    flags = list(takewhile(lambda word: word.startswith("-"), words[1:]))
    return words[0] == "export" or any("x" in flag for flag in flags), words[1 + len(flags) :]


def _assign(
    assigned: Sequence[tuple[str, str, str]], values: dict[str, Sequence[str]], container: Json | None
) -> bool:
    """Remember variables, and set them in the container if there is one; False if a value is not known."""
    if any(_COMPUTED.search(value) or (container and "$" in value) for _, _, value in assigned):
        return False
    for name, _, value in assigned:
        values[name] = [value]
        if container is not None:
            others = [each for each in container.get("env", ()) if each["name"] != name]
            container["env"] = [*others, {"name": name, "value": value}]
    return True


def _without_its_end(line: str) -> tuple[str, list[str]]:
    """The command without redirections to files, and these."""
    found: list[str] = []
    while (match := _END.search(line)) and _is_whole(line[: match.start()]):
        found.insert(0, match[0].strip())
        line = line[: match.start()]
    return line, found


def _has_operator(line: str) -> bool:
    """Whether the shell runs more than one program, or redirects."""
    return bool(re.search(r"[|;&<>]", _QUOTED.sub("", line)))


def _is_whole(line: str) -> bool:
    try:
        return bool(shell.words(line, {}))
    except ValueError:
        return False


def _left_out(line: str) -> str:
    line = " ".join(line.replace(shell.HERE, " ").split())
    if any(map(BY_THE_OPERATOR.fullmatch, _ASSIGNS.findall(line))) or "scontrol show host" in line:
        return f"left out: {line}: the operator sets it"
    return f"not carried over: {line}"


def _without_srun(words: list[str], script: Script, container: Json) -> list[str]:
    if _base(words[0]) != "srun":
        return words
    rest = words[1:]
    while rest and (rest[0].startswith("-") or ("$" in rest[0] and any(map(_starts_program, rest)))):
        word = rest.pop(0)
        name, given, value = word.lstrip("-").partition("=")
        takes = _SRUN_VALUES.fullmatch(name) or not (
            _SRUN_FLAGS.fullmatch(name) or _starts_program((rest or [""])[0])
        )
        if not given and takes and word.startswith("-") and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        if name == "container-image" and not re.match(r"[./$]", value) and not value.endswith(".sqsh"):
            container["image"] = value.replace("#", "/")
        else:
            script.notes.append(f"not carried over: srun {word}{'' if given or not value else f' {value}'}")
    return rest


def _with_values(words: list[str], values: Mapping[str, Sequence[str]]) -> list[str]:
    """The command; of one torchrun in a shell with the values of variables, which that shell lacks."""
    if not (torchrun.in_a_shell(words) or torchrun.in_a_shell(words, accelerate.clean)):
        return words
    try:
        known = shell.words(words[2].replace("\\\n", " "), values)
    except ValueError:
        return words
    return [*words[:2], shlex.join(known)]


def _for_each_task(command: list[str], script: Script) -> list[str]:
    """The command as often in each pod as srun runs it on a node, unless it starts ranks itself."""
    starts_ranks = re.search(
        r"torchrun|torch\.distributed|accelerate launch|deepspeed|mpirun", " ".join(command)
    )
    if starts_ranks or not command:
        return command
    script.notes.append("srun starts a process for each task: here torchrun does")
    wrapper, command = wrappers.split(command)
    words = command[1:] if _base(command[0]) in ("python", "python3") else []
    words = words[words[:1] == ["-u"] :]  # the operator sets PYTHONUNBUFFERED
    if words and (words[0] == "-m" or words[0].endswith(".py")):
        return [*wrapper, "torchrun", *words]
    return [*wrapper, "torchrun", "--no-python", *command]


def _starts_program(word: str) -> bool:
    return (
        _base(word) in (*_PROGRAMS, "bash", "sh") or word.endswith(".py") or ("/" in word and "$" not in word)
    )


def _base(word: str) -> str:
    return word.rpartition("/")[2]
