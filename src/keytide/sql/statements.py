"""What a SQL text asks for: one frozen value per statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa
from sqlglot import exp

from keytide.sql.relation import Relation
from keytide.table.conditions.condition import Condition
from keytide.table.definition.evolution import SchemaChange
from keytide.types import Field

__all__ = [
    "GIVEN",
    "AddConstraint",
    "AlterTable",
    "ApplyEvents",
    "Call",
    "CommentOn",
    "CreateDatabase",
    "CreateExternalTable",
    "CreateTable",
    "CreateVersionName",
    "CreateView",
    "Delete",
    "Describe",
    "DescribeDatabase",
    "DescribeHistory",
    "DropConstraint",
    "DropDatabase",
    "DropTable",
    "DropVersionName",
    "DropView",
    "Explain",
    "Insert",
    "Merge",
    "Query",
    "RenameTable",
    "Rows",
    "Show",
    "Statement",
    "Truncate",
    "Update",
    "Use",
    "VersionNameKind",
    "When",
    "WhenTaken",
]


GIVEN = "given"
"""The mark, in the meta of a node that stands for a table, of rows that come with the query."""


@dataclass(frozen=True)
class Query:
    """SELECT, VALUES or WITH, as a tree whose places are those in `text`."""

    tree: exp.Expr
    text: str
    hints: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Options of `/*+ OPTIONS(...) */` by the place where the name of their table ends."""
    given: Mapping[str, Relation] = field(default_factory=dict)
    """Rows that no name leads to, by what the mark of the node says that stands for them."""
    where: Condition | None = None
    """A condition that is a value, on the table that a statement changes."""


@dataclass(frozen=True)
class Rows:
    """VALUES of literals only."""

    rows: pa.Table


@dataclass(frozen=True)
class CreateTable:
    """CREATE TABLE; at most one of `like` and `query` is given."""

    name: str
    columns: tuple[Field, ...]
    primary_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    exists_ok: bool = False
    like: str | None = None
    query: Query | None = None


@dataclass(frozen=True)
class CreateView:
    """CREATE VIEW; `text` is what the query was parsed from."""

    name: str
    text: str
    query: Query
    columns: tuple[str, ...] = ()
    comment: str | None = None
    replaces: bool = False
    exists_ok: bool = False


@dataclass(frozen=True)
class DropView:
    """DROP VIEW."""

    name: str
    missing_ok: bool = False


@dataclass(frozen=True)
class CreateExternalTable:
    """CREATE EXTERNAL TABLE; without columns they are those that lie at the location."""

    name: str
    format: str
    location: str = field(repr=False)
    columns: tuple[Field, ...] = ()
    primary_key: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    exists_ok: bool = False


@dataclass(frozen=True)
class Insert:
    """INSERT INTO or INSERT OVERWRITE. `columns` is empty when none are listed."""

    table: str
    query: Query | Rows
    columns: tuple[str, ...] = ()
    partition: Mapping[str, exp.Expr | None] = field(default_factory=dict)
    """Values of PARTITION (...); None where the query gives them."""
    overwrite: bool = False


@dataclass(frozen=True)
class ApplyEvents:
    """AUTO CDC INTO: the query gives the events; the rest is as in `FlowRequest`."""

    target: str
    source: Query
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    flow: str | None = None
    deletes: str | None = None
    truncates: str | None = None
    ignores_nulls: bool = False
    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] | None = None
    scd_type: int = 1
    tracked: tuple[str, ...] | None = None
    except_tracked: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Delete:
    """DELETE FROM; the query gives the rows to delete, whole."""

    table: str
    query: Query


@dataclass(frozen=True)
class Update:
    """UPDATE; the query selects everything of the rows to change."""

    table: str
    query: Query
    assignments: Mapping[str, exp.Expr]


@dataclass(frozen=True)
class When:
    """One WHEN of a MERGE, and what it does: `UPDATE`, `DELETE` or `INSERT`.

    `values` are the new values by column. None stands for `*`: each column of the target gets the
    one of the same name in the source.
    """

    kind: str
    """`MATCHED`, `NOT MATCHED` or `NOT MATCHED BY SOURCE`."""
    condition: exp.Expr | None
    action: str
    values: Mapping[str, exp.Expr] | None = None
    columns_are_given: bool = True
    """Whether an INSERT names columns; where not, values are by their places, "0", "1", ..."""


@dataclass(frozen=True)
class Merge:
    """MERGE INTO; `pairs` is a query that joins the target, its first table, with the source."""

    table: str
    pairs: Query
    whens: tuple[When, ...]


@dataclass(frozen=True)
class AlterTable:
    """ALTER TABLE of columns and options: all changes or none."""

    table: str
    changes: tuple[SchemaChange, ...]


@dataclass(frozen=True)
class DropTable:
    """DROP TABLE."""

    table: str
    missing_ok: bool = False


@dataclass(frozen=True)
class CommentOn:
    """COMMENT ON TABLE, with the names of the path in `path`, or ON COLUMN, the column's too."""

    kind: Literal["TABLE", "COLUMN"]
    path: tuple[str, ...]
    comment: str | None


@dataclass(frozen=True)
class AddConstraint:
    """ALTER TABLE ... ADD CONSTRAINT ... CHECK."""

    table: str
    name: str
    condition: str


@dataclass(frozen=True)
class DropConstraint:
    """ALTER TABLE ... DROP CONSTRAINT."""

    table: str
    name: str
    missing_ok: bool = False


@dataclass(frozen=True)
class RenameTable:
    """ALTER TABLE ... RENAME TO."""

    table: str
    new_name: str


@dataclass(frozen=True)
class CreateDatabase:
    """CREATE DATABASE."""

    name: str
    comment: str | None = None
    exists_ok: bool = False


@dataclass(frozen=True)
class DropDatabase:
    """DROP DATABASE; `cascade` drops its tables too."""

    name: str
    missing_ok: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class Use:
    """USE: names without a database are in this one from then on."""

    database: str


@dataclass(frozen=True)
class Truncate:
    """TRUNCATE TABLE, or ALTER TABLE ... DROP PARTITION."""

    table: str
    partitions: tuple[Mapping[str, exp.Expr | None], ...] = ()
    """Values of each PARTITION (...); none for the whole table."""


VersionNameKind: TypeAlias = Literal["TAG", "BRANCH"]
WhenTaken: TypeAlias = Literal["refuse", "keep", "replace", "need"]
"""What a name that there is already means: that of CREATE, with IF NOT EXISTS, CREATE OR REPLACE,
and REPLACE, which needs it."""


@dataclass(frozen=True)
class CreateVersionName:
    """ALTER TABLE ... CREATE TAG or BRANCH: of a snapshot's id or a tag, or of the newest one."""

    table: str
    kind: VersionNameKind
    name: str
    version: str | None = None
    time_retained: str | None = None
    taken: WhenTaken = "refuse"


@dataclass(frozen=True)
class DropVersionName:
    """ALTER TABLE ... DROP TAG or DROP BRANCH."""

    table: str
    kind: VersionNameKind
    name: str
    missing_ok: bool = False


@dataclass(frozen=True)
class Show:
    """SHOW: `what` is TABLES, DATABASES, CREATE TABLE, PARTITIONS, TAGS, COLUMNS and the like."""

    what: str
    name: str | None = None
    like: str | None = None


@dataclass(frozen=True)
class Describe:
    """DESCRIBE; `extended` adds keys, options and place."""

    table: str
    extended: bool = False


@dataclass(frozen=True)
class DescribeHistory:
    """DESCRIBE HISTORY; the newest commits, `limit` of them at most."""

    table: str
    limit: int | None = None


@dataclass(frozen=True)
class DescribeDatabase:
    """DESCRIBE DATABASE."""

    database: str


@dataclass(frozen=True)
class Explain:
    """EXPLAIN of a query or of a statement that changes rows; ANALYZE carries either out."""

    query: Query | Delete | Update | Merge
    analyze: bool = False


@dataclass(frozen=True)
class Call:
    """CALL of a procedure, with values by position or name."""

    procedure: str
    arguments: tuple[object, ...] = ()
    named: Mapping[str, object] = field(default_factory=dict)


Statement: TypeAlias = (
    "Query | CreateTable | CreateExternalTable | Insert | Delete | Update | Merge | AlterTable | "
    "CreateVersionName | DropVersionName | CommentOn | AddConstraint | DropConstraint | "
    "RenameTable | DropTable | Truncate | CreateDatabase | DropDatabase | Use | CreateView | "
    "DropView | Show | Describe | DescribeDatabase | DescribeHistory | Explain | Call | ApplyEvents"
)
