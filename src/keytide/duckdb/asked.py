"""Splits the conditions that DuckDB pushes down between a scan and Arrow.

DuckDB does not evaluate conditions that it pushes down again, so each of them must be applied with
DuckDB's semantics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import pyarrow.compute as pc

from keytide.errors import KeytideError
from keytide.predicate.arrow_expression import terms_of_arrow
from keytide.predicate.condition import predicate_of
from keytide.predicate.predicate import Predicate, columns_of, conjunction
from keytide.types import Field

__all__ = ["Asked"]

_LOG = logging.getLogger("keytide.plan")


@dataclass(frozen=True)
class Asked:
    """The conditions of a query on a table, all of which must be true."""

    pushed: Predicate | None = None
    """The condition that a scan applies, also to rows."""
    left: pc.Expression | None = None
    """The condition that remains to be applied to its rows."""

    @classmethod
    def of(cls, filter: pc.Expression | None, fields: Sequence[Field], table: str) -> Asked:
        """The conditions in an Arrow expression over some columns."""
        by_name = {field.name: field for field in fields}
        pushed, left = [], []
        for term in [] if filter is None else terms_of_arrow(filter):
            predicate = _read(term, by_name, table)
            if predicate is None:
                left.append(term)
            else:
                pushed.append(predicate)
        if left:
            _LOG.debug("%s: only used on rows, for DuckDB: %s", table, left)
        return cls(conjunction(pushed), reduce(and_, left) if left else None)


def _read(term: pc.Expression, fields: Mapping[str, Field], table: str) -> Predicate | None:
    try:
        predicate = predicate_of(term, tuple(fields.values()), table)
    except KeytideError:
        return None
    # DuckDB respects trailing blanks, but a scan ignores them in a CHAR.
    is_padded = any(fields[name].type.root == "CHAR" for name in columns_of(predicate))
    return None if is_padded else predicate
