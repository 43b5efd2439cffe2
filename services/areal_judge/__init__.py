"""Judges answers: the sandbox, verdicts on programs, stateful boxes, public test sets, and their server."""
