"""Where the embedded model, its calibration text and its questions lie."""

from importlib.resources import files
from pathlib import Path

ASSETS = Path(str(files("headprune"))) / "demo" / "assets"


def model_directory() -> Path:
    """Returns the checkpoint directory of the demo model, tokenizer included."""
    return ASSETS / "demo-llama"


def calibration_file() -> Path:
    """Returns the calibration text: JSON Lines with the field `text`."""
    return ASSETS / "calibration.jsonl"


def questions_directory() -> Path:
    """Returns the directory that holds `demo/dev.jsonl` and `demo/test.jsonl`."""
    return ASSETS / "questions"
