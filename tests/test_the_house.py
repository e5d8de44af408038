"""The rules of the house, held against its files: imports point down, one file per fault, short functions, no
sleeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaoskit.faults import FAULTS

ROOT = Path(__file__).parents[1]
FUNCTION_LINES_MAX = 70

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "plan": set(),
    "journal": set(),
    "schedule": {"plan"},
    "links": {"plan"},
    "faults": {"plan", "schedule"},
    "world": {"plan", "schedule", "faults", "links", "journal"},
    "daemon": {"plan", "schedule", "faults", "links", "world", "journal"},
    # Probes describe their tolerances with the plan's tables, so that plans are checked against them.
    "probes": {"journal", "plan"},
    "report": {"journal", "probes"},
}
"""Room -> rooms it may import besides itself and `errors` (CONTRIBUTING.md). What is not named is a
face."""


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    """The full names of all modules that the file imports, at any depth of it."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "chaoskit").parts[0].removesuffix(".py")


def test_imports_point_down_only() -> None:
    wrong = []
    for path in python_files("chaoskit"):
        room = room_of(path)
        if room not in MAY_IMPORT:
            continue
        for module in imported_modules(path):
            parts = module.split(".")
            if parts[0] != "chaoskit" or len(parts) < 2 or parts[1].startswith("__"):
                continue
            if parts[1] not in MAY_IMPORT[room] | {room, "errors"}:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_every_room_of_the_table_exists() -> None:
    rooms = {room_of(path) for path in python_files("chaoskit")}
    assert set(MAY_IMPORT) <= rooms


@pytest.mark.parametrize(("folder", "other"), [("chaoskit", "trainer"), ("trainer", "chaoskit")])
def test_the_toolkit_and_the_trainer_know_nothing_of_one_another(folder: str, other: str) -> None:
    assert python_files(folder)
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in python_files(folder)
        for module in imported_modules(path)
        if module.split(".")[0] == other
    ]
    assert wrong == []


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_every_kind_of_fault_has_one_file_and_one_test_of_its_name(kind: str) -> None:
    name = kind.replace(".", "_").replace("-", "_")
    assert FAULTS[kind].__module__ == f"chaoskit.faults.{name}"
    assert (ROOT / "tests" / "faults" / f"test_{name}.py").exists()


def test_every_fault_file_holds_a_kind_that_plans_can_name() -> None:
    kinds = {kind.replace(".", "_").replace("-", "_") for kind in FAULTS}
    shared = {"__init__", "base", "link"}
    assert {path.stem for path in python_files("chaoskit/faults")} == kinds | shared


@pytest.mark.parametrize("folder", ["chaoskit", "trainer", "tests"])
def test_functions_fit_a_screen(folder: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in python_files(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_test_sleeps() -> None:
    """Tests wait for an event with a deadline. A file that stands in for a trainer (a folder `toy`) may take
    its time."""
    sleeping = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("tests")
        if "toy" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep")
        # asyncio.sleep(0) only gives way to the other tasks; it is a call of another name.
    ]
    assert sleeping == []
