"""Supervision of one child: starts it, asks it, restarts it under a budget, drains it, and leaves no orphan.

`core`, `budget` and `exits` decide; `supervise` and `family` act; `keeper` is the small process between supervisor and
child that guarantees that a family dies as a whole, engines and scorers of user code included; `role` is how every role
of ours starts.
"""
