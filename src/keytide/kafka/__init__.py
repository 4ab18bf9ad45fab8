"""Topics of Kafka as change feeds: exactly once, by offsets that the table's snapshots tell.

`address` and `offsets` are values; `beginning` decides where a feed goes on; `broker` says what is
asked of Kafka, and `client` asks it by the library confluent-kafka; `ingest` feeds a table without
Spark, and `lag` tells how far a table is behind.
"""
