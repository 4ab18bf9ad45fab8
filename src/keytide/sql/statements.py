"""The parsed statements: one immutable value per statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import pyarrow as pa
from sqlglot import exp

from keytide.base.dataclass import dataclass, field
from keytide.definition.schema_evolution import SchemaChange
from keytide.predicate.condition import Condition
from keytide.sql.relation import Relation
from keytide.types import Field

CALLER_ROWS = "given"
"""The mark, in the meta of a table node, for rows that are passed with the query."""


@dataclass(frozen=True)
class Query:
    """SELECT, VALUES or WITH, as a tree whose positions refer to `text`."""

    tree: exp.Expr
    text: str
    hints: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Options of `/*+ OPTIONS(...) */`, by the position where their table name ends."""
    caller_rows: Mapping[str, Relation] = field(default_factory=dict)
    """Rows passed with the query, by the mark of the node that represents them."""
    where: Condition | None = None
    """A condition object on the table that a statement changes.

    REQUIRES: its connector tests it wholly, as those of Keytide's own tables do.
    """


@dataclass(frozen=True)
class Rows:
    """VALUES with only literals."""

    rows: pa.Table


@dataclass(frozen=True)
class CreateTable:
    """CREATE TABLE. At most one of `like` and `query` is given."""

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
    """CREATE VIEW. `text` is the original SQL text."""

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
    """CREATE EXTERNAL TABLE. Without columns, those at the location are used."""

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
    """INSERT INTO or INSERT OVERWRITE. `columns` is empty if none are listed."""

    table: str
    query: Query | Rows
    columns: tuple[str, ...] = ()
    partition: Mapping[str, exp.Expr | None] = field(default_factory=dict)
    """The values of PARTITION (...). None if the query provides the value."""
    overwrite: bool = False


@dataclass(frozen=True)
class ApplyEvents:
    """AUTO CDC INTO: the query provides the events. Other members are as in `FlowRequest`."""

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
    """DELETE FROM. The query selects the complete rows to delete."""

    table: str
    query: Query


@dataclass(frozen=True)
class Update:
    """UPDATE. The query selects all columns of the rows to change."""

    table: str
    query: Query
    assignments: Mapping[str, exp.Expr]


@dataclass(frozen=True)
class When:
    """One WHEN clause of a MERGE, with its action: `UPDATE`, `DELETE` or `INSERT`.

    `values` are the new values by column. None means `*`: each target column gets the source column
    of the same name.
    """

    kind: str
    """`MATCHED`, `NOT MATCHED` or `NOT MATCHED BY SOURCE`."""
    condition: exp.Expr | None
    action: str
    values: Mapping[str, exp.Expr] | None = None
    columns_are_given: bool = True
    """Whether an INSERT names columns. Otherwise values are keyed by position, "0", "1", ..."""


@dataclass(frozen=True)
class Merge:
    """MERGE INTO. `pairs` is a query that joins the target, its first table, with the source.

    `evolves` adds the columns of the source that the WHEN clauses set.
    """

    table: str
    pairs: Query
    whens: tuple[When, ...]
    evolves: bool = False


@dataclass(frozen=True)
class AlterTable:
    """ALTER TABLE for columns and options. Atomic."""

    table: str
    changes: tuple[SchemaChange, ...]


@dataclass(frozen=True)
class DropTable:
    """DROP TABLE."""

    table: str
    missing_ok: bool = False


@dataclass(frozen=True)
class CommentOn:
    """COMMENT ON TABLE or ON COLUMN. `path` is the qualified name."""

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
    """DROP DATABASE. `cascade` also drops its tables."""

    name: str
    missing_ok: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class Use:
    """USE: sets the current database."""

    database: str


@dataclass(frozen=True)
class Truncate:
    """TRUNCATE TABLE, or ALTER TABLE ... DROP PARTITION."""

    table: str
    partitions: tuple[Mapping[str, exp.Expr | None], ...] = ()
    """The values of each PARTITION (...). Empty for the whole table."""


VersionNameKind: TypeAlias = Literal["TAG", "BRANCH"]
NamePolicy: TypeAlias = Literal["refuse", "keep", "replace", "need"]
"""What happens if the name is taken:

CREATE, CREATE IF NOT EXISTS, CREATE OR REPLACE, or REPLACE, which requires an existing one.
"""


@dataclass(frozen=True)
class CreateVersionName:
    """ALTER TABLE ... CREATE TAG or BRANCH, from a snapshot id or tag, or the latest snapshot."""

    table: str
    kind: VersionNameKind
    name: str
    version: str | None = None
    time_retained: str | None = None
    name_policy: NamePolicy = "refuse"


@dataclass(frozen=True)
class DropVersionName:
    """ALTER TABLE ... DROP TAG or DROP BRANCH."""

    table: str
    kind: VersionNameKind
    name: str
    missing_ok: bool = False


@dataclass(frozen=True)
class Show:
    """SHOW. `what` is TABLES, DATABASES, CREATE TABLE, PARTITIONS, TAGS, COLUMNS and so on."""

    what: str
    name: str | None = None
    like: str | None = None


@dataclass(frozen=True)
class Describe:
    """DESCRIBE. `extended` adds keys, options and location."""

    table: str
    extended: bool = False


@dataclass(frozen=True)
class DescribeHistory:
    """DESCRIBE HISTORY: the latest commits, at most `limit` of them."""

    table: str
    limit: int | None = None


@dataclass(frozen=True)
class DescribeDatabase:
    """DESCRIBE DATABASE."""

    database: str


@dataclass(frozen=True)
class Explain:
    """EXPLAIN of a query, or of a statement that changes rows. ANALYZE executes either of them."""

    query: Query | Delete | Update | Merge
    analyze: bool = False


@dataclass(frozen=True)
class Call:
    """CALL of a procedure, with arguments by position or name."""

    procedure: str
    arguments: tuple[object, ...] = ()
    named: Mapping[str, object] = field(default_factory=dict)


Statement: TypeAlias = (
    "Query | CreateTable | CreateExternalTable | Insert | Delete | Update | Merge | AlterTable | "
    "CreateVersionName | DropVersionName | CommentOn | AddConstraint | DropConstraint | "
    "RenameTable | DropTable | Truncate | CreateDatabase | DropDatabase | Use | CreateView | "
    "DropView | Show | Describe | DescribeDatabase | DescribeHistory | Explain | Call | ApplyEvents"
)
