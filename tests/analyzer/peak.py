"""Print the peak resident bytes of a process that runs one long sequence through a random model.

python -m tests.analyzer.peak plain|analyzed
"""

from __future__ import annotations

import resource
import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from headprune.analyzer.batches import make_batches
from headprune.analyzer.profiling import profile_batch
from headprune.analyzer.projection import ProjectionNorm
from headprune.analyzer.scores import find_scores

LAYERS = 24
LENGTH = 2560
HEADS = 4
HIDDEN = 512


def main() -> None:
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=LAYERS, vocab_size=64,
        num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    (batch,) = make_batches([tuple(number % 60 for number in range(LENGTH))], 1)
    if sys.argv[1] == "analyzed":
        profile_batch(model, batch, find_scores(["all"]), ProjectionNorm())
    else:
        ids, mask = batch.tensors(model.device)
        with torch.inference_mode():
            model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
    unit = 1 if sys.platform == "darwin" else 1024
    sys.stdout.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}\n")


if __name__ == "__main__":
    main()
