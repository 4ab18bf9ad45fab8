"""The `keytide` command: inspects tables and loads data into them from a shell.

`address` finds the table that an argument names. `output` and `grid` write rows as a table, JSON or
CSV to standard output. `progress` reports progress on standard error. `catalog`, `read` and
`ingest` contain commands. `main` combines them and maps errors to exit codes.
"""
