"""One line of a journal, a ledger or an event tape: bytes to fields and back.

A journal line is compact JSON with its own checksum spliced in as the last field:

    {"n":4,"t":812.25,"kind":"phase","phase":"chaos","sum":"0f3a5c1e9b2d4476"}
                                                   └── xxh3_64 of the line without this field

The checksum is over bytes, not over a decoded and encoded-again object, so that a reader in another language
needs no agreement on how floats are written. A tape line is the same without `n` and `sum`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import xxhash

SUM_PREFIX = b',"sum":"'
SUM_SUFFIX_BYTES = len(SUM_PREFIX) + 16 + len(b'"}')
RESERVED_FIELDS = frozenset({"n", "t", "kind", "sum"})


def encode_fields(value: object) -> object:
    """What JSON does not know by itself: read-only mappings. Anything else is refused."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a journal field holds a {type(value).__name__}; expected something JSON can say")


_encoder = msgspec.json.Encoder(enc_hook=encode_fields)
_decoder = msgspec.json.Decoder()


def seal(n: int, t: float, kind: str, fields: Mapping[str, Any]) -> bytes:
    """The line for these fields, with checksum and newline. Not-a-number becomes null: JSON has no word for
    it."""
    body = _encoder.encode({"n": n, "t": t, "kind": kind, **fields})
    digest = xxhash.xxh3_64_hexdigest(body).encode()
    return body[:-1] + SUM_PREFIX + digest + b'"}\n'


def has_seal(line: bytes) -> bool:
    """True if the line (without newline) ends as a journal line does, whether or not the checksum is
    right."""
    return line[-SUM_SUFFIX_BYTES : -SUM_SUFFIX_BYTES + len(SUM_PREFIX)] == SUM_PREFIX and line.endswith(b'"}')


def seal_holds(line: bytes) -> bool:
    """True if the line (without newline) carries a checksum and it is the right one."""
    if not has_seal(line):
        return False
    body = line[:-SUM_SUFFIX_BYTES] + b"}"
    return xxhash.xxh3_64_hexdigest(body).encode() == line[-18:-2]


def decode_fields(line: bytes) -> dict[str, Any] | None:
    """The fields of one line (without newline), or None if it is damaged.

    Damaged means: not a JSON object, no text `kind`, no number `t`, or a checksum that does not hold. The
    `sum` field is left out of the result.
    """
    try:
        fields = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if type(fields) is not dict or type(fields.get("kind")) is not str:
        return None
    if type(fields.get("t")) not in (float, int):
        return None
    if has_seal(line):
        if not seal_holds(line):
            return None
        del fields["sum"]
    return fields
