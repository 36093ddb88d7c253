"""Publish numbers for a Prometheus server: tables of metrics, and the port that a Prometheus server scrapes."""
