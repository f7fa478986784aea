"""An exported graph under ONNX Runtime: which provider runs it, and what goes in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from headprune.errors import EXPORT_AGAIN, HeadpruneError, first_line
from headprune.manifests import Gate

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
PAST = "past_key_values."
THRESHOLD = "headprune.threshold"
ACTIVE = "headprune.active"
LOGITS = "logits"
PAST_AXES = ("batch", "kv_heads", "past", "head_dim")
ERRORS_ONLY = 3

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Forward:
    """What one forward of a batch gave.

    Attributes:
        logits: For each sequence its logits at the positions asked for, float32
            [position, vocabulary].
        gated: For each sequence the share of (layer, head) cells that the gate switched off;
            None if the graph does not tell.
    """

    logits: list[Array]
    gated: list[float | None]


class GraphSession:
    """A graph, loaded once and run on batches of token ids.

    Args:
        graph: The ONNX file.
        provider: `cpu`, `cuda`, or `auto` for CUDA where it works, else the CPU.
        open_gate: The graph's gate if it shall switch nothing off; None to run the graph as it is.

    Raises:
        HeadpruneError: The graph cannot be loaded, the provider asked for does not run it, or it
            needs inputs that are not known here.
    """

    def __init__(self, graph: Path, provider: str, *, open_gate: Gate | None = None) -> None:
        self.graph = graph
        self.session = _load(graph, provider_order(provider, ort.get_available_providers()))
        self.provider = _provider_in_use(self.session, provider)
        self.runs = 0
        self._overridable = {
            item.name: item for item in self.session.get_overridable_initializers()
        }
        self._inputs = {item.name: item for item in self.session.get_inputs()}
        outputs = {item.name for item in self.session.get_outputs()}
        if LOGITS not in outputs or "input_ids" not in self._inputs:
            raise HeadpruneError(
                f"{graph.name} has no input_ids or no logits: not a language model",
                hint=EXPORT_AGAIN,
            )
        self._outputs = [name for name in (LOGITS, ACTIVE) if name in outputs]
        self._refuse_unknown_inputs()
        self._thresholds = {} if open_gate is None else self._open(open_gate)

    @property
    def tells_gated(self) -> bool:
        """Whether the graph says which heads its gate switched off."""
        return ACTIVE in self._outputs

    def forward(
        self, sequences: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]
    ) -> Forward:
        """Run a batch of token ids, padded on the right; no cache is read or kept.

        Args:
            sequences: Token ids.
            wanted: For each sequence the positions whose logits to return.
        """
        lengths = np.array([len(sequence) for sequence in sequences])
        shape = (len(sequences), int(lengths.max()))
        mask = np.arange(shape[1]) < lengths[:, None]
        ids = np.zeros(shape, np.int64)
        ids[mask] = np.concatenate([np.asarray(sequence, np.int64) for sequence in sequences])
        positions = np.where(mask, np.arange(shape[1]), 0)
        named = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        feeds = {
            name: named[name].astype(_dtype(item.type))
            if name in named
            else _empty_past(item, len(sequences))
            for name, item in self._inputs.items()
        }
        self.runs += 1
        try:
            logits, *active = self.session.run(self._outputs, feeds | self._thresholds)
        except Exception as error:  # ONNX Runtime's exceptions share no other base class
            raise HeadpruneError(
                f"{self.graph.name} failed in ONNX Runtime: {first_line(error)}", hint=EXPORT_AGAIN
            ) from error
        if logits.shape[1] != shape[1]:
            raise HeadpruneError(
                f"{self.graph.name} gives logits for {logits.shape[1]} of {shape[1]} positions",
                hint="export it with logits for every position",
            )
        return Forward(
            logits=[row[list(w)].astype(np.float32) for row, w in zip(logits, wanted, strict=True)],
            gated=[_share_off(cells) for cells in active[0]] if active else [None] * len(lengths),
        )

    def _open(self, gate: Gate) -> dict[str, Array]:
        """Thresholds at which no head is on the inactive side, not even those always off."""
        threshold = self._overridable.get(THRESHOLD)
        if threshold is None:
            raise HeadpruneError(
                f"{self.graph.name} has no {THRESHOLD}: its gate cannot be opened for a baseline",
                hint="headprune export --gate none -o DIR, then verify with --baseline DIR",
            )
        never = -math.inf if gate.inactive_when == "below" else math.inf
        return {THRESHOLD: np.full(threshold.shape, never, np.float32)}

    def _refuse_unknown_inputs(self) -> None:
        known = {"input_ids", "attention_mask", "position_ids"}
        unknown = [n for n in self._inputs if n not in known and not n.startswith(PAST)]
        if unknown:
            raise HeadpruneError(
                f"{self.graph.name} needs inputs that headprune cannot feed: {', '.join(unknown)}",
                hint=EXPORT_AGAIN,
            )


def provider_order(asked: str, available: Sequence[str]) -> list[str]:
    """ONNX Runtime's providers to try, by the name of a provider here.

    Raises:
        HeadpruneError: The name is unknown, or this ONNX Runtime does not have the provider.
    """
    if asked == "auto":
        asked = "cuda" if PROVIDERS["cuda"] in available else "cpu"
    if asked not in PROVIDERS:
        raise HeadpruneError(
            f"Unknown provider '{asked}'. Available: auto, cpu, cuda", hint="pass --provider auto"
        )
    if PROVIDERS[asked] not in available:
        raise HeadpruneError(
            f"this ONNX Runtime has no {PROVIDERS[asked]}",
            hint="pip uninstall onnxruntime && pip install onnxruntime-gpu, or --provider cpu",
        )
    return [PROVIDERS[asked]] if asked == "cpu" else [PROVIDERS[asked], PROVIDERS["cpu"]]


def _load(graph: Path, providers: list[str]) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    # Waiting threads that spin halve the speed of a shared build machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # TF32 keeps 10 bits of a float32 product: too few to compare two models by their flips.
    settings = [{"use_tf32": "0"} if p == PROVIDERS["cuda"] else {} for p in providers]
    try:
        return ort.InferenceSession(str(graph), options, providers, settings)
    except Exception as error:  # ONNX Runtime's exceptions share no other base class
        raise HeadpruneError(
            f"ONNX Runtime cannot load {graph.name}: {first_line(error)}", hint=EXPORT_AGAIN
        ) from error


def _provider_in_use(session: Any, asked: str) -> str:
    """Name of the provider that runs the session; ONNX Runtime falls back without an error."""
    first = session.get_providers()[0]
    used = next((name for name, provider in PROVIDERS.items() if provider == first), str(first))
    if asked not in ("auto", used):
        raise HeadpruneError(
            f"ONNX Runtime took {first} instead of {PROVIDERS[asked]}",
            hint="install the CUDA and cuDNN that onnxruntime-gpu asks for, or pass --provider cpu",
        )
    return used


def _share_off(active: Array) -> float | None:
    """Share of (layer, head) cells switched off, from the shares of tokens they were kept at."""
    kept = float(active.mean(dtype=np.float64))
    return min(max(1.0 - kept, 0.0), 1.0) if math.isfinite(kept) else None


def _dtype(onnx_type: str) -> npt.DTypeLike:
    kinds = {"int64": np.int64, "int32": np.int32, "float": np.float32, "float16": np.float16}
    kind = onnx_type.removeprefix("tensor(").removesuffix(")")
    if kind not in kinds:
        raise HeadpruneError(
            f"the graph has an input of type {kind}, which cannot be fed from here",
            hint=EXPORT_AGAIN,
        )
    return kinds[kind]


def _empty_past(item: Any, batch: int) -> Array:
    """No cached tokens, for an input of shape [batch, kv_heads, past, head_dim]."""
    kinds = [isinstance(size, int) for size in item.shape]
    if len(kinds) != len(PAST_AXES) or not (kinds[1] and kinds[3]):
        raise HeadpruneError(
            f"{item.name} has shape {item.shape}, expected [{', '.join(PAST_AXES)}] with kv_heads "
            "and head_dim fixed",
            hint=EXPORT_AGAIN,
        )
    return np.zeros((batch, item.shape[1], 0, item.shape[3]), _dtype(item.type))
