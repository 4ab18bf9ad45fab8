"""The `keytide` command: inspects tables and loads data into them from a shell.

`common_options` finds the table that an argument names. `output` writes rows as a table, JSON or
CSV to standard output, and progress to standard error. `inspection`, `feeds`, `maintenance` and
others contain commands. `main` combines them and maps errors to exit codes.
"""
