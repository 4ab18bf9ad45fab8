"""Column types that this release does not read or write completely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from keytide.options.features import Needs
from keytide.types import ArrayType, AtomicType, DataType, MapType, MultisetType, RowType

__all__ = ["TYPES", "TypeFeature", "types_within"]


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
