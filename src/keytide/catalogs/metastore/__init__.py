"""Tables that are registered in a metastore: AWS Glue or a Hive Metastore."""
