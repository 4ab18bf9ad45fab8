"""Decoding of messages to typed rows, in the same way for every format and wherever it runs.

Messages are validated as JSON documents one by one, then parsed to changes: one pass over the
documents finds the operations and the row images, and a second pass reads the columns of the
images. Then each column is converted separately. A value that does not fit only rejects its own
message.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.arguments import checked
from keytide.errors import InvalidError
from keytide.feeds.conversion import Encoding, convert
from keytide.feeds.epochs import EPOCH, EPOCH_PATHS, epochs_of
from keytide.feeds.feed import (
    MESSAGE_COLUMN,
    ORDINAL_COLUMN,
    REJECTED_SCHEMA,
    UNAVAILABLE_COLUMN,
    Decoded,
    Envelope,
    FeedSpec,
    assign_epochs,
    at_path,
)
from keytide.feeds.formats import envelope_of
from keytide.feeds.json_columns import (
    JsonValues,
    exact_numbers,
    literal,
    pointer,
    query,
    quoted,
    read_members,
)
from keytide.types import AtomicType, Field

# -- JSON documents --------------------------------------------------------------------------------


class Documents(NamedTuple):
    """Messages as JSON, one line each.

    ``text`` is a JSON object, None for anything else. ``shape`` is the JSON type of the message,
    ``NULL`` for a NULL message too, ``GARBLED`` for bytes that are not UTF-8, or ``INVALID``.
    """

    text: pl.Series
    shape: pl.Series


def as_bytes(messages: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Messages as bytes. Raises `InvalidError` for messages that are neither strings nor bytes."""
    try:
        return messages.cast(pa.large_binary())
    except pa.ArrowException as error:
        raise InvalidError(
            f"messages: found {messages.type}, expected JSON documents as strings or bytes"
        ) from error


def read_documents(messages: pa.Array | pa.ChunkedArray) -> Documents:
    """The messages, validated one by one. Raises as `as_bytes`."""
    messages = as_bytes(messages)
    text = texts_of(messages)
    found = query(_SHAPES_SQL, documents=pa.table({"document": text.to_arrow()}))
    is_null = pl.Series(values=messages.is_null())
    shape = pl.Series(values=found.column("shape")).set(is_null, "NULL")
    return Documents(text.set(shape != "OBJECT", None), shape)


_SHAPES_SQL = """
    SELECT CASE
        WHEN document IS NULL THEN 'GARBLED'
        WHEN NOT json_valid(document) THEN 'INVALID'
        WHEN starts_with(document, '{') THEN 'OBJECT'
        ELSE json_type(document) END AS shape
    FROM documents"""


def texts_of(messages: pa.Array | pa.ChunkedArray) -> pl.Series:
    """Messages as strings, None for bytes that are not UTF-8."""
    try:
        # Strings are validated like bytes, because nothing guarantees that they are UTF-8.
        text = messages.cast(pa.large_binary()).cast(pa.large_string())
        return pl.Series(values=text, dtype=pl.String)
    except pa.ArrowInvalid:
        found = query(
            "SELECT try(decode(message)) FROM messages",
            messages=pa.table({"message": messages.cast(pa.large_binary())}),
        )
        return pl.Series(values=found.column(0), dtype=pl.String)


# -- changes: operations and row images ------------------------------------------------------------


STEP = "_step"
"""The column that numbers the rows to write, in order."""


class Image(NamedTuple):
    """A column of the images. ``omitted`` marks values that exist but were not sent."""

    values: JsonValues
    omitted: pl.Series

    def filter(self, keep: pl.Series) -> Image:
        """The image of some rows."""
        values = JsonValues(self.values.text.filter(keep), self.values.type.filter(keep))
        return Image(values, self.omitted.filter(keep))


class Changes(NamedTuple):
    """The rows to write from messages of one layout, one for each of ``steps``.

    ``steps`` has their ``kind``, ``action`` and ``ordinal``, ``images`` their columns by name, and
    ``schema`` is the JSON text of the layout's schema.
    """

    steps: pl.DataFrame
    images: Mapping[str, Image]
    schema: str


def parse(
    documents: Documents, spec: FeedSpec, envelope: Envelope
) -> tuple[pl.DataFrame, list[Changes]]:
    """The operations of the messages, as in :func:`read_events`, and the rows by layout."""
    events, steps, columns = _unfold(documents, spec, envelope)
    # Rewriting documents takes as long as reading them, so it is done only if a column needs it.
    fractions = [
        column.type.sql()
        for column in spec.image_columns
        if columns[column.name].type.is_in(["DOUBLE", "ARRAY", "OBJECT"]).any()
    ]
    if fractions:
        as_written = any("STRING" in text or "CHAR" in text for text in fractions)
        exact = exact_numbers(documents.text, as_written=as_written)
        if exact is not documents.text:
            events, steps, columns = _unfold(documents._replace(text=exact), spec, envelope)
    images = _images(steps, columns, spec, envelope.placeholders(spec.unavailable_value))

    # The schema of each layout in the events.
    schemas: dict[int | None, str] = {}
    carriers = events.drop_nulls("layout").unique("layout", keep="first", maintain_order=True)
    if envelope.wrapper is None or carriers.is_empty() or events["layout"].null_count():
        schemas[None] = "null"
    if envelope.wrapper is not None and carriers.height:
        texts = documents.text.gather(carriers["ordinal"])
        [read] = read_members(texts.to_arrow(), [envelope.wrapper[1]])
        schemas |= zip(carriers["layout"], read.text.fill_null("null"), strict=True)
    if len(schemas) == 1:
        return events, [Changes(steps, images, text) for text in schemas.values()]
    found = []
    for layout, text in schemas.items():
        own = steps.select(pl.col("layout").eq_missing(layout))["layout"]
        of_it = {name: image.filter(own) for name, image in images.items()}
        found.append(Changes(steps.filter(own), of_it, text))
    return events, found


def read_events(
    documents: Documents, envelope: Envelope, paths: Sequence[str] = ()
) -> pl.DataFrame:
    """The operations of the messages: one line per changed row, or one for a message without rows.

    The columns are those of :meth:`Envelope.events_sql`. A message that is not an object has a
    ``problem``.
    """
    ordinals = pl.int_range(len(documents.text), eager=True)
    numbered = pa.table({"ordinal": ordinals.to_arrow(), "document": documents.text.to_arrow()})
    events = pl.DataFrame(query(envelope.events_sql(tuple(paths)), documents=numbered))
    is_object = documents.shape == "OBJECT"
    if is_object.all():
        return events
    events = events.filter(is_object.gather(events["ordinal"]))
    others = pl.DataFrame({"shape": documents.shape}).with_row_index("ordinal").filter(~is_object)
    return pl.concat([events, others.select(*_WITHOUT_OBJECT)], how="diagonal")


def read_json(text: str) -> Any:
    """The value of valid JSON, None if it is nested too deep or has too long a number for it."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return None


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


def _unfold(
    documents: Documents, spec: FeedSpec, envelope: Envelope
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, JsonValues]]:
    """The events, one line per row to write, and the columns of these rows.

    Columns come from the images, or from feed metadata.
    """
    paths = (source.path for source in spec.sequence if source.path != EPOCH)
    places = EPOCH_PATHS if epochs_of(spec.sequence) else ()
    wanted = tuple(dict.fromkeys((*paths, *places, *envelope.origin)))
    events = assign_epochs(read_events(documents, envelope, wanted), spec, envelope)
    steps = _steps(events, spec)
    names = [column.name for column in spec.image_columns]
    found = read_members(steps["image"].to_arrow(), [pointer(name) for name in names])
    for source in spec.sequence:
        found += read_members(steps[at_path(source.path)].to_arrow(), ["$"])
    names += [source.column for source in spec.sequence]
    return events, steps, dict(zip(names, found, strict=True))


def _steps(events: pl.DataFrame, spec: FeedSpec) -> pl.DataFrame:
    """One line per row to write, in order: its kind, if its key changed, and the images to read.

    ``rest`` is the image for values that ``image`` omits.
    """
    accepted = events.filter(pl.col("action").is_in(_CHANGES) & pl.col("problem").is_null())
    keys = ", ".join(literal(pointer(name)) for name in spec.primary_key)
    # An update of the key is a delete of the old key and an insert of the new one.
    moved = " OR ".join(
        f"coalesce(old_key[{i}] <> new_key[{i}], FALSE)"
        for i in range(1, len(spec.primary_key) + 1)
    )
    paths = dict.fromkeys(source.path for source in spec.sequence)
    meta = "".join(f', "{quoted(at_path(path))}"' for path in paths)
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
                coalesce(moved, FALSE) AS has_moved,
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
        SELECT ordinal, layout, action, has_moved AS moved,
            step.kind, step.image, step.rest {meta} FROM listed""",
        events=accepted.to_arrow(),
    )
    return pl.DataFrame(unfolded).with_row_index(STEP)


_CHANGES = ["insert", "update", "delete"]


def _images(
    steps: pl.DataFrame, columns: Mapping[str, JsonValues], spec: FeedSpec, placeholders: list[str]
) -> dict[str, Image]:
    """The columns by name: those of the images, and those that feed metadata fills."""
    images = {}
    for column in spec.image_columns:
        name = column.name

        # A column with its gaps filled from the other image of the same change. A placeholder means
        # that the change did not affect the value, so the other image may contain it. A column that
        # is missing in a before image was not changed either.
        values = columns[name]
        covered = values.text.is_in(placeholders).fill_null(False)
        is_before = steps["kind"].is_in(["-D", "-U"])
        gap = covered | (values.type.is_null() & is_before)
        if gap.any():
            [rest] = read_members(steps["rest"].set(~gap, None).to_arrow(), [pointer(name)])
            known = gap & rest.type.is_not_null() & ~rest.text.is_in(placeholders).fill_null(False)
            # NULL in the other image may only mean that it was not sent.
            known &= ~covered | rest.text.is_not_null()
            values = JsonValues(
                rest.text.zip_with(known, values.text), rest.type.zip_with(known, values.type)
            )
            covered &= ~known
        # A new row has no previous value, and a deleted row needs none.
        is_silent = values.type.is_null() & (steps["action"] == "update")
        left_out = (covered | is_silent) & (steps["kind"] != "-D")
        image = Image(values._replace(text=values.text.set(covered, None)), left_out)
        if name in spec.empty_as_null:
            text = image.values.text
            image = image._replace(values=image.values._replace(text=text.set(text == "", None)))
        images[name] = image
    # Missing feed metadata is NULL.
    never = pl.repeat(False, len(steps), dtype=pl.Boolean, eager=True)
    filled = {source.column: Image(columns[source.column], never) for source in spec.sequence}
    return images | filled


# -- typed rows ------------------------------------------------------------------------------------


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

    # The first problem of each message with a problem.
    judged = pl.DataFrame(rows.select([ORDINAL_COLUMN, _PROBLEM]))
    judged = judged.select(ordinal=ORDINAL_COLUMN, problem=_PROBLEM)
    problems = pl.concat([events.select("ordinal", "problem"), judged]).drop_nulls("problem")
    refused = problems.unique("ordinal", keep="first", maintain_order=True).sort("ordinal")
    places = refused["ordinal"].to_arrow()
    rejected = pa.table(
        [messages.take(places), refused["problem"].to_arrow(), places], names=REJECTED_SCHEMA.names
    )
    # A message is accepted or rejected as a whole, because half of its rows is an invalid state.
    ordinals = pl.Series(values=rows[ORDINAL_COLUMN])
    rows = rows.filter((~ordinals.is_in(refused["ordinal"].implode())).to_arrow())
    # A row with omitted values has its message, because it may be rejected later.
    is_whole = pc.equal(pc.list_value_length(rows[UNAVAILABLE_COLUMN]), 0)
    kept = pc.if_else(is_whole, pa.scalar(None, pa.int64()), rows[ORDINAL_COLUMN])
    rows = rows.append_column(MESSAGE_COLUMN, messages.take(kept).cast(pa.binary()))
    return Decoded(
        rows=rows.select(spec.rows_schema.names),
        rejected=rejected.cast(REJECTED_SCHEMA),
        tombstones=int((events["action"] == "tombstone").sum()),
        control=int((events["action"] == "control").sum()),
    )


_PROBLEM = "_problem"


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
    # The names of the omitted columns for each row. An empty list if there are none.
    omits = {name: image.omitted for name, image in images.items() if image.omitted.any()}
    if omits:
        names = [pl.when(omitted).then(pl.lit(name)) for name, omitted in omits.items()]
        lists = pl.select(pl.concat_list(names).list.drop_nulls()).to_series().to_arrow()
        unavailable = lists.cast(pa.list_(pa.string()))
    else:
        ends, none = np.zeros(len(steps) + 1, np.int32), pa.array([], pa.string())
        unavailable = pa.ListArray.from_arrays(ends, none)
    nothing = pl.repeat(None, len(steps), dtype=pl.String, eager=True)
    arrays += [
        steps["kind"].to_arrow().cast(pa.string()),
        steps["ordinal"].to_arrow(),
        unavailable,
        steps[STEP].to_arrow(),
        functools.reduce(pl.Series.fill_null, problems, nothing).to_arrow(),
    ]
    own = [name for name in spec.rows_schema.names if name != MESSAGE_COLUMN]
    return pa.table(arrays, names=[*own, STEP, _PROBLEM])


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
    problems = []
    unfit = pl.Series(values=array.is_null()) & text.is_not_null()
    if unfit.any():
        unit_problems = _without_unit(column, image.values, encoding)
        if unit_problems is not None:
            problems.append(unit_problems)
        # Strings in quotes, and long values truncated.
        value = pl.lit(text)
        long = value.str.len_chars() > 100
        short = pl.when(long).then(value.str.head(100) + "...").otherwise(value)
        quoted_text = pl.concat_str(pl.lit("'"), short, pl.lit("'"))
        is_string = pl.lit(image.values.type) == "VARCHAR"
        shown = pl.when(is_string).then(quoted_text).otherwise(short)
        reason = pl.format(f"{{}}: found {{}}, expected {expected}", place, shown)
        problems.append(pl.select(pl.when(unfit).then(reason)).to_series())

    is_key = column.name in spec.primary_key
    can_lack = column.type.nullable or column.default_value is not None
    if column.name in spec.generated or (can_lack and not is_key):
        return problems
    lacking = text.is_null()
    if not is_key:
        lacking &= ~image.omitted & kinds.is_in(["+I", "+U"])
    if lacking.any():
        reason = pl.format(f"{{}}: found no value, expected {expected} NOT NULL", place)
        problems.append(pl.select(pl.when(lacking).then(reason)).to_series())
    return problems


def _without_values(images: Mapping[str, Image], steps: pl.DataFrame) -> pl.Series:
    """Reasons to reject an update of the key whose values are those of another row, the old one."""
    moves = steps["moved"] & (steps["kind"] == "+I")
    lacking = {name: image.omitted & moves for name, image in images.items()}
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
