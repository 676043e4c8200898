"""The networks, written as SGLang runs them, so that what is trained is what is served.

Sources (SGLang 0.5.12.post1, 0.5.17 and 0.5.23): ``srt/models/llama.py``, ``llama_eagle.py``, ``llama_eagle3.py`` and
the hidden states their workers feed (``srt/speculative/eagle_worker*.py``).

A head sees, at position ``p``, the token at ``p + 1`` and the target's hidden state at ``p``, and guesses the token at
``p + 2``. In later draft steps its own output stands in for the target's hidden state; the keys and values of those
steps exist only until the target has verified them. :class:`Unrolled` gives the attention of all draft steps at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

NORM_EPS = 1e-5
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model, in the words of its ``config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


@dataclass(frozen=True)
class Kept:
    """Keys and values of one draft step: float32 ``[rows, kv_heads, length, head_dim]`` each."""

    keys: Tensor
    values: Tensor


def rotate(x: Tensor, offset: int = 0) -> Tensor:
    """Rotary embedding (half-split) of ``x`` ``[rows, heads, length, head_dim]`` at positions ``offset`` onwards."""
    length, dim = x.shape[-2:]
    inverse = ROPE_THETA ** (-torch.arange(0, dim, 2, dtype=torch.float32, device=x.device) / dim)
    angles = torch.outer(torch.arange(offset, offset + length, dtype=torch.float32, device=x.device), inverse)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, NORM_EPS)


class Attention(nn.Module):
    """Grouped-query attention; ``input_size`` differs from the hidden size in the EAGLE3 head alone."""

    def __init__(self, shape: Shape, input_size: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.q_proj = nn.Linear(input_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(input_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(input_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, shape.hidden_size, bias=False)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def _project(self, x: Tensor, offset: int) -> tuple[Tensor, Kept]:
        keys = rotate(self._split(self.k_proj(x), self.kv_heads), offset)
        return rotate(self._split(self.q_proj(x), self.heads), offset), Kept(
            keys, self._split(self.v_proj(x), self.kv_heads)
        )

    def _for_each_head(self, x: Tensor) -> Tensor:
        return x.unsqueeze(2).expand(-1, -1, self.heads // self.kv_heads, -1, -1).flatten(1, 2)

    def _merge(self, x: Tensor) -> Tensor:
        out: Tensor = self.o_proj(x.transpose(1, 2).flatten(-2))
        return out

    def forward(self, x: Tensor, past: Kept | None = None) -> tuple[Tensor, Kept]:
        """Causal attention over ``x`` ``[rows, length, input_size]``; with ``past``, ``length`` is 1."""
        queries, kept = self._project(x, 0 if past is None else past.keys.shape[-2])
        if past is not None:
            kept = Kept(torch.cat((past.keys, kept.keys), 2), torch.cat((past.values, kept.values), 2))
        out = functional.scaled_dot_product_attention(
            queries, self._for_each_head(kept.keys), self._for_each_head(kept.values), is_causal=past is None
        )
        return self._merge(out), kept

    def draft_step(self, x: Tensor, earlier: list[Kept]) -> tuple[Tensor, Kept]:
        """Attention of draft step ``s = len(earlier)`` at all positions at once.

        A query at position ``p`` sees step 0 (true hidden states) up to ``p - s``, then step ``i`` at ``p - s + i``
        for ``i`` in ``1..s``, the last being itself: what the draft's KV pool holds in that step.
        """
        if not earlier:
            return self.forward(x)
        queries, own = self._project(x, 0)
        step, length = len(earlier), x.shape[1]
        scale = self.head_dim**-0.5

        def spread(t: Tensor, shift: int) -> Tensor:
            return self._for_each_head(functional.pad(t, (0, 0, shift, 0))[:, :, :length])

        place = torch.arange(length, device=x.device)
        hidden = place[None, :] > place[:, None] - step
        scores = queries @ spread(earlier[0].keys, 0).transpose(-1, -2) * scale
        scores = scores.masked_fill(hidden, float("-inf"))
        guessed = [*earlier[1:], own]
        near = [
            (queries * spread(kept.keys, step - i)).sum(-1, keepdim=True) * scale for i, kept in enumerate(guessed, 1)
        ]
        weights = torch.cat([scores, *near], dim=-1).softmax(-1)
        out = weights[..., :length] @ spread(earlier[0].values, 0)
        for i, kept in enumerate(guessed, 1):
            at = length + i - 1
            out = out + weights[..., at : at + 1] * spread(kept.values, step - i)
        return self._merge(out), own


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A Llama decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size)
        self.self_attn = Attention(shape, shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, past: Kept | None = None) -> tuple[Tensor, Kept]:
        out, kept = self.self_attn(self.input_layernorm(x), past)
        x = x + out
        return x + self.mlp(self.post_attention_layernorm(x)), kept


@dataclass(frozen=True)
class TargetStates:
    """What the target hands on: float32, ``[rows, length, ...]``.

    ``final`` is the hidden state after the final norm, which EAGLE heads are fed; ``auxiliary`` are those between the
    layers, before any norm, side by side, which EAGLE3 heads are fed.
    """

    logits: Tensor
    final: Tensor
    auxiliary: Tensor
    kept: list[Kept]


class Llama(nn.Module):
    """``LlamaForCausalLM``, untied."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        init(self)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    def forward(self, tokens: Tensor, past: list[Kept] | None = None) -> TargetStates:
        """``tokens`` int64 ``[rows, length]``; with ``past`` (one per layer) ``length`` is 1."""
        x = self.embed_tokens(tokens)
        between, kept = [], []
        for index, layer in enumerate(self.layers):
            x, layer_kept = layer(x, None if past is None else past[index])
            between.append(x)
            kept.append(layer_kept)
        final = self.norm(x)
        auxiliary = torch.cat(between[:-1], -1) if len(between) > 1 else final
        return TargetStates(self.lm_head(final), final, auxiliary, kept)


class Head(nn.Module):
    """What the two EAGLE heads share: unrolling over draft steps with the target's embedding."""

    def first_input(self, states: TargetStates) -> Tensor:
        """The hidden state fed in draft step 0, of the head's own width."""
        raise NotImplementedError

    def step(self, embeds: Tensor, hidden: Tensor, earlier: list[Kept]) -> tuple[Tensor, Tensor, Kept]:
        """One draft step: logits, the hidden state fed to the next step, keys and values."""
        raise NotImplementedError

    def forward(self, target: Llama, tokens: Tensor, states: TargetStates, steps: int) -> list[Tensor]:
        """Logits ``[rows, length - 1, vocab]`` of every draft step; at index ``p`` the guess is for token ``p + 2``.

        Step ``s`` is valid from index ``s`` on.
        """
        embeds = target.embed_tokens(tokens[:, 1:])
        hidden = self.first_input(states)[:, :-1]
        earlier: list[Kept] = []
        guesses = []
        for _ in range(steps):
            logits, hidden, kept = self.step(embeds, hidden, earlier)
            guesses.append(logits)
            earlier.append(kept)
            hidden = functional.pad(hidden, (0, 0, 1, 0))[:, :-1]
        return guesses


class Eagle(Head):
    """``LlamaForCausalLMEagle``: ``fc``, one layer without input norm, and the target's own ``lm_head``."""

    def __init__(self, shape: Shape, target: Llama) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size)
        self.self_attn = Attention(shape, shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size)
        self.mlp = Mlp(shape)
        init(self)
        self._target = [target]

    def first_input(self, states: TargetStates) -> Tensor:
        return states.final

    def step(self, embeds: Tensor, hidden: Tensor, earlier: list[Kept]) -> tuple[Tensor, Tensor, Kept]:
        x = self.fc(torch.cat((embeds, hidden), -1))
        out, kept = self.self_attn.draft_step(x, earlier)
        x = x + out
        x = x + self.mlp(self.post_attention_layernorm(x))
        return self._target[0].lm_head(x), x, kept


class Eagle3(Head):
    """``LlamaForCausalLMEagle3``: ``fc`` over three hidden states, a layer of doubled input width, ``lm_head``."""

    def __init__(self, shape: Shape, auxiliary_states: int) -> None:
        super().__init__()
        self.fc = nn.Linear(auxiliary_states * shape.hidden_size, shape.hidden_size, bias=False)
        self.input_layernorm = Norm(shape.hidden_size)
        self.hidden_norm = Norm(shape.hidden_size)
        self.self_attn = Attention(shape, 2 * shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size)
        self.mlp = Mlp(shape)
        self.norm = Norm(shape.hidden_size)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        init(self)

    def first_input(self, states: TargetStates) -> Tensor:
        out: Tensor = self.fc(states.auxiliary)
        return out

    def step(self, embeds: Tensor, hidden: Tensor, earlier: list[Kept]) -> tuple[Tensor, Tensor, Kept]:
        both = torch.cat((self.input_layernorm(embeds), self.hidden_norm(hidden)), -1)
        out, kept = self.self_attn.draft_step(both, earlier)
        x = hidden + out
        x = x + self.mlp(self.post_attention_layernorm(x))
        return self.lm_head(self.norm(x)), x, kept


def init(module: nn.Module) -> None:
    """Normal weights scaled to the input width, zero biases; the last matrix of each branch starts at zero."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
            if name.endswith(("o_proj", "down_proj")):
                nn.init.zeros_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def round_to_bfloat16(module: nn.Module) -> None:
    """Round every weight to what a bfloat16 checkpoint keeps, in place."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(weight.bfloat16().float())
