"""Procedures that adopt tables of other formats."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from keytide.base.arguments import checked, shown
from keytide.catalogs.catalog import Catalog
from keytide.errors import InvalidError
from keytide.options import keys
from keytide.sources.adoption import NewAdopted, adopt
from keytide.sources.creation import with_upsert_keys
from keytide.sql.external import refuse_location
from keytide.sql.procedure import Procedure, named_by_commas

__all__ = ["ADOPTING"]


def _adopting(format_: str) -> Procedure:
    """The procedure that adopts tables of a format."""

    def procedure(
        catalog: Catalog, table: str, location: str, primary_key: str,
        watermark_key: str | None = None, tombstone_key: str | None = None,
        tombstone_string_key_value: str | None = None, partitioned_by: str | None = None,
        options: str | None = None, comment: str | None = None,
    ) -> pa.Table:  # fmt: skip
        given = with_upsert_keys(
            table,
            _options(f"sys.adopt_{format_}", options),
            _columns(watermark_key),
            tombstone_key,
            tombstone_string_key_value,
        )
        refuse_location(catalog, table, format_, location, given)
        key, partitions = _columns(primary_key), _columns(partitioned_by)
        wanted = NewAdopted(format_, location, key, partitions, given, comment)
        return adopt(catalog, table, wanted).to_arrow()

    procedure.__name__ = procedure.__qualname__ = f"adopt_{format_}"
    return checked(procedure)


def _columns(text: str | None) -> list[str]:
    return [name for name in named_by_commas(text or "") if name]


def _options(procedure: str, text: str | None) -> Mapping[str, str]:
    """Options written as `key=value,key=value`. A part without `=` belongs to the value before it.

    Raises `InvalidError` for a string that does not begin with a key, and for a duplicate key.
    """
    found: dict[str, str] = {}
    key = ""
    for part in (text or "").split(",") if (text or "").strip() else []:
        name, sign, value = (each.strip() for each in part.partition("="))
        if not sign and key:
            found[key] += f",{name}"
            continue
        if not sign or not name or name in found:
            raise InvalidError(
                f"{procedure}: options are {shown(text)}; expected each key once, as in "
                f"'{keys.BUCKET}=4,{keys.READ_MEMORY}=2 gb'"
            )
        key, found[name] = name, value
    return found


ADOPTING: dict[str, Procedure] = {
    f"adopt_{format_}": _adopting(format_) for format_ in ("delta", "iceberg", "parquet")
}
