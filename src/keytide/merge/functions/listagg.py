"""Functions that combine strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from keytide.merge.functions.inputs import AggregateFunction, Inputs

__all__ = ["ListAgg"]


@dataclass(frozen=True)
class ListAgg(AggregateFunction):
    """The adds in order, separated by a delimiter.

    NULL and blank inputs (any white space) are skipped. If there are no others, the result is NULL,
    or empty in a NOT NULL column. Order matters. Aggregation can be split up. No retraction.

    With `distinct`, inputs are lists of tokens, and only tokens that are neither blank nor present
    are appended. The first input is unchanged.
    """

    name: ClassVar[str] = "listagg"

    delimiter: str = ","
    distinct: bool = False
    nullable: bool = True

    def fold(self, inputs: Inputs) -> pl.Series:
        """The combined strings."""
        rows = inputs.frame().filter(_is_not_blank("value")).sort("key", "rank")
        if self.distinct:
            rows = self._without_repeated_tokens(rows)
        texts = rows.group_by("key", maintain_order=True).agg("value")
        lists = inputs.per_key(texts.with_columns(pl.col("value").list.join(self.delimiter)))
        return lists if self.nullable else lists.fill_null("")

    def _without_repeated_tokens(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The first input of each key, then one row per token that is not yet present."""
        tokens = (
            rows.with_columns(
                is_first=pl.col("key").ne_missing(pl.col("key").shift(1)),
                token=pl.col("value").str.split(self.delimiter),
            )
            .explode("token")
            .with_row_index("place")
        )
        # This includes the tokens of the first input, which is unchanged but counts as present.
        is_repeated = pl.struct("key", "token").is_first_distinct().not_()
        news = tokens.filter(~pl.col("is_first") & ~is_repeated & _is_not_blank("token"))
        firsts = tokens.filter("is_first").unique("key", keep="first", maintain_order=True)
        columns = [pl.col("key"), pl.col("place")]
        return pl.concat(
            [
                firsts.select(*columns, "value"),
                news.select(*columns, pl.col("token").alias("value")),
            ]
        ).sort("key", "place")


def _is_not_blank(name: str) -> pl.Expr:
    return pl.col(name).str.strip_chars() != ""
