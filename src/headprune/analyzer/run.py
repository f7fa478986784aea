"""`headprune analyze`: profile a model on calibration text and write its manifest."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.numpy import save
from torch import Tensor, nn

from headprune import __version__
from headprune.analyzer.calibration import (
    DEFAULT_LENGTHS,
    DEFAULT_SEQUENCES,
    CalibrationSet,
    choose_sequences,
    load_documents,
)
from headprune.analyzer.capture import capture_layer
from headprune.analyzer.collector import Collector
from headprune.analyzer.histogram import RELATIVE_ERROR
from headprune.analyzer.interception import AttentionCall, intercepted
from headprune.analyzer.loading import LoadedModel, load_model
from headprune.analyzer.projection import ProjectionNorm
from headprune.analyzer.scores import Score, find_scores
from headprune.analyzer.sources import remember_directory
from headprune.analyzer.thresholds import summarise
from headprune.errors import HeadpruneError, first_line
from headprune.files import staged_file
from headprune.manifests.files import write_manifest
from headprune.manifests.model import DEFAULT_FRACTIONS, Manifest, RawScores
from headprune.manifests.show import describe_left_out


def _silent(_: str) -> None:
    """The default of `progress`."""


@dataclass(frozen=True, kw_only=True)
class AnalyzeRequest:
    """What to analyze.

    Attributes:
        model: Directory or hub id.
        output: Path of the manifest.
        calibration: JSONL file, `builtin`, or None for FineWeb-Edu from the hub.
        sequences: How many documents at most.
        lengths: Shortest and longest length drawn, in tokens.
        scores: Score ids, or `all`.
        fractions: Fractions to keep thresholds for.
        batch_size: Sequences in one forward; changes the speed, not the scores.
        seed: Seed of the documents, the lengths, and the control score.
        dtype: Data type of the model; `auto` is float32 on the CPU, as the exported graph will be,
            and the checkpoint's own elsewhere.
        device: PyTorch device.
        revision: Commit, tag or branch on the hub.
        trust_remote_code: Run model code from the checkpoint.
        progress: Told what happens, a line at a time.
    """

    model: str
    output: Path
    calibration: str | None = None
    sequences: int = DEFAULT_SEQUENCES
    lengths: tuple[int, int] = DEFAULT_LENGTHS
    scores: tuple[str, ...] = ("all",)
    fractions: tuple[float, ...] = DEFAULT_FRACTIONS
    batch_size: int = 1
    seed: int = 0
    dtype: str = "auto"
    device: str = "cpu"
    revision: str | None = None
    trust_remote_code: bool = False
    progress: Callable[[str], None] = _silent


def analyze(request: AnalyzeRequest) -> Manifest:
    """Profile a model and write the manifest and, beside it, the raw scores.

    Raises:
        HeadpruneError: The model, the calibration text or an option cannot be used.
    """
    scores = find_scores(request.scores)
    device = find_device(request.device)
    source, documents = load_documents(request.calibration, request.sequences)
    request.progress(f"loading {request.model}")
    loaded = load_model(
        request.model,
        revision=request.revision,
        dtype="float32" if request.dtype == "auto" and device.type == "cpu" else request.dtype,
        trust_remote_code=request.trust_remote_code,
    )
    if loaded.info.left_out_layers:
        request.progress(f"leaving out {describe_left_out(loaded.info)}")
    remember_directory(loaded.info.weights_sha256, loaded.files.directory)
    calibration = choose_sequences(
        documents,
        loaded.tokenizer,
        source=source,
        sequences=request.sequences,
        lengths=request.lengths,
        max_positions=getattr(loaded.model.config, "max_position_embeddings", None),
        seed=request.seed,
    )
    nn.Module.to(loaded.model, device)
    collector = profile(
        loaded,
        calibration,
        scores,
        batch_size=request.batch_size,
        seed=request.seed,
        progress=request.progress,
    )
    request.progress("summarising the scores")
    manifest = Manifest(
        tool_version=__version__,
        model=loaded.info,
        tokenizer=loaded.tokenizer_info,
        calibration=calibration.info,
        scores={
            score.id: summarise(
                collector.distributions(score),
                granularity=score.granularity,
                inactive_when=score.inactive_when,
                fractions=request.fractions,
            )
            for score in scores
        },
        raw_scores=write_raw_scores(collector, request.output.parent),
    )
    write_manifest(manifest, request.output)
    return manifest


def find_device(name: str) -> torch.device:
    """The PyTorch device of that name, if this machine has it.

    Raises:
        HeadpruneError: There is no such device here.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise HeadpruneError(
            f"there is no device {name!r} here: {first_line(error)}",
            hint="pass --device cpu, or cuda:0 where PyTorch finds a GPU",
        ) from error
    return device


def profile(
    loaded: LoadedModel,
    calibration: CalibrationSet,
    scores: Sequence[Score],
    *,
    batch_size: int = 1,
    seed: int = 0,
    progress: Callable[[str], None] = _silent,
) -> Collector:
    """Run the calibration set through the model once and collect every score.

    Args:
        loaded: The model; its language-model head is not run.
        calibration: Token ids.
        scores: Scores to compute.
        batch_size: Sequences in one forward.
        seed: Seed of seeded scores.
        progress: Told how far it is.
    """
    model = loaded.model
    collector = Collector(
        scores,
        loaded.info.layers,
        len(calibration.sequences),
        indices=loaded.info.layer_indices,
    )
    projection = ProjectionNorm()
    weights = any(score.reads_weights for score in scores)
    started, done = time.monotonic(), 0
    for numbers in batches(calibration.sequences, batch_size):

        def handler(call: AttentionCall, numbers: tuple[int, ...] = numbers) -> Tensor:
            capture = capture_layer(
                call, weights=weights, projection=projection, sequences=numbers, seed=seed
            )
            collector.add(capture)
            return capture.output

        ids, mask = pad([calibration.sequences[number] for number in numbers])
        with torch.inference_mode(), intercepted(model, handler):
            model.base_model(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                use_cache=False,
            )
        done += int(mask.sum())
        progress(describe_rate(done, calibration.info.tokens, time.monotonic() - started))
    return collector


def batches(sequences: Sequence[Sequence[int]], size: int) -> Iterator[tuple[int, ...]]:
    """Numbers of the sequences of each batch, alike in length, the longest first."""
    order = sorted(range(len(sequences)), key=lambda number: (-len(sequences[number]), number))
    for start in range(0, len(order), size):
        yield tuple(order[start : start + size])


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask of a batch, padded on the right: `[batch, position]` each.

    The padding id is 0: padding is known by the mask alone, never by an id.
    """
    longest = max(len(ids) for ids in sequences)
    tokens = torch.zeros((len(sequences), longest), dtype=torch.long)
    mask = torch.zeros((len(sequences), longest), dtype=torch.long)
    for row, ids in enumerate(sequences):
        tokens[row, : len(ids)] = torch.tensor(ids)
        mask[row, : len(ids)] = 1
    return tokens, mask


def describe_rate(done: int, total: int, seconds: float) -> str:
    """One line of progress: tokens, rate and time left."""
    rate = done / max(seconds, 1e-9)
    left = int((total - done) / max(rate, 1e-9))
    return f"profiled {done:,}/{total:,} tokens, {rate:,.0f}/s, {left // 60}:{left % 60:02d} left"


def write_raw_scores(collector: Collector, folder: Path) -> RawScores:
    """Write the raw scores to a file that carries the start of its own hash in its name."""
    content = save(collector.tensors(), metadata={"format": "headprune raw scores 1"})
    digest = hashlib.sha256(content).hexdigest()
    name = f"scores-{digest[:16]}.safetensors"
    with staged_file(folder / name) as staging:
        staging.write_bytes(content)
    return RawScores(file=name, sha256=digest, relative_error=RELATIVE_ERROR)
