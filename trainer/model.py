"""A byte-level transformer over one flat parameter vector, and AdamW over that vector. The only file that needs torch.

The flat vector is the learner machine's own numpy array, and the tensors are views of it: a step changes it in place,
an adopted fragment is in use from the next step on, and nothing is copied.

AdamW is written out because constructing torch's own imports torch._dynamo, one to two seconds at every restart of a
learner; a test holds it to torch's, and over one flat vector it is also the faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from trainer.config import Model, Task
from trainer.fragments import SYMBOLS, Fragment

EPSILON = 1e-8


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


class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2) in place on one flat vector."""

    def __init__(self, flat: torch.Tensor, task: Task) -> None:
        self.flat, self.task = flat, task
        self.steps = 0
        self.mean = torch.zeros_like(flat)
        self.square = torch.zeros_like(flat)

    @torch.no_grad()
    def step(self, gradient: torch.Tensor) -> None:
        task = self.task
        self.steps += 1
        self.flat.mul_(1 - task.learning_rate * task.weight_decay)
        self.mean.lerp_(gradient, 1 - task.beta1)
        self.square.mul_(task.beta2).addcmul_(gradient, gradient, value=1 - task.beta2)
        root = (self.square / (1 - task.beta2**self.steps)).sqrt_().add_(EPSILON)
        self.flat.addcdiv_(self.mean, root, value=-task.learning_rate / (1 - task.beta1**self.steps))


def train_step(transformer: Transformer, optimiser: AdamW, sequences: np.ndarray) -> float:
    """One inner step; returns the loss before it, nats per byte."""
    transformer.gradient.zero_()
    loss = transformer.loss(sequences)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    optimiser.step(transformer.gradient)
    return float(loss.detach())
