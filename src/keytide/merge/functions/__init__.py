"""Aggregate functions: what the versions of a key become in one column.

Each function is a fold over a column's inputs, computed for all keys at once. Its docstring
states its laws: how NULL counts, whether order does, whether folding may be split up (fold of
folds equals fold of all), and what a retract takes back.
"""
