"""Aggregate functions: how the versions of a key are combined in one column.

Each function aggregates a column's inputs, for all keys together. Its docstring states its laws:
the effect of NULL, whether order matters, whether aggregation can be split up (aggregating partial
aggregates gives the same result), and the effect of a retract.
"""
