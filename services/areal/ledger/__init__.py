"""The ledger: the durable state of every prompt group, and the pure rules around it.

Owns the gate, the transitions of a group, the replay store in Redis, the controller's journal, the trainer's evidence,
the fences of both, the trainer's core of restart, take, publish and commit, and the audit. Never imports torch, and
never decides what a reward or a gradient is.
"""
