"""What DuckDB asks of a dataset, cut into what a scan takes over and what Arrow does.

DuckDB does not look again at the conditions that it hands on: each has to be met, as DuckDB would.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import pyarrow.compute as pc

from keytide.errors import KeytideError
from keytide.table.conditions.arrow_expression import terms_of_arrow
from keytide.table.conditions.condition import predicate_of
from keytide.table.conditions.predicate import Predicate, columns_of, conjunction
from keytide.types import Field

__all__ = ["Asked"]

_LOG = logging.getLogger("keytide.plan")


@dataclass(frozen=True)
class Asked:
    """The conditions of a query on a table, all of which have to hold."""

    pushed: Predicate | None = None
    """What a scan looks at, of rows too."""
    left: pc.Expression | None = None
    """What is to be asked of the rows that it gives."""

    @classmethod
    def of(cls, filter: pc.Expression | None, fields: Sequence[Field], table: str) -> Asked:
        """The conditions of an expression of Arrow over some columns."""
        by_name = {field.name: field for field in fields}
        pushed, left = [], []
        for term in [] if filter is None else terms_of_arrow(filter):
            predicate = _read(term, by_name, table)
            if predicate is None:
                left.append(term)
            else:
                pushed.append(predicate)
        if left:
            _LOG.debug("%s: asked of rows alone for DuckDB: %s", table, left)
        return cls(conjunction(pushed), reduce(and_, left) if left else None)


def _read(term: pc.Expression, fields: Mapping[str, Field], table: str) -> Predicate | None:
    try:
        predicate = predicate_of(term, tuple(fields.values()), table)
    except KeytideError:
        return None
    # DuckDB heeds trailing blanks, which are none of a CHAR's value to a scan.
    is_padded = any(fields[name].type.root == "CHAR" for name in columns_of(predicate))
    return None if is_padded else predicate
