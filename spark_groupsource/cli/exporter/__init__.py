"""The command `exporter`: metrics of any consumer group for a Prometheus server."""
