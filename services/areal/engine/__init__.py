"""The embedded engine: a small continuous-batching generator behind SGLang's HTTP subset."""
