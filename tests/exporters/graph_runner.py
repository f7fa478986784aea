"""Drive an exported graph with ONNX Runtime as a deployment would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort


def open_graph(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@dataclass
class Runner:
    """An ONNX session with its cache and, if `keep_state`, the gate's state."""

    session: ort.InferenceSession
    thresholds: np.ndarray | None = None
    keep_state: bool = True
    past_mask: np.ndarray | None = None
    state: dict[str, np.ndarray] = field(default_factory=dict)
    results: dict[str, np.ndarray] = field(default_factory=dict)

    def run(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Feed new tokens; returns logits and `headprune.active`, if the graph has it."""
        batch = len(ids)
        past = np.zeros((batch, 0), np.int64) if self.past_mask is None else self.past_mask
        full = np.concatenate([past, mask], axis=1)
        feeds = {
            "input_ids": ids,
            "attention_mask": full,
            "position_ids": np.maximum(full.cumsum(1) - 1, 0)[:, past.shape[1] :],
            **self.state,
        }
        if self.thresholds is not None:
            feeds["headprune.threshold"] = self.thresholds
        for value in self.session.get_inputs():
            if value.name.startswith("past_key_values") and value.name not in feeds:
                _, heads, _, head_dim = value.shape
                feeds[value.name] = np.zeros((batch, heads, 0, head_dim), np.float32)
        outputs = [value.name for value in self.session.get_outputs()]
        self.results = dict(zip(outputs, self.session.run(outputs, feeds), strict=True))
        self.past_mask = full
        self.state = {
            name.replace("present.", "past_key_values.", 1)
            if name.startswith("present.")
            else name.replace(".present.", ".past."): value
            for name, value in self.results.items()
            if name.startswith("present.")
            or (self.keep_state and name.startswith("headprune.present."))
        }
        return self.results["logits"], self.results.get("headprune.active")

    def reorder(self, rows: Sequence[int]) -> None:
        """Continue with other rows of the batch, as beam search does."""
        self.state = {name: value[list(rows)] for name, value in self.state.items()}
        self.past_mask = self.past_mask[list(rows)]
