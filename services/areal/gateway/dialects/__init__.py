"""Dialects: requests of a client's API as questions, answers in its words."""
