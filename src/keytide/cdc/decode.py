"""From messages to typed rows, the same for every format and wherever it runs.

Two passes over the documents: one finds what was done and the row images, one reads the columns
of the images. Then each column is converted on its own; a value that does not fit rejects its
message and no other.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.arguments import checked
from keytide.cdc.canal import CANAL
from keytide.cdc.debezium import DEBEZIUM
from keytide.cdc.dms import DMS
from keytide.cdc.feed import (
    MESSAGE_COLUMN,
    ORDINAL_COLUMN,
    REJECTED_SCHEMA,
    UNAVAILABLE_COLUMN,
    Decoded,
    Envelope,
    FeedSpec,
)
from keytide.cdc.json_sql import (
    JsonValues,
    exact_numbers,
    literal,
    pointer,
    query,
    read_members,
)
from keytide.cdc.maxwell import MAXWELL
from keytide.cdc.values import convert
from keytide.errors import InvalidError
from keytide.types import Field

__all__ = [
    "FORMATS",
    "Documents",
    "decode",
    "envelope_of",
    "read_documents",
    "read_events",
    "read_schemas",
    "stated",
]

FORMATS: Mapping[str, Envelope] = {
    "debezium-json": DEBEZIUM,
    "maxwell-json": MAXWELL,
    "canal-json": CANAL,
    "dms-json": DMS,
}


def envelope_of(format: str) -> Envelope:
    """The envelope of a format; InvalidError names the known ones."""
    if format not in FORMATS:
        raise InvalidError(f"format: found {format!r}, expected one of {', '.join(FORMATS)}")
    return FORMATS[format]


@checked
def decode(messages: pa.Array | pa.ChunkedArray, spec: FeedSpec) -> Decoded:
    """The row changes of a batch of messages: JSON documents as text or bytes, null allowed.

    Bad messages are returned, never raised. Pure, single-threaded, safe in executors; the same
    batch gives the same result everywhere. Work and memory are proportional to the batch.
    Raises InvalidError when the format is unknown and for messages of another type.
    """
    envelope = envelope_of(spec.format)
    messages = _as_bytes(messages)
    documents = read_documents(messages)
    events, steps = _unfold(documents, spec, envelope)
    if _has_fractions(steps, spec):
        exact = documents.with_exact_numbers()
        if exact is not documents:
            events, steps = _unfold(exact, spec, envelope)
    schemas = read_schemas(documents, events, envelope)
    typed = [_typed(_of_layout(steps, each), spec, text) for each, text in schemas.items()]
    rows = pa.concat_tables(typed)
    if len(typed) > 1:
        rows = rows.sort_by(_STEP)
    refused = _refused(events, pl.DataFrame(rows.select([ORDINAL_COLUMN, _PROBLEM])))
    ordinals = pl.Series(values=rows[ORDINAL_COLUMN])
    accepted = ~ordinals.is_in(refused["ordinal"].implode())
    return Decoded(
        rows=_with_messages(rows.filter(accepted.to_arrow()), messages, spec),
        rejected=_rejected(messages, refused),
        tombstones=_count(events, "tombstone"),
        control=_count(events, "control"),
    )


def _as_bytes(messages: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    try:
        return messages.cast(pa.large_binary())
    except pa.ArrowException as error:
        raise InvalidError(
            f"messages: found {messages.type}, expected JSON documents as text or bytes"
        ) from error


class Documents(NamedTuple):
    """Messages as JSON, one line each.

    ``text`` is None for null and for bytes that are no UTF-8. ``shape`` is the JSON type of the
    whole, ``NULL`` for a null message too, ``GARBLED`` or ``INVALID``.
    """

    text: pl.Series
    shape: pl.Series

    @property
    def objects(self) -> pl.Series:
        """The texts of JSON objects, None for the others."""
        return self.text.set(self.shape != "OBJECT", None)

    def with_exact_numbers(self) -> Documents:
        """The documents rewritten so that long fractions are read without loss; self if none is."""
        objects = self.objects
        exact = exact_numbers(objects)
        return self if exact is objects else self._replace(text=exact)


def read_documents(messages: pa.Array | pa.ChunkedArray) -> Documents:
    """The messages, validated one by one. InvalidError for messages that are no text or bytes."""
    messages = _as_bytes(messages)
    text = _texts(messages)
    shape = pl.Series(values=query(_SHAPES_SQL, documents=_numbered(text)).column("shape"))
    return Documents(text, shape.set(pl.Series(values=messages.is_null()), "NULL"))


def read_events(
    documents: Documents, envelope: Envelope, paths: Sequence[str] = ()
) -> pl.DataFrame:
    """What the messages do: one line per changed row, or one for a message without any.

    The columns of :meth:`Envelope.events_sql`; a message that is no object has a ``problem``.
    """
    events = pl.DataFrame(
        query(envelope.events_sql(tuple(paths)), documents=_numbered(documents.objects))
    )
    is_object = documents.shape == "OBJECT"
    if is_object.all():
        return events
    events = events.filter(is_object.gather(events["ordinal"]))
    others = pl.DataFrame({"shape": documents.shape}).with_row_index("ordinal").filter(~is_object)
    return pl.concat([events, others.select(*_WITHOUT_OBJECT)], how="diagonal")


def read_schemas(
    documents: Documents, events: pl.DataFrame, envelope: Envelope
) -> dict[int | None, str]:
    """The JSON text of the schema of each layout in the events; `null` for messages without one."""
    carriers = events.drop_nulls("layout").unique("layout", keep="first", maintain_order=True)
    bare: dict[int | None, str] = {None: "null"}
    if envelope.wrapper is None or carriers.is_empty():
        return bare
    texts = documents.text.gather(carriers["ordinal"])
    [schemas] = read_members(texts.to_arrow(), [envelope.wrapper[1]])
    found = dict(zip(carriers["layout"], schemas.text.fill_null("null"), strict=True))
    return {**bare, **found} if events["layout"].null_count() else found


def stated(read: Callable[[Any], T], text: str) -> T | None:
    """What is read from JSON that should describe a feed; None where it describes nothing.

    Messages may say anything, so whatever reading trips over is an answer.
    """
    try:
        return read(json.loads(text))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None


T = TypeVar("T")

_STEP, _PROBLEM = "_step", "_problem"


def _with_messages(
    rows: pa.Table, messages: pa.Array | pa.ChunkedArray, spec: FeedSpec
) -> pa.Table:
    """The rows with the message of each whose values are not all there: it may yet be rejected."""
    is_whole = pc.equal(pc.list_value_length(rows[UNAVAILABLE_COLUMN]), 0)
    places = pc.if_else(is_whole, pa.scalar(None, pa.int64()), rows[ORDINAL_COLUMN])
    kept = messages.take(places).cast(pa.binary())
    return rows.append_column(MESSAGE_COLUMN, kept).select(spec.rows_schema.names)


_SHAPES_SQL = """
    SELECT CASE
        WHEN document IS NULL THEN 'GARBLED'
        WHEN NOT json_valid(document) THEN 'INVALID'
        WHEN starts_with(document, '{') THEN 'OBJECT'
        ELSE json_type(document) END AS shape
    FROM documents"""

_WITHOUT_OBJECT = (
    pl.col("ordinal").cast(pl.Int64),
    pl.when(pl.col("shape") == "NULL").then(pl.lit("tombstone")).alias("action"),
    pl.when(pl.col("shape") == "GARBLED")
    .then(pl.lit("not UTF-8 text"))
    .when(pl.col("shape") == "INVALID")
    .then(pl.lit("not valid JSON"))
    .when(pl.col("shape") != "NULL")
    .then(pl.format("JSON of type {}, expected an object", "shape"))
    .alias("problem"),
)


def _texts(messages: pa.Array | pa.ChunkedArray) -> pl.Series:
    try:
        # Text is looked at as bytes too: nothing says that it is UTF-8 before it was.
        text = messages.cast(pa.large_binary()).cast(pa.large_string())
        return pl.Series(values=text, dtype=pl.String)
    except pa.ArrowInvalid:
        found = query(
            "SELECT try(decode(message)) FROM messages",
            messages=pa.table({"message": messages.cast(pa.large_binary())}),
        )
        return pl.Series(values=found.column(0), dtype=pl.String)


def _numbered(documents: pl.Series) -> pa.Table:
    ordinals = pl.int_range(len(documents), eager=True)
    return pa.table({"ordinal": ordinals.to_arrow(), "document": documents.to_arrow()})


def _count(events: pl.DataFrame, action: str) -> int:
    return int((events["action"] == action).sum())


def _of_layout(steps: pl.DataFrame, layout: int | None) -> pl.DataFrame:
    return steps.filter(pl.col("layout").eq_missing(layout))


def _refused(events: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The ordinal and the first problem of every message that has one."""
    judged = rows.select(ordinal=ORDINAL_COLUMN, problem=_PROBLEM)
    problems = pl.concat([events.select("ordinal", "problem"), judged]).drop_nulls("problem")
    return problems.unique("ordinal", keep="first", maintain_order=True).sort("ordinal")


def _rejected(messages: pa.Array | pa.ChunkedArray, refused: pl.DataFrame) -> pa.Table:
    ordinals = refused["ordinal"].to_arrow()
    return pa.table(
        [messages.take(ordinals), refused["problem"].to_arrow(), ordinals],
        names=REJECTED_SCHEMA.names,
    ).cast(REJECTED_SCHEMA)


def _unfold(
    documents: Documents, spec: FeedSpec, envelope: Envelope
) -> tuple[pl.DataFrame, pl.DataFrame]:
    events = read_events(documents, envelope, [source.path for source in spec.sequence])
    return events, _steps(events, spec)


def _has_fractions(steps: pl.DataFrame, spec: FeedSpec) -> bool:
    """Whether a decimal column has values that the JSON parser may have rounded to doubles."""
    decimals = [column for column in spec.image_columns if "DECIMAL" in column.type.sql()]
    values = read_members(steps["image"].to_arrow(), [pointer(c.name) for c in decimals])
    return any(each.kind.is_in(["DOUBLE", "ARRAY", "OBJECT"]).any() for each in values)


def _steps(events: pl.DataFrame, spec: FeedSpec) -> pl.DataFrame:
    """One line per row to write, in order: its kind and the images to read it from.

    ``rest`` is the image to look at for what ``image`` leaves out.
    """
    accepted = events.filter(pl.col("action").is_in(_CHANGES) & pl.col("problem").is_null())
    keys = ", ".join(literal(pointer(name)) for name in spec.primary_key)
    moved = " OR ".join(
        f"coalesce(old_key[{i}] <> new_key[{i}], FALSE)"
        for i in range(1, len(spec.primary_key) + 1)
    )
    meta = "".join(f", meta_{i}" for i in range(len(spec.sequence)))
    both = "WHEN before IS NOT NULL THEN [before_step, after_step]" if spec.before_images else ""
    unfolded = query(
        f"""
        WITH keyed AS (
            SELECT *, action = 'update' AND before IS NOT NULL AS is_comparable,
                CASE WHEN is_comparable THEN json_extract_string(before, [{keys}]) END AS old_key,
                CASE WHEN is_comparable THEN json_extract_string(after, [{keys}]) END AS new_key
            FROM events),
        compared AS (SELECT *, {moved} AS moved FROM keyed),
        paired AS (
            SELECT *,
                {{'kind': CASE WHEN moved OR action = 'delete' THEN '-D' ELSE '-U' END,
                    'image': before, 'rest': after}} AS before_step,
                {{'kind': CASE WHEN moved OR action = 'insert' THEN '+I' ELSE '+U' END,
                    'image': after, 'rest': before}} AS after_step
            FROM compared),
        listed AS (
            SELECT *, unnest(CASE
                WHEN moved THEN [before_step, after_step]
                WHEN action = 'insert' THEN [after_step]
                WHEN action = 'delete' THEN [before_step]
                {both} ELSE [after_step] END) AS step
            FROM paired)
        SELECT ordinal, layout, action, step.kind, step.image, step.rest {meta} FROM listed""",
        events=accepted.to_arrow(),
    )
    return pl.DataFrame(unfolded).with_row_index(_STEP)


_CHANGES = ["insert", "update", "delete"]


def _typed(steps: pl.DataFrame, spec: FeedSpec, schema: str) -> pa.Table:
    """The typed rows of one layout, with ``_step`` and the ``_problem`` of each row."""
    envelope = envelope_of(spec.format)
    default = spec.encoding or envelope.encoding
    encodings = stated(lambda found: envelope.read_layout(found, default), schema)
    problems = [] if encodings is not None else [_unreadable(len(steps))]
    encodings = encodings or {}
    images = _images(steps, spec, envelope.placeholders(spec.unavailable_value))
    images |= {source.column: _metadata(steps, i) for i, source in enumerate(spec.sequence)}
    arrays = []
    for column in spec.columns:
        image = images[column.name]
        array = convert(image.values, column.type, encodings.get(column.name, default))
        arrays.append(array)
        problems += _problems(column, image, array, steps["kind"], spec)
    arrays += [
        steps["kind"].to_arrow().cast(pa.string()),
        steps["ordinal"].to_arrow(),
        _unavailable_names(images, len(steps)),
        steps[_STEP].to_arrow(),
        _first_problems(problems, len(steps)).to_arrow(),
    ]
    names = [name for name in spec.rows_schema.names if name != MESSAGE_COLUMN]
    return pa.table(arrays, names=[*names, _STEP, _PROBLEM])


class _Image(NamedTuple):
    """A column as the images give it; ``left_out`` marks values that exist but are not sent."""

    values: JsonValues
    left_out: pl.Series


def _images(steps: pl.DataFrame, spec: FeedSpec, placeholders: list[str]) -> dict[str, _Image]:
    """The image columns by name."""
    names = [column.name for column in spec.image_columns]
    found = read_members(steps["image"].to_arrow(), [pointer(name) for name in names])
    images = {}
    for name, values in zip(names, found, strict=True):
        image = _completed(name, values, steps, placeholders)
        if name in spec.empty_as_null:
            text = image.values.text
            image = image._replace(values=image.values.with_text(text.set(text == "", None)))
        images[name] = image
    return images


def _completed(
    name: str, values: JsonValues, steps: pl.DataFrame, placeholders: list[str]
) -> _Image:
    """A column with its gaps filled from the other image of the same change.

    A placeholder stands for a value that the change did not touch, so the other image may have
    it. A column missing from an image before the change was not touched either.
    """
    covered = _is_one_of(values.text, placeholders)
    is_before = steps["kind"].is_in(["-D", "-U"])
    gap = covered | (values.kind.is_null() & is_before)
    if gap.any():
        [rest] = read_members(steps["rest"].set(~gap, None).to_arrow(), [pointer(name)])
        known = gap & rest.kind.is_not_null() & ~_is_one_of(rest.text, placeholders)
        # NULL in the other image may only mean that it was not sent.
        known &= ~covered | rest.text.is_not_null()
        values = JsonValues(
            rest.text.zip_with(known, values.text), rest.kind.zip_with(known, values.kind)
        )
        covered &= ~known
    # A new row has no earlier value to keep, and a deleted one needs none.
    is_silent = values.kind.is_null() & (steps["action"] == "update")
    left_out = (covered | is_silent) & (steps["kind"] != "-D")
    return _Image(values.with_text(values.text.set(covered, None)), left_out)


def _is_one_of(text: pl.Series, placeholders: list[str]) -> pl.Series:
    return text.is_in(placeholders).fill_null(False)


def _metadata(steps: pl.DataFrame, place: int) -> _Image:
    """An ordering column: feed metadata, where a missing value is NULL."""
    [values] = read_members(steps[f"meta_{place}"].to_arrow(), ["$"])
    return _Image(values, pl.repeat(False, len(steps), dtype=pl.Boolean, eager=True))


def _problems(
    column: Field, image: _Image, array: pa.Array, kinds: pl.Series, spec: FeedSpec
) -> list[pl.Series]:
    """Reasons not to take rows because of one column: text at those rows, None elsewhere."""
    text = image.values.text
    place, expected = pl.lit(f"column {column.name}"), column.type.with_nullable(True).sql()
    unfit = pl.Series(values=array.is_null()) & text.is_not_null()
    lacking = text.is_null() & _is_required(column, image, kinds, spec)
    problems = []
    if unfit.any():
        reason = pl.format(f"{{}}: found {{}}, expected {expected}", place, _shown(image.values))
        problems.append(pl.select(pl.when(unfit).then(reason)).to_series())
    if lacking.any():
        reason = pl.format(f"{{}}: found no value, expected {expected} NOT NULL", place)
        problems.append(pl.select(pl.when(lacking).then(reason)).to_series())
    return problems


def _unreadable(length: int) -> pl.Series:
    return pl.repeat("schema: not as a connector writes it", length, eager=True)


def _first_problems(problems: list[pl.Series], length: int) -> pl.Series:
    nothing = pl.repeat(None, length, dtype=pl.String, eager=True)
    return functools.reduce(pl.Series.fill_null, problems, nothing)


def _is_required(
    column: Field, image: _Image, kinds: pl.Series, spec: FeedSpec
) -> pl.Series | bool:
    """Where a column must have a value: a key always, else what is NOT NULL in a written row."""
    if column.name in spec.primary_key:
        return True
    if column.type.nullable or column.default_value is not None:
        return False
    return ~image.left_out & kinds.is_in(["+I", "+U"])


def _shown(values: JsonValues) -> pl.Expr:
    """Values as reasons show them: text in quotes, and not the whole of a long one."""
    text = pl.lit(values.text)
    short = pl.when(text.str.len_chars() > 100).then(text.str.head(100) + "...").otherwise(text)
    quoted = pl.concat_str(pl.lit("'"), short, pl.lit("'"))
    return pl.when(pl.lit(values.kind) == "VARCHAR").then(quoted).otherwise(short)


def _unavailable_names(images: Mapping[str, _Image], length: int) -> pa.Array:
    """The names of the columns left out, for each row; an empty list where there are none."""
    names = [
        pl.when(image.left_out).then(pl.lit(name))
        for name, image in images.items()
        if image.left_out.any()
    ]
    if not names:
        return pa.ListArray.from_arrays(np.zeros(length + 1, np.int32), pa.array([], pa.string()))
    lists = pl.select(pl.concat_list(names).list.drop_nulls()).to_series()
    return lists.to_arrow().cast(pa.list_(pa.string()))
