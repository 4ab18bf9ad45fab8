"""The style of pictures, for a web page and for the output of a notebook cell."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["SCOPE", "notebook_style", "page_style"]

SCOPE = "keytide"
"""The class of notebook output. Every rule of its style begins with it."""

# Color names, with a value for the light and for the dark theme.
_COLOURS = {
    "ground": ("#f3f6f8", "#0e161c"),
    "card": ("#ffffff", "#162129"),
    "line": ("#d5dee4", "#2a3a45"),
    "strong-line": ("#7b8b96", "#7e919e"),
    "ink": ("#14232d", "#e6eef3"),
    "soft": ("#4b5c68", "#a7b7c2"),
    "accent": ("#0b5f7d", "#6cc9e4"),
    "accent-ink": ("#ffffff", "#06222d"),
    "accent-soft": ("#e0f0f5", "#163744"),
    "good": ("#1c6b3a", "#7fd6a0"),
    "good-soft": ("#e0f3e6", "#143424"),
    "warn": ("#7f4a00", "#f2c077"),
    "warn-soft": ("#fdf0d9", "#3a2a10"),
    "bad": ("#a32218", "#ff9d92"),
    "bad-soft": ("#fce6e3", "#42201d"),
    "write": ("#1582a8", "#47b4d6"),
    "compaction": ("#8a6bbf", "#a98bdc"),
    "overwrite": ("#c07a12", "#dc9a3a"),
    "deleted": ("#d0584b", "#e5786c"),
    "flag": ("#b8860b", "#e2b84a"),
    "level-0": ("#59b7d3", "#2b5c6e"),
    "level-1": ("#2f93b5", "#34788f"),
    "level-2": ("#217896", "#3d94b0"),
    "level-3": ("#185f79", "#52b0cd"),
    "level-4": ("#12495f", "#7ccae2"),
    "level-5": ("#0b3446", "#b0e3f2"),
}
# The names of the theme colors in JupyterLab and VS Code.
_OF_THEME = {
    "card": "--jp-layout-color1",
    "ink": "--jp-content-font-color1",
    "soft": "--jp-content-font-color2",
    "line": "--jp-border-color2",
}
_LIGHT_HOSTS = ('[data-jp-theme-light="true"]', "body.vscode-light", 'html[theme="light"]')
_DARK_HOSTS = ('[data-jp-theme-light="false"]', "body.vscode-dark", 'html[theme="dark"]')


# Notebooks style what cells show, such as `.jp-RenderedHTMLCommon dl dt`. The class is repeated so
# that our rules win over these, and the first rule restores the defaults of browsers.
_WITHIN = f".{SCOPE}.{SCOPE}"
_RESET = f"{_WITHIN} :where(:not(svg):not(svg *)){{all:revert}}"


@cache
def page_style() -> str:
    """The style of a whole page, which follows the reader's light or dark preference."""
    light, dark = (_variables(_colours(at)) for at in (0, 1))
    dark_rule = f"@media (prefers-color-scheme: dark) {{:root{{{dark}}}}}"
    return f":root{{{light}}}\n{dark_rule}\n{_rules('style.css')}"


@cache
def notebook_style() -> str:
    """The style for elements of the class `SCOPE`. It does not affect other elements.

    It uses the light or dark theme of the notebook if the notebook declares it, otherwise the
    reader's preference.
    """
    light, dark = (_variables(_colours(at) | _themed(at)) for at in (0, 1))
    hosts = (
        f"{','.join(f'{host} .{SCOPE}' for host in hosts)}{{{colours}}}"
        for hosts, colours in ((_LIGHT_HOSTS, light), (_DARK_HOSTS, dark))
    )
    dark_rule = f"@media (prefers-color-scheme:dark){{.{SCOPE}{{{dark}}}}}"
    frame = f".{SCOPE}{{{light}}}{dark_rule}{''.join(hosts)}"
    return frame + _RESET + _compact(_scoped(_rules("style.css") + _rules("notebook.css")))


def _colours(at: int) -> dict[str, str]:
    return {name: pair[at] for name, pair in _COLOURS.items()}


def _themed(at: int) -> dict[str, str]:
    return {name: f"var({theirs},{_COLOURS[name][at]})" for name, theirs in _OF_THEME.items()}


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


@cache
def _rules(file: str) -> str:
    return (Path(__file__).parent / file).read_text(encoding="utf-8")


def _scoped(rules: str) -> str:
    """The rules restricted to the scope. `&` is the scope itself."""

    def scoped(rule: re.Match[str]) -> str:
        selectors = (each.strip() for each in rule[1].split(","))
        within = (_WITHIN if each == "&" else f"{_WITHIN} {each}" for each in selectors)
        return f"{','.join(within)}{{{rule[2]}}}"

    return re.sub(r"([^{}]+)\{([^{}]*)\}", scoped, re.sub(r"/\*.*?\*/", "", rules, flags=re.DOTALL))


def _compact(rules: str) -> str:
    """The same rules without optional white space."""
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r"\s+", " ", rules)).replace(": ", ":")
