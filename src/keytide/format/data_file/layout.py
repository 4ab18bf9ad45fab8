"""The columns of a data file: keys, sequence number, kind, and every column of the table."""

from __future__ import annotations

import pyarrow as pa

from keytide.format.schema import SEQUENCE_FIELD_ID, VALUE_KIND_FIELD_ID, TableSchema
from keytide.types import ArrayType, DataType, MapType, MultisetType, RowType

__all__ = ["SEQUENCE_NUMBER", "VALUE_KIND", "physical_schema"]

SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
VALUE_KIND = "_VALUE_KIND"


def physical_schema(schema: TableSchema, thin: bool = False) -> pa.Schema:
    """The Arrow schema of a data file, including field ids, before INT96 is applied."""
    keys = [] if thin else schema.key_fields()
    arrow = schema.arrow_schema()
    return pa.schema(
        [
            *(
                _with_id(pa.field(f.name, f.type.to_arrow(), nullable=f.type.nullable), f.id)
                for f in keys
            ),
            *(_SYSTEM_FIELDS if schema.trimmed_primary_keys else ()),
            *(
                _with_id(
                    arrow.field(f.name).with_type(_identified(f.type, f.id, 1)),
                    f.id,
                )
                for f in schema.fields
            ),
        ]
    )


def _with_id(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({b"PARQUET:field_id": str(field_id).encode()})


_SYSTEM_FIELDS = (
    _with_id(pa.field(SEQUENCE_NUMBER, pa.int64(), nullable=False), SEQUENCE_FIELD_ID),
    _with_id(pa.field(VALUE_KIND, pa.int8(), nullable=False), VALUE_KIND_FIELD_ID),
)


def _identified(data_type: DataType, field_id: int, depth: int) -> pa.DataType:
    """The Arrow type with field ids on nested nodes."""
    # Rules of the format: ids of nested nodes are computed from their column's id, far above those
    # of columns. Keys of maps count down from the number from which other nodes count up.
    node = 1024 * field_id + depth
    if isinstance(data_type, ArrayType):
        element = pa.field(
            "element",
            _identified(data_type.element, field_id, depth + 1),
            nullable=data_type.element.nullable,
        )
        return pa.list_(_with_id(element, 536_870_911 + node))
    if isinstance(data_type, MapType | MultisetType):
        arrow = data_type.to_arrow()
        key, value = (
            (data_type.key, data_type.value)
            if isinstance(data_type, MapType)
            else (data_type.element, None)
        )
        key_field = pa.field("key", _identified(key, field_id, depth + 1), nullable=False)
        value_type = arrow.item_type if value is None else _identified(value, field_id, depth + 1)
        value_field = pa.field("value", value_type, nullable=arrow.item_field.nullable)
        return pa.map_(
            _with_id(key_field, 536_870_911 - node), _with_id(value_field, 536_870_911 + node)
        )
    if isinstance(data_type, RowType):
        # Members are optional even if they are NOT NULL: below a NULL row, they have no value.
        return pa.struct(
            [
                _with_id(pa.field(f.name, _identified(f.type, f.id, 1)), f.id)
                for f in data_type.fields
            ]
        )
    return data_type.to_arrow()
