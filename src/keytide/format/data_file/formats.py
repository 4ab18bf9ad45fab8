"""The file formats by file name extension, which determines how a file is read."""

from __future__ import annotations

from collections.abc import Mapping

from keytide.errors import UnsupportedError
from keytide.format.data_file import avro, orc, parquet
from keytide.format.data_file.stored_file import FileFormat
from keytide.options.keys import FILE_FORMAT

__all__ = ["FORMATS", "format_name", "format_of"]

FORMATS: Mapping[str, FileFormat] = {"parquet": parquet, "orc": orc, "avro": avro}


def format_of(path: str) -> FileFormat:
    """How to read a file. Raises `UnsupportedError` for an unknown extension."""
    name = format_name(path)
    if name not in FORMATS:
        raise UnsupportedError(
            f"data file {path}: the format {name!r} is not supported, only {', '.join(FORMATS)}; "
            f"rewrite the file with '{FILE_FORMAT}' = 'parquet' in the engine that wrote it"
        )
    return FORMATS[name]


def format_name(path: str) -> str:
    """The format in a file's name. A codec may follow it."""
    parts = path.rsplit("/", 1)[-1].lower().split(".")[1:]
    return next((part for part in reversed(parts) if part in FORMATS), parts[-1] if parts else "")
