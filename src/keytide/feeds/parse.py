"""Parses messages to changes: the operations and the row images, without converting values.

One pass over the documents finds the operations and the row images, and a second pass reads the
columns of the images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from keytide.feeds.documents import Documents
from keytide.feeds.epochs import EPOCH, EPOCH_PATHS
from keytide.feeds.feed import Envelope, FeedSpec, at_path
from keytide.feeds.json_sql import (
    JsonValues,
    literal,
    pointer,
    query,
    quoted,
    read_members,
)
from keytide.feeds.order import epochs_of
from keytide.feeds.places import placed
from keytide.types import DataType

__all__ = [
    "STEP",
    "Changes",
    "Image",
    "parse",
    "read_events",
    "read_json",
]

STEP = "_step"
"""The column that numbers the rows to write, in order."""


class Image(NamedTuple):
    """A column of the images. ``left_out`` marks values that exist but were not sent."""

    values: JsonValues
    left_out: pl.Series

    def filter(self, keep: pl.Series) -> Image:
        """The image of some rows."""
        values = JsonValues(self.values.text.filter(keep), self.values.type.filter(keep))
        return Image(values, self.left_out.filter(keep))


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
    if _has_fractions(columns, spec):
        exact = documents.with_exact_numbers(as_written=_shows_numbers(columns, spec))
        if exact is not documents:
            events, steps, columns = _unfold(exact, spec, envelope)
    images = _images(steps, columns, spec, envelope.placeholders(spec.unavailable_value))
    schemas = _read_schemas(documents, events, envelope)
    if len(schemas) == 1:
        return events, [Changes(steps, images, text) for text in schemas.values()]
    return events, [_of_layout(steps, images, *schema) for schema in schemas.items()]


def read_events(
    documents: Documents, envelope: Envelope, paths: Sequence[str] = ()
) -> pl.DataFrame:
    """The operations of the messages: one line per changed row, or one for a message without rows.

    The columns are those of :meth:`Envelope.events_sql`. A message that is not an object has a
    ``problem``.
    """
    events = pl.DataFrame(query(envelope.events_sql(tuple(paths)), documents=_numbered(documents)))
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


def _numbered(documents: Documents) -> pa.Table:
    ordinals = pl.int_range(len(documents.text), eager=True)
    return pa.table({"ordinal": ordinals.to_arrow(), "document": documents.text.to_arrow()})


def _read_schemas(
    documents: Documents, events: pl.DataFrame, envelope: Envelope
) -> dict[int | None, str]:
    """The JSON text of the schema of each layout in the events, `null` for messages without one."""
    carriers = events.drop_nulls("layout").unique("layout", keep="first", maintain_order=True)
    bare: dict[int | None, str] = {None: "null"}
    if envelope.wrapper is None or carriers.is_empty():
        return bare
    texts = documents.text.gather(carriers["ordinal"])
    [schemas] = read_members(texts.to_arrow(), [envelope.wrapper[1]])
    found = dict(zip(carriers["layout"], schemas.text.fill_null("null"), strict=True))
    return {**bare, **found} if events["layout"].null_count() else found


def _unfold(
    documents: Documents, spec: FeedSpec, envelope: Envelope
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, JsonValues]]:
    """The events, one line per row to write, and the columns of these rows.

    Columns come from the images, or from feed metadata.
    """
    paths = (source.path for source in spec.sequence if source.path != EPOCH)
    places = EPOCH_PATHS if epochs_of(spec.sequence) else ()
    wanted = tuple(dict.fromkeys((*paths, *places, *envelope.origin)))
    events = placed(read_events(documents, envelope, wanted), spec, envelope)
    steps = _steps(events, spec)
    names = [column.name for column in spec.image_columns]
    found = read_members(steps["image"].to_arrow(), [pointer(name) for name in names])
    for source in spec.sequence:
        found += read_members(steps[at_path(source.path)].to_arrow(), ["$"])
    names += [source.column for source in spec.sequence]
    return events, steps, dict(zip(names, found, strict=True))


def _has_fractions(columns: Mapping[str, JsonValues], spec: FeedSpec) -> bool:
    """Whether a column has values that the JSON parser may have rounded to doubles."""
    return any(_is_fraction(columns[column.name]) for column in spec.image_columns)


def _shows_numbers(columns: Mapping[str, JsonValues], spec: FeedSpec) -> bool:
    """Whether a text has such values, which then are as they were written."""
    return any(
        _is_fraction(columns[column.name])
        for column in spec.image_columns
        if _has_text(column.type)
    )


def _is_fraction(values: JsonValues) -> bool:
    return bool(values.type.is_in(["DOUBLE", "ARRAY", "OBJECT"]).any())


def _has_text(type_: DataType) -> bool:
    return any(root in type_.sql() for root in ("STRING", "CHAR"))


def _of_layout(
    steps: pl.DataFrame, images: Mapping[str, Image], layout: int | None, schema: str
) -> Changes:
    is_of_it = steps.select(pl.col("layout").eq_missing(layout))["layout"]
    return Changes(
        steps.filter(is_of_it), {n: each.filter(is_of_it) for n, each in images.items()}, schema
    )


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
    steps: pl.DataFrame,
    columns: Mapping[str, JsonValues],
    spec: FeedSpec,
    placeholders: list[str],
) -> dict[str, Image]:
    """The columns by name: those of the images, and those that feed metadata fills."""
    images = {}
    for column in spec.image_columns:
        name = column.name
        image = _completed(name, columns[name], steps, placeholders)
        if name in spec.empty_as_null:
            text = image.values.text
            image = image._replace(values=image.values._replace(text=text.set(text == "", None)))
        images[name] = image
    # Missing feed metadata is NULL.
    never = pl.repeat(False, len(steps), dtype=pl.Boolean, eager=True)
    filled = {source.column: Image(columns[source.column], never) for source in spec.sequence}
    return images | filled


def _completed(
    name: str, values: JsonValues, steps: pl.DataFrame, placeholders: list[str]
) -> Image:
    """A column with its gaps filled from the other image of the same change.

    A placeholder means that the change did not affect the value, so the other image may contain it.
    A column that is missing in a before image was not changed either.
    """
    covered = _is_one_of(values.text, placeholders)
    is_before = steps["kind"].is_in(["-D", "-U"])
    gap = covered | (values.type.is_null() & is_before)
    if gap.any():
        [rest] = read_members(steps["rest"].set(~gap, None).to_arrow(), [pointer(name)])
        known = gap & rest.type.is_not_null() & ~_is_one_of(rest.text, placeholders)
        # NULL in the other image may only mean that it was not sent.
        known &= ~covered | rest.text.is_not_null()
        values = JsonValues(
            rest.text.zip_with(known, values.text), rest.type.zip_with(known, values.type)
        )
        covered &= ~known
    # A new row has no previous value, and a deleted row needs none.
    is_silent = values.type.is_null() & (steps["action"] == "update")
    left_out = (covered | is_silent) & (steps["kind"] != "-D")
    return Image(values._replace(text=values.text.set(covered, None)), left_out)


def _is_one_of(text: pl.Series, placeholders: list[str]) -> pl.Series:
    return text.is_in(placeholders).fill_null(False)
