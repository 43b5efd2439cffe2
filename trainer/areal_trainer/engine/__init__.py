"""The one place that holds a model: loading, sharding, forward and backward passes, the optimizer."""
