"""The task: predict the next byte of real text, cut into 4 KiB blocks that are dealt out to the learners in turn.

    text | block 0 | 1 | 2 | ... | 15 held out | 16 | ... | 31 held out | ...    j-th training block: learner j mod M

Interleaved and not contiguous: a learner that is absent for most of a run then costs 0.4 % of the loss, not 7.6 %.
A batch is a pure function of (seed, learner, step), so a control run sees the same samples.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np

from trainer.config import Config, ConfigError
from trainer.fragments import SYMBOLS

BLOCK_BYTES = 4096
HELD_OUT_EVERY = 16
HELD_OUT_STREAM = 2**32 - 1
"""Stands in the place of a learner's index in the key of the held-out sample."""
TEXT_SUFFIXES = {".py", ".txt", ".md", ".rst", ".c", ".h", ".rs", ".toml", ".json", ".html", ".tex"}


class Corpus:
    """Text as uint8 symbols below 128; bytes outside ASCII become symbol 127."""

    def __init__(self, config: Config, seed: int) -> None:
        """Raises ConfigError when the text is too short for the learners."""
        self.batch, self.context, self.seed = config.task.batch, config.model.context, seed
        symbols = load_symbols(config.task.corpus, config.task.corpus_mib_max)
        blocks = symbols[: len(symbols) // BLOCK_BYTES * BLOCK_BYTES].reshape(-1, BLOCK_BYTES)
        held_out = np.arange(len(blocks)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        self.training, self.held_out = blocks[~held_out], blocks[held_out]
        self.learners = config.protocol.M
        if len(self.held_out) < 1 or len(self.training) < self.learners:
            raise ConfigError(
                f"task.corpus: {len(symbols)} bytes of text are too few for {self.learners} learners; at least "
                f"{max(HELD_OUT_EVERY, 2 * self.learners) * BLOCK_BYTES} are needed"
            )

    def batch_for(self, learner: int, step: int) -> np.ndarray:
        """int64 of shape (batch, context + 1): inputs are [:, :-1], targets [:, 1:]."""
        return self._sample(self.training[learner :: self.learners], self.batch, learner, step)

    def held_out_sample(self, sequences: int) -> np.ndarray:
        """The same `sequences` held-out sequences every time, int64 of shape (sequences, context + 1)."""
        return self._sample(self.held_out, sequences, HELD_OUT_STREAM, 0)

    def _sample(self, blocks: np.ndarray, count: int, stream: int, step: int) -> np.ndarray:
        generator = np.random.Generator(np.random.Philox(key=[self.seed, stream], counter=[0, 0, 0, step]))
        rows = generator.integers(0, len(blocks), count)
        starts = generator.integers(0, BLOCK_BYTES - self.context, count)
        columns = starts[:, None] + np.arange(self.context + 1)[None, :]
        sample: np.ndarray = blocks[rows[:, None], columns].astype(np.int64)
        return sample


def load_symbols(corpus: str, mib_max: int) -> np.ndarray:
    """The first `mib_max` MiB of a file, of a folder's text files in order of their paths, or of the standard library.

    Raises:
        ConfigError: there is no such file or folder, or no text in it.
    """
    limit = mib_max * 1024 * 1024
    pieces: list[bytes] = []
    total = 0
    for path in _files(corpus):
        try:
            data = path.read_bytes()[: limit - total]
        except OSError as error:
            raise ConfigError(f"task.corpus: cannot read {path}: {error.strerror}") from None
        pieces.append(data)
        total += len(data)
        if total >= limit:
            break
    symbols = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    return np.where(symbols < SYMBOLS, symbols, SYMBOLS - 1).astype(np.uint8)


def _files(corpus: str) -> list[Path]:
    if not corpus:
        # Modules at the top of the library come first: they are there on every installation, test folders are not.
        root = Path(sysconfig.get_path("stdlib"))
        return sorted(root.glob("*.py"))
    root = Path(corpus).expanduser()
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise ConfigError(f"task.corpus: {corpus}: there is no such file or folder")
    files = sorted(path for path in root.rglob("*") if path.suffix in TEXT_SUFFIXES and path.is_file())
    if not files:
        raise ConfigError(f"task.corpus: {corpus}: no text files in it ({', '.join(sorted(TEXT_SUFFIXES))})")
    return files
