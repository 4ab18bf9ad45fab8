"""Keys of options are spelled in `keytide/options` alone, for code and for messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from keytide.options import SECTIONS

SOURCE = Path(__file__).parents[2] / "src/keytide"

# Keys that are a word of every day, and those that have a hyphen or a dot and are none.
KEYS = {
    re.split(r"<\w+>\.?", key)[-1]  # of an option of columns what follows them
    for options in SECTIONS.values()
    for option in options
    for key in (option.key, *option.aliases)
} - {""}
WORDS = {key for key in KEYS if key.isalpha()}
SPELT = re.compile(
    rf"(?<![\w-])(?:{'|'.join(sorted(map(re.escape, KEYS - WORDS), key=len, reverse=True))})"
    r"(?![\w-]|\.\w)"
)
QUOTED = re.compile(rf"'(?:{'|'.join(WORDS)})'")
# Names of mappings in which a word of every day is looked up as an option.
MAPPINGS = {"options", "raw", "stored", "given"}


def spelled(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The keys of options in the texts of a module, docstrings excepted, by their lines."""
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            for found in (*SPELT.finditer(node.value), *QUOTED.finditer(node.value)):
                yield node.lineno, found[0]
        for text in looked_up(node):
            if text.value in WORDS:
                yield text.lineno, str(text.value)


def looked_up(node: ast.AST) -> Iterator[ast.Constant]:
    """What a node looks up in a mapping of options, where that stands as a text."""
    pairs: list[tuple[ast.AST, ast.AST]] = []
    if isinstance(node, ast.Subscript):
        pairs = [(node.value, node.slice)]
    elif isinstance(node, ast.Compare):
        pairs = [(mapping, node.left) for mapping in node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        pairs = [(node.func.value, argument) for argument in node.args[:1]]
    for mapping, text in pairs:
        name = getattr(mapping, "attr", getattr(mapping, "id", None))
        if name in MAPPINGS and isinstance(text, ast.Constant):
            yield text


@pytest.mark.takes_turns
def test_keys_of_options_are_spelled_among_the_options_alone() -> None:
    found = [
        f"{module}, line {line}: {key}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.parent.name != "options"
        for module in [path.relative_to(SOURCE).as_posix()]
        for line, key in spelled(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


def test_every_way_to_spell_a_key_is_found() -> None:
    code = '''
def f(options, name):
    """A docstring may say bucket-key."""
    raise ValueError(f"'fields.{name}.ignore-retract' or 'sequence.field', set 'bucket'")
    options["bucket"], options.get("partition"), "type" in self.raw, {"merge-engine": 1}
    column["bucket"], "the bucket", "my-bucket-key", "sequence.fields"
'''
    assert sorted(spelled(ast.parse(code))) == [
        (4, "'bucket'"),
        (4, "ignore-retract"),
        (4, "sequence.field"),
        (5, "bucket"),
        (5, "merge-engine"),
        (5, "partition"),
        (5, "type"),
    ]
