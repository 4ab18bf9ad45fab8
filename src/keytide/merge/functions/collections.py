"""Merge functions that combine sets, arrays, strings, maps and nested tables.

Sets of integers are serialized roaring bitmaps, and approximate sets are Apache DataSketches
sketches. A map is a list of structs of key and value. A nested table is an array of ROWs that is
updated row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import polars as pl
from pyroaring import BitMap, BitMap64

from keytide.base.dataclass import dataclass
from keytide.base.process import library
from keytide.errors import InvalidError
from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.functions.roaring import decode_bitmap64, encode_bitmap32, encode_bitmap64
from keytide.merge.refusal import Refusal
from keytide.merge.windows import Marks, take
from keytide.options import keys

# -- sets of integers ------------------------------------------------------------------------------


class _Serialized(AggregateFunction):
    """The union of the adds, sets of which each is one value of bytes."""

    stands_anywhere: ClassVar[bool] = True
    kind: ClassVar[str]
    """What a value is, for people."""
    errors: ClassVar[tuple[type[Exception], ...]] = (ValueError,)
    """What `union` raises for a value that is not such a set."""

    def refusals(self, values: pl.Series, adds: Marks, retracts: Marks) -> Iterator[Refusal]:
        """Values that are not such a set. Raises `SetupError` without the library."""
        library = self.library()
        wrong = []
        for value in values.filter(pl.Series(adds)).drop_nulls().unique():
            try:
                self.union(library, [value])
            except self.errors:  # noqa: PERF203  # each value is judged by itself
                wrong.append(value)
        is_wrong = values.is_in(pl.Series(wrong, dtype=values.dtype).implode())
        yield Refusal(is_wrong.fill_null(value=False).to_numpy() & adds, self._not_serialized)

    def fold(self, inputs: Inputs) -> pl.Series:
        """The unions. Values are decoded one by one, because they have no columnar form."""
        library = self.library()
        sets = inputs.frame().group_by("key", maintain_order=True).agg("value")
        try:
            unions = [self.union(library, list(values)) for values in sets["value"]]
        except self.errors as error:
            raise InvalidError(f"{self._not_serialized}: {error}") from None
        return inputs.per_key(sets.with_columns(pl.Series("value", unions, pl.Binary)))

    @property
    def _not_serialized(self) -> str:
        return (
            f"column {self.column!r}: aggregate function {self.name!r} found a value that is "
            f"no serialized {self.kind} as this function takes them"
        )

    def library(self) -> Any:
        """The library that `union` needs, if it is optional. Raises `SetupError` without it."""
        return None

    def union(self, library: Any, values: Sequence[bytes]) -> bytes:
        """The bytes of the union."""
        raise NotImplementedError


class RoaringBitmap32(_Serialized):
    """The union of the adds, bitmaps of 32-bit integers in the portable roaring format.

    NULL is ignored. Order does not matter, and aggregation can be split up. Equal sets have equal
    bytes. No retraction. Raises `InvalidError` for a value that is not such a bitmap.
    """

    name: ClassVar[str] = "rbm32"
    kind: ClassVar[str] = "roaring bitmap"

    def union(self, library: Any, values: Sequence[bytes]) -> bytes:
        """The bytes of the union. Raises `ValueError` for a value that is not such a bitmap."""
        if not all(values):
            raise ValueError("it has no bytes")
        return encode_bitmap32(BitMap.union(*map(BitMap.deserialize, values)))


class RoaringBitmap64(RoaringBitmap32):
    """The union of bitmaps of 64-bit integers in Java's layout, with the laws of `rbm32`."""

    name: ClassVar[str] = "rbm64"

    def union(self, library: Any, values: Sequence[bytes]) -> bytes:
        """The bytes of the union. Raises `ValueError` for a value that is not such a bitmap."""
        return encode_bitmap64(BitMap64.union(*map(decode_bitmap64, values)))


# -- approximate sets ------------------------------------------------------------------------------


_THETA_LG_SIZE = 12
"""A theta union keeps 4096 hashes, as in the format's other engines."""


class _Sketch(_Serialized):
    kind: ClassVar[str] = "sketch"
    errors: ClassVar[tuple[type[Exception], ...]] = (IndexError, RuntimeError, ValueError)
    """The library's errors for unknown bytes."""

    def library(self) -> Any:
        """Apache DataSketches. Raises `SetupError` without it."""
        needed_for = f"column {self.column!r}: aggregate function {self.name!r}"
        return library("datasketches", "sketches", needed_for)


class HllSketch(_Sketch):
    """The union of the adds, HLL sketches of Apache DataSketches.

    NULL is ignored. Order does not matter, and aggregation can be split up, because the registers
    are the same. The union of sketches with different sizes has the smallest size. No retraction.
    Raises `InvalidError` for a value that is not such a sketch, and `SetupError` without the
    library.
    """

    name: ClassVar[str] = "hll_sketch"

    def union(self, library: Any, values: Sequence[bytes]) -> bytes:
        """The HLL union, in its compact form."""
        sketches = [library.hll_sketch.deserialize(value) for value in values]
        # A larger sketch can be reduced to fewer registers, but not the other way round.
        union = library.hll_union(min(sketch.lg_config_k for sketch in sketches))
        for sketch in sketches:
            union.update(sketch)
        compact: bytes = union.get_result().serialize_compact()
        return compact


class ThetaSketch(_Sketch):
    """The union of the adds, theta sketches of Apache DataSketches, with the laws of `hll_sketch`.

    The union keeps the 4096 smallest hashes. Up to that many members it is exact.
    """

    name: ClassVar[str] = "theta_sketch"

    def union(self, library: Any, values: Sequence[bytes]) -> bytes:
        """The theta union, in its compact form."""
        union = library.theta_union(_THETA_LG_SIZE)
        for value in values:
            union.update(library.compact_theta_sketch.deserialize(value))
        compact: bytes = union.get_result().serialize()
        return compact


# -- arrays ----------------------------------------------------------------------------------------


_PLACE = pl.col("place").cast(pl.Int64)
_IS_ADD = pl.col("is_add")


@dataclass(frozen=True)
class Collect(AggregateFunction):
    """The elements of all adds. A retract removes one occurrence of each of its elements.

    NULL inputs are ignored, but NULL elements are kept. If all adds are NULL, the result is NULL.
    With `distinct`, equal elements are kept once, and a retract removes them. Elements, including
    nested ones, are compared by value. They are in order of arrival, but no order is guaranteed. A
    retract of a missing element has no effect. So adds can be aggregated in parts, but with
    retracts only from the oldest input on.
    """

    name: ClassVar[str] = "collect"
    can_retract: ClassVar[bool] = True

    distinct: bool = False

    def fold(self, inputs: Inputs) -> pl.Series:
        """The collected arrays."""
        items = inputs.items()
        if self.distinct or inputs.retracts.any():
            if self.distinct:
                # Of equal elements, the first one added after the last removed one. -1 precedes
                # every position: nothing was removed.
                taken_back = _PLACE.filter(~_IS_ADD).max().fill_null(-1)
                kept = _PLACE.filter(_IS_ADD & _PLACE.gt(taken_back)).head(1)
            else:
                # Of equal elements, those that remain if each retract removes the oldest one. The
                # count never decreases below zero: a retract of a missing element has no effect.
                count = pl.when(_IS_ADD).then(1).otherwise(-1).cum_sum()
                left = count.last() - pl.min_horizontal(count.min(), 0)
                kept = _PLACE.filter(_IS_ADD & (_IS_ADD.cum_sum(reverse=True) <= left))
            items = items.group_by("key", "value", maintain_order=True).agg(place=kept)
            items = items.explode("place", empty_as_null=False, keep_nulls=False)
        return inputs.lists_of(items)

    def needs_older(self, inputs: Inputs) -> Marks:
        """Retracts of missing elements or, with `distinct`, of elements not added again."""
        items = inputs.items()
        if self.distinct:
            return inputs.not_added_again(items, ["key", "value"])

        # The rows of the retracts that find no element to remove.
        count = pl.when(_IS_ADD).then(1).otherwise(-1).cum_sum()
        lowest_before = pl.min_horizontal(count.cum_min().shift(1, fill_value=0), 0)
        return inputs.rows_of(
            items.group_by("key", "value").agg(
                row=pl.col("row").filter(~_IS_ADD & (count < lowest_before))
            )
        )


class Union(AggregateFunction):
    """The distinct elements of all adds in ascending order, NULL first.

    NULL inputs are ignored. If only one input is not NULL, it is unchanged, neither sorted nor
    deduplicated. Order does not matter, and aggregation can be split up. No retraction.
    """

    name: ClassVar[str] = "union"
    stands_anywhere: ClassVar[bool] = True

    def fold(self, inputs: Inputs) -> pl.Series:
        """The combined arrays."""
        present = inputs.adds & inputs.is_present
        items = inputs.items().unique(["key", "value"]).sort("key", "value", nulls_last=False)
        united = inputs.lists_of(items.drop("place").with_row_index("place"))
        is_alone = pl.Series(inputs.slices.count_where(present) == 1)
        only = take(inputs.values, inputs.slices.last_where(present))
        as_they_are: pl.Series = only.zip_with(is_alone, united)
        return as_they_are


# -- strings ---------------------------------------------------------------------------------------


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
        rows = inputs.frame().filter(pl.col("value").str.strip_chars() != "").sort("key", "rank")
        if self.distinct:
            # The first input of each key, then one row per token that is not yet present.
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
            news = tokens.filter(
                ~pl.col("is_first") & ~is_repeated & (pl.col("token").str.strip_chars() != "")
            )
            firsts = tokens.filter("is_first").unique("key", keep="first", maintain_order=True)
            columns = [pl.col("key"), pl.col("place")]
            rows = pl.concat(
                [
                    firsts.select(*columns, "value"),
                    news.select(*columns, pl.col("token").alias("value")),
                ]
            ).sort("key", "place")
        texts = rows.group_by("key", maintain_order=True).agg("value")
        lists = inputs.per_key(texts.with_columns(pl.col("value").list.join(self.delimiter)))
        return lists if self.nullable else lists.fill_null("")


# -- maps ------------------------------------------------------------------------------------------


_ENTRY = pl.col("value").struct


class MergeMap(AggregateFunction):
    """The entries of all adds. Of equal keys the last one wins. A retract removes its keys.

    Values of retracts are not compared. NULL inputs are ignored. If all adds are NULL, the result
    is NULL. It can be empty. Adds can be aggregated in parts. With retracts, only from the oldest
    input on. The order of entries is not guaranteed.
    """

    name: ClassVar[str] = "merge_map"
    can_retract: ClassVar[bool] = True

    def fold(self, inputs: Inputs) -> pl.Series:
        """The combined maps."""
        entries = inputs.items().with_columns(name=_ENTRY[0])
        if inputs.retracts.any():
            taken_back = pl.col("row").filter(~pl.col("is_add")).max().fill_null(-1)
            entries = entries.filter(
                pl.col("is_add") & (pl.col("row") > taken_back.over("key", "name"))
            )
        last = entries.sort("rank", "place").unique(["key", "name"], keep="last")
        return inputs.lists_of(last)

    def needs_older(self, inputs: Inputs) -> Marks:
        """Retracts of keys that are not added again."""
        return inputs.not_added_again(inputs.items().with_columns(name=_ENTRY[0]), ["key", "name"])


@dataclass(frozen=True)
class MergeMapWithKeyTime(AggregateFunction):
    """The entries of all adds. Of equal keys the one with the largest time wins.

    The time is a field of the entry's ROW, compared as a string. Of equal times the first one wins.
    A NULL ROW removes its key. A ROW without a time is skipped. The first non-NULL map is
    unchanged. No retraction. A NULL ROW removes earlier entries, so aggregation can be split up
    only from the oldest input on.
    """

    name: ClassVar[str] = "merge_map_with_keytime"
    folds_adds: ClassVar[bool] = False

    time: str = ""

    def fold(self, inputs: Inputs) -> pl.Series:
        """The combined maps."""
        entries = inputs.items().with_columns(
            name=_ENTRY[0],
            time=_ENTRY[1].struct.field(self.time).cast(pl.String),
            is_removal=_ENTRY[1].is_null(),
            is_base=pl.col("row").is_in(inputs.earliest(inputs.adds & inputs.is_present)),
        )
        entries = entries.sort("rank", "place").drop("place").with_row_index("place")
        place = pl.col("place").cast(pl.Int64)
        # An entry with a NULL ROW removes its key only in a later map. In the first map it is an
        # entry.
        removed = place.filter(pl.col("is_removal") & ~pl.col("is_base")).max().fill_null(-1)
        newest = (
            entries.filter(place > removed.over("key", "name"))
            .filter(pl.col("is_base") | pl.col("time").is_not_null())
            .sort("time", "place", descending=[True, False], nulls_last=True)
            .unique(["key", "name"], keep="first", maintain_order=True)
        )
        return inputs.lists_of(newest)

    def needs_older(self, inputs: Inputs) -> Marks:
        """Maps that remove keys."""
        entries = inputs.items().filter(_ENTRY[1].is_null())
        return inputs.rows_of(entries.group_by("key").agg("row"))


# -- nested tables ---------------------------------------------------------------------------------


_ROW = pl.col("value").struct


@dataclass(frozen=True)
class _NestedTable(AggregateFunction):
    key: tuple[str, ...] = ()
    null_strategy: str = "merge"
    """How a row with NULL in its key is handled: `merge` like others, `ignore`, or `error`."""

    def refusals(self, values: pl.Series, adds: Marks, retracts: Marks) -> Iterator[Refusal]:
        """Nested rows with NULL in their key, if that is an error."""
        if not self.key or self.null_strategy != "error":
            return
        element = pl.element().struct
        is_incomplete = pl.any_horizontal(element.field(name).is_null() for name in self.key)
        has_one = values.list.eval(pl.element().is_not_null() & is_incomplete).list.any()
        marks = has_one.fill_null(value=False).to_numpy()
        yield Refusal(marks & (adds | retracts), self._null_in_key)

    def rows_of(self, inputs: Inputs) -> pl.DataFrame:
        """The nested rows in rank order, with their key fields as columns `key_0`, ..."""
        rows = inputs.items().filter(pl.col("value").is_not_null())
        rows = rows.with_columns(_ROW.field(k).alias(f"key_{i}") for i, k in enumerate(self.key))
        rows = rows.sort("rank", "place").drop("place").with_row_index("place")
        if not self.key or self.null_strategy == "merge":
            return rows
        is_complete = pl.all_horizontal(pl.col(name).is_not_null() for name in self._key_columns)
        complete = rows.filter(is_complete)
        if self.null_strategy == "error" and complete.height < rows.height:
            raise InvalidError(self._null_in_key)
        return complete

    @property
    def _null_in_key(self) -> str:
        return (
            f"column {self.column!r}: an element has NULL in its nested key "
            f"({', '.join(self.key)}); set "
            f"'{keys.key_of(keys.NESTED_KEY_NULL_STRATEGY, self.column)}' to 'ignore' or 'merge' "
            "to accept such rows"
        )

    @property
    def _key_columns(self) -> list[str]:
        return [f"key_{i}" for i in range(len(self.key))]


@dataclass(frozen=True)
class NestedUpdate(_NestedTable):
    """The rows of all adds. Of equal nested keys the last one wins. A retract removes its keys.

    With a nested sequence, the row with the largest sequence wins (NULL lowest, ties to the later
    one). Without a nested key all rows are kept, and a retract removes equal rows. NULL inputs and
    NULL rows are ignored. If all adds are NULL, the result is NULL. It can be empty. `count_limit`
    drops rows of new keys above the limit, counted after retracts have been applied.

    Aggregation can be split up from the oldest input on, and without a limit anywhere. With
    retracts it can be split up from the oldest input on, but not at all if they are combined with a
    limit. The order of rows is not guaranteed.
    """

    name: ClassVar[str] = "nested_update"
    can_retract: ClassVar[bool] = True

    sequence: tuple[str, ...] = ()
    count_limit: int | None = None

    def fold(self, inputs: Inputs) -> pl.Series:
        """The updated tables."""
        rows = self.rows_of(inputs)
        identity = ["key", *self._key_columns] if self.key else ["key", "value"]
        if inputs.retracts.any():
            taken_back = pl.col("row").filter(~pl.col("is_add")).max().fill_null(-1)
            rows = rows.filter(pl.col("is_add") & (pl.col("row") > taken_back.over(identity)))
        if self.key:
            # The last row of each nested key, at the position of its first one.
            sequence = [_ROW.field(n).alias(f"sequence_{i}") for i, n in enumerate(self.sequence)]
            ordered = rows.sort(*sequence, "place", nulls_last=False)
            rows = ordered.group_by(identity, maintain_order=True).agg(
                pl.col("place").min(), pl.col("value").last()
            )
        if self.count_limit is not None:
            # Counted in order of arrival of the keys, so that the first rows are kept.
            rows = rows.sort("key", "place")
            rows = rows.filter(pl.int_range(pl.len()).over("key") < self.count_limit)
        return inputs.lists_of(rows)

    @property
    def folds_adds(self) -> bool:  # type: ignore[override]  # other functions know it by class
        """True unless there is a limit, for which older rows count too."""
        return self.count_limit is None

    def needs_older(self, inputs: Inputs) -> Marks:
        """Retracts of rows that no later add replaces, and rows above the limit."""
        rows = self.rows_of(inputs)
        if self.key and not self.sequence and self.count_limit is None:
            return inputs.not_added_again(rows, ["key", *self._key_columns])
        marks = inputs.rows_of(rows.filter(~pl.col("is_add")).group_by("key").agg("row"))
        if self.count_limit is None:
            return marks
        # The adds with more rows, or more keys, than the limit allows.
        adds = rows.filter("is_add").sort("key", "place")
        if self.key:
            adds = adds.unique(["key", *self._key_columns], keep="first", maintain_order=True)
        exceeding = adds.filter(pl.int_range(pl.len()).over("key") >= self.count_limit)
        return marks | inputs.rows_of(exceeding.group_by("key").agg("row"))


@dataclass(frozen=True)
class NestedPartialUpdate(_NestedTable):
    """The rows of all adds. Rows with equal nested keys are merged: each field's last value.

    NULL fields, rows and inputs are ignored. If all adds are NULL, the result is NULL. Aggregation
    can be split up. No retraction. The order of rows is not guaranteed.
    """

    name: ClassVar[str] = "nested_partial_update"

    def fold(self, inputs: Inputs) -> pl.Series:
        """The updated tables."""
        rows = self.rows_of(inputs)
        members = [member.name for member in rows.schema["value"].fields]  # type: ignore[attr-defined]  # rows
        merged = pl.struct(_ROW.field(name).drop_nulls().last().alias(name) for name in members)
        rows = rows.group_by("key", *self._key_columns, maintain_order=True).agg(
            pl.col("place").min(), value=merged
        )
        return inputs.lists_of(rows)
