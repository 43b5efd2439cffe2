"""Typed dataflow of a training step: stages, the columns that they pass on, checks and pictures."""
