"""Simulation: the real cores of all roles under one seeded scheduler, virtual time and faults as data."""
