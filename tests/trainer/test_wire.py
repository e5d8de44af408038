"""Frames: what is written is read, and whatever is damaged is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.messages import TYPES, Fragment, Hello, Message, Ping, Progress, Pull, Push, Stop
from trainer.wire import HEADER_BYTES, META_BYTES_MAX, Decoder, Frame, FrameError, encode

counts = st.integers(0, 2**63)
names = st.text(max_size=40)
lists = st.lists(counts, max_size=8)
messages = st.one_of(
    st.builds(Hello, names, names, names, counts, names),
    st.builds(Progress, counts, counts, counts, st.floats(allow_nan=False), lists, lists, lists),
    st.builds(Pull, counts, counts, counts),
    st.builds(Push, *[counts] * 9, names, names),
    st.builds(Fragment, counts, counts, names, st.sampled_from(["join", "broadcast", "reject"]), st.booleans()),
    st.just(Ping()),
    st.builds(Stop, names),
)
frames = st.tuples(messages, st.binary(max_size=200))


def read_to_the_end(data: bytes) -> None:
    """Feed a whole stream; it must hold no frame."""
    decoder = Decoder()
    decoder.feed(data)
    assert read_all(decoder) == []
    decoder.finish()


def read_all(decoder: Decoder) -> list[Frame]:
    out = []
    while frame := decoder.next():
        out.append(frame)
    return out


@given(sent=st.lists(frames, max_size=5), cuts=st.lists(st.integers(0, 2000), max_size=6))
def test_frames_arrive_whole_and_in_order_however_the_stream_is_cut_up(
    sent: list[tuple[Message, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode(message, payload) for message, payload in sent)
    decoder, received, start = Decoder(), [], 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        decoder.feed(stream[start:cut])
        received += read_all(decoder)
        start = cut
    decoder.finish()
    assert received == [Frame(message, payload) for message, payload in sent]


@settings(max_examples=300)
@given(frame=frames, position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_no_flipped_byte_ever_gets_through(frame: tuple[Message, bytes], position: int, flip: int) -> None:
    data = bytearray(encode(*frame))
    data[position % len(data)] ^= flip
    # Either it is refused at once, or more bytes are waited for, and then the end of the stream says "cut".
    with pytest.raises(FrameError):
        read_to_the_end(bytes(data))


@given(frame=frames, keep=st.integers(1, 10**6))
def test_a_cut_frame_is_refused_at_the_end_of_the_stream(frame: tuple[Message, bytes], keep: int) -> None:
    data = encode(*frame)
    decoder = Decoder()
    decoder.feed(data[: max(1, keep % len(data))])
    assert read_all(decoder) == []
    with pytest.raises(FrameError) as error:
        decoder.finish()
    assert error.value.reason == "cut"


@given(garbage=st.binary(min_size=1, max_size=200))
def test_garbage_never_becomes_a_message_and_never_raises_anything_else(garbage: bytes) -> None:
    with pytest.raises(FrameError):
        read_to_the_end(garbage)


def refused(data: bytes, decoder: Decoder | None = None) -> str:
    decoder = decoder or Decoder()
    decoder.feed(data)
    with pytest.raises(FrameError) as error:
        decoder.next()
    return error.value.reason


def test_every_kind_of_damage_has_its_own_name() -> None:
    good = encode(Pull(1, 2, 3), b"payload")
    assert refused(b"GET / HTTP/1.1\r\n\r\n") == "bad magic"
    assert refused(good[:5] + b"\x07" + good[6:]) == "header checksum"
    assert refused(good[:-1] + b"?") == "payload checksum"
    assert refused(good, Decoder(payload_bytes_max=3)) == "too long"
    assert refused(good[:8] + (META_BYTES_MAX + 1).to_bytes(4, "little") + good[12:]) == "too long"


def test_a_wrong_payload_length_is_refused_before_any_payload_is_waited_for() -> None:
    good = encode(Pull(1, 2, 3), b"payload")
    liar = good[:12] + (10**6).to_bytes(8, "little") + good[20:]
    assert refused(liar) == "header checksum"


def test_a_frame_with_right_checksums_and_foreign_metadata_is_refused() -> None:
    import struct

    import xxhash

    def forged(number: int, version: int, meta: bytes) -> bytes:
        prefix = struct.pack("<4sBBHIQ", b"DDLC", version, number, 0, len(meta), 0)
        sums = struct.pack("<QQ", xxhash.xxh3_64_intdigest(prefix + meta), xxhash.xxh3_64_intdigest(b""))
        return prefix + sums + meta

    assert len(forged(1, 1, b"")) == HEADER_BYTES
    assert refused(forged(6, 1, b"\x80")) == "bad metadata"
    assert refused(forged(6, 2, b"\x80")) == "bad version"
    assert refused(forged(len(TYPES) + 1, 1, b"\x80")) == "unknown type"


def test_a_message_that_the_receiver_would_refuse_is_not_written() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        encode(Stop("x" * META_BYTES_MAX))
