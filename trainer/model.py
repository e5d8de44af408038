"""A byte-level transformer over one flat parameter vector, trained by AdamW. The only file that needs torch.

The flat vector is the learner machine's own numpy array, and the tensors are views of it: a step changes it in place,
an adopted fragment is in use from the next step on, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from trainer.config import Model, Task
from trainer.fragments import SYMBOLS, Fragment


def use_one_thread() -> None:
    """Two threads made a step of this size eighty times slower; one thread is also what makes a seed bit-identical."""
    torch.set_num_threads(1)


class Transformer:
    """Pre-norm transformer without biases; `views` maps tensor names to views of `flat`."""

    def __init__(self, model: Model, fragments: Sequence[Fragment], flat: np.ndarray) -> None:
        self.model = model
        self.flat = torch.from_numpy(flat)
        self.gradient = torch.zeros_like(self.flat)
        self.views: dict[str, torch.Tensor] = {}
        for fragment in fragments:
            for placed in fragment.tensors:
                part = slice(fragment.offset + placed.start, fragment.offset + placed.stop)
                view = self.flat[part].view(placed.spec.shape).detach().requires_grad_()
                view.grad = self.gradient[part].view(placed.spec.shape)
                self.views[placed.spec.name] = view

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, time) int64 -> (batch, time, 128)."""
        views, model = self.views, self.model
        batch, time = tokens.shape
        shape = (model.width,)
        x = functional.embedding(tokens, views["embed.token"]) + views["embed.position"][:time]
        for layer in range(model.layers):
            name = f"layer{layer}"
            h = functional.layer_norm(x, shape, views[f"{name}.attention.norm"])
            qkv = functional.linear(h, views[f"{name}.attention.qkv"])
            heads = qkv.view(batch, time, 3, model.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
            x = x + functional.linear(mixed.transpose(1, 2).reshape(batch, time, -1), views[f"{name}.attention.out"])
            h = functional.layer_norm(x, shape, views[f"{name}.mlp.norm"])
            h = functional.gelu(functional.linear(h, views[f"{name}.mlp.up"]))
            x = x + functional.linear(h, views[f"{name}.mlp.down"])
        return functional.linear(functional.layer_norm(x, shape, views["norm"]), views["head"])

    def loss(self, sequences: np.ndarray) -> torch.Tensor:
        """Mean nats per byte of (batch, context + 1) int64 sequences."""
        tokens = torch.from_numpy(sequences)
        logits = self.logits(tokens[:, :-1])
        return functional.cross_entropy(logits.reshape(-1, SYMBOLS), tokens[:, 1:].reshape(-1))

    @torch.no_grad()
    def evaluate(self, sequences: np.ndarray) -> float:
        """Mean nats per byte, without gradients."""
        return float(self.loss(sequences))


def inner_optimiser(transformer: Transformer, task: Task) -> torch.optim.AdamW:
    """AdamW over the one flat vector; its moments live as long as the process."""
    transformer.flat.grad = transformer.gradient
    return torch.optim.AdamW(
        [transformer.flat],
        lr=task.learning_rate,
        betas=(task.beta1, task.beta2),
        weight_decay=task.weight_decay,
    )


def train_step(transformer: Transformer, optimiser: torch.optim.AdamW, sequences: np.ndarray) -> float:
    """One inner step; returns the loss before it, nats per byte."""
    transformer.gradient.zero_()
    loss = transformer.loss(sequences)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    optimiser.step()
    return float(loss.detach())
