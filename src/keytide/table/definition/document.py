"""The table of options as a document for people: `python -m keytide.table.definition`
prints it.
"""

from __future__ import annotations

from collections.abc import Iterator

from keytide.merge.engines import ENGINES, engines_with
from keytide.options import SECTIONS, ForOthers, Option, Refused, keys
from keytide.options.option import Acts, Use

__all__ = ["document"]

_HEAD = """\
# Table options

Options are given to `create_table(options={...})`, `WITH (...)` or `TBLPROPERTIES (...)`, and
changed by `ALTER TABLE ... SET (...)`, `RESET (...)` or `Table.alter`. Values are texts. In names
letter case does not count, and `_` or `-` may stand for `-` or `.`; tables store the names below.
An unknown name, a value that does not fit and a value of another type are refused.

Keys are those of Apache Paimon's table format, and a few of Keytide's own. What Keytide does with
an option is one of three:

- it **acts**: nothing more is said below;
- it is **kept** for other engines that use the same table. Setting it gives a warning with a
  `KeytideWarning` that says what it means here;
- it is **refused** with `UnsupportedError`, because no engine would obey it and rows or files would
  not be what the option promises.

An option with its default value is never warned of or refused. Tables that others have made keep
all of their options, and are opened without a word.

*Change* says when a table's option may be changed: *any time*; *no rows*: while the table has
none, and later for columns that are added in the same step; *one way*: with rows, to `true` only;
*shorter*: with rows, to a shorter time only; *never*. Options that begin with `user.` are yours.

This page is printed by `python -m keytide.table.definition > docs/options.md`.
"""

_CHANGES = {
    "FREE": "any time", "FIXED": "no rows", "ONE_WAY": "one way", "SHORTER": "shorter",
    "NEVER": "never",
}  # fmt: skip


def document() -> str:
    """The document, in Markdown."""
    parts = [_HEAD, *(f"{_section(name, rows)}\n" for name, rows in SECTIONS.items())]
    return "\n".join([*parts, _engines()]).rstrip() + "\n"


def _section(name: str, rows: tuple[Option, ...]) -> str:
    head = f"## {name}\n\n| Option | Value | Change | Meaning |\n|---|---|---|---|\n"
    return head + "\n".join(map(_row, rows))


def _engines() -> str:
    names = f"| `{keys.MERGE_ENGINE}` | What the versions of a key become |"
    head = f"## Merge engines\n\n{names}\n|---|---|\n"
    return head + "\n".join(f"| `{name}` | {each.meaning} |" for name, each in ENGINES.items())


def _row(option: Option) -> str:
    change = _CHANGES[option.change.name]
    meaning = " ".join([option.meaning, *_notes(option)])
    return f"| `{option.key}` | {_value(option)} | {change} | {meaning} |".replace("\n", " ")


def _value(option: Option) -> str:
    if not option.default:
        return option.type.name
    return f"{option.type.name}; left out: `{option.default}`"


def _notes(option: Option) -> Iterator[str]:
    engines = engines_with(option.key)
    if engines:
        yield f"For {' and '.join(f'`{name}`' for name in engines)}."
    if option.used_with:
        yield f"With `{option.used_with}`."
    if option.aliases:
        yield f"Also {', '.join(f'`{name}`' for name in option.aliases)}."
    yield from _uses(option.use)
    for value, use in option.uses.items():
        yield from (f"`{value}`: {note}" for note in _uses(use))


def _uses(use: Use) -> Iterator[str]:
    if isinstance(use, ForOthers):
        yield f"**Kept**: {use.here}."
    elif isinstance(use, Refused):
        yield f"**Refused**: {use.why}; {use.instead}."
    else:
        assert isinstance(use, Acts)
