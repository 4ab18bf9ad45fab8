"""Tables whose names and places a metastore keeps: AWS Glue or a Hive Metastore."""
