"""Flags that cannot be used, or not together."""

import pytest
import torch

from dtj.errors import RecipeError
from dtj.parallel.layout import lay_out
from dtj.parallel.select import select
from dtj.ranks.world import World
from dtj.settings import Settings, variable


@pytest.mark.parametrize(
    ("flags", "parallel", "message"),
    [
        pytest.param({"sync": "local"}, None, "'local': it needs a number of steps.*local:8", id="no number"),
        pytest.param({"sync": "sometimes:3"}, None, "'sometimes:3'.*local:K", id="unknown policy"),
        pytest.param({"sync": "local:2.5"}, None, "expected a whole number", id="half a step"),
        pytest.param(
            {"sync": "local:inf"}, None, "'local:inf': expected a whole number", id="infinite steps"
        ),
        pytest.param({"sync": "stale:nan"}, None, "'stale:nan': expected a whole number", id="no number"),
        pytest.param({"sync": "local:0"}, None, "'local:0': expected a whole number of at least 1", id="0"),
        pytest.param({"compress": "powersgd:2.5"}, None, "expected a whole number", id="half a rank"),
        pytest.param(
            {"compress": "topk:200"}, None, "'topk:200': expected .* at most 100", id="over 100 percent"
        ),
        pytest.param({"compress": "topk:0"}, None, "'topk:0': expected a number above 0", id="none"),
        pytest.param({"compress": "topk:nan"}, None, "'topk:nan': expected a number above 0", id="nan"),
        pytest.param({"compress": "zip"}, None, "'zip'.*powersgd\\[:RANK\\]", id="unknown hook"),
        pytest.param({"compress": "bf16:3"}, None, "'bf16:3'", id="a number that bf16 does not take"),
        pytest.param({"sync": "local:2"}, "fsdp", "--sync local does not work with .*fsdp", id="sharded"),
        pytest.param({"compress": "bf16"}, "tp", "--compress bf16 does not work with .*tp", id="split"),
        pytest.param(
            {"check_every": "9"}, "fsdp", "--check-every does not work with .*fsdp", id="nothing to compare"
        ),
        pytest.param({"compress": "bf16", "sync": "stale:2"}, None, "cannot be combined", id="both"),
        pytest.param({"devices": "2"}, "fsdp", "--devices 2 does not work with .*fsdp", id="sharded devices"),
        pytest.param(
            {"devices": "2", "sync": "local:4"}, None, "local and --devices 2 cannot", id="moved model"
        ),
        pytest.param({"devices": "2", "compress": "bf16"}, None, "--devices 2 and --compress", id="its hook"),
        pytest.param(
            {"sync": "stale:2", "precision": "fp16"},
            None,
            "--sync stale .*bf16",
            id="gradients of another scale",
        ),
        pytest.param(
            {"compress": "topk", "precision": "fp16"},
            None,
            "--compress topk .*bf16",
            id="error feedback of another scale",
        ),
    ],
)
def test_flags_that_are_refused(flags: dict[str, str], parallel: str | None, message: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){message}"):
        select(
            Settings.read({variable(name): text for name, text in flags.items()}),
            lay_out(parallel, "", World(size=2, local_size=2)),
            torch.device("cpu"),
            half=None,
        )
