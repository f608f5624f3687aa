"""What arrives from another rank is data: nothing in the library unpickles it without restriction."""

import ast
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import dtj
from dtj.errors import RecipeError
from dtj.ranks import exchange
from tests.unit.dtj.test_checkpoint import Harmful

CPU = torch.device("cpu")
OBJECT_COLLECTIVES = {
    *("broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list"),
    *("all_gather_object", "gather_object"),
}


def test_plain_data_arrives_as_it_was_sent() -> None:
    value = {"step": 3, "names": ["a", None], "sizes": (torch.Size([2, 3]), torch.float32), 7: 0.5, "t": True}
    assert exchange._decode(exchange._encode(value, CPU)) == value


def test_tensor_of_another_ranks_accelerator_arrives_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused optimizer has its step there. Unpickled as it is, it would take memory of that accelerator."""
    opened: list[str] = []

    def restored(storage: Any, location: str) -> Any:
        if location != "accelerator:1":
            return None
        opened.append(location)
        return storage

    registered = [*torch.serialization._package_registry, (0, lambda _: "accelerator:1", restored)]
    registered.sort(key=lambda each: each[0])
    monkeypatch.setattr(torch.serialization, "_package_registry", registered)
    data = exchange._encode({"step": torch.tensor(3.0)}, CPU)
    torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)
    assert opened == ["accelerator:1"], "the stand-in is an accelerator for torch"
    opened.clear()
    assert exchange._decode(data)["step"] == 3
    assert opened == []


def test_message_that_would_execute_code_is_an_error(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save([Harmful(tmp_path / "harm")], buffer)
    with pytest.raises(pickle.UnpicklingError):
        exchange._decode(torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8))
    assert not (tmp_path / "harm").exists()


def test_numbers_that_differ_among_the_ranks_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_rank_2(mine: list[int], **_: Any) -> list[list[int]]:
        return [mine, mine, [mine[0], 9]]

    exchange.check_equal({"the seed": 7, "the length": 5}, group=None)
    monkeypatch.setattr(exchange, "all_gather_numbers", of_rank_2)
    with pytest.raises(RecipeError, match="the ranks disagree: the length is 5 on rank 0 and 9 on rank 2"):
        exchange.check_equal({"the seed": 7, "the length": 5}, group=None)


def forbidden(source: str) -> list[str]:
    """Calls that unpickle without restriction, with their lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        plain = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
        if name.split(".")[-1] in OBJECT_COLLECTIVES or name in {"pickle.load", "pickle.loads"}:
            found.append(f"{name} in line {node.lineno}")
        elif name == "torch.load" and not plain:
            found.append(f"torch.load without weights_only=True in line {node.lineno}")
    return found


def test_library_calls_nothing_that_unpickles_without_restriction() -> None:
    assert forbidden("dist.gather_object(a)\nx = torch.load(f)") == [
        "dist.gather_object in line 1",
        "torch.load without weights_only=True in line 2",
    ]
    files = Path(dtj.__file__).parent.rglob("*.py")
    assert {str(file): found for file in files if (found := forbidden(file.read_text()))} == {}
