"""Quantities: every unit, every refusal."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.plan.units import QUANTITY_PATTERNS, SPELLED_OUT, UNITS, Dimension, UnitError, nearest_unit, parse


def outcome(text: object, dimension: Dimension) -> tuple[float | None, str]:
    """The quantity and no refusal, or no quantity and the refusal."""
    try:
        return parse(text, dimension), ""
    except UnitError as error:
        return None, str(error)


DIMENSIONS = st.sampled_from(sorted(UNITS))


@given(dimension=DIMENSIONS, data=st.data(), number=st.integers(1, 100), spaces=st.integers(0, 3))
def test_a_number_and_a_unit_are_their_product(
    dimension: Dimension, data: st.DataObject, number: int, spaces: int
) -> None:
    unit, factor = data.draw(st.sampled_from(sorted(UNITS[dimension].items())))
    assert parse(f"{number}{' ' * spaces}{unit}", dimension) == number * factor


@given(
    text=st.text(max_size=20) | st.from_regex(r"-?\d{1,3}(\.\d+)? ?[a-zA-Z%/]{0,6}", fullmatch=True),
    dimension=DIMENSIONS,
)
def test_any_text_is_a_quantity_or_a_unit_error(text: str, dimension: Dimension) -> None:
    value, refusal = outcome(text, dimension)
    if value is None:
        assert "expected a " in refusal
        assert refusal.isprintable()
    else:
        assert value > 0
        assert math.isfinite(value)
        assert re.search(QUANTITY_PATTERNS[dimension], text), "the JSON Schema must accept what the reader accepts"


@given(value=st.none() | st.booleans() | st.integers() | st.floats() | st.lists(st.integers()), dimension=DIMENSIONS)
def test_only_texts_are_quantities(value: object, dimension: Dimension) -> None:
    with pytest.raises(UnitError, match="expected a "):
        parse(value, dimension)


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("20", "duration", "'20' has no unit; expected a duration such as '20 s'"),
        (
            "20 parsecs",
            "duration",
            "'20 parsecs' has the unit 'parsecs', which no duration has; expected a duration such as '20 s';"
            " the units are us, ms, s, min, h",
        ),
        (
            "2 mbit/s",
            "rate",
            "'2 mbit/s' has the unit 'mbit/s', which no rate has; expected a rate such as '2 Mbit/s';"
            " did you mean 'Mbit/s'?",
        ),
        ("-3 s", "duration", "'-3 s' is negative; expected a duration such as '20 s'"),
        ("-0 s", "duration", "'-0 s' is negative; expected a duration such as '20 s'"),
        ("0 ms", "duration", "'0 ms' is zero; expected a duration such as '20 s', or leave the key out"),
        ("120 %", "share", "'120 %' is more than 100 %; expected a share such as '5 %'"),
        ("1e999 s", "duration", "'1e999 s' is too large; expected a duration such as '20 s'"),
        ("nan s", "duration", "'nan s' does not begin with a plain number; expected a duration such as '20 s'"),
        ("٣ s", "duration", "'٣ s' does not begin with a plain number; expected a duration such as '20 s'"),
        (4, "duration", "4 has no unit; expected a duration such as '20 s'"),
        (True, "duration", "true is not a text with a number and a unit; expected a duration such as '20 s'"),
    ],
)
def test_a_refusal_says_what_was_expected(text: object, dimension: Dimension, message: str) -> None:
    with pytest.raises(UnitError) as refused:
        parse(text, dimension)
    assert str(refused.value) == message


def test_zero_is_fine_where_it_means_something() -> None:
    assert parse("0 s", "duration", zero_ok=True) == 0


def test_every_unit_spelled_out_leads_to_one_that_exists() -> None:
    for spelled_out, unit in SPELLED_OUT.items():
        dimension = next(dimension for dimension, units in UNITS.items() if unit in units)
        assert nearest_unit(spelled_out, dimension) == unit
