"""Grafana dashboards as code: four boards out of a few kinds of panel."""
