"""Mutants of Python code, by mutmut, in the current folder: see tests/mutants/__main__.py.

mutmut changes comparisons, arithmetic, numbers, booleans, assignments, arguments, `not`, `and` and `or` in
the bodies of functions. It does not change decorated functions, nor constants of modules. Changes of strings
are left out here, because most strings are texts for people.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import mutmut.__main__ as engine
from mutmut.configuration import config
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name
from mutmut.workers import isolation

SEED = 1
MOST_BYTES = 4 * 2**30  # an endless loop may also fill the memory
KILLED = ("killed", "timeout")


def main(area: str, count: int) -> int:
    """Try `count` mutants of the area; print those that survive, and the numbers."""
    began = time.monotonic()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    operators = [pair for pair in mutators.mutation_operators if pair[1] is not mutators.operator_string]
    mock.patch.object(file_mutation, "mutation_operators", operators).start()
    # On a busy machine only the limit on CPU time tells an endless loop from a slow test.
    mock.patch.object(isolation, "register_timeout").start()
    names = [
        get_mutant_name(path, name)
        for path in sorted(walk_mutatable_files())
        for name in file_mutation.mutate_file_contents(str(path), path.read_text()).mutant_names
    ]
    sample = random.Random(SEED).sample(names, min(count, len(names)))
    with stdout_in(Path("log")):
        engine._run(sample, 1)

    counts: Counter[str] = Counter()
    for path in sorted(walk_mutatable_files()):
        data = SourceFileMutationData(path=path)
        data.load()
        for name in (name for name in sample if name in data.exit_code_by_key):
            status = status_by_exit_code[data.exit_code_by_key[name]]
            counts[status] += 1
            if status not in KILLED:
                print(f"{status}: {path}\n{changed(name, path)}")
    killed = sum(counts[status] for status in KILLED)
    seconds = time.monotonic() - began
    print(
        f"mutants of {area}: {killed} of {counts.total()} killed"
        f" ({len(names)} possible, {seconds:.0f} s; {dict(counts)})"
    )
    return int(counts.total() != len(sample))


@contextlib.contextmanager
def stdout_in(path: Path) -> Iterator[None]:
    """Send what is printed to a file; mutmut prints to sys.__stdout__, too, so the descriptor changes."""
    sys.stdout.flush()
    saved = os.dup(1)
    with path.open("w") as log:
        os.dup2(log.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def changed(name: str, path: Path) -> str:
    """Return the lines that a mutant changes, with the name of the function."""
    lines = get_diff_for_mutant(name, path=path).splitlines()
    return "\n".join(
        [f"  {name}", *(f"  {line}" for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))]
    )


if __name__ == "__main__":
    config()  # read before anything changes the folder
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
