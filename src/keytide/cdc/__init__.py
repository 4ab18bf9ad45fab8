"""Change feeds decoded to typed rows: Debezium, Maxwell, Canal and AWS DMS, as JSON."""
