"""Row groups of other engines' Parquet files, and which of them can have rows with some keys."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from keytide.predicate.predicate import Predicate, columns_of
from keytide.sources.key_conditions import which_may_meet

__all__ = ["groups_that_may_meet"]


def groups_that_may_meet(
    file: pq.ParquetFile, types: pa.Schema, names: Mapping[str, str], about_key: Predicate | None
) -> list[int]:
    """The numbers of the row groups whose bounds do not exclude a condition.

    `types` are those of the columns in the condition, and `names` their names in the file. A column
    that the file lacks is in neither.
    """
    groups = range(file.num_row_groups)
    asked = columns_of(about_key)
    places = _places(file)
    if about_key is None or not all(
        names.get(name) in places and _has_bounds(file, types, names, name) for name in asked
    ):
        return list(groups)
    found = [file.metadata.row_group(group) for group in groups]
    bounds = {"rows": pa.array([group.num_rows for group in found], pa.int64())}
    for name in asked:
        type_, place = types.field(name).type, places[names[name]]
        told = [group.column(place).statistics for group in found]
        known = [each if each is not None and each.has_min_max else None for each in told]
        bounds[f"{name}.min"] = pa.array([each and each.min for each in known], type_)
        bounds[f"{name}.max"] = pa.array([each and each.max for each in known], type_)
        nulls = [each.null_count if each and each.has_null_count else None for each in told]
        bounds[f"{name}.nulls"] = pa.array(nulls, pa.int64())
    may = which_may_meet(pa.table(bounds), about_key, types)
    return [group for group, is_possible in zip(groups, may, strict=True) if is_possible]


def _places(file: pq.ParquetFile) -> dict[str, int]:
    """The index of each column, except ambiguous paths, because a name can contain a dot."""
    described = file.metadata.schema
    paths = [described.column(i).path for i in range(file.metadata.num_columns)]
    return {path: i for i, path in enumerate(paths) if paths.count(path) == 1}


def _has_bounds(
    file: pq.ParquetFile, types: pa.Schema, names: Mapping[str, str], name: str
) -> bool:
    """Whether the bounds of a column have its type and its comparison order."""
    if file.schema_arrow.get_field_index(names[name]) < 0:
        return False
    type_ = types.field(name).type
    is_plain = (
        pa.types.is_signed_integer(type_) or pa.types.is_string(type_) or pa.types.is_date32(type_)
    )
    return bool(is_plain) and file.schema_arrow.field(names[name]).type.equals(type_)
