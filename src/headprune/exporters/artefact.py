"""The files of an exported ONNX directory."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from headprune.errors import HeadpruneError
from headprune.files import sha256_file
from headprune.manifests import Artefact, Gate, Manifest, write_manifest

GRAPH_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"
MANIFEST_FILE = "manifest.json"
OUTDATED = "outdated"  # A folder that is gone again when the export ends.
# Smaller tensors stay in the graph file, where tools read them without the data.
LARGEST_INLINE_BYTES = 1024
ALIGNMENT, ALIGN_ABOVE_BYTES = 4096, 1 << 16

# What a tokenizer, a generation loop or remote model code may need, besides the weights.
COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "configuration_*.py",
    "tokenization_*.py",
)
# Where transformers notes the path that a model was loaded from.
PATH_KEYS = ("_name_or_path", "name_or_path")


def write_data(model: ir.Model, directory: Path) -> None:
    """Write the large tensors of `model` to a data file, and let the model refer to them there.

    They are written one after the other, bit for bit.
    """
    values = [
        value
        for value in model.graph.initializers.values()
        if value.const_value is not None
        and value.const_value.nbytes > LARGEST_INLINE_BYTES
        and value.dtype != ir.DataType.STRING
        and not value.is_graph_input()
    ]
    tensors = [value.const_value for value in values if value.const_value is not None]
    if not tensors:
        return
    external = ir.external_data.convert_tensors_to_external(
        tensors,
        directory,
        DATA_FILE,
        alignment=ALIGNMENT,
        align_threshold=ALIGN_ABOVE_BYTES,
    )
    for value, tensor in zip(values, external, strict=True):
        value.const_value = tensor


def rewrite_data(model: ir.Model, directory: Path) -> None:
    """Write the data file again after some of the tensors in it were replaced in memory."""
    outdated = directory / OUTDATED
    outdated.mkdir()
    if (directory / DATA_FILE).exists():
        (directory / DATA_FILE).rename(outdated / DATA_FILE)
    ir.external_data.set_base_dir(model.graph, outdated)
    write_data(model, directory)
    shutil.rmtree(outdated)


def write_graph(model: ir.Model, directory: Path) -> None:
    """Write the graph file, which refers to the data file for large tensors."""
    ir.save(model, directory / GRAPH_FILE)


def copy_companions(source: Path, directory: Path) -> None:
    """Copy configuration and tokenizer files, without any path noted in them.

    Raises:
        HeadpruneError: `source` holds no configuration or no tokenizer.
    """
    found = {path.name: path for pattern in COMPANIONS for path in source.glob(pattern)}
    files = [found[name] for name in sorted(found) if found[name].is_file()]
    if "config.json" not in found or not any("token" in path.name for path in files):
        raise HeadpruneError(
            f"{source} holds no config.json or no tokenizer files, expected both",
            hint="pass --model DIR to take them from the model",
        )
    for path in files:
        target = directory / path.name
        shutil.copyfile(path, target)
        if path.suffix == ".json":
            drop_paths(target)


def drop_paths(path: Path) -> None:
    """Remove notes of where a model was loaded from, and leave a file without any as it is."""
    document = json.loads(path.read_text("utf-8"))
    if isinstance(document, dict) and any(key in document for key in PATH_KEYS):
        kept = {key: value for key, value in document.items() if key not in PATH_KEYS}
        path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", "utf-8")


def finish(manifest: Manifest, gate: Gate | None, opset: int, directory: Path) -> Manifest:
    """Write `manifest.json` with the gate and the hashes of graph and data, and return it.

    The raw scores stay beside the analyzer's manifest, so this one does not name them.
    """
    files = [directory / name for name in (GRAPH_FILE, DATA_FILE)]
    artefact = Artefact(
        format="onnx",
        graph=GRAPH_FILE,
        opset=opset,
        files={path.name: sha256_file(path) for path in files if path.exists()},
    )
    exported = replace(manifest, raw_scores=None, gate=gate, artefact=artefact)
    write_manifest(exported, directory / MANIFEST_FILE)
    return exported
