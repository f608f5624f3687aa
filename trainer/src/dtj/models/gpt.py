"""A decoder-only transformer of the GPT-2 family, for any vocabulary.

Architecture and initialisation: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from dtj.errors import RecipeError, whole


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a GPT; RecipeError for one that is not a whole number of at least 1.

    vocabulary  number of different tokens
    context     maximum number of tokens in a sequence
    layers      number of transformer blocks
    heads       attention heads per block; width must be divisible by it
    width       embedding size
    """

    vocabulary: int
    context: int
    layers: int
    heads: int
    width: int

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            whole(size, f"{name} is", least=1, fix=f"correct {name}")
        if self.width % self.heads:
            raise RecipeError(
                f"width is {self.width}, which is not divisible by the {self.heads} heads",
                fix=f"use a multiple of heads, e.g. width={-(-self.width // self.heads) * self.heads}",
            )


# The smallest GPT-2. Its vocabulary of 50,257 is padded to a multiple of 128, which makes the matrix faster.
GPT2_124M = Shape(vocabulary=50304, context=1024, layers=12, heads=12, width=768)


class GPT(nn.Module):
    """Tokens -> logits of the next token. No dropout: the result does not depend on how a batch is split."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.token.weight  # tied, as in the paper
        self.apply(_initialise)
        # Each block adds to the residual stream twice; scale the 2 x layers additions down as GPT-2 does.
        for name, weights in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.2.weight")):
                nn.init.normal_(weights, std=0.02 / (2 * shape.layers) ** 0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length <= context) int64 -> (batch, length, vocabulary) logits."""
        stream = self._embed(tokens)
        for block in self.blocks:
            stream = block(stream)
        return self._score(stream)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        stream: torch.Tensor = self.token(tokens) + self.position(places)
        return stream

    def _score(self, stream: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(stream))
        return logits

    def pipeline_plan(self) -> list[tuple[Callable[[torch.Tensor], torch.Tensor], list[nn.Module]]]:
        """Forward as a chain of functions for --parallel pp, each with the modules that it uses."""
        return [
            (self._embed, [self.token, self.position]),
            *((block, [block]) for block in self.blocks),
            (self._score, [self.norm, self.head]),
        ]

    def tensor_plan(self, ranks: int) -> dict[str, str]:
        """Module path -> "columns" or "rows" for --parallel tp; each of the `ranks` gets whole heads."""
        heads = self.shape.heads
        if heads % ranks:
            raise RecipeError(
                f"{heads} heads cannot be divided among tp={ranks}",
                fix=f"with N a divisor of {heads}: start N processes, or --parallel tp+ddp --mesh tp=N",
            )
        columns = ("attention.query", "attention.key", "attention.value", "mlp.0")
        cuts = dict.fromkeys(columns, "columns") | dict.fromkeys(("attention.out", "mlp.2"), "rows")
        return {f"blocks.{n}.{path}": cut for n in range(len(self.blocks)) for path, cut in cuts.items()}


class Block(nn.Module):
    """Attention, then an MLP; each reads the normalised residual stream and adds to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(shape.width)
        self.attention = CausalAttention(shape)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) -> the same shape."""
        stream = stream + self.attention(self.norm_attention(stream))
        added: torch.Tensor = stream + self.mlp(self.norm_mlp(stream))
        return added


class CausalAttention(nn.Module):
    """Multi-head attention in which a token attends to itself and to earlier tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        # Three matrices, not one: tensor parallelism splits each of them by heads.
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) -> the same shape."""
        query, key, value = (self._split(m(stream)) for m in (self.query, self.key, self.value))
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: torch.Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return out

    def _split(self, found: torch.Tensor) -> torch.Tensor:
        """(batch, length, heads x head_width) -> (batch, heads, length, head_width)."""
        return found.view(*found.shape[:2], -1, self.head_width).transpose(1, 2)


@torch.no_grad()
def generate(
    model: nn.Module, prompt: torch.Tensor, *, tokens: int, context: int, temperature: float, seed: int
) -> torch.Tensor:
    """Continue a prompt by sampling, one token at a time.

    prompt       (length,) int64
    tokens       number of tokens to generate
    context      maximum number of tokens that the model gets at once
    temperature  above 0; lower values prefer the most likely token
    Returns (length + tokens,) int64, the same for the same seed.
    """
    chance = torch.Generator(device=prompt.device).manual_seed(seed)
    text = prompt
    for _ in range(tokens):
        scores = model(text[-context:].unsqueeze(0))[0, -1].float() / temperature
        chosen = torch.multinomial(scores.softmax(-1), 1, generator=chance)
        text = torch.cat([text, chosen])
    return text


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
