"""The lines of keys, held against tomllib: same keys, and the line really is where the key stands."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.plan.locate import Path, line_of, locate

BARE = st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True)
# What confuses a naive locator: brackets, quotes, hashes, equals signs and newlines inside of strings.
TRICKY = st.text(alphabet="ab\"'[]{}#=.,\\\n \t", max_size=12)
SCALARS = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.sampled_from(
        ["true", "1.5", "inf", "1979-05-27T07:32:00Z", "1979-05-27 07:32:00", "07:32:00", "0x_f".replace("_", "")]
    ),
    TRICKY.map(json.dumps),
    TRICKY.filter(lambda text: "'" not in text and "\n" not in text).map("'{}'".format),
    TRICKY.map(lambda text: '"""' + re.sub('"{3,}', '""', text).replace("\\", "\\\\").rstrip('"') + '"""'),
    TRICKY.map(lambda text: text.rstrip('"\\')).map(
        lambda t: '"""' + t.replace("\\", "\\\\").replace('"', '\\"') + '""""'
    ),
    TRICKY.filter(lambda text: "'''" not in text).map(lambda text: f"'''{text.strip(chr(39))}'''"),
)
GAP = st.sampled_from(["", " ", "\n", " # ]}\n", "\n\n\t"])


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    parts = draw(st.lists(inner, max_size=3))
    text = "["
    for number, part in enumerate(parts):
        text += draw(GAP) + part + draw(GAP) + ("," if number < len(parts) - 1 or draw(st.booleans()) else "")
    return text + draw(GAP) + "]"


@st.composite
def inline_tables(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    keys = draw(st.lists(BARE, max_size=3, unique=True))
    return "{" + ", ".join(f"{key} = {draw(inner)}" for key in keys) + "}"


VALUES = st.recursive(SCALARS, lambda inner: arrays(inner) | inline_tables(inner), max_leaves=6)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[Path, int]]:
    """A TOML text, and the lines of its keys in headers and pairs as its writer knows them."""
    text, lines = "", {}
    line_end = draw(st.sampled_from(["\n", "\r\n"]))
    for name in draw(st.lists(BARE, max_size=3, unique=True)):
        quoted = draw(st.sampled_from([name, f'"{name}"', f"'{name}'"]))
        repeats = draw(st.integers(0, 2))
        for index in range(repeats or 1):
            table: Path = (name, index) if repeats else (name,)
            text += draw(st.sampled_from(["", "\n", "# [x]\n"]))
            lines[table] = text.count("\n") + 1
            text += f"[[{quoted}]]\n" if repeats else f"[ {quoted} ] # = 3\n"
            for key in draw(st.lists(BARE, max_size=3, unique=True)):
                text += draw(st.sampled_from(["", "\n", "  "]))
                dotted = draw(st.booleans())
                lines[(*table, key)] = text.count("\n") + 1
                text += f"{key} . 'x.y' = " if dotted else f"{key}="
                text += draw(VALUES) + "\n"
    return text.replace("\n", line_end), lines


def paths_of(value: Any, path: Path = ()) -> set[Path]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path} - {()} | {found for key, part in inner for found in paths_of(part, (*path, key))}


@settings(max_examples=300)
@given(document=documents())
def test_every_key_is_found_on_its_line(document: tuple[str, dict[Path, int]]) -> None:
    text, expected = document
    values = tomllib.loads(text)
    lines = locate(text)
    assert set(lines) == paths_of(values)
    assert {path: lines[path] for path in expected} == expected
    for path, line in lines.items():
        assert lines[path[:-1]] <= line if len(path) > 1 else line >= 1


def test_an_absent_key_has_the_line_of_the_table_around_it() -> None:
    lines = locate("a = 1\n\n[run]\nseed = 7\n")
    assert line_of(lines, ("run", "sed")) == 3
    assert line_of(lines, ("nothing",)) == 1


def test_headers_inside_an_array_of_tables_mean_its_last_element() -> None:
    lines = locate("[[fault]]\n[[fault]]\n[fault.env]\nx = 1\n[[fault.part]]\n[fault.part.deep]\ny = 2\n")
    assert lines["fault", 1, "env", "x"] == 4
    assert lines["fault", 1, "part", 0, "deep", "y"] == 7
