"""Tensors of the model, and how they are cut into P fragments of about equal size.

The parameters live in one flat float32 vector. It is ordered by fragment, so that a fragment is one contiguous slice,
which travels and is merged without copying tensor by tensor:

    flat  | fragment 0: embed.token embed.position | fragment 1: layer0.up | ... | fragment P-1 |
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import xxhash

from trainer.config import ConfigError, Model
from trainer.wire import PAYLOAD_BYTES_MAX

SYMBOLS = 128
FLOAT32_BYTES = 4
MIB = 1024 * 1024


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: its shape, whether it is embedding-like (averaged directly), and the scale of its first values.

    `scale` is the standard deviation of theta_0; None means all ones (the gains of a norm).
    """

    name: str
    shape: tuple[int, ...]
    embedding: bool
    scale: float | None

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Placed:
    """A tensor's place inside its fragment: elements [start, stop)."""

    spec: TensorSpec
    start: int
    stop: int


@dataclass(frozen=True)
class Fragment:
    """Fragment `index`: elements [offset, offset + size) of the flat vector."""

    index: int
    offset: int
    tensors: tuple[Placed, ...]

    @property
    def size(self) -> int:
        return self.tensors[-1].stop

    @property
    def payload_bytes(self) -> int:
        return self.size * FLOAT32_BYTES

    @property
    def slice(self) -> slice:
        return slice(self.offset, self.offset + self.size)


def tensors_of(model: Model) -> list[TensorSpec]:
    """The transformer's tensors in the order of the forward pass. All linear maps are (out, in) and have no bias."""
    d = model.width
    inner = d**-0.5
    residual = (2 * model.layers * d) ** -0.5
    specs = [
        TensorSpec("embed.token", (SYMBOLS, d), True, 0.02),
        TensorSpec("embed.position", (model.context, d), True, 0.02),
    ]
    for layer in range(model.layers):
        name = f"layer{layer}"
        specs += [
            TensorSpec(f"{name}.attention.norm", (d,), False, None),
            TensorSpec(f"{name}.attention.qkv", (3 * d, d), False, inner),
            TensorSpec(f"{name}.attention.out", (d, d), False, residual),
            TensorSpec(f"{name}.mlp.norm", (d,), False, None),
            TensorSpec(f"{name}.mlp.up", (4 * d, d), False, inner),
            TensorSpec(f"{name}.mlp.down", (d, 4 * d), False, residual / 2),
        ]
    # [?] The paper lists no "embedding-like" tensors. The output head is one here; the alternative is RDA.
    specs += [TensorSpec("norm", (d,), False, None), TensorSpec("head", (SYMBOLS, d), True, 0.02)]
    return specs


def balance(tensors: Sequence[TensorSpec], P: int) -> tuple[Fragment, ...]:
    """Cut `tensors` into P fragments: by bytes, largest first, each into the lightest fragment, ties by name.

    Input embeddings get a fragment of their own when P >= 4 and every other fragment still gets a tensor, whatever the
    sizes: it may be the heaviest or the lightest.

    Raises:
        ConfigError: when there are more fragments than tensors.
    """
    if len(tensors) < P:
        raise ConfigError(f"protocol.P = {P}: the model has only {len(tensors)} tensors; choose P <= {len(tensors)}")
    groups: list[list[TensorSpec]] = [[] for _ in range(P)]
    rest = list(tensors)
    embeddings = [spec for spec in tensors if spec.name.startswith("embed.")]
    others = len(tensors) - len(embeddings)
    # [?] The paper does not define "when P allows"; here: P >= 4 and every other fragment still gets a tensor.
    if embeddings and P >= 4 and others >= P - 1:
        groups[0] = embeddings
        rest = [spec for spec in tensors if spec not in embeddings]
    free = [index for index in range(P) if not groups[index]]
    for spec in sorted(rest, key=lambda spec: (-spec.size, spec.name)):
        lightest = min(free, key=lambda index: (sum(s.size for s in groups[index]), index))
        groups[lightest].append(spec)
    fragments, offset = [], 0
    for index, group in enumerate(groups):
        placed, start = [], 0
        for spec in group:
            placed.append(Placed(spec, start, start + spec.size))
            start += spec.size
        fragments.append(Fragment(index, offset, tuple(placed)))
        offset += start
    return tuple(fragments)


def fragments_of(model: Model, P: int) -> tuple[Fragment, ...]:
    """The fragments of a whole model.

    Raises:
        ConfigError: there are more fragments than tensors, or one is too large for a frame.
    """
    fragments = balance(tensors_of(model), P)
    largest = max(fragment.payload_bytes for fragment in fragments)
    if largest > PAYLOAD_BYTES_MAX:
        raise ConfigError(
            f"protocol.P = {P}: the largest fragment would have {largest / MIB:.0f} MiB, a frame carries at most "
            f"{PAYLOAD_BYTES_MAX // MIB} MiB; choose a larger P or a smaller model"
        )
    return fragments


def total_size(fragments: Sequence[Fragment]) -> int:
    """Elements of the flat vector."""
    return fragments[-1].offset + fragments[-1].size


def initial_theta(fragment: Fragment, seed: int) -> np.ndarray:
    """theta_0 of one fragment, float32, keyed by (seed, tensor name): the same whatever P is."""
    theta = np.empty(fragment.size, dtype=np.float32)
    for placed in fragment.tensors:
        spec = placed.spec
        if spec.scale is None:
            theta[placed.start : placed.stop] = 1.0
            continue
        key = np.array([seed, zlib.crc32(spec.name.encode())], dtype=np.uint64)
        values = np.random.Generator(np.random.Philox(key=key)).standard_normal(spec.size)
        theta[placed.start : placed.stop] = values * spec.scale
    return theta


def digest_of(values: np.ndarray) -> str:
    """16 hex digits: xxh3_64 over the float32 little-endian bytes."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(values, dtype="<f4").data)
