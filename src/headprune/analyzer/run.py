"""`headprune analyze`: profile a model on calibration text and write its manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from headprune import __version__
from headprune.analyzer.batches import make_batches
from headprune.analyzer.calibration import (
    DEFAULT_LENGTHS,
    DEFAULT_SEQUENCES,
    CalibrationSet,
    choose_sequences,
    load_documents,
)
from headprune.analyzer.geometry import full_name, geometry_of
from headprune.analyzer.journal import Journal
from headprune.analyzer.layer_weights import LayerWeights
from headprune.analyzer.loading import (
    DTYPES,
    LoadedModel,
    ModelSource,
    describe_model,
    describe_unused,
    load_whole,
    open_source,
)
from headprune.analyzer.profiling import Work, profile
from headprune.analyzer.ranks import Rank, connected, gather, launched_rank, wait
from headprune.analyzer.score_table import ScoreTable
from headprune.analyzer.scores import find_scores
from headprune.analyzer.sources import remember_directory
from headprune.analyzer.streaming import stream
from headprune.analyzer.summary import write_results
from headprune.analyzer.weights import weights_size
from headprune.errors import HeadpruneError, first_line
from headprune.manifests.files import check_manifest_path
from headprune.manifests.model import DEFAULT_FRACTIONS, Manifest, ModelInfo, Shard
from headprune.manifests.show import describe_left_out
from headprune.progress import silent

MEMORY_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class AnalyzeRequest:
    """What to analyze.

    Attributes:
        model: Directory or hub id.
        output: Path of the manifest.
        calibration: Sources of text, SOURCE[=WEIGHT] each; FineWeb-Edu from the hub if empty.
        sequences: How many documents at most.
        lengths: Shortest and longest length drawn, in tokens.
        scores: Score ids, or `all`.
        fractions: Fractions to keep thresholds for.
        batch_size: Sequences in one forward; changes the speed, not the scores.
        seed: Seed of the documents, the lengths, and the control score.
        dtype: Data type of the model; `auto` is float32 on the CPU, as the exported graph will be,
            and the checkpoint's own elsewhere.
        device: PyTorch device; `cuda` is this process's own GPU; `auto` spreads the layers over all
            GPUs.
        stream: Read the weights a layer at a time; None: if they exceed `memory`.
        memory: Bytes that the weights may take; None: most of what is free.
        shard: A share of the batches, for `headprune manifest merge`; None for all.
        resume: Go on with an interrupted analysis.
        restart: Throw away an interrupted analysis.
        revision: Commit, tag or branch on the hub.
        trust_remote_code: Run model code from the checkpoint.
        progress: Told what happens, a line at a time.
    """

    model: str
    output: Path
    calibration: tuple[str, ...] = ()
    sequences: int = DEFAULT_SEQUENCES
    lengths: tuple[int, int] = DEFAULT_LENGTHS
    scores: tuple[str, ...] = ("all",)
    fractions: tuple[float, ...] = DEFAULT_FRACTIONS
    batch_size: int = 1
    seed: int = 0
    dtype: str = "auto"
    device: str = "cpu"
    stream: bool | None = None
    memory: int | None = None
    shard: Shard | None = None
    resume: bool = False
    restart: bool = False
    revision: str | None = None
    trust_remote_code: bool = False
    progress: Callable[[str], None] = silent


def analyze(request: AnalyzeRequest) -> Manifest | None:
    """Profile a model and write the manifest and, beside it, the raw scores.

    Returns:
        The manifest; None in all processes of a launcher but the first.

    Raises:
        HeadpruneError: The model, the calibration text or an option cannot be used.
    """
    check_manifest_path(request.output)
    scores = find_scores(request.scores)
    rank = launched_rank()
    shard = share_of(request, rank)
    device = find_device(request.device, rank)
    request.progress(f"loading {request.model}")
    source = open_source(
        request.model, revision=request.revision, trust_remote_code=request.trust_remote_code
    )
    calibration = choose_sequences(
        load_documents(request.calibration, request.sequences),
        source.tokenizer,
        lengths=request.lengths,
        max_positions=source.max_positions,
        seed=request.seed,
    )
    request.progress(calibration.report)
    dtype = "float32" if request.dtype == "auto" and device.type == "cpu" else request.dtype
    streamed = must_stream(request, source, dtype, device)
    batches = make_batches(calibration.sequences, request.batch_size, shard=shard)
    table = ScoreTable(scores, len(calibration.sequences))
    with (
        connected(rank),
        Journal(
            journal_directory(request.output, shard),
            plan_of(request, source, calibration, dtype=dtype, streamed=streamed, shard=shard),
            table,
            resume=request.resume,
            restart=request.restart,
        ) as journal,
    ):
        work = Work(
            batches=batches,
            scores=scores,
            record=journal.record,
            done=journal.done,
            tell=request.progress,
            seed=request.seed,
        )
        if streamed:
            weights = LayerWeights(source, dtype, device, journal.directory / "weights.json")
            warn_of_unused(weights.unused, request)
            info = profile_streamed(weights, work, journal.directory)
        else:
            loaded = load_model_onto(device, request, source, dtype)
            warn_of_unused(loaded.unused, request)
            profile(loaded.model, work)
            info = loaded.info
        if info.left_out_layers:
            request.progress(f"leaving out {describe_left_out(info)}")
        remember_directory(info, source.files.directory)
        manifest = None
        gather(table, rank)
        if rank.index == 0:
            request.progress("summarising the scores")
            manifest = write_results(
                request.output,
                table,
                scores,
                model=info,
                tokenizer=source.tokenizer_info,
                calibration=calibration.info,
                fractions=request.fractions,
                shard=request.shard,
                folder=journal.directory,
            )
        wait(rank)
        journal.finish()
    return manifest


def load_model_onto(
    device: torch.device, request: AnalyzeRequest, source: ModelSource, dtype: str
) -> LoadedModel:
    """The model with all weights, on its device or spread over all GPUs."""
    if request.device == "auto":
        return load_whole(source, dtype, device_map="auto")
    loaded = load_whole(source, dtype)
    nn.Module.to(loaded.model, device)
    return loaded


def warn_of_unused(names: tuple[str, ...], request: AnalyzeRequest) -> None:
    """Tell of tensors on disk that the model has no place for."""
    if names:
        request.progress(describe_unused(request.model, names))


def profile_streamed(weights: LayerWeights, work: Work, directory: Path) -> ModelInfo:
    """Profile with the weights of one layer in memory at a time."""
    geometry = stream(weights, work, directory)
    work.tell("hashing the remaining weights")
    name = full_name(weights.model, weights.source.name)
    return describe_model(
        weights.source,
        weights_sha256=weights.identity(),
        dtype=weights.model.dtype,
        geometry=geometry_of(weights.model, name, geometry.items()),
    )


def share_of(request: AnalyzeRequest, rank: Rank) -> Shard | None:
    """The share of the batches that this process profiles; None for all."""
    if rank.count > 1 and request.shard:
        raise HeadpruneError(
            "a launcher with several processes and --shard cannot be used together",
            hint="leave out --shard: the launched processes share the work and merge by themselves",
        )
    return Shard(index=rank.index, count=rank.count) if rank.count > 1 else request.shard


def must_stream(
    request: AnalyzeRequest, source: ModelSource, dtype: str, device: torch.device
) -> bool:
    """Whether to read the weights a layer at a time, and say so."""
    if request.stream is not None:
        return request.stream
    needed = weights_size(source.files.weights, DTYPES.get(dtype))
    budget = request.memory
    if budget is None and device.type == "cpu" and request.device != "auto":
        budget = int(MEMORY_SHARE * psutil.virtual_memory().available)
    if budget is None or needed <= budget:
        return False
    request.progress(
        f"streaming the weights: {needed / 1e9:.1f} GB exceed the memory budget of "
        f"{budget / 1e9:.1f} GB"
    )
    return True


def journal_directory(output: Path, shard: Shard | None) -> Path:
    """Where an unfinished analysis keeps what it found."""
    part = f".{shard.index + 1}-of-{shard.count}" if shard else ""
    return output.with_name(f"{output.name}{part}.partial")


def plan_of(
    request: AnalyzeRequest,
    source: ModelSource,
    calibration: CalibrationSet,
    *,
    dtype: str,
    streamed: bool,
    shard: Shard | None,
) -> dict[str, Any]:
    """All that decides what an analysis finds; an interrupted one goes on under the same alone."""
    weights = [(path.name, path.stat()) for path in source.files.weights]
    plan = {
        "version": __version__,
        "weights": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in weights],
        "config": source.config_sha256,
        "tokenizer": source.tokenizer_info.sha256,
        "calibration": asdict(calibration.info),
        "scores": request.scores,
        "batch size": request.batch_size,
        "seed": request.seed,
        "dtype": dtype,
        "device": request.device,
        "streaming": streamed,
        "shard": asdict(shard) if shard else None,
    }
    as_it_reads_back: dict[str, Any] = json.loads(json.dumps(plan))
    return as_it_reads_back


def find_device(name: str, rank: Rank) -> torch.device:
    """The PyTorch device of that name, if this machine has it.

    Of several launched processes, each takes the GPU of its own number.

    Raises:
        HeadpruneError: There is no such device here.
    """
    if name == "meta":
        raise HeadpruneError("the device meta computes nothing", hint="pass --device cpu")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(f"cuda:{rank.local}" if name == "cuda" else name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise HeadpruneError(
            f"there is no device {name!r} here: {first_line(error)}",
            hint="pass --device cpu, or cuda:0 where PyTorch finds a GPU",
        ) from error
    return device
