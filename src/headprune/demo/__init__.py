"""The embedded demo: a small model, its calibration text and its questions."""
