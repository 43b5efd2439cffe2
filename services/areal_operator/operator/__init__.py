"""The operator: keeps what a cluster runs for each RLJob as its spec asks."""
