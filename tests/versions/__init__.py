"""The source on several versions of Spark, with real processes and a real broker."""
