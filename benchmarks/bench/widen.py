"""The trained models of ``specswitch.cpu_engine`` with attention heads of 128 dimensions, which compute the same.

FlashAttention 3 has no kernel for heads of 32.  A wide head has zeros where the narrow one has nothing; queries are
doubled, since scores are divided by the square root of the dimensions.  Rotary embeddings turn the pair of dimensions
(i, i + half) by the same angle in both when i moves to i times the ratio of the widths.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HEAD_DIM = 128


def widen(source: Path, target: Path) -> None:
    """Write the model in ``source`` to ``target`` with heads of :data:`HEAD_DIM`.

    Raises:
        ValueError: the width is not that of ``source`` times a power of 4, so that doubling would not be exact.
    """
    config = json.loads((source / "config.json").read_text())
    narrow = config["head_dim"]
    ratio = HEAD_DIM // narrow
    factor = round(ratio**0.5)
    if narrow * ratio != HEAD_DIM or factor * factor != ratio or factor & (factor - 1):
        raise ValueError(f"heads of {narrow} cannot be widened to {HEAD_DIM} exactly")
    half = torch.arange(narrow // 2) * ratio
    places = torch.cat([half, half + HEAD_DIM // 2])
    weights = {}
    for name, weight in load_file(source / "model.safetensors").items():
        part = name.split(".")[-2]
        if part in ("q_proj", "k_proj", "v_proj"):
            weights[name] = _spread(weight, narrow, places) * (factor if part == "q_proj" else 1)
        elif part == "o_proj":
            weights[name] = _spread(weight.T, narrow, places).T.contiguous()
        else:
            weights[name] = weight
    target.mkdir(parents=True, exist_ok=True)
    for extra in source.glob("tokenizer*"):
        shutil.copy(extra, target)
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps({**config, "head_dim": HEAD_DIM}, indent=2))


def _spread(rows: torch.Tensor, narrow: int, places: torch.Tensor) -> torch.Tensor:
    """Rows of narrow heads, one after the other, at their places in wide ones."""
    heads = rows.unflatten(0, (-1, narrow))
    wide = heads.new_zeros(heads.shape[0], HEAD_DIM, heads.shape[2])
    wide[:, places] = heads
    return wide.flatten(0, 1)
