"""Drivers: the judge's modules that run in cells. Their names are what a judge's sandbox is given."""

CALLS = "areal.judge.drivers.calls"
TESTER = "areal.judge.drivers.tester"
DRIVERS = (CALLS, TESTER)
