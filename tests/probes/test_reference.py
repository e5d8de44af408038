"""The page about the probes is made from the code and cannot drift from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaoskit.probes import PROBES
from chaoskit.probes.reference import default_written, reference

PAGE = Path(__file__).parents[2] / "docs" / "probes.md"


def test_the_page_is_what_the_registry_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run python -m chaoskit.probes.reference > docs/probes.md"


def test_every_probe_and_every_tolerance_is_on_the_page() -> None:
    page = reference()
    for probe in PROBES.values():
        assert f"| {probe.id} | `{probe.name}` | {probe.statement} |" in page
        for setting in probe.settings:
            assert f"| `{setting.name}` | " in page
            assert setting.about, f"{probe.name}: {setting.name} says nothing of itself"


def test_a_plan_that_writes_a_default_as_the_page_does_gets_the_default() -> None:
    for probe in PROBES.values():
        for setting in probe.settings:
            written = default_written(setting)
            value = int(written) if setting.unit == "count" else written.strip('"')
            assert setting.read(value) == pytest.approx(probe.defaults[setting.key])


def test_the_probes_stand_in_the_order_of_their_numbers() -> None:
    assert [probe.id for probe in PROBES.values()] == [
        "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S11", "S12", "S14", "S17",
        "L1", "L2", "L6", "L7", "L8", "C1",
    ]  # fmt: skip
