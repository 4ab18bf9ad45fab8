"""Whether what is stored of a table is true: every file, against what is said of it."""
