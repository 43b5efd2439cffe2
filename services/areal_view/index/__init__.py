"""Index of recordings: rows by step, group and sample over the recorded segments; exports and the token audit."""
