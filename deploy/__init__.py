"""What is generated for the chart: schema, pages of values, dashboards."""
