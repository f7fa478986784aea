"""Graphs exported once and shared by all tests of the exporter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from headprune.analyzer.loading import load_model
from headprune.exporters import DYNAMIC_SCORES, ExportRequest, ExportResult, export_onnx
from headprune.manifests import (
    CalibrationInfo,
    CalibrationSource,
    Gate,
    HeadStatistics,
    Manifest,
    ScoreSummary,
    Threshold,
)

from .families import FAMILIES, output_projections, save_family
from .graph_runner import Runner, open_graph
from .oracle import Oracle


def gate_of(
    score: str,
    *,
    mode: str = "dynamic",
    decode: str | None = None,
    threshold: float = 1.0,
    heads: Sequence[tuple[int, int]] = (),
) -> Gate:
    """A gate as the command line would choose it."""
    known = DYNAMIC_SCORES.get(score)
    granularity = known.granularity if known else "sequence"
    return Gate(
        score=score,
        granularity=granularity,
        inactive_when="below",
        mode=mode,
        threshold=threshold,
        decode=decode,
        heads=tuple(sorted(heads)),
    )


@dataclass(frozen=True, kw_only=True)
class Family:
    """A tiny model, its manifest, and its exported baseline."""

    name: str
    directory: Path
    model: PreTrainedModel
    manifest: Manifest
    baseline: ExportResult

    @property
    def heads(self) -> list[int]:
        return [layer.query_heads for layer in self.manifest.model.layers]

    def oracle(self, **gate: object) -> Oracle:
        return Oracle(
            model=self.model,
            projections=output_projections(self.model),
            heads=self.heads,
            **gate,
        )


def manifest_of(loaded: object) -> Manifest:
    """A manifest with made-up statistics: the exporter reads none of them."""
    table = tuple((0.0,) * layer.query_heads for layer in loaded.info.layers)
    names = ("mean", "std", "minimum", "q25", "median", "q75", "maximum")
    return Manifest(
        tool_version="0",
        model=loaded.info,
        tokenizer=loaded.tokenizer_info,
        calibration=CalibrationInfo(
            sources=(
                CalibrationSource(
                    name="builtin", kind="builtin", weight=1.0, documents=1, sequences=1
                ),
            ),
            sha256="0" * 64,
            sequences=1,
            tokens=1,
            length_range=(1, 1),
            seed=0,
            cut=0,
            skipped=0,
            duplicates=0,
        ),
        scores={
            "thon_ln": ScoreSummary(
                granularity="token",
                inactive_when="below",
                quantiles=(0.0,) * 101,
                thresholds=(Threshold(fraction=0.0, threshold=0.0),),
                heads=HeadStatistics(**dict.fromkeys(names, table), inactive_share=(table,)),
            )
        },
    )


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    """Make, load and export a family on first use."""
    made: dict[str, Family] = {}
    torch.set_num_threads(1)

    def family(name: str) -> Family:
        if name not in made:
            root = tmp_path_factory.mktemp(name)
            save_family(name, root / "model")
            loaded = load_model(str(root / "model"), dtype="float32")
            manifest = manifest_of(loaded)
            request = ExportRequest(
                manifest=manifest, output=root / "baseline", gate=None, model=str(root / "model")
            )
            made[name] = Family(
                name=name,
                directory=root / "model",
                model=loaded.model,
                manifest=manifest,
                baseline=export_onnx(request),
            )
        return made[name]

    return family


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest, families: Callable[[str], Family]) -> Family:
    return families(request.param)


@pytest.fixture(scope="session")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family, Gate], ExportResult]:
    """Gate a family's baseline graph; every gate once."""
    made: dict[tuple[str, Gate], ExportResult] = {}

    def export(family: Family, gate: Gate) -> ExportResult:
        key = (family.name, gate)
        if key not in made:
            made[key] = export_onnx(
                ExportRequest(
                    manifest=family.manifest,
                    output=tmp_path_factory.mktemp("gated") / "out",
                    gate=gate,
                    from_onnx=family.baseline.directory / "model.onnx",
                )
            )
        return made[key]

    return export


def runner_of(result: ExportResult, **options: object) -> Runner:
    return Runner(open_graph(result.directory / "model.onnx"), **options)
