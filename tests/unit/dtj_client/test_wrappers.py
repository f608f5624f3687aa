"""Programs that start another one in an environment."""

import pytest

from dtj_client.programs.wrappers import split


@pytest.mark.parametrize(
    "wrapper",
    [
        "uv run",
        "/root/.local/bin/uv run --frozen --extra cu128 --with=rich --python 3.12 --",
        "poetry run",
        "pdm run -p /app",
        "pixi run --environment gpu",
        "hatch run",
        "conda run --no-capture-output -n train",
        "/opt/conda/bin/mamba run --prefix /envs/a",
        "micromamba run -n a",
        "env -u HTTP_PROXY A=1 LR=0.1=x",
        "numactl --cpunodebind=0 -m 0",
        "nice -n 10",
        "stdbuf -oL -e 0",
        "env A=1 nice uv run",
        "",
    ],
)
@pytest.mark.parametrize("program", ["python -u train.py --with 1", "torchrun a.py", "env.py", "uv pip list"])
def test_program_is_what_follows_the_wrappers(wrapper: str, program: str) -> None:
    assert split([*wrapper.split(), *program.split()]) == (wrapper.split(), program.split())


@pytest.mark.parametrize("words", ["env", "uv run --frozen", "conda run -n", "env A=1", "uv", ""])
def test_wrapper_without_a_program_is_the_program(words: str) -> None:
    assert split(words.split()) == ([], words.split())
