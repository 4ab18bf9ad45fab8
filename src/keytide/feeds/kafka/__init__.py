"""Kafka topics as change feeds: exactly-once, using offsets stored in the table's snapshots.

`topics` has addresses and offsets as values. `start` decides where a feed continues, and computes
how far a table is behind. `client` is the interface to Kafka, and implements it with the library
confluent-kafka. `ingest` loads tables without Spark.
"""
