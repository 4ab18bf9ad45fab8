"""The table of messages that could not be applied, with the reason for each."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from keytide.catalogs.catalog import Catalog, NewTable
from keytide.commit.author import Author
from keytide.errors import InvalidError, NotFoundError
from keytide.snapshot.stored import StoredTable
from keytide.spark.write import append
from keytide.types import BYTES, STRING, AtomicType, Field

__all__ = ["DeadLetters"]

_COLUMNS = (
    Field(-1, "digest", STRING),
    Field(-1, "reason", STRING),
    Field(-1, "raw", BYTES),
    Field(-1, "batch_id", AtomicType("BIGINT")),
)
_KEY = ["digest"]


class DeadLetters:
    r"""The dead letters of one table, keyed by digest: a message delivered twice is stored once.

    `raw` is BYTES and contains the message unchanged. In a table where it is STRING, a message that
    is not valid UTF-8 is stored as `\x` and its hexadecimal digits.
    """

    def __init__(self, catalog: Catalog, name: str, subject: str) -> None:
        """The dead letters of the table `subject`. The table `name` is created on the first one.

        Raises `InvalidError` when the table exists and has the wrong definition.
        """
        self._catalog = catalog
        self._name = name
        self._subject = subject
        try:
            _check(catalog.table(name))
        except NotFoundError:
            return

    def keep(self, letters: DataFrame, batch_id: int) -> None:
        """Store messages (`raw` as bytes, `reason`) once, however often a batch is repeated.

        The key, a digest of the message, removes duplicates. The batch's own commit identifier is
        not used, because a repeated batch can refuse other messages than the first attempt did.
        Raises what `append` raises.
        """
        table = self._table()
        raw = F.col("raw")
        rows = letters.select(
            F.sha2(raw, 256).alias("digest"),
            F.col("reason"),
            (_as_text(raw) if _holds_text(table) else raw).alias("raw"),
            F.lit(batch_id).cast("long").alias("batch_id"),
        )
        append(table, rows, Author.fresh())

    def _table(self) -> StoredTable:
        try:
            return self._catalog.table(self._name)
        except NotFoundError:
            comment = f"messages that could not be applied to {self._subject}"
            wanted = NewTable(_COLUMNS, _KEY, comment=comment)
            return self._catalog.create_table(self._name, wanted, exists_ok=True)


def _check(table: StoredTable) -> None:
    found = {f.name: f.type.with_nullable(True) for f in table.schema.fields}
    wanted = {f.name: f.type for f in _COLUMNS}
    if found | {"raw": BYTES} == wanted and found["raw"] in (BYTES, STRING):
        return
    raise InvalidError(
        f"table {table.name} cannot store dead letters: it has the columns "
        f"{', '.join((f'{n} {t.sql()}' for n, t in found.items()))}, expected "
        f"{', '.join((f'{n} {t.sql()}' for n, t in wanted.items()))}; give a new name, and the "
        "table is created"
    )


def _holds_text(table: StoredTable) -> bool:
    return bool(table.schema.field("raw").type.with_nullable(True) == STRING)


def _as_text(raw: Column) -> Column:
    text = F.try_validate_utf8(raw.cast("string"))
    return F.coalesce(text, F.concat(F.lit("\\x"), F.lower(F.hex(raw))))
