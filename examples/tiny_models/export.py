"""Checkpoints in the layout SGLang loads: ``config.json``, ``model.safetensors`` (bfloat16) and the tokenizer's files.

The embedding is left out of both heads: SGLang's EAGLE workers give them the target's.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from tiny_models import bpe
from tiny_models.nets import NORM_EPS, ROPE_THETA, Eagle, Eagle3, Llama, Shape

CONTEXT_LENGTH = 2048
HEAD_LAYER_PARTS = ("self_attn.", "mlp.", "post_attention_layernorm.", "input_layernorm.", "hidden_norm.")


def _config(shape: Shape, architecture: str, **more: object) -> dict[str, object]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": CONTEXT_LENGTH,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "pad_token_id": bpe.PAD_ID,
        "bos_token_id": bpe.BOS_ID,
        "eos_token_id": bpe.EOS_ID,
        "torch_dtype": "bfloat16",
        **more,
    }


def _save(folder: Path, config: dict[str, object], weights: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in sorted(weights.items())}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    bpe.save(tokenizer, folder, CONTEXT_LENGTH)


def save_llama(model: Llama, folder: Path, tokenizer: Tokenizer) -> None:
    """The target or the STANDALONE draft, as ``LlamaForCausalLM``."""
    weights = {
        name if name.startswith("lm_head.") else f"model.{name}": weight for name, weight in model.state_dict().items()
    }
    _save(folder, _config(model.shape, "LlamaForCausalLM"), weights, tokenizer)


def _layer_named(head: nn.Module, layer: str) -> dict[str, Tensor]:
    return {
        f"{layer}.{name}" if name.startswith(HEAD_LAYER_PARTS) else name: weight
        for name, weight in head.state_dict().items()
    }


def save_eagle(head: Eagle, shape: Shape, folder: Path, tokenizer: Tokenizer) -> None:
    """``LlamaForCausalLMEagle``; its ``lm_head`` is the target's too."""
    _save(folder, _config(shape, "LlamaForCausalLMEagle"), _layer_named(head, "layers.0"), tokenizer)


def save_eagle3(head: Eagle3, shape: Shape, layers: list[int], folder: Path, tokenizer: Tokenizer) -> None:
    """``LlamaForCausalLMEagle3`` with the full vocabulary, fed by the outputs of the target's ``layers``."""
    config = _config(
        shape,
        "LlamaForCausalLMEagle3",
        draft_vocab_size=shape.vocab_size,
        eagle_config={"eagle_aux_hidden_state_layer_ids": layers, "use_aux_hidden_state": True},
    )
    _save(folder, config, _layer_named(head, "midlayer"), tokenizer)
