"""What an exporter is asked for, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headprune.errors import HeadpruneError
from headprune.manifests.model import Gate, Manifest
from headprune.progress import silent


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """One export.

    Attributes:
        manifest: The analyzer's manifest of the model.
        output: Directory to create.
        gate: The gate to build in; None exports the baseline graph.
        model: Model directory or hub id; may be None with `from_onnx`.
        from_onnx: An ungated ONNX file with this exporter's input and output names, to be gated
            instead of exporting the model again.
        revision: Commit, tag or branch of `model` on the hub.
        trust_remote_code: Run model code that the checkpoint brings along.
        force: Replace an earlier export at `output`.
        progress: Called with a short message as each stage starts.
    """

    manifest: Manifest
    output: Path
    gate: Gate | None
    model: str | None = None
    from_onnx: Path | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    force: bool = False
    progress: Callable[[str], None] = silent

    def __post_init__(self) -> None:
        if self.model is None and self.from_onnx is None:
            raise HeadpruneError(
                "neither a model nor an ONNX file to export from was given",
                hint="pass --model DIR, or --from-onnx model.onnx",
            )


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What was written.

    Attributes:
        directory: The exported directory.
        manifest: The manifest inside it, with `gate` and `artefact` filled in.
        gated_layers: Layers that can have a head off.
        export_error: Largest absolute logit difference, ungated graph in ONNX Runtime against
            PyTorch, over a short padded batch; None if there was no PyTorch model to compare with.
    """

    directory: Path
    manifest: Manifest
    gated_layers: tuple[int, ...]
    export_error: float | None
