"""The gate: whether this release can read a table, write to it, and delete files of it.

Each option and each column type of a definition is harmless, supported, or a reason to refuse. An
option that no list has is unknown: it may change what files mean. Then nothing is written or
deleted, and readers are warned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from keytide.base.arguments import warn_caller
from keytide.base.dataclass import dataclass
from keytide.errors import UnsupportedError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, option_of
from keytide.options.features import VECTORS_ELSEWHERE, Needs, feature_of, is_harmless
from keytide.types import ArrayType, AtomicType, DataType, MapType, MultisetType, RowType

# -- column types without complete support ---------------------------------------------------------


@dataclass(frozen=True)
class TypeFeature:
    """A type that asks for something. `why` says what, for messages."""

    name: str
    needs: Needs
    why: str


TYPES: Mapping[str, TypeFeature] = {
    each.name: each
    for each in (
        TypeFeature("BLOB", Needs.CLEANERS, "its contents are in files of their own"),
        TypeFeature("VARIANT", Needs.WRITERS, "this release reads its values but writes none"),
        TypeFeature("GEOMETRY", Needs.WRITERS, "this release reads its values but writes none"),
        TypeFeature("GEOGRAPHY", Needs.WRITERS, "this release reads its values but writes none"),
    )
}
"""By the name of the type. All other types are supported."""


def types_within(type_: DataType) -> Iterator[TypeFeature]:
    """What a type asks for, and what the types in it do."""
    if isinstance(type_, AtomicType):
        if type_.root in TYPES:
            yield TYPES[type_.root]
    elif isinstance(type_, ArrayType | MultisetType):
        yield from types_within(type_.element)
    elif isinstance(type_, MapType):
        yield from types_within(type_.key)
        yield from types_within(type_.value)
    elif isinstance(type_, RowType):
        for field in type_.fields:
            yield from types_within(field.type)


# -- the gate --------------------------------------------------------------------------------------


_TOLD_MAX = 10_000


@dataclass(frozen=True)
class Reason:
    """Something that a definition asks for and that this release does not do, and of whom."""

    needs: Needs
    text: str


@dataclass(frozen=True)
class Gate:
    """What a definition asks for that this release does not do."""

    reasons: tuple[Reason, ...]

    @property
    def why_not_readable(self) -> str | None:
        """Why this release would return wrong rows. None if it would not."""
        return self._first(Needs.READERS)

    @property
    def why_not_cleanable(self) -> str | None:
        """Why this release might delete files that the table needs. None if it would not."""
        return self._first(Needs.CLEANERS)

    @property
    def why_not_writable(self) -> str | None:
        """Why a write of this release might damage the table. None if it would not."""
        return self._first(Needs.WRITERS)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader should know."""
        return tuple(r.text for r in self.reasons if r.needs is Needs.NOTICE)

    def _first(self, needs: Needs) -> str | None:
        return next((r.text for r in self.reasons if r.needs >= needs), None)


def gate_of(schema: TableSchema, options: TableOptions) -> Gate:
    """The gate of a table with this definition."""
    found = [*_of_options(options), *_of_types(schema)]
    return Gate(tuple(sorted(found, key=lambda reason: -reason.needs)))


def why_not_plain(schema: TableSchema) -> str | None:
    """Why readers of other formats would not find whole values in the files. None if they would."""
    for field in schema.fields:
        for within in types_within(field.type):
            return f"column {field.name!r} is {within.name}, of which files store only parts"
    return None


def refuse_readers(schema: TableSchema, options: TableOptions, table: str) -> None:
    """Raise `UnsupportedError` for a table that this release cannot read."""
    reason = gate_of(schema, options).why_not_readable
    if reason is not None:
        raise UnsupportedError(
            f"table {table}: this release cannot read it: {reason}; read it with the engine that "
            "created it"
        )


def refuse_cleaners(schema: TableSchema, options: TableOptions, table: str) -> None:
    """Raise `UnsupportedError` for a table whose files this release must not delete."""
    reason = gate_of(schema, options).why_not_cleanable
    if reason is not None:
        raise UnsupportedError(
            f"table {table}: this release must not delete files of it, because it cannot tell "
            f"which are needed: {reason}; use the engine that created the table"
        )


def warn_readers(schema: TableSchema, options: TableOptions, table: str, uri: str) -> None:
    """Warn, once in a process, about what a definition asks for and a reader does not do."""
    for notice in gate_of(schema, options).notices:
        _warn_once(uri, f"table {table}: {notice}")


@lru_cache(_TOLD_MAX)
def _warn_once(uri: str, message: str) -> None:
    warn_caller(message)


def _of_options(options: TableOptions) -> Iterator[Reason]:
    for key, text in options.raw.items():
        feature = feature_of(key)
        if feature is None:
            if option_of(key) is None and not is_harmless(key):
                said = f"this release does not know the option '{key}' = '{text}'"
                way_out = "RESET it, if no engine needs it"
                yield Reason(
                    Needs.CLEANERS, f"{said}, which may change what its files mean. {way_out}"
                )
                yield Reason(Needs.NOTICE, f"{said}. If it changes what rows mean, reads are wrong")
        elif feature.asks(text):
            yield Reason(feature.needs, f"'{key}' = '{text}': {feature.why}")
    for key in VECTORS_ELSEWHERE & options.raw.keys() if options.deletion_vectors_enabled else ():
        feature, text = feature_of(key), options.raw[key]
        if feature is not None and feature.asks(text):
            why = "it stores deletion vectors where this release does not look"
            yield Reason(Needs.READERS, f"'{key}' = '{text}': {why}")


def _of_types(schema: TableSchema) -> Iterator[Reason]:
    for field in schema.fields:
        for within in types_within(field.type):
            is_alone = isinstance(field.type, AtomicType) and schema.primary_keys
            # Contents of a BLOB are found where a key's rows have it as a column.
            is_lost = within.name == "BLOB" and not is_alone
            needs = Needs.READERS if is_lost else within.needs
            yield Reason(needs, f"column {field.name!r} is {within.name}: {within.why}")
