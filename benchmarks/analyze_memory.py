"""How much memory `analyze` takes beyond a plain forward of the same sequence.

    python benchmarks/analyze_memory.py MODEL

Each of the two runs in a process of its own, whose peak resident size the system keeps. Both load
the model and run one sequence without the language-model head; one computes all scores as well and
keeps them in a journal.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from headprune.analyzer.batches import make_batches
from headprune.analyzer.journal import Journal
from headprune.analyzer.loading import load_model
from headprune.analyzer.profiling import profile_batch
from headprune.analyzer.projection import ProjectionNorm
from headprune.analyzer.score_table import ScoreTable
from headprune.analyzer.scores import find_scores

SEED = 0
MB = 1e6
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


def peak(source: str, length: int, threads: int, *, analyze: bool) -> float:
    """Peak resident size in bytes of a process that runs one sequence."""
    torch.set_num_threads(threads)
    model = load_model(source, dtype="float32").model
    draw = torch.Generator().manual_seed(SEED)
    ids = torch.randint(1, model.config.vocab_size, (length,), generator=draw)
    (batch,) = make_batches([tuple(ids.tolist())], 1)
    if analyze:
        scores = find_scores(["all"])
        with tempfile.TemporaryDirectory() as folder:
            table = ScoreTable(scores, 1)
            with Journal(Path(folder) / "journal", {}, table) as journal:
                journal.record("0", profile_batch(model, batch, scores, ProjectionNorm()))
    else:
        tensors, mask = batch.tensors(model.device)
        with torch.inference_mode():
            model.base_model(input_ids=tensors, attention_mask=mask, use_cache=False)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="model directory")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    fresh = multiprocessing.get_context("spawn")
    peaks: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.runs):
        for analyze, found in peaks.items():
            with fresh.Pool(1) as pool:
                arguments = (options.model, options.length, options.threads)
                found.append(pool.apply(peak, arguments, {"analyze": analyze}))
    plain, ours = (statistics.median(peaks[analyze]) / MB for analyze in (False, True))
    print(
        f"{options.length} tokens: peak {plain:,.0f} MB plain, {ours:,.0f} MB analyzed: "
        f"{ours - plain:,.0f} MB more"
    )


if __name__ == "__main__":
    main()
