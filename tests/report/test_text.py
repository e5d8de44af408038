"""Values as words, and secrets that must not be shown."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.report.text import (
    HIDDEN,
    count_text,
    hide_secrets,
    number_text,
    pairs_text,
    seconds_text,
    shortened,
    value_text,
    without_secrets,
)

SECRETS = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789_-+/=", min_size=12, max_size=40).filter(
    lambda text: not text.startswith(("=", "-"))
)
NAMES = st.sampled_from(
    [
        "TOKEN",
        "HF_TOKEN",
        "GITHUB_TOKEN",
        "api_key",
        "AWS_SECRET_ACCESS_KEY",
        "db-password",
        "Passphrase",
        "SSH_PRIVATE_KEY",
    ]
)


@given(NAMES, SECRETS, st.sampled_from(["{}={}", "{}: {}", "--{} {}", "--{}={}", '"{}": "{}"', "export {}='{}'"]))
def test_a_value_named_like_a_secret_is_hidden(name: str, secret: str, form: str) -> None:
    shown = hide_secrets(f"cd /tmp; {form.format(name, secret)} next")
    assert secret not in shown
    assert HIDDEN in shown
    assert shown.startswith("cd /tmp; ")
    assert shown.endswith("next")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefghijklmnop",
        "https://user:hunter2hunter2@host/path",
        "ghp_abcdefghijklmnopqrst",
        "sk-proj-abcdefghijklmnop",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_a_value_of_a_known_secret_form_is_hidden(text: str) -> None:
    shown = hide_secrets(text)
    assert HIDDEN in shown
    assert "hunter2" not in shown
    assert "abcdefghijklmnop" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "tokens: 1024",
        "tokens=1024 merged_tokens=7",
        "S7 token-ledger failed: 12 tokens were lost",
        "keyed hash of learner-2",
        "round 120; key figures: none",
        "version 3 of fragment 1 has two digests",
        "chaoskit run plan.toml --seed 7",
    ],
)
def test_the_words_of_training_are_no_secrets(text: str) -> None:
    assert hide_secrets(text) == text


def test_secrets_are_found_at_any_depth_of_a_summary() -> None:
    @dataclass(frozen=True)
    class Inner:
        text: str
        number: int

    @dataclass(frozen=True)
    class Outer:
        inner: tuple[Inner, ...]

    cleaned = without_secrets(Outer((Inner("MY_TOKEN=abc123abc123", 3),)))
    assert cleaned == Outer((Inner(f"MY_TOKEN={HIDDEN}", 3),))


def test_a_unit_moves_from_the_key_behind_the_value() -> None:
    evidence = {"gone_ms": 0.34, "measured_mbit_s": 1.983, "backlog_bytes": 81920, "stopped": True, "hold_s": 2.0}
    assert pairs_text(evidence) == (
        "gone 0.34 ms",
        "measured 1.983 Mbit/s",
        "backlog 81920 bytes",
        "stopped yes",
        "hold 2 s",
    )


def test_a_secret_in_evidence_is_hidden_by_its_key() -> None:
    assert pairs_text({"api_key": "abc", "env": {"HF_TOKEN": "abc"}}) == (f"api_key {HIDDEN}", f"env HF_TOKEN {HIDDEN}")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.31415926, "0.3142"),
        (81920.0, "81920"),
        (12345.678, "12346"),
        (0.00001234, "1.2e-05"),
        (float("nan"), "not finite"),
    ],
)
def test_numbers_have_four_figures_and_no_noise(value: float, text: str) -> None:
    assert number_text(value) == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_json_value_has_a_text(value: object) -> None:
    assert isinstance(value_text(value), str)


@given(st.text(max_size=900), st.integers(min_value=2, max_value=700))
def test_a_shortened_text_is_never_longer_than_asked(text: str, length_max: int) -> None:
    assert len(shortened(text, length_max)) <= length_max


def test_times_and_counts_read_well() -> None:
    assert [seconds_text(value) for value in (None, 0.31, 5.589, 125.0)] == ["–", "310 ms", "5.6 s", "2 min 5 s"]
    assert [count_text(value) for value in (12, 456_000, 999_800, 1_230_000)] == ["12", "456 k", "1 M", "1.23 M"]
