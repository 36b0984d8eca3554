"""A perceptron with two hidden layers in plain NumPy, and the handwritten digits it learns to read.

Everything is float32 and computed in one fixed order, so that two runs with the same seed give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_TEST_EXAMPLES = 297


@dataclass(frozen=True)
class Digits:
    """Images of 8 x 8 pixels as rows of 64 numbers between 0 and 1, and which digit each shows."""

    train_x: Floats
    train_y: Labels
    test_x: Floats
    test_y: Labels

    @classmethod
    def from_sklearn(cls) -> Digits:
        """scikit-learn's copy of the UCI handwritten digits (1797 images), in a fixed shuffled order."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))
        x, y = (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)
        return cls(x[_TEST_EXAMPLES:], y[_TEST_EXAMPLES:], x[:_TEST_EXAMPLES], y[:_TEST_EXAMPLES])

    def save(self, path: Path) -> None:
        """Write them to a file for the ranks, which then need not import scikit-learn."""
        np.savez(path, train_x=self.train_x, train_y=self.train_y, test_x=self.test_x, test_y=self.test_y)

    @classmethod
    def load(cls, path: Path) -> Digits:
        """The inverse of ``save``."""
        with np.load(path) as file:
            arrays: dict[str, Any] = dict(file)
        return cls(**arrays)


class Perceptron:
    """64 -> width -> width -> 10, rectified, softmax at the end; trained by gradient descent with momentum.

    ``weights`` and ``gradient`` are flat arrays of all parameters: one all_reduce averages the whole gradient.
    """

    def __init__(self, width: int, seed: int) -> None:
        shapes = [(64, width), (width,), (width, width), (width,), (width, 10), (10,)]
        count = sum(int(np.prod(shape)) for shape in shapes)
        self.weights, self.gradient, self._velocity = (np.full(count, 0, np.float32) for _ in range(3))
        self._w, self._g = _views(self.weights, shapes), _views(self.gradient, shapes)
        random = np.random.default_rng(seed)
        for matrix in self._w[::2]:
            matrix[...] = random.standard_normal(matrix.shape, np.float32) * np.sqrt(np.float32(2 / matrix.shape[0]))

    def backward(self, x: Floats, y: Labels) -> float:
        """Writes the gradient of the mean cross-entropy of a batch to ``gradient``; returns the cross-entropy."""
        w1, b1, w2, b2, w3, b3 = self._w
        g1, c1, g2, c2, g3, c3 = self._g
        first = np.maximum(x @ w1 + b1, 0)
        second = np.maximum(first @ w2 + b2, 0)
        scores = second @ w3 + b3
        scores -= scores.max(1, keepdims=True)
        odds = np.exp(scores)
        total = odds.sum(1, keepdims=True)
        rows = np.arange(len(y))
        loss = float((np.log(total[:, 0]) - scores[rows, y]).mean())
        error = odds / total
        error[rows, y] -= 1
        error /= np.float32(len(y))
        np.matmul(second.T, error, out=g3)
        error.sum(0, out=c3)
        error = (error @ w3.T) * (second > 0)
        np.matmul(first.T, error, out=g2)
        error.sum(0, out=c2)
        error = (error @ w2.T) * (first > 0)
        np.matmul(x.T, error, out=g1)
        error.sum(0, out=c1)
        return loss

    def descend(self, rate: float, momentum: float) -> None:
        """One step of descent along ``gradient``."""
        self._velocity *= np.float32(momentum)
        self._velocity += self.gradient
        self.weights -= np.float32(rate) * self._velocity

    def accuracy(self, x: Floats, y: Labels) -> float:
        """Part of the examples that are read correctly."""
        w1, b1, w2, b2, w3, b3 = self._w
        second = np.maximum(np.maximum(x @ w1 + b1, 0) @ w2 + b2, 0)
        return float(((second @ w3 + b3).argmax(1) == y).mean())


def _views(flat: Floats, shapes: list[tuple[int, ...]]) -> list[Floats]:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
