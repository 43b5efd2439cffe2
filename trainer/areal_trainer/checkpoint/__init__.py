"""Checkpoints: the only authority on what a run has consumed."""
