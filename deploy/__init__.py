"""Generators of the chart's files: schema, pages of values, dashboards."""
