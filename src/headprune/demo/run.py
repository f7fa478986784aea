"""`headprune demo`: analyze, export and verify the embedded model, and say what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from headprune.analyzer.run import AnalyzeRequest, analyze
from headprune.demo.assets import model_directory, questions_directory
from headprune.errors import ExitCode
from headprune.exporters import ExportRequest, export_onnx
from headprune.manifests.files import read_manifest
from headprune.manifests.gates import choose_gate
from headprune.manifests.model import Gate, Manifest
from headprune.manifests.raw import inactive_shares
from headprune.manifests.show import describe_gate
from headprune.verifier import VerifyRequest, summary, verify

SHOTS = 0
SILENCED_LAYERS = 3


@dataclass(frozen=True, kw_only=True)
class DemoFiles:
    """Where the demo writes.

    Attributes:
        manifest: The analyzer's manifest; raw scores lie beside it.
        graph: The exported directory.
        report: The verdict.
    """

    manifest: Path
    graph: Path
    report: Path


def run_demo(output: Path, *, negative_control: bool, progress: Callable[[str], None]) -> ExitCode:
    """Go the whole way and print each stage's result on stdout.

    Args:
        output: Folder for all files; those of an earlier demo are replaced.
        negative_control: Gate three whole layers besides, which the verifier must refuse.
        progress: Told what happens.

    Returns:
        The verdict's exit code.
    """
    name = "negative-control" if negative_control else "gated"
    files = DemoFiles(
        manifest=output / "manifest.json",
        graph=output / name,
        report=output / f"{name}-verdict.json",
    )
    analyze(
        AnalyzeRequest(
            model=str(model_directory()),
            output=files.manifest,
            calibration="builtin",
            restart=True,
            progress=progress,
        )
    )
    manifest = read_manifest(files.manifest)
    heads = silenced(manifest) if negative_control else ()
    gate = choose_gate(manifest, output, heads=heads)
    click.echo("\n".join(inactive_heads(manifest, output, gate)))
    click.echo(f"\n{describe_gate(gate, manifest.model.head_count)}")
    export_onnx(
        ExportRequest(
            manifest=manifest,
            output=files.graph,
            gate=gate,
            model=str(model_directory()),
            force=True,
            progress=progress,
        )
    )
    verdict = verify(
        VerifyRequest(
            manifest=manifest,
            candidate=files.graph,
            tasks=("demo",),
            data=questions_directory(),
            shots=SHOTS,
            provider="cpu",
            report=files.report,
            progress=progress,
        )
    )
    click.echo(f"\n{summary(verdict)}\n")
    click.echo(f"manifest  {files.manifest}\ngraph     {files.graph}\nverdict   {files.report}")
    return verdict.exit_code


def silenced(manifest: Manifest) -> tuple[tuple[int, int], ...]:
    """All heads of the last three layers."""
    layers = manifest.model.layers
    return tuple(
        (layer, head)
        for layer in range(len(layers) - SILENCED_LAYERS, len(layers))
        for head in range(layers[layer].query_heads)
    )


def inactive_heads(manifest: Manifest, folder: Path, gate: Gate) -> list[str]:
    """A line per layer: how much of it the gate finds inactive on the calibration text."""
    shares = inactive_shares(manifest, folder, gate.score, gate.threshold)
    off = set(gate.heads)
    lines = [f"{'layer':<7}{'inactive':>9}  heads, each with the share of tokens it is inactive at"]
    total = 0.0
    for layer, row in enumerate(shares):
        cells = [1.0 if (layer, head) in off else share for head, share in enumerate(row)]
        total += sum(cells)
        lines.append(
            f"{layer:<7}{sum(cells) / len(cells):>9.1%}  "
            + " ".join(f"{cell:>5.0%}" for cell in cells)
        )
    lines.append(f"{'all':<7}{total / manifest.model.head_count:>9.1%}")
    return lines
