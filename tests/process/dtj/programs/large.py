"""Loads a model like a 7B one, with fewer layers and smaller matrices, from $WEIGHTS, sharded over the ranks.

Each rank prints: "memory <bytes of its parameters> <bytes by which its peak memory grew> <equal or not>".
"""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
from torch import nn

import dtj
from dtj.checkpoint import weights

LAYERS, WIDTH, WIDE, WORDS = 8, 512, 1376, 3201
LINEAR = dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), (WIDTH, WIDTH))
LINEAR |= {"self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (WIDTH, WIDE), "mlp.up_proj": (WIDTH, WIDE)}
LINEAR |= {"mlp.down_proj": (WIDE, WIDTH)}
BY_ROWS = ("o_proj", "down_proj")


class Layer(nn.Module):
    """The matrices of a layer, under the names that transformers gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        for name, (wide, high) in LINEAR.items():
            part, _, matrix = name.partition(".")
            self.get_submodule(part).register_module(matrix, nn.Linear(wide, high, bias=False))
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)


class Large(nn.Module):
    """Never called: only its weights matter."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.model.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.model.norm = nn.RMSNorm(WIDTH)
        self.model.register_buffer("inv_freq", torch.arange(4.0), persistent=False)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight

    def tensor_plan(self, _ranks: int) -> dict[str, str]:
        return {
            f"model.layers.{number}.{name}": "rows" if name.endswith(BY_ROWS) else "columns"
            for number in range(LAYERS)
            for name in LINEAR
        }


def memory(which: str) -> int:
    """Bytes of resident memory of this process: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(which))


def main() -> None:
    run = dtj.init()
    before = memory("VmRSS")
    model: Any = run.parallel(Large)
    grown = memory("VmHWM") - before
    held = sum(p.to_local().nbytes for p in model.parameters())
    found = weights.read(Path(os.environ["DTJ_WEIGHTS"]))
    names = ("model.embed_tokens.weight", "model.layers.3.mlp.down_proj.weight", "model.norm.weight")
    state = {name: tensor.full_tensor() for name, tensor in model.state_dict().items() if name in names}
    assert all(torch.equal(state[name], found[name].float()) for name in names)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.model.inv_freq, torch.arange(4.0))
    print("memory", held, grown)


if __name__ == "__main__":
    main()
