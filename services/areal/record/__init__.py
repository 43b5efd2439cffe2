"""The recording: what happened to every sample and token of a run, for people. Nothing reads it to train."""
