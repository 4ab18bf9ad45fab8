"""Type changes of columns that keep every value exactly.

Widening also keeps the order of values, so bounds of the old type are valid for the new one.
"""

from __future__ import annotations

from dataclasses import replace

from keytide.errors import InvalidError
from keytide.types.logical import ArrayType, AtomicType, DataType, MapType, RowType

__all__ = ["common_type", "holds_all", "path_text", "widened"]


def widened(old: DataType, new: DataType, path: tuple[str, ...]) -> DataType:
    """The new type with the ids and the nullability of the old one.

    Raises `InvalidError`, with `path` and the allowed types, unless every value fits.
    """
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return replace(old, element=widened(old.element, new.element, (*path, "element")))
    if isinstance(old, MapType) and isinstance(new, MapType) and _is_same(old.key, new.key):
        return replace(old, value=widened(old.value, new.value, (*path, "value")))
    if isinstance(old, RowType) and isinstance(new, RowType):
        return _widened_row(old, new, path)
    if isinstance(old, AtomicType) and isinstance(new, AtomicType) and holds_all(old, new):
        return new.with_nullable(old.nullable)
    if _is_same(old, new):
        return old
    raise InvalidError(
        f"column {path_text(path)} is {old.sql()} and cannot become {new.sql()}: a type can only "
        f"be widened, so that it can hold every stored value exactly. {_wider_types(old)}. "
        "Otherwise add a column and write the values to it"
    )


def _widened_row(old: RowType, new: RowType, path: tuple[str, ...]) -> RowType:
    names, wanted = [f.name for f in old.fields], [f.name for f in new.fields]
    if names != wanted:
        raise InvalidError(
            f"column {path_text(path)} has the fields {', '.join(names)}, found "
            f"{', '.join(wanted)}; add, drop, rename and move fields by their paths, such as "
            f"{path_text((*path, names[0]))}"
        )
    members = (
        replace(member, type=widened(member.type, wider.type, (*path, member.name)))
        for member, wider in zip(old.fields, new.fields, strict=True)
    )
    return replace(old, fields=tuple(members))


def _is_same(old: DataType, new: DataType) -> bool:
    return old.with_nullable(True) == new.with_nullable(True)


_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}
_EXACT_FLOATS = {
    "TINYINT": ("FLOAT", "DOUBLE"),
    "SMALLINT": ("FLOAT", "DOUBLE"),
    # A FLOAT holds integers of 24 bits exactly, and a DOUBLE of 53 bits. A BIGINT fits into
    # neither.
    "INT": ("DOUBLE",),
    "FLOAT": ("DOUBLE",),
}
_LONGER = {
    "CHAR": ("CHAR", "VARCHAR"),
    "VARCHAR": ("VARCHAR",),
    "BINARY": ("VARBINARY",),  # a longer BINARY would need padding
    "VARBINARY": ("VARBINARY",),
}
_MICROSECONDS = 6
_DECIMAL_DIGITS_MAX = 38


def holds_all(old: AtomicType, new: AtomicType) -> bool:
    """Whether every value of the old type is exactly a value of the new type."""
    digits = _DIGITS.get(old.root)
    if digits is not None and new.root in _DIGITS:
        return _DIGITS[new.root] >= digits
    if digits is not None and new.root == "DECIMAL":
        return _whole_digits(new) >= digits
    if new.root in _EXACT_FLOATS.get(old.root, ()):
        return True
    if new.root in _LONGER.get(old.root, ()):
        return (new.length or 0) >= (old.length or 0)
    if old.root != new.root or old.precision is None or new.precision is None:
        return False
    if old.root == "DECIMAL":
        return _whole_digits(new) >= _whole_digits(old) and (new.scale or 0) >= (old.scale or 0)
    # Nanoseconds cover only 1677 to 2262.
    same_reach = old.root == "TIME" or (old.precision > _MICROSECONDS) == (
        new.precision > _MICROSECONDS
    )
    return same_reach and new.precision >= old.precision


def common_type(old: AtomicType, new: AtomicType) -> AtomicType | None:
    """The narrowest type that holds every value of both types exactly, None if there is none.

    It is `old` if that is such a type. Lengths of strings and binaries are ignored.
    """
    double = AtomicType("DOUBLE")
    candidates = (old, new, double, *_decimal_of_both(old, new))
    return next((c for c in candidates if _holds(old, c) and _holds(new, c)), None)


def _holds(old: AtomicType, new: AtomicType) -> bool:
    return _is_same(old, new) or holds_all(old, new)


def _decimal_of_both(old: AtomicType, new: AtomicType) -> list[AtomicType]:
    if not all(type_.root == "DECIMAL" or type_.root in _DIGITS for type_ in (old, new)):
        return []
    whole = max(_DIGITS.get(type_.root) or _whole_digits(type_) for type_ in (old, new))
    scale = max(type_.scale or 0 for type_ in (old, new))
    fits = whole + scale <= _DECIMAL_DIGITS_MAX
    return [AtomicType("DECIMAL", precision=whole + scale, scale=scale)] if fits else []


def path_text(path: tuple[str, ...]) -> str:
    """A path in messages."""
    return repr(".".join(path))


def _whole_digits(decimal: AtomicType) -> int:
    return (decimal.precision or 0) - (decimal.scale or 0)


def _wider_types(old: DataType) -> str:
    root = old.root
    if root in _DIGITS:
        whole = [name for name, digits in _DIGITS.items() if digits > _DIGITS[root]]
        names = [
            *whole,
            *_EXACT_FLOATS.get(root, ()),
            f"DECIMAL with {_DIGITS[root]} integer digits",
        ]
        return f"{root} can become {' or '.join(names)}"
    if root in _EXACT_FLOATS:
        return f"{root} can become {' or '.join(_EXACT_FLOATS[root])}"
    if root in _LONGER:
        return f"{root} can become a {' or '.join(_LONGER[root])} of at least the same length"
    if root == "DECIMAL":
        return "DECIMAL can get more digits before and after the point"
    if root in ("TIME", "TIMESTAMP", "TIMESTAMP_LTZ"):
        return f"{root} can get more fractional digits, a timestamp up to 6"
    if isinstance(old, ArrayType | MapType | RowType):
        return "Elements, values of a MAP and fields of a ROW can be widened in place"
    return f"{old.sql()} has no wider type"
