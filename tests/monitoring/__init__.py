"""A real Prometheus server for tests, and the tests of the alert rules in conf/monitoring."""
