"""Kafka topics as change feeds: exactly-once, using offsets stored in the table's snapshots.

`address` and `offsets` are values. `beginning` decides where a feed continues. `broker` is the
interface to Kafka, and `client` implements it with the library confluent-kafka. `ingest` loads a
table without Spark, and `lag` computes how far a table is behind.
"""
