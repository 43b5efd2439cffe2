"""Attacks on the reward service, as data: each says what must not happen and how that is seen from outside."""
