"""Readers for files of other engines: Parquet, CSV, JSON lines.

Parquet contains its columns and its row count. CSV contains only names, and JSON contains neither:
their columns have the types in the table definition, or types that fit all values.

Text files are checked for what the parsers of CSV and JSON read in another way, or not at all.
Arrow's parser of CSV takes the rest of a file for one value if a quote is not closed, and its
parser of JSON reads `null` and two objects in one line as rows.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import ClassVar, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as pq

from keytide.base.dataclass import dataclass
from keytide.errors import DataError, InvalidError, KeytideError
from keytide.predicate.predicate import Predicate
from keytide.sources.parquet import groups_that_may_meet
from keytide.store import Store

# -- checks of text files --------------------------------------------------------------------------


Opening: TypeAlias = "Callable[[], AbstractContextManager[pa.NativeFile]]"

_BLOCK_BYTES = 8 << 20


def check_csv(open_: Opening, delimiter: str, quote: str) -> None:
    """Read a CSV file, and raise `InvalidError`, naming the line, if quotes are not as they must.

    A quote that opens a value is closed before the end, and a delimiter or the end of the line
    follows. Other quotes are a part of their value.
    """
    with open_() as opened:
        sign = quote.encode()
        if not any(sign in block for block in iter(partial(opened.read, _BLOCK_BYTES), b"")):
            return
    with open_() as opened:
        # A value can be as large as a block. The limit of this process is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), _BLOCK_BYTES))
        text = io.TextIOWrapper(opened, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=delimiter, quotechar=quote, strict=True)
        try:
            deque(reader, maxlen=0)
        except csv.Error as error:
            raise InvalidError(
                f"line {reader.line_num}: {error}; close each quote that opens a value, and double "
                "the quotes inside of it"
            ) from error
        finally:
            text.detach()


def json_names(text: bytes) -> frozenset[str] | None:
    """The names in the objects of a file with one JSON object in each line. None without objects.

    Raises `InvalidError` for anything but an object in a line.
    """
    try:
        rows = pl.read_ndjson(text, schema={"\0": pl.String}).height
    except pl.exceptions.PolarsError as error:
        if (why := _why(text)) is not None:
            raise InvalidError(why) from error
        return _names_by_line(text)  # NaN and Infinity, which Arrow reads
    if not rows:
        return None
    try:
        return frozenset(pl.scan_ndjson(text, infer_schema_length=None).collect_schema().names())
    except pl.exceptions.PolarsError:  # members of types that no column can have together
        return _names_by_line(text)


def _names_by_line(text: bytes) -> frozenset[str]:
    lines = filter(None, map(bytes.strip, text.split(b"\n")))
    return frozenset().union(*map(json.loads, lines))


def _why(text: bytes) -> str | None:
    """What is wrong with a file, with the first line that is no object. None if each is one."""
    if text.startswith(b"\xef\xbb\xbf"):
        return "it begins with a byte order mark; save it as UTF-8 without one"
    for number, line in enumerate(text.split(b"\n"), start=1):
        try:
            is_object = not line.strip() or isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            shown = line[:40].decode(errors="replace")
            return f"line {number} is {shown!r}; expected one JSON object in each line"
    return None


# -- readers ---------------------------------------------------------------------------------------


_HEAD_BYTES, _FILES_BLOCK_BYTES = 64 << 10, 8 << 20
"""The amount of text that is parsed at a time. A line must fit into it."""


@dataclass(frozen=True)
class FileFacts:
    """Facts about a file before its rows are read. None if unknown."""

    schema: pa.Schema
    rows: int | None


class FileFormat(ABC):
    """A reader for files of one format. Can be pickled."""

    name: ClassVar[str]
    """The name of the format in messages."""
    names_its_columns: ClassVar[bool] = True
    """Whether a column that no file has is known to be missing, as opposed to NULL everywhere."""

    @abstractmethod
    def facts(self, store: Store, path: str, declared: pa.Schema | None) -> FileFacts:
        """The columns of a file, with declared types if the file has no types.

        Raises `DataError`, naming the file, if it does not have the format.
        """

    @abstractmethod
    def batches(
        self,
        store: Store,
        path: str,
        wanted: pa.Schema,
        rows_max: int,
        key_condition: Predicate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Some existing columns of a file, about `rows_max` rows at a time.

        Parquet columns have the file's types, others the wanted types. Rows that do not match
        `key_condition`, a condition on wanted columns with their types, can be skipped. Raises as
        `facts`.
        """


@dataclass(frozen=True)
class ParquetFiles(FileFormat):
    """Parquet, with any codec."""

    name = "parquet"

    def facts(self, store: Store, path: str, declared: pa.Schema | None) -> FileFacts:
        """See `FileFormat`. Reads the footer."""
        with _reading(self, store, path), store.open_input(path) as opened:
            file = pq.ParquetFile(opened)
            return FileFacts(file.schema_arrow.remove_metadata(), file.metadata.num_rows)

    def batches(
        self,
        store: Store,
        path: str,
        wanted: pa.Schema,
        rows_max: int,
        key_condition: Predicate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `FileFormat`."""
        placed = self.placed_batches(store, path, wanted, rows_max, key_condition)
        return (batch for _, batch in placed)

    def placed_batches(
        self,
        store: Store,
        path: str,
        wanted: pa.Schema,
        rows_max: int,
        key_condition: Predicate | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The batches, each with the position of its first row in the file."""
        with _reading(self, store, path), store.open_input(path) as opened:
            file = pq.ParquetFile(opened, pre_buffer=store.local_path(path) is None)
            counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            # Sequentially, so that the memory of a row group is released with the next one.
            names = {name: name for name in wanted.names}
            for group in groups_that_may_meet(file, wanted, names, key_condition):
                first = sum(counts[:group])
                for batch in file.iter_batches(rows_max, row_groups=[group], columns=wanted.names):
                    yield first, batch
                    first += batch.num_rows


@dataclass(frozen=True)
class CsvFiles(FileFormat):
    """CSV with a header line, plain or compressed according to the end of the file name.

    An empty field is NULL. An empty field in quotes is the empty string.
    """

    name = "csv"
    delimiter: str = ","
    quote: str = '"'
    null_value: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CsvFiles:
        """The format with its options. Raises `InvalidError` for an invalid value."""
        for key in ("delimiter", "quote"):
            if len(options.get(key, ",").encode()) != 1:
                raise InvalidError(
                    f"option {key!r} of csv is {options[key]!r}; expected one ASCII character"
                )
        given = {key.replace("-", "_"): value for key, value in options.items()}
        return cls(**given)

    def facts(self, store: Store, path: str, declared: pa.Schema | None) -> FileFacts:
        """See `FileFormat`.

        Reads the whole file.
        """
        with _reading(self, store, path):
            with _unpacked(store, path) as opened:
                _refuse_wide_text(opened.read(4))
            check_csv(partial(_unpacked, store, path), self.delimiter, self.quote)
            if declared is None:
                with _unpacked(store, path) as opened:
                    text = opened.read()
                _refuse_wide_text(text)
                if not text:
                    return FileFacts(pa.schema([]), None)
                frame = pl.scan_csv(
                    text,
                    separator=self.delimiter,
                    quote_char=self.quote,
                    null_values=[self.null_value],
                    infer_schema_length=None,
                    try_parse_dates=True,
                )
                return FileFacts(_arrow_schema(frame.collect_schema()), None)
            types = {field.name: field.type for field in declared}
            names = self._names(store, path)
        return FileFacts(pa.schema([(name, types.get(name, pa.string())) for name in names]), None)

    def batches(
        self,
        store: Store,
        path: str,
        wanted: pa.Schema,
        rows_max: int,
        key_condition: Predicate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `FileFormat`."""
        with _reading(self, store, path):
            texts = dict.fromkeys(self._names(store, path), pa.string())
            with _unpacked(store, path) as opened:
                for batch in self._reader(opened, texts, wanted.names) if texts else ():
                    yield _typed(batch, wanted)

    def _names(self, store: Store, path: str) -> list[str]:
        """The names in the header line, empty for an empty file."""
        with _unpacked(store, path) as opened:
            first = opened.read(_HEAD_BYTES)
            if b"\n" not in first:
                first += opened.read(_FILES_BLOCK_BYTES)
        _refuse_wide_text(first)
        if not first:
            return []
        # An incomplete line at the end of the block would be an error, so it is not parsed.
        line = first[: first.find(b"\n") + 1] or first
        names = self._reader(pa.BufferReader(line), {}, None).schema.names
        if len({*names}) < len(names):
            raise InvalidError(f"two columns have the same name: {', '.join(names)}")
        return list(names)

    def _reader(
        self, opened: pa.NativeFile, types: Mapping[str, pa.DataType], wanted: list[str] | None
    ) -> arrow_csv.CSVStreamingReader:
        return arrow_csv.open_csv(
            opened,
            read_options=arrow_csv.ReadOptions(block_size=_FILES_BLOCK_BYTES),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self.delimiter, quote_char=self.quote, newlines_in_values=True
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=wanted,
                null_values=[self.null_value],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


@dataclass(frozen=True)
class JsonFiles(FileFormat):
    """One JSON object per line, plain or compressed according to the end of the file name.

    A missing field is NULL, and so is `null`. Times and dates are ISO 8601 strings.
    """

    name = "json"
    names_its_columns = False

    def facts(self, store: Store, path: str, declared: pa.Schema | None) -> FileFacts:
        """See `FileFormat`. Reads the whole file.

        If types are declared, a file without any object has all columns.
        """
        with _reading(self, store, path):
            with _unpacked(store, path) as opened:
                text = opened.read()
            _refuse_wide_text(text)
            names = json_names(text)
            if declared is None:
                types = pl.read_ndjson(text, infer_schema_length=None).schema if names else {}
                return FileFacts(_arrow_schema(pl.Schema(types)), None)
            return FileFacts(
                pa.schema([field for field in declared if names is None or field.name in names]),
                None,
            )

    def batches(
        self,
        store: Store,
        path: str,
        wanted: pa.Schema,
        rows_max: int,
        key_condition: Predicate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """See `FileFormat`."""
        # Arrow's JSON parser supports neither dates nor times.
        types = {f.name: f.type for f in wanted}
        for name, type_ in types.items():
            if pa.types.is_date(type_) or pa.types.is_time(type_):
                types[name] = pa.string()
        read = pa.schema(list(types.items()))
        with _reading(self, store, path), _unpacked(store, path) as opened:
            for batch in arrow_json.open_json(
                opened,
                read_options=arrow_json.ReadOptions(block_size=_FILES_BLOCK_BYTES),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=read, unexpected_field_behavior="ignore"
                ),
            ):
                yield _typed(batch, wanted)


def _arrow_schema(types: pl.Schema) -> pa.Schema:
    return pl.DataFrame(schema=types).to_arrow(compat_level=pl.CompatLevel.oldest()).schema


# -- values from strings ---------------------------------------------------------------------------


def _typed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Convert string columns to the wanted types. Raises `InvalidError`, naming the column."""
    columns = []
    for field in wanted:
        column = batch.column(field.name)
        try:
            _refuse_other_numbers(column, field.type)
            if not column.type.equals(field.type):
                if pa.types.is_time(field.type):  # Arrow cannot convert strings to these
                    times = pl.Series(column).str.to_time("%H:%M:%S%.f", strict=True)
                    column = times.to_arrow(compat_level=pl.CompatLevel.oldest())
                column = pc.cast(column, field.type)
            columns.append(column)
        except (pa.ArrowException, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidError(f"column {field.name!r} should be {field.type}: {reason}") from error
    return pa.record_batch(columns, schema=pa.schema([f.with_nullable(True) for f in wanted]))


def _refuse_other_numbers(column: pa.Array, type_: pa.DataType) -> None:
    """Raise `ArrowInvalid` for a text that Arrow would read as a number that it does not say."""
    if not pa.types.is_string(column.type):
        return
    if pa.types.is_integer(type_):
        wrong = pc.match_substring_regex(column, "[xX]")
    elif pa.types.is_floating(type_):
        is_infinite = pc.is_inf(pc.cast(column, type_))
        wrong = pc.and_(is_infinite, pc.match_substring_regex(column, "[0-9]"))
    else:
        return
    found = column.filter(wrong)
    if len(found):
        raise pa.ArrowInvalid(f"found {found[0].as_py()!r}; write a decimal number in its range")


def _refuse_wide_text(text: bytes) -> None:
    """Raise `InvalidError` for UTF-16 and UTF-32, which have a mark or zero bytes at the start."""
    if text[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in text[:4]:
        raise InvalidError("it is UTF-16 or UTF-32, expected UTF-8")


# -- opened files ----------------------------------------------------------------------------------


@contextmanager
def _unpacked(store: Store, path: str) -> Iterator[pa.NativeFile]:
    codec = _CODECS.get(path.rpartition(".")[2].lower())
    with store.open_input(path) as opened:
        if codec is None:
            yield opened
        else:
            with pa.CompressedInputStream(opened, codec) as unpacked:
                yield unpacked


_CODECS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}


_UNREADABLE = (
    KeytideError, pa.ArrowException, pl.exceptions.PolarsError, OSError, EOFError, UnicodeError,
)  # fmt: skip


@contextmanager
def _reading(format_: FileFormat, store: Store, path: str) -> Iterator[None]:
    """A context whose errors name the file."""
    try:
        yield
    except DataError:
        raise
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{store.uri_of(path)} cannot be read as {format_.name}: {reason}; correct or remove "
            "the file, or use another format"
        ) from error
