"""The Grafana dashboards, described in Python: `python -m deploy.dashboards` writes their JSON into the chart."""
