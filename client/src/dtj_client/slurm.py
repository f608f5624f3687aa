"""Reads an sbatch script in its common form: options, exports, and one srun, torchrun or python. Pure."""

import re
import shlex
from dataclasses import dataclass, field
from typing import Any

from dtj_client.manifest import GPU

Json = dict[str, Any]

_SHORT = {"J": "job-name", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "t": "time", "G": "gpus"}
_SHORT |= {"p": "partition", "A": "account", "q": "qos", "o": "output", "e": "error", "C": "constraint"}
_HINTS = {
    "partition": "use nodeSelector or tolerations",
    "constraint": "use nodeSelector",
    "output": "kubectl dtj logs prints the logs",
    "error": "kubectl dtj logs prints the logs",
    "requeue": "restarts are the default",
    "exclusive": "ask for all GPUs of a node",
}
_GPUS = re.compile(r"(?:gpu:)?(?:(?P<type>[a-zA-Z][\w.-]*):)?(?P<number>\d+)")
_PROGRAMS = ("srun", "torchrun", "python", "python3")


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
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        _line(line.strip(), script, container)
    if "command" not in container:
        script.notes.append("no line with srun, torchrun or python was found: write the command")
    script.spec["template"] = {"spec": {"containers": [container]}}
    return script


def _options(text: str) -> dict[str, str]:
    """The options of the #SBATCH lines by their long names."""
    found: dict[str, str] = {}
    for line in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
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
        script.name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or script.name
    if options.get("nodes", "").isdigit():
        script.spec["replicas"] = int(options.pop("nodes"))
    tasks = _tasks_per_node(options, script)
    if (seconds := _seconds(options.get("time", ""))) is not None:
        script.spec["activeDeadlineSeconds"] = seconds
        del options["time"]
    limits: Json = {}
    requests: Json = {}
    for option, times in (("gpus-per-node", 1), ("gres", 1), ("gpus-per-task", tasks)):
        gpu = _GPUS.fullmatch(options.get(option, ""))
        if gpu:
            limits[GPU] = int(gpu["number"]) * times
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


def _tasks_per_node(options: dict[str, str], script: Script) -> int:
    """Take out how many tasks a node has, directly or as a share of all tasks; 1 if it is not said."""
    nodes, every = script.spec.get("replicas", 1), options.get("ntasks", "")
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


def _line(line: str, script: Script, container: Json) -> None:
    """Read one line of the shell."""
    if not line or line.startswith("#") or re.fullmatch(r"set -\w+( \w+)?", line):
        return
    export = re.fullmatch(r"export (\w+)=([^$`]*)", line)
    try:
        words = shlex.split(line)
    except ValueError:
        words = []
    variables: list[str] = []
    while words and re.fullmatch(r"exec|\w+=[^$`]*", words[0]):  # before a program
        variables += [word for word in words[:1] if "=" in word]
        del words[0]
    if export:
        value = " ".join(shlex.split(export[2]))
        container.setdefault("env", []).append({"name": export[1], "value": value})
    elif words and words[0] in _PROGRAMS and "command" not in container and not re.search(r"[|;&<>]", line):
        container["command"] = _without_srun(words, script, container)
        for name, _, value in (each.partition("=") for each in variables):
            container.setdefault("env", []).append({"name": name, "value": value})
    else:
        script.notes.append(f"not carried over: {line}")


def _without_srun(words: list[str], script: Script, container: Json) -> list[str]:
    if words[0] != "srun":
        return words
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, given, value = word.lstrip("-").partition("=")
        if not given and rest and not rest[0].startswith("-") and not _starts_program(rest[0]):
            value = rest.pop(0)
        if name == "container-image":
            container["image"] = value.replace("#", "/")
        else:
            script.notes.append(f"not carried over: srun {word}{'' if given or not value else f' {value}'}")
    return rest


def _starts_program(word: str) -> bool:
    return word in _PROGRAMS or word in ("bash", "sh") or "/" in word or word.endswith(".py")
