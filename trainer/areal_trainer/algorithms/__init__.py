"""The mathematics of training as pure functions of tensors. No engine, no IO, no state."""
