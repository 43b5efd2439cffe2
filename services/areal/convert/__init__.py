"""Conversion of other frameworks' configurations into job files: a table of keys for each framework, and one walker.

A package of its own because it is tables as data, four of them, that only this command reads.
"""
