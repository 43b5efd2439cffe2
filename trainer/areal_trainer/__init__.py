"""The trainer: FSDP2 under torchrun, fed once by the replay ledger, publishing weight versions."""
