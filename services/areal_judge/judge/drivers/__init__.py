"""Drivers: the judge's modules that run in cells. Their names are what a judge's sandbox is given."""

CALLS = "areal_judge.judge.drivers.calls"
TESTER = "areal_judge.judge.drivers.tester"
DRIVERS = (CALLS, TESTER)
