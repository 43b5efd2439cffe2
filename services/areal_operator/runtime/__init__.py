"""The operator's runtime: what any level-triggered controller needs of an API server, knowing nothing of RLJobs.

Owns list and watch, the caches, the queue, the lease, rate limits, events, health and metrics. Objects are plain dicts
as JSON has them; nobody changes one after it left the wire.
"""
