"""Find attention heads that do nothing, gate them in the ONNX graph, prove that accuracy holds."""

__version__ = "0.1.0"
