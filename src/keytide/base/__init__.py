"""The vocabulary of all packages: small values and functions that know nothing of tables."""
