"""What `analyze --stream` takes on a model bigger than memory: resident size and bytes read.

    python benchmarks/analyze_stream.py FOLDER TOKENIZER TEXT

Makes a checkpoint of the shape of an 8-billion-parameter Llama with random bfloat16 weights in
FOLDER (16 GB; an earlier one is used again), analyzes four documents of TEXT (JSONL) with the
tokenizer of the model directory TOKENIZER, and prints the analysis's peak resident size and the
bytes it has read from disk over those of the weights. As root it empties the page cache first;
otherwise what is still cached is not counted as read.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig

SEED = 0
STD = 0.02
GB = 1e9
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def shape(layers: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, rope_theta=500000.0,
        max_position_embeddings=8192, tie_word_embeddings=False, dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip


def shards(config: LlamaConfig) -> Iterator[dict[str, Tensor]]:
    """The weights, a layer a file, then what lies outside the layers."""
    draw = torch.Generator().manual_seed(SEED)

    def weight(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=draw).mul_(STD).bfloat16()

    hidden, inner = config.hidden_size, config.intermediate_size
    groups = config.num_key_value_heads * (hidden // config.num_attention_heads)
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    for layer in range(config.num_hidden_layers):
        start = f"model.layers.{layer}"
        yield {
            f"{start}.self_attn.q_proj.weight": weight(hidden, hidden),
            f"{start}.self_attn.k_proj.weight": weight(groups, hidden),
            f"{start}.self_attn.v_proj.weight": weight(groups, hidden),
            f"{start}.self_attn.o_proj.weight": weight(hidden, hidden),
            f"{start}.mlp.gate_proj.weight": weight(inner, hidden),
            f"{start}.mlp.up_proj.weight": weight(inner, hidden),
            f"{start}.mlp.down_proj.weight": weight(hidden, inner),
            f"{start}.input_layernorm.weight": ones.clone(),
            f"{start}.post_attention_layernorm.weight": ones.clone(),
        }
    yield {
        "model.embed_tokens.weight": weight(config.vocab_size, hidden),
        "model.norm.weight": ones.clone(),
        "lm_head.weight": weight(config.vocab_size, hidden),
    }


def make_checkpoint(folder: Path, tokenizer: Path, layers: int) -> None:
    """Write the checkpoint, its index last, so that a whole one is known by it."""
    config = shape(layers)
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    where = {}
    for number, tensors in enumerate(shards(config)):
        name = f"model-{number:05d}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, name)
        print(f"\rwrote {name}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))


def bytes_read(process: int) -> int:
    """Bytes a process has caused to be read from disk."""
    lines = Path(f"/proc/{process}/io").read_text("utf-8").splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--layers", type=int, default=32, help="fewer where the disk is short")
    parser.add_argument("--length", default="10:200", help="tokens of a document")
    options = parser.parse_args()
    model = options.folder / f"llama-{options.layers}-layers"
    if not (model / "model.safetensors.index.json").is_file():
        make_checkpoint(model, options.tokenizer, options.layers)
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    os.sync()
    if os.access(DROP_CACHES, os.W_OK):
        DROP_CACHES.write_text("3")
    output = options.folder / "stream-manifest"
    shutil.rmtree(output, ignore_errors=True)
    started = time.perf_counter()
    analysis = subprocess.Popen(
        [
            sys.executable, "-m", "headprune", "analyze", "--model", model, "--stream",
            "--calibration", options.text, "--sequences", "4", "--length", options.length,
            "-o", output / "manifest.json",
        ],
    )  # fmt: skip
    read = 0
    while analysis.poll() is None:
        read = max(read, bytes_read(analysis.pid))
        time.sleep(0.2)
    if analysis.returncode:
        sys.exit(f"the analysis ended with exit code {analysis.returncode}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(
        f"{weights / GB:.1f} GB of weights: {time.perf_counter() - started:.0f} s, peak resident "
        f"{peak / GB:.2f} GB, read {read / weights:.3f} times the weights"
    )


if __name__ == "__main__":
    main()
