"""Model and calibration text in, per-head score distributions out."""
