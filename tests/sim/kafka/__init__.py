"""Simulate Kafka: brokers, group coordinators and group clients."""
