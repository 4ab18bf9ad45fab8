"""Decodes messages to typed rows, in the same way for every format and wherever it runs.

Each column is converted separately. A value that does not fit only rejects its own message.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.arguments import checked
from keytide.feeds.documents import as_bytes, read_documents
from keytide.feeds.feed import (
    MESSAGE_COLUMN,
    ORDINAL_COLUMN,
    REJECTED_SCHEMA,
    UNAVAILABLE_COLUMN,
    Decoded,
    Envelope,
    FeedSpec,
)
from keytide.feeds.formats import envelope_of
from keytide.feeds.json_sql import JsonValues
from keytide.feeds.parse import STEP, Changes, Image, parse, read_json
from keytide.feeds.values import Encoding, convert
from keytide.types import AtomicType, Field

__all__ = ["decode"]


@checked
def decode(messages: pa.Array | pa.ChunkedArray, spec: FeedSpec) -> Decoded:
    """Decode a batch of messages, JSON documents as strings or bytes, to row changes.

    A message can be NULL. Invalid messages are returned as rejected and never raise. The function
    is pure, single-threaded and safe in executors. The same batch always gives the same result.
    Time and memory are proportional to the batch.

    Raises InvalidError for an unknown format and for messages of another type.
    """
    envelope = envelope_of(spec.format)
    messages = as_bytes(messages)
    events, layouts = parse(read_documents(messages), spec, envelope)
    typed = [_typed(changes, spec, envelope) for changes in layouts]
    rows = pa.concat_tables(typed)
    # Layouts were decoded one by one, but the original order of messages decides between versions.
    if len(typed) > 1:
        rows = rows.sort_by(STEP)
    refused = _refused(events, pl.DataFrame(rows.select([ORDINAL_COLUMN, _PROBLEM])))
    ordinals = pl.Series(values=rows[ORDINAL_COLUMN])
    # A message is accepted or rejected as a whole, because half of its rows is an invalid state.
    accepted = ~ordinals.is_in(refused["ordinal"].implode())
    return Decoded(
        rows=_with_messages(rows.filter(accepted.to_arrow()), messages, spec),
        rejected=_rejected(messages, refused),
        tombstones=_count(events, "tombstone"),
        control=_count(events, "control"),
    )


_PROBLEM = "_problem"


def _with_messages(
    rows: pa.Table, messages: pa.Array | pa.ChunkedArray, spec: FeedSpec
) -> pa.Table:
    """Add the message to each row with omitted values, because it may be rejected later."""
    is_whole = pc.equal(pc.list_value_length(rows[UNAVAILABLE_COLUMN]), 0)
    places = pc.if_else(is_whole, pa.scalar(None, pa.int64()), rows[ORDINAL_COLUMN])
    kept = messages.take(places).cast(pa.binary())
    return rows.append_column(MESSAGE_COLUMN, kept).select(spec.rows_schema.names)


def _count(events: pl.DataFrame, action: str) -> int:
    return int((events["action"] == action).sum())


def _refused(events: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The ordinal and the first problem of each message with a problem."""
    judged = rows.select(ordinal=ORDINAL_COLUMN, problem=_PROBLEM)
    problems = pl.concat([events.select("ordinal", "problem"), judged]).drop_nulls("problem")
    return problems.unique("ordinal", keep="first", maintain_order=True).sort("ordinal")


def _rejected(messages: pa.Array | pa.ChunkedArray, refused: pl.DataFrame) -> pa.Table:
    ordinals = refused["ordinal"].to_arrow()
    return pa.table(
        [messages.take(ordinals), refused["problem"].to_arrow(), ordinals],
        names=REJECTED_SCHEMA.names,
    ).cast(REJECTED_SCHEMA)


def _typed(changes: Changes, spec: FeedSpec, envelope: Envelope) -> pa.Table:
    """The typed rows of one layout, with ``_step`` and the ``_problem`` of each row."""
    steps, images = changes.steps, changes.images
    default = spec.encoding or envelope.encoding
    problems: list[pl.Series] = []
    schema = read_json(changes.schema)
    if schema is None and changes.schema != "null":
        unreadable = "schema: nested too deep to be read"
        problems = [pl.repeat(unreadable, len(steps), eager=True)]
    encodings = envelope.read_layout(schema, default)
    arrays = [
        convert(images[column.name].values, column.type, encodings.get(column.name, default))
        for column in spec.columns
    ]
    for column, array in zip(spec.columns, arrays, strict=True):
        encoding = encodings.get(column.name, default)
        problems += _problems(column, images[column.name], array, steps["kind"], spec, encoding)
    problems.append(_without_values(images, steps))
    arrays += [
        steps["kind"].to_arrow().cast(pa.string()),
        steps["ordinal"].to_arrow(),
        _unavailable_names(images, len(steps)),
        steps[STEP].to_arrow(),
        _first_problems(problems, len(steps)).to_arrow(),
    ]
    names = [name for name in spec.rows_schema.names if name != MESSAGE_COLUMN]
    return pa.table(arrays, names=[*names, STEP, _PROBLEM])


def _problems(
    column: Field,
    image: Image,
    array: pa.Array,
    kinds: pl.Series,
    spec: FeedSpec,
    encoding: Encoding,
) -> list[pl.Series]:
    """Reasons to reject rows because of one column: a string for these rows, None for others."""
    text = image.values.text
    place, expected = pl.lit(f"column {column.name}"), column.type.with_nullable(True).sql()
    unfit = pl.Series(values=array.is_null()) & text.is_not_null()
    unit_problems = _without_unit(column, image.values, encoding) if unfit.any() else None
    lacking = text.is_null() & _is_required(column, image, kinds, spec)
    problems = []
    if unit_problems is not None:
        problems.append(unit_problems)
    if unfit.any():
        reason = pl.format(f"{{}}: found {{}}, expected {expected}", place, _shown(image.values))
        problems.append(pl.select(pl.when(unfit).then(reason)).to_series())
    if lacking.any():
        reason = pl.format(f"{{}}: found no value, expected {expected} NOT NULL", place)
        problems.append(pl.select(pl.when(lacking).then(reason)).to_series())
    return problems


def _without_values(images: Mapping[str, Image], steps: pl.DataFrame) -> pl.Series:
    """Reasons to reject an update of the key whose values are those of another row, the old one."""
    moves = steps["moved"] & (steps["kind"] == "+I")
    lacking = {name: image.left_out & moves for name, image in images.items()}
    names = [pl.when(pl.lit(flag)).then(pl.lit(n)) for n, flag in lacking.items() if flag.any()]
    if not names:
        return pl.repeat(None, len(steps), dtype=pl.String, eager=True)
    lists = pl.concat_list(names).list.drop_nulls()
    reason = pl.format(
        "an update of the key omits {}, which only the row of the old key has",
        lists.list.join(", "),
    )
    return pl.select(pl.when(lists.list.len() > 0).then(reason)).to_series()


def _without_unit(column: Field, values: JsonValues, encoding: Encoding) -> pl.Series | None:
    """Reasons to reject numbers of a time whose unit is unknown, with what they could mean."""
    root = column.type.root if isinstance(column.type, AtomicType) else ""
    name = "time_unit" if root == "TIME" else "timestamp_unit"
    if root not in ("TIME", "TIMESTAMP", "TIMESTAMP_LTZ") or getattr(encoding, name) is not None:
        return None
    number = pl.lit(values.text).cast(pl.Int64, strict=False)
    in_ms, in_us = pl.from_epoch(number, "ms"), pl.from_epoch(number, "us")
    reason = pl.format(
        f"column {column.name}: found {{}} without a unit, which is {{}} in ms but {{}} in us; "
        f"state encoding.{name}",
        number,
        in_ms.cast(pl.String),
        in_us.cast(pl.String),
    )
    return pl.select(pl.when(pl.lit(values.is_number)).then(reason)).to_series()


def _first_problems(problems: list[pl.Series], length: int) -> pl.Series:
    nothing = pl.repeat(None, length, dtype=pl.String, eager=True)
    return functools.reduce(pl.Series.fill_null, problems, nothing)


def _is_required(column: Field, image: Image, kinds: pl.Series, spec: FeedSpec) -> pl.Series | bool:
    """Whether the column must have a value: always for a key, otherwise if NOT NULL is written."""
    if column.name in spec.generated:
        return False
    if column.name in spec.primary_key:
        return True
    if column.type.nullable or column.default_value is not None:
        return False
    return ~image.left_out & kinds.is_in(["+I", "+U"])


def _shown(values: JsonValues) -> pl.Expr:
    """Values as reasons show them: strings in quotes, and long values truncated."""
    text = pl.lit(values.text)
    short = pl.when(text.str.len_chars() > 100).then(text.str.head(100) + "...").otherwise(text)
    quoted = pl.concat_str(pl.lit("'"), short, pl.lit("'"))
    return pl.when(pl.lit(values.type) == "VARCHAR").then(quoted).otherwise(short)


def _unavailable_names(images: Mapping[str, Image], length: int) -> pa.Array:
    """The names of the omitted columns for each row. An empty list if there are none."""
    names = [
        pl.when(image.left_out).then(pl.lit(name))
        for name, image in images.items()
        if image.left_out.any()
    ]
    if not names:
        return pa.ListArray.from_arrays(np.zeros(length + 1, np.int32), pa.array([], pa.string()))
    lists = pl.select(pl.concat_list(names).list.drop_nulls()).to_series()
    return lists.to_arrow().cast(pa.list_(pa.string()))
