"""SQL statements over tables, on the local engine or on Spark."""
