"""What `analyze` costs: its pass against a plain forward, and against one eager pass per score.

    python benchmarks/analyze_speed.py MODEL

Prints, for each length, the median over pairs timed one after the other of

- analyze / plain: all 26 scores of all layers, journal included, over a forward of the same batches
  with scaled-dot-product attention (neither runs the language-model head);
- eager / analyze: the twelve scores of arXiv 2504.03889 with eager attention and its matrices of
  weights, one pass for each score, over the one pass of `analyze`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headprune.analyzer.batches import Batch, make_batches
from headprune.analyzer.journal import Journal
from headprune.analyzer.loading import load_model
from headprune.analyzer.profiling import profile_batch
from headprune.analyzer.projection import ProjectionNorm
from headprune.analyzer.score_table import ScoreTable
from headprune.analyzer.scores import find_scores

SEED = 0
PAPER = ("awft", "aeqd", "avvn", "ftvvn", "ahon", "lthon")  # and each layer-normalised; fhon apart
PASSES = 12


def plain(model: Any, batches: Sequence[Batch]) -> float:
    started = time.perf_counter()
    for batch in batches:
        ids, mask = batch.tensors(model.device)
        with torch.inference_mode():
            model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)
    return time.perf_counter() - started


def pair(model: Any, batches: Sequence[Batch], projection: ProjectionNorm) -> tuple[float, float]:
    """Seconds of a plain forward, and of an analysis of the same batches."""
    scores = find_scores(["all"])
    base = plain(model, batches)
    with tempfile.TemporaryDirectory() as folder:
        table = ScoreTable(scores, len(batches))
        with Journal(Path(folder) / "journal", {}, table) as journal:
            started = time.perf_counter()
            for batch in batches:
                journal.record(str(batch.number), profile_batch(model, batch, scores, projection))
            return base, time.perf_counter() - started


def eager(model: Any, batches: Sequence[Batch], score: str) -> float:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    started = time.perf_counter()
    for batch in batches:
        eager_pass(model, batch, score)
    seconds = time.perf_counter() - started
    model.set_attn_implementation(before)
    return seconds


def eager_pass(model: Any, batch: Batch, score: str) -> list[Tensor]:
    """One pass of the paper's kind: eager attention, one score."""
    ids, mask = batch.tensors(model.device)
    found: list[Tensor] = []
    heads = model.config.num_attention_heads

    def from_output(_module: object, inputs: tuple[Tensor, ...]) -> None:
        norms = inputs[0].unflatten(-1, (heads, -1)).norm(dim=-1)
        found.append(norms[:, -1] if score == "lthon" else norms.mean(dim=1))

    def from_value(_module: object, _inputs: object, value: Tensor) -> None:
        norms = value.unflatten(-1, (model.config.num_key_value_heads, -1)).norm(dim=-1)
        found.append(norms[:, 0] if score == "ftvvn" else norms.mean(dim=1))

    hooks = []
    for layer in model.model.layers:
        if score in {"ahon", "lthon"}:
            hooks.append(layer.self_attn.o_proj.register_forward_pre_hook(from_output))
        elif score in {"avvn", "ftvvn"}:
            hooks.append(layer.self_attn.v_proj.register_forward_hook(from_value))
    try:
        with torch.inference_mode():
            result = model.base_model(
                input_ids=ids, attention_mask=mask, use_cache=False, output_attentions=True
            )
            for weights in result.attentions:
                if score == "awft":
                    found.append(weights[..., 0].mean(dim=-1))
                elif score == "aeqd":
                    found.append(torch.special.entr(weights).sum(dim=-1).mean(dim=-1))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="directory of a Llama-like model")
    parser.add_argument("--lengths", default="512,2048")
    parser.add_argument("--sequences", type=int, default=2, help="sequences in one timing")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="also time eager passes, one a pair")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = load_model(options.model, dtype="float32")
    model = loaded.model
    draw = torch.Generator().manual_seed(SEED)
    for length in map(int, options.lengths.split(",")):
        ids = torch.randint(1, model.config.vocab_size, (options.sequences, length), generator=draw)
        batches = make_batches([tuple(row) for row in ids.tolist()], 1)
        projection = ProjectionNorm()
        ratios: list[float] = []
        eager_ratios: dict[str, list[float]] = {score: [] for score in PAPER}
        for turn in range(-1, options.pairs):  # the first is a warm-up
            base, ours = pair(model, batches, projection)
            if turn < 0:
                continue
            ratios.append(ours / base)
            if options.eager:
                score = PAPER[turn % len(PAPER)]
                eager_ratios[score].append(eager(model, batches, score) / ours)
        line = f"{length} tokens: analyze / plain {statistics.median(ratios):.3f}"
        line += f" (from {min(ratios):.3f} to {max(ratios):.3f})"
        if options.eager:
            passes = [statistics.median(found) for found in eager_ratios.values() if found]
            line += f"; twelve eager passes / analyze {PASSES * statistics.mean(passes):.1f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
