"""The plan of a query as a tree: what is read of each table, and what is pruned."""

from __future__ import annotations

from keytide.show.plan_tree import Plan
from keytide.sql.analysis import QueryAnalysis, RelationAnalysis
from keytide.sql.relation import Relation, StoredRelation
from keytide.sql.relations import BoundQuery

__all__ = ["plan_of", "plan_of_analysis"]


def plan_of(bound: BoundQuery) -> Plan:
    """The tables of a query, without reading rows. Raises what planning their scans raises."""
    tables = tuple(_of_relation(relation) for relation in bound.relations)
    return Plan("query, computed by DuckDB", () if tables else ("reads no table",), children=tables)


def _of_relation(relation: Relation) -> Plan:
    if not isinstance(relation, StoredRelation):
        title, *notes = relation.explained()
        return Plan(title, tuple(notes))
    return relation.scan().explain().plan(tuple(relation.needs()))


def plan_of_analysis(found: QueryAnalysis) -> Plan:
    """What was measured of a query, and below it the tables that it read."""
    notes = (found.summary,) if found.relations else (found.summary, "reads no table")
    return Plan("query", notes, children=tuple(map(_of_measured, found.relations)))


def _of_measured(relation: RelationAnalysis) -> Plan:
    stages = () if relation.scan is None else relation.scan.planned.funnel.stages
    return Plan(relation.title, (relation.summary, *relation.lines()), tuple(stages))
