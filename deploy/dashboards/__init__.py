"""Grafana dashboards in Python; `python -m deploy.dashboards` writes their JSON into the chart."""
