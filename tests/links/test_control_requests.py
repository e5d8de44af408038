"""Control requests, answered in the test's own process: no request can crash the proxy or change half of a link."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.links.proxy import Control, read_address

LINK = "learner-0 -> syncer"


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """A control with one open link, whose listening socket the test keeps as the daemon would."""
    served = Control()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fd = listener.dup().detach()
        assert ask(served, do="open", links=[{"name": LINK, "fd": fd, "upstream": str(tmp_path / "address")}])["ok"]
        yield served


def ask(control: Control, **request: Any) -> dict[str, Any]:
    return control.answer(json.dumps({"id": 7, **request}).encode())


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"do": "sett"}, "unknown request 'sett'; expected one of open, set, stats, close; did you mean 'set'?"),
        ({}, "unknown request None"),
        ({"do": "set", "link": "learner-1 -> syncer", "forward": [], "backward": []}, f"did you mean '{LINK}'?"),
        ({"do": "set", "link": LINK, "forward": [{"id": "x", "kind": "partitoin"}], "backward": []}, "'partition'?"),
        ({"do": "set", "link": LINK, "forward": 3, "backward": []}, "expected a list of faults, got int"),
        ({"do": "set", "link": LINK, "forward": []}, "backward"),
        ({"do": "set", "link": LINK, "forward": [], "backward": [], "both": []}, "both"),
        ({"do": "open", "links": [{"name": LINK, "fd": 0, "upstream": "x"}]}, "is open already"),
        ({"do": "open", "links": [{"name": "other", "fd": 99999, "upstream": "x"}]}, "Bad file descriptor"),
        ({"do": "open", "links": [{"nam": "other", "fd": 3, "upstream": "x"}]}, "nam"),
    ],
)
def test_a_wrong_request_is_refused_with_what_was_expected(
    control: Control, request_: dict[str, Any], said: str
) -> None:
    reply = ask(control, **request_)
    assert (reply["id"], reply["ok"]) == (7, False)
    assert said in reply["error"]


def test_a_set_that_is_refused_in_one_direction_changes_neither(control: Control) -> None:
    good, bad = [{"id": "cut#1", "kind": "partition"}], [{"id": "cut#2", "kind": "partitoin"}]
    assert not ask(control, do="set", link=LINK, forward=good, backward=bad)["ok"]
    assert ask(control, do="stats")["links"][LINK]["forward"]["faults"] == {}
    assert ask(control, do="set", link=LINK, forward=good, backward=[])["ok"]
    assert ask(control, do="stats")["links"][LINK]["forward"]["faults"]["cut#1"]["present"]


@given(
    st.one_of(
        st.binary(max_size=40),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(["id", "do", "link", "links", "forward", "kind"]),
                    inner | st.sampled_from(["open", "set"]),
                    max_size=5,
                )
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_garbage_on_the_control_line_is_answered_and_never_raises(line: bytes) -> None:
    reply = Control().answer(line)
    assert reply["ok"] in (True, False)
    json.dumps(reply)


def test_a_request_nested_too_deep_is_answered_too() -> None:
    assert not Control().answer(b"[" * 100_000)["ok"]


@pytest.mark.parametrize("text", ["", "127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "h:0"])
def test_an_address_file_that_holds_no_address_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "address"
    path.write_text(text)
    with pytest.raises(ValueError, match="expected host:port"):
        read_address(path)


def test_an_address_file_is_read_with_or_without_a_line_end(tmp_path: Path) -> None:
    path = tmp_path / "address"
    path.write_text("127.0.0.1:4242\n")
    assert read_address(path) == ("127.0.0.1", 4242)
