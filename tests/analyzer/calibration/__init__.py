"""Calibration text: sources, readers, chats, and the draw."""
