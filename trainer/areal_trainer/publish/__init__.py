"""Weight versions from the trainer's side: whole tensors, a canary, the announcement."""
