"""Ranks that die in every way and at every point: the job heals in place, and the result is the same."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.process.dtj.conftest import PROGRAMS, SIZES, SMALL, STEPS, Finished
from tests.process.dtj.test_resume import assert_identical, weights
from tests.process.dtj.test_same_result import seen

Finish = Callable[..., Finished]
PLAIN = PROGRAMS / "plain.py"
Parts = list[dict[str, str]]


def healed(finish: Finish, out: Path, faults: str, *flags: object, nproc: int = 3, **env: object) -> Finished:
    """Run a job in which all these faults happen, and which completes nevertheless."""
    budget = ("--max-restarts", 10)
    ended = finish("run", "--nproc", nproc, *budget, *flags, SMALL, OUT=out, FAULTS=faults, **SIZES, **env)
    assert ended.code == 0, ended.err
    assert sorted(p.name for p in out.glob("fault-*")) == sorted(
        f"fault-{n}" for n in range(len(faults.split()))
    )
    return ended


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        pytest.param("raise", "rank 1 failed: ValueError: label 11 is out of range", id="an exception"),
        pytest.param("exit", "rank 1 exited with code 3", id="an exit code"),
        pytest.param("vanish", "rank 1 exited with code 5", id="an unreported exit"),
        pytest.param("SIGKILL", "rank 1 was killed by SIGKILL", id="killed by the kernel"),
        pytest.param("SIGSEGV", "rank 1 was killed by SIGSEGV", id="a crash in native code"),
    ],
)
def test_rank_that_dies_is_replaced_and_the_others_keep_their_state(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path, how: str, sentence: str
) -> None:
    """With dropout and batch statistics, so random generators and buffers matter too."""
    ended = healed(finish, tmp_path, f"1@7:forward:{how}")
    assert_identical(weights(unbroken(3)), weights(tmp_path))
    assert sentence in ended.err
    assert (
        "generation 2: restarted rank 1; other ranks kept their state (1 of 10 in-place restarts used)"
        in ended.err
    )
    # As sets: a step that only the dead rank had completed is repeated.
    assert all(set(seen(unbroken(3), step)) == set(seen(tmp_path, step)) for step in range(STEPS))


@pytest.mark.parametrize(
    ("killed", "flags"),
    [
        pytest.param("0@7", ["--check-every", 1], id="taken over from a rank in a later epoch"),
        pytest.param("1@10", ["--check-every", 1], id="taken over from a rank in an earlier epoch"),
        pytest.param("1@10", ["--parallel", "fsdp", "--memory-every", 3], id="a copy in memory"),
        pytest.param("0@10", ["--parallel", "fsdp", "--memory-every", 0], id="a checkpoint"),
    ],
)
def test_each_rank_continues_its_own_part_of_a_stream(
    finish: Finish, own_parts: Callable[..., Parts], tmp_path: Path, killed: str, flags: list[object]
) -> None:
    """Rank 1 begins a fifth epoch while rank 0 is in its first one; gradients are means over counts."""
    found, err = read_own_parts(finish, tmp_path, *flags, KILLED=killed)
    assert "was killed by SIGKILL" in err
    assert found == own_parts(*flags[:2])


def read_own_parts(finish: Finish, out: Path, *flags: object, **env: object) -> tuple[Parts, str]:
    """What each rank read and computed in a run of own_parts.py, by step, and the log of that run."""
    how = ("--nproc", 2, "--max-restarts", 1, "--checkpoint", out / "run", "--save-every", 4, *flags)
    ended = finish("run", *how, "--log-every", 3, PROGRAMS / "own_parts.py", OUT=out, **env)
    assert ended.code == 0, ended.err
    traces = [file.read_text().splitlines() for file in sorted(out.glob("trace-*"))]
    return [{line.split()[0]: line for line in trace} for trace in traces], ended.err


@pytest.fixture(scope="module")
def own_parts(finish_once: Finish, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Parts]:
    """Returns what the ranks do if none is killed, by flags; each is run once."""
    return functools.cache(
        lambda *flags: read_own_parts(finish_once, tmp_path_factory.mktemp("whole"), *flags)[0]
    )


def test_ranks_restart_together_if_the_optimizer_decides_how_often_it_calls_verbs(finish: Finish) -> None:
    ended = finish("run", "--nproc", 2, "--max-restarts", 1, PROGRAMS / "line_search.py")
    assert ended.code == 0, ended.err
    assert "generation 2: restarted all ranks" in ended.err


def test_five_crashes_leave_no_trace_in_the_result(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    faults = "1@2:end:SIGKILL 2@4:forward:raise 1@5:end:vanish 0@8:forward:SIGKILL 2@12:end:SIGSEGV"
    ended = healed(finish, tmp_path, faults, PLAIN=1)
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path))
    assert "5 of 10 in-place restarts used" in ended.err


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param("1@6:end:SIGKILL 2@6:end:SIGKILL", id="two of three at once"),
        pytest.param("1@6:forward:SIGKILL 1@1:start:raise", id="the newcomer before it has joined"),
        pytest.param("1@6:forward:SIGKILL 2@6:forward:SIGKILL", id="two in one step, one after the other"),
        pytest.param("1@0:forward:raise", id="in the first step"),
        pytest.param(f"2@{STEPS - 1}:end:raise", id="in the last step"),
    ],
)
def test_faults_at_the_same_time(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path, faults: str
) -> None:
    healed(finish, tmp_path, faults, PLAIN=1)
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path))


def test_crash_before_the_first_step_restarts_all_ranks(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    ended = healed(finish, tmp_path, "1@0:start:raise", PLAIN=1)
    assert "generation 2: restarted all ranks" in ended.err
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path))


def test_crash_in_an_evaluation_repeats_it_and_loses_no_step(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    """The survivors are in the middle of a step: the newcomer must get to that very point."""
    ended = healed(finish, tmp_path, "1@7:evaluate:SIGKILL", PLAIN=1, EVALUATE_EVERY=4)
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path))
    for step in (3, 7, 11, 15):
        found = re.findall(rf"evaluated (\S+) at {step}\n", ended.out)
        assert len(found) == 3
        assert len(set(found)) == 1


def test_newcomer_skips_what_the_program_does_before_training(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    """The survivors evaluated before their first step; they will not do it again."""
    healed(finish, tmp_path, "1@0:forward:SIGKILL 2@7:forward:SIGKILL", EVALUATE_FIRST=1)
    assert_identical(weights(unbroken(3)), weights(tmp_path))


@pytest.fixture(scope="module")
def phases(finish_once: Finish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of phases.py without a fault."""
    folder = tmp_path_factory.mktemp("phases")
    ended = finish_once("run", "--nproc", 2, PROGRAMS / "phases.py", OUT=folder)
    assert ended.code == 0, ended.err
    return folder


@pytest.mark.parametrize("fault", ["1:0", "2:2", "1:after"])
def test_newcomer_finds_the_loop_in_which_the_others_are(
    finish: Finish, phases: Path, tmp_path: Path, fault: str
) -> None:
    """A program with one loop per epoch: in the first step of a loop, within a loop, and between two."""
    ended = finish(
        "run", "--nproc", 2, "--max-restarts", 1, PROGRAMS / "phases.py", OUT=tmp_path, FAULT=fault
    )
    assert ended.code == 0, ended.err
    assert "generation 2: restarted rank 1; other ranks kept their state" in ended.err
    for rank in range(2):
        found, expected = (torch.load(out / f"weights-{rank}.pt") for out in (tmp_path, phases))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


USES_A_HOOK = """
import os, pathlib, signal
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
import dtj

run = dtj.init(seed=1)
model = run.parallel(torch.nn.Linear(2, 1))
model.register_comm_hook(None, default_hooks.bf16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = run.data(torch.utils.data.TensorDataset(torch.arange(24.0).reshape(12, 2) / 24), global_batch=4)
run.state(model=model, optimizer=optimizer, data=data)
mark = pathlib.Path(os.environ["OUT"], "lost")
for batch in run.steps(6):
    run.backward(lambda mb: model(mb[0]).square().mean(), batch)
    if run.rank == 1 and run.step == 2 and "LOSES" in os.environ and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    optimizer.zero_grad()
print("at the end", *(w.hex() for p in model.parameters() for w in p.flatten().tolist()), flush=True)
"""


def test_users_own_comm_hook_stays_when_a_rank_is_replaced(finish: Finish, tmp_path: Path) -> None:
    script, found = tmp_path / "script.py", []
    script.write_text(USES_A_HOOK)
    for env in ({}, {"LOSES": 1}):
        ended = finish("run", "--nproc", 2, "--max-restarts", 1, script, OUT=tmp_path, **env)
        assert ended.code == 0, ended.err
        found.append(set(re.findall("at the end .*", ended.out)))
    assert "restarted rank 1; other ranks kept their state" in ended.err
    assert len(found[0]) == 1, "the ranks differ"
    assert found[0] == found[1]


USES_VALUES_OF_THE_STEP = """
import os, pathlib, signal, sys
import torch
import dtj

run = dtj.init(seed=1)
model = run.parallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.0)
samples = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(12, 2) / 24)
data = run.data(samples, global_batch=6)
run.state(model=model, optimizer=optimizer, plateau=plateau, data=data)

def lose(rank, step):
    mark = pathlib.Path(os.environ["OUT"], f"lost-{rank}-{step}")
    if (run.rank, run.step) == (rank, step) and "LOSES" in os.environ and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

for batch in run.steps(8):
    run.backward(lambda mb: model(mb[0]).square().mean(), batch)
    lose(1, 2)
    norm = sum(parameter.grad.norm() for parameter in model.parameters())
    run.reduce(norm)
    lose(1, 3)
    run.backward(lambda mb: model(mb[0]).mean(), batch)
    if run.step % 2:  # gradients of two steps
        optimizer.step()
        optimizer.zero_grad()
    score = run.evaluate(lambda mb: model(mb[0])[:, 0], samples)
    lose(0, 4)
    lose(2, 5)
    run.keep_best(score)
    plateau.step(score)
lr = optimizer.param_groups[0]["lr"]
print("at the end", lr, *(w.hex() for p in model.parameters() for w in p.flatten().tolist()), flush=True)
"""


def test_newcomer_has_gradients_and_scores_of_the_step_in_which_it_joins(
    finish: Finish, tmp_path: Path
) -> None:
    """Between two backward passes, with gradients of the last step, and between a score and its use."""
    script, found = tmp_path / "script.py", []
    script.write_text(USES_VALUES_OF_THE_STEP)
    for env in ({}, {"LOSES": 1}):
        flags = ("run", "--nproc", 3, "--max-restarts", 4, "--checkpoint", tmp_path / f"saved-{len(env)}")
        ended = finish(*flags, script, OUT=tmp_path, **env)
        assert ended.code == 0, ended.err
        found.append(set(re.findall("at the end .*", ended.out)))
    assert len(list(tmp_path.glob("lost-*"))) == 4
    assert "restarted all ranks" not in ended.err
    assert len(found[0]) == 1, "the ranks differ"
    assert found[0] == found[1]


def test_loss_of_every_rank_resumes_from_the_checkpoint(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    faults = "0@7:forward:SIGKILL 1@7:forward:SIGKILL"
    flags = ("--checkpoint", tmp_path / "saved", "--save-every", 5)
    ended = healed(finish, tmp_path, faults, *flags, nproc=2)
    assert f"resuming from {tmp_path / 'saved' / 'step-5'}" in ended.err
    assert_identical(weights(unbroken(2)), weights(tmp_path))


def test_saving_in_the_background_continues_with_the_newcomer(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    """The survivors have saved before, the newcomer has not: no rank may wait for another in a save."""
    saved = tmp_path / "saved"
    flags = ("--checkpoint", saved, "--save-every", 3, "--async-save", "--keep", 9)
    healed(finish, tmp_path, "1@7:forward:SIGKILL", *flags)
    assert sorted(p.name for p in saved.glob("step-*")) == sorted(f"step-{n}" for n in (3, 6, 9, 12, 15, 16))
    assert_identical(weights(unbroken(3)), weights(tmp_path))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "place", ["8:forward", "8:end", "1:end"], ids=["later", "in keep_best", "at the best"]
)
def test_newcomer_knows_the_best_score(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path, rank: int, place: str
) -> None:
    """The best was step 2: a newcomer that assumed step 9 would save alone, or delete step 2."""
    saved = tmp_path / "saved"
    scores = ",".join("0.9" if step == 2 else "0.5" for step in range(1, STEPS + 1))
    flags = ("--checkpoint", saved, "--save-every", 7)
    healed(finish, tmp_path, f"{rank}@{place}:SIGKILL", *flags, SCORES=scores, PLAIN=1)
    assert sorted(p.name for p in saved.glob("step-*")) == ["step-14", "step-16", "step-2"]
    assert json.loads((saved / "best.json").read_text()) == {"step": 2, "score": 0.9}
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path))


def test_job_of_one_rank_is_restarted_from_its_checkpoint(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path
) -> None:
    flags = ("--checkpoint", tmp_path / "saved", "--save-every", 5)
    healed(finish, tmp_path, "0@7:end:SIGKILL", *flags, nproc=1)
    assert_identical(weights(unbroken(1)), weights(tmp_path))


@pytest.mark.parametrize("how", ["raise", "SIGKILL"])
def test_plain_script_is_restarted_in_place(finish: Finish, tmp_path: Path, how: str) -> None:
    flags = ("run", "--nproc", 3, "--max-restarts", 1)
    ended = finish(*flags, PLAIN, OUT=tmp_path, FAIL=f"1@8:{how}")
    assert ended.code == 0, ended.err
    for rank in range(3):
        assert re.search(rf"\[rank {rank}\] rank {rank} begins at [36] in life 1\n", ended.out)
        assert f"rank {rank} ends with {6.0 * sum(range(12))}\n" in ended.out


def test_script_that_resumes_from_its_own_checkpoint_makes_progress_after_every_restart(
    finish: Finish, tmp_path: Path
) -> None:
    """It gets furthest before its first crash, and then restarts more often than allowed without progress."""
    log = tmp_path / "log"
    flags = ("run", "--max-restarts", 10, "--termination-log", log)
    ended = finish(*flags, PROGRAMS / "resumes.py", OUT=tmp_path, LIVES="6,2,2,2,2,2")
    assert ended.code == 0, ended.err
    fields = json.loads(log.read_text())
    assert (fields["step"], fields["inPlace"]) == (20, 6)


def test_ranks_that_fail_twice_without_progress_wait_before_they_start_again(
    finish: Finish, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise OSError('the volume does not answer')")
    env = {"DTJ_BACKOFF_SECONDS": "0.5", "DTJ_HIGHEST_STEP": 7}
    ended = finish("run", "--nproc", 2, "--max-restarts", 2, script, **env)
    assert ended.code == 1
    said = ("the ranks start again in 1 s: 2 failures in a row", "generation 3: restarted all ranks")
    assert 0 < ended.err.find(said[0]) < ended.err.find(said[1])


def test_program_that_fails_alike_at_each_start_is_given_up(finish: Finish, tmp_path: Path) -> None:
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text("raise KeyError('train')")
    flags = ("run", "--nproc", 2, "--max-restarts", 10, "--termination-log", log, script)
    ended = finish(*flags, DTJ_MAX_RESTARTS_WITHOUT_PROGRESS=2)
    assert ended.code == 1
    fields = json.loads(log.read_text())
    assert (fields["inPlace"], fields["identicalFailures"], fields["step"]) == (2, 3, None)
    assert "dtj: no further restart: 3 failures in a row without progress\n" in ended.err


def test_life_of_a_plain_script_that_trains_is_progress_and_one_that_dies_early_is_not(
    finish: Finish, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    flags = ("run", "--max-restarts", 10, "--termination-log", log, PROGRAMS / "forgets.py")
    ended = finish(*flags, OUT=tmp_path, LIVES="40,35,3,3,3", DTJ_MAX_RESTARTS_WITHOUT_PROGRESS=2)
    assert ended.code == 137
    fields = json.loads(log.read_text())
    assert (fields["inPlace"], fields["withoutProgress"], fields["generation"]) == (3, 2, 4)


def test_when_the_budget_is_spent_the_last_failure_ends_the_job(finish: Finish, tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ("run", "--nproc", 3, "--max-restarts", 2, "--termination-log", log, SMALL)
    faults = "1@3:end:raise 2@5:end:raise 1@9:end:exit"
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, STEPS=STEPS, FAULTS=faults)
    assert ended.code == 3
    fields = json.loads(log.read_text())
    assert (fields["rank"], fields["reason"], fields["generation"]) == (1, "ExitCode", 3)
    assert fields["inPlace"] == 2


def test_restarts_without_a_new_step_end_the_job(finish: Finish, tmp_path: Path) -> None:
    """A sample that kills the rank that reads it: three restarts without a new step, then the job fails.

    It is rank 0, whose steps are the job's: when another one dies, rank 0 may not be through with its own.
    """
    faults = " ".join(["0@5:forward:raise"] * 9)
    flags = ("run", "--nproc", 2, "--max-restarts", 100, SMALL)
    ended = finish(*flags, OUT=tmp_path, PLAIN=1, STEPS=STEPS, FAULTS=faults)
    assert ended.code == 1
    assert len(list(tmp_path.glob("fault-*"))) == 4


def test_bad_recipe_is_not_retried(finish: Finish, tmp_path: Path) -> None:
    flags = ("run", "--nproc", 2, "--max-restarts", 10, SMALL)
    ended = finish(*flags, OUT=tmp_path, FAULTS="0@3:end:bad-recipe")
    assert ended.code == 78
    assert ended.err.count("width is 7") == 1


@pytest.mark.parametrize(
    ("last", "scores"),
    [
        pytest.param(0, "", id="rank 0"),
        pytest.param(2, "", id="the last newcomer"),
        pytest.param(1, ",".join(["0.9"] * STEPS), id="keep_best"),
    ],
)
def test_third_death_while_the_others_wait_for_it_to_save(
    finish: Finish, unbroken: Callable[..., Path], tmp_path: Path, last: int, scores: str
) -> None:
    """They check together whether the loss is finite, in the process groups of the second heal."""
    saved = tmp_path / "saved"
    faults = f"1@5:forward:SIGKILL 2@6:forward:SIGKILL {last}@6:end:SIGKILL {(last + 1) % 3}@13:end:SIGKILL"
    healed(finish, tmp_path, faults, "--checkpoint", saved, "--save-every", 7, PLAIN=1, SCORES=scores)
    assert_identical(weights(unbroken(3, PLAIN=1)), weights(tmp_path))
