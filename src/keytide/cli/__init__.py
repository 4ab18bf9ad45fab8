"""The `keytide` command: look into tables and feed them, from a shell.

`address` finds the table that an argument names; `text` and `output` turn rows into a table, JSON
or CSV on standard output; `progress` is what standard error shows meanwhile. `catalog`, `read` and
`ingest` hold the commands, `main` puts them together and maps errors to exit codes.
"""
