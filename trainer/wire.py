"""Frames on a TCP stream: a checksummed header, msgpack metadata, raw payload. Sans IO: bytes in, frames out.

    offset 0      4        5      6         8           12             20            28          36
           magic  version  type   reserved  meta bytes  payload bytes  xxh3_64 of    xxh3_64 of  meta | payload
           DDLC   1        1..11  0         u32         u64            bytes 0..19   payload
                                                                       and meta

All integers are little-endian. The header's own checksum is proved before its payload length is believed, so a
flipped bit can never make the receiver wait for a payload that nobody sends. A stream with one bad frame is closed:
after it, nothing says where the next frame begins.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

import msgspec
import xxhash

from trainer.messages import TYPES, Message

MAGIC = b"DDLC"
VERSION = 1
META_BYTES_MAX = 64 * 1024
PAYLOAD_BYTES_MAX = 64 * 1024 * 1024

_PREFIX = struct.Struct("<4sBBHIQ")
_SUMS = struct.Struct("<QQ")
HEADER_BYTES = _PREFIX.size + _SUMS.size

Reason = Literal[
    "bad magic", "bad version", "unknown type", "too long", "header checksum", "payload checksum", "bad metadata", "cut"
]


class FrameError(Exception):
    """A frame that must not be taken. `reason` is one of `Reason`; the stream is useless from here on."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True)
class Frame:
    message: Message
    payload: bytes


_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = tuple(msgspec.msgpack.Decoder(kind) for kind in TYPES)
_NUMBERS = {kind: number for number, kind in enumerate(TYPES, start=1)}


def encode(message: Message, payload: bytes = b"") -> bytes:
    """One whole frame.

    Raises:
        ValueError: when metadata or payload are longer than the protocol allows; the receiver would refuse them.
    """
    meta = _ENCODER.encode(message)
    if len(meta) > META_BYTES_MAX or len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"{type(message).__name__}: {len(meta)} B metadata, {len(payload)} B payload: over the limit")
    prefix = _PREFIX.pack(MAGIC, VERSION, _NUMBERS[type(message)], 0, len(meta), len(payload))
    sums = _SUMS.pack(xxhash.xxh3_64_intdigest(prefix + meta), xxhash.xxh3_64_intdigest(payload))
    return b"".join((prefix, sums, meta, payload))


class Decoder:
    """Takes bytes as they come and gives whole, verified frames.

    `payload_bytes_max` may be lowered, and raised again, between frames: a peer that has not said hello has no business
    sending megabytes.
    """

    def __init__(self, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self.payload_bytes_max = payload_bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Frame | None:
        """The next whole frame, or None when more bytes are needed.

        Raises:
            FrameError: the frame at the head of the stream must not be taken. It stays there; close the connection.
        """
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            if buffer and not MAGIC.startswith(bytes(buffer[:4])):
                raise FrameError("bad magic", f"the stream begins with {bytes(buffer[:4])!r}, expected {MAGIC!r}")
            return None
        magic, version, number, reserved, meta_bytes, payload_bytes = _PREFIX.unpack_from(buffer)
        if magic != MAGIC:
            raise FrameError("bad magic", f"a frame begins with {magic!r}, expected {MAGIC!r}")
        if meta_bytes > META_BYTES_MAX:
            raise FrameError("too long", f"{meta_bytes} B of metadata, at most {META_BYTES_MAX}")
        meta_end = HEADER_BYTES + meta_bytes
        if len(buffer) < meta_end:
            return None
        header_sum, payload_sum = _SUMS.unpack_from(buffer, _PREFIX.size)
        meta = bytes(buffer[HEADER_BYTES:meta_end])
        if xxhash.xxh3_64_intdigest(bytes(buffer[: _PREFIX.size]) + meta) != header_sum:
            raise FrameError("header checksum", "header and metadata do not match their checksum")
        if version != VERSION or reserved != 0:
            raise FrameError("bad version", f"frame version {version}, expected {VERSION}")
        if not 1 <= number <= len(TYPES):
            raise FrameError("unknown type", f"message type {number}, expected 1 to {len(TYPES)}")
        if payload_bytes > self.payload_bytes_max:
            raise FrameError("too long", f"{payload_bytes} B of payload, at most {self.payload_bytes_max} here")
        end = meta_end + payload_bytes
        if len(buffer) < end:
            return None
        payload = bytes(buffer[meta_end:end])
        if xxhash.xxh3_64_intdigest(payload) != payload_sum:
            raise FrameError("payload checksum", f"{payload_bytes} B of payload do not match their checksum")
        try:
            message: Message = _DECODERS[number - 1].decode(meta)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise FrameError("bad metadata", f"{TYPES[number - 1].__name__}: {error}") from None
        del buffer[:end]
        return Frame(message, payload)

    def finish(self) -> None:
        """Call at the end of the stream.

        Raises:
            FrameError: "cut", when it ended inside a frame.
        """
        if self._buffer:
            raise FrameError("cut", f"the stream ended {len(self._buffer)} B into a frame")
