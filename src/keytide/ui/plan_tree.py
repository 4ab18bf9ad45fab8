"""How a statement is carried out, as a tree: what of each table is read, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keytide.plural import counted
from keytide.sql.relation import Relation, StoredRelation
from keytide.sql.relations import BoundQuery
from keytide.table.read.plan import FunnelStage
from keytide.table.read.scan import Explanation

__all__ = ["Plan", "plan_of", "plan_of_lines"]


@dataclass(frozen=True)
class Plan:
    """A step with what is said of it, the files that each pruning left, and the steps below it."""

    title: str
    notes: tuple[str, ...] = ()
    stages: tuple[FunnelStage, ...] = ()
    children: tuple[Plan, ...] = ()


def plan_of(bound: BoundQuery) -> Plan:
    """The tables of a query, without reading rows. Raises what planning their scans raises."""
    tables = tuple(_of_relation(relation) for relation in bound.relations)
    return Plan("query, computed by DuckDB", () if tables else ("reads no table",), children=tables)


def plan_of_lines(lines: Sequence[str]) -> Plan:
    """What EXPLAIN says of a change, where a deeper line belongs to the one above it."""
    title, *rest = lines or ["nothing"]
    return Plan(title, children=tuple(_below(rest)))


def _below(lines: Sequence[str]) -> Iterator[Plan]:
    place = 0
    while place < len(lines):
        depth = _depth(lines[place])
        end = place + 1
        while end < len(lines) and _depth(lines[end]) > depth:
            end += 1
        yield Plan(lines[place].strip(), children=tuple(_below(lines[place + 1 : end])))
        place = end


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _of_relation(relation: Relation) -> Plan:
    if not isinstance(relation, StoredRelation):
        title, *notes = relation.explained()
        return Plan(title, tuple(notes))
    explained = relation.scan().explain()
    needs = relation.explained()[-2:]
    title = f"scan of {explained.table}, snapshot {explained.snapshot_id}"
    return Plan(title, tuple(needs), tuple(explained.funnel.stages), tuple(_readings(explained)))


def _readings(explained: Explanation) -> Iterator[Plan]:
    if explained.files_raw:
        yield Plan(f"read as they are: {counted(explained.files_raw, 'file')}")
    if explained.files_merged:
        yield Plan(
            f"merged by {explained.merge_engine}: {counted(explained.files_merged, 'file')}",
            (
                f"{counted(explained.sections_merged, 'section')} of up to "
                f"{counted(explained.runs_max, 'overlapping run')}",
            ),
        )
    if explained.asked_of_files is not None:
        yield Plan(f"files left out by: {explained.asked_of_files}")
    if explained.asked_of_rows is not None:
        yield Plan(f"rows left out by: {explained.asked_of_rows}")
