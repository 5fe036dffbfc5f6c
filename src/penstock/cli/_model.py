"""A small network that tells pictures apart: on torch where it is installed, else on NumPy, with the same interface.

Both begin with the same weights and take the same steps (Adam), so they learn alike, though not to the last bit.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.cli._digits import CLASSES, SIDE
from penstock.dataset import Dataset
from penstock.loading import loader as numpy_loader
from penstock.randomness import generator

__all__ = ["Network", "NumpyNetwork", "TorchNetwork", "gradients", "initial", "made"]

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

# So small that a step is no work for several threads, whose waiting for each other would cost most of the time.
HALF, HIDDEN = SIDE // 2, 40
INPUTS = HALF * HALF
RATE, KEEP_MEAN, KEEP_SQUARE, TINY = 5e-3, 0.9, 0.999, 1e-8  # of Adam


class Network(Protocol):
    """What the demo asks of a network."""

    kind: str

    def loader(self, ds: Dataset) -> Any:
        """Return what hands out batches as the network takes them."""
        ...

    def learn(self, images: Any, labels: Any) -> float:
        """Take one step, and return the loss before it."""
        ...

    def guess(self, images: Any) -> npt.NDArray[np.int64]:
        """Return what the pictures seem to show."""
        ...

    def state(self) -> Arrays:
        """Return all that it has learned, the optimizer's memory included, by name."""
        ...

    def load(self, state: Arrays) -> None:
        """Take such a state back."""
        ...


def made(seed: int) -> Network:
    """Return a network that has learned nothing yet; on torch where it can be imported."""
    try:
        return TorchNetwork(seed)
    except (ImportError, OSError):  # a torch whose libraries are missing raises the latter
        return NumpyNetwork(seed)


def initial(seed: int) -> Arrays:
    """Return the weights to begin with; a bias per layer, and a column of weights per neuron.

    Example:
        >>> {name: array.shape for name, array in initial(0).items()}
        {'weight.1': (196, 40), 'bias.1': (40,), 'weight.2': (40, 10), 'bias.2': (10,)}
    """
    random = generator("demo weights", seed)
    first = random.normal(0, np.sqrt(2 / INPUTS), (INPUTS, HIDDEN))
    second = random.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, CLASSES))
    arrays = {"weight.1": first, "bias.1": np.zeros(HIDDEN), "weight.2": second, "bias.2": np.zeros(CLASSES)}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def _inputs(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return pictures at half their size, as rows of numbers around zero."""
    quarters = images.reshape(len(images), HALF, 2, HALF, 2).astype(np.float32)
    scaled: npt.NDArray[np.float32] = quarters.mean(axis=(2, 4)).reshape(len(images), -1) / np.float32(255) - np.float32(0.5)
    return scaled


def _scores(weights: Arrays, inputs: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return what the hidden layer and the output layer say."""
    hidden = np.maximum(inputs @ weights["weight.1"] + weights["bias.1"], 0)
    return hidden, hidden @ weights["weight.2"] + weights["bias.2"]


def gradients(weights: Arrays, inputs: npt.NDArray[Any], labels: npt.NDArray[Any]) -> tuple[float, Arrays]:
    """Return the mean cross-entropy of the softmax of the scores, and its gradient by each weight."""
    hidden, scores = _scores(weights, inputs)
    rows = np.arange(len(labels))
    shifted = scores - scores.max(axis=1, keepdims=True)
    chances = np.exp(shifted)
    total = chances.sum(axis=1, keepdims=True)
    loss = float(np.mean(np.log(total[:, 0]) - shifted[rows, labels]))
    slope = chances / total
    slope[rows, labels] -= 1
    slope /= len(labels)
    back = (slope @ weights["weight.2"].T) * (hidden > 0)
    return loss, {
        "weight.1": inputs.T @ back,
        "bias.1": back.sum(axis=0),
        "weight.2": hidden.T @ slope,
        "bias.2": slope.sum(axis=0),
    }


class NumpyNetwork:
    """The network on NumPy alone.

    Example:
        >>> NumpyNetwork(seed=0).guess(np.zeros((2, 28, 28), np.uint8)).shape
        (2,)
    """

    def __init__(self, seed: int) -> None:
        """Begin with the weights of a seed."""
        self.kind = "NumPy"
        self._weights = initial(seed)
        self._means = {name: np.zeros_like(array) for name, array in self._weights.items()}
        self._squares = {name: np.zeros_like(array) for name, array in self._weights.items()}
        self._steps = 0

    def loader(self, ds: Dataset) -> Any:
        """Return batches of arrays."""
        return numpy_loader(ds)

    def learn(self, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
        """Take one step of Adam, and return the loss before it."""
        loss, slopes = gradients(self._weights, _inputs(images), labels)
        self._steps += 1
        rate = RATE * (1 - KEEP_SQUARE**self._steps) ** 0.5 / (1 - KEEP_MEAN**self._steps)
        for name, slope in slopes.items():
            mean, square = self._means[name], self._squares[name]
            mean += (1 - KEEP_MEAN) * (slope - mean)
            square += (1 - KEEP_SQUARE) * (slope * slope - square)
            self._weights[name] -= (rate * mean / (np.sqrt(square) + TINY)).astype(np.float32)
        return loss

    def guess(self, images: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return what the pictures seem to show."""
        found: npt.NDArray[np.int64] = _scores(self._weights, _inputs(images))[1].argmax(axis=1)
        return found

    def state(self) -> Arrays:
        """Return the weights and the memory of Adam."""
        parts = {"": self._weights, "mean.": self._means, "square.": self._squares}
        arrays = {before + name: array for before, part in parts.items() for name, array in part.items()}
        return {**arrays, "steps": np.array(self._steps)}

    def load(self, state: Arrays) -> None:
        """Take a state back."""
        for name in self._weights:
            self._weights[name] = state[name].copy()
            self._means[name], self._squares[name] = state[f"mean.{name}"].copy(), state[f"square.{name}"].copy()
        self._steps = int(state["steps"])


class TorchNetwork:
    """The network on torch, on the processor.

    Raises:
        ImportError: If torch is not installed.
    """

    def __init__(self, seed: int) -> None:
        """Begin with the weights of a seed."""
        torch: Any = import_module("torch")
        torch.set_num_threads(1)  # for the same reason that the network is small
        self.kind = "torch"
        self._torch = torch
        self._layers = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES))
        with torch.no_grad():
            for parameter, array in zip(self._layers.parameters(), initial(seed).values(), strict=True):
                parameter.copy_(torch.from_numpy(array.T.copy()))
        betas = (KEEP_MEAN, KEEP_SQUARE)
        self._adam = torch.optim.Adam(self._layers.parameters(), lr=RATE, betas=betas, eps=TINY)

    def loader(self, ds: Dataset) -> Any:
        """Return batches of tensors; one process gets all of them, whatever started it."""
        return import_module("penstock.torch").loader(ds, rank=0, world_size=1)

    def learn(self, images: Any, labels: Any) -> float:
        """Take one step of Adam, and return the loss before it."""
        loss = self._torch.nn.functional.cross_entropy(self._scores(images), self._torch.as_tensor(labels))
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()
        return float(loss.detach())

    def guess(self, images: Any) -> npt.NDArray[np.int64]:
        """Return what the pictures seem to show."""
        with self._torch.no_grad():
            found: npt.NDArray[np.int64] = self._scores(images).argmax(dim=1).numpy()
        return found

    def _scores(self, images: Any) -> Any:
        """Return what the output layer says of pictures at half their size, as rows of numbers around zero."""
        quarters = self._torch.as_tensor(images).reshape(len(images), HALF, 2, HALF, 2).float()
        return self._layers(quarters.mean(dim=(2, 4)).reshape(len(images), -1) / 255 - 0.5)

    def state(self) -> Arrays:
        """Return the weights and the memory of Adam."""
        weights = {f"weights/{name}": tensor.numpy().copy() for name, tensor in self._layers.state_dict().items()}
        memory = self._adam.state_dict()["state"]
        kept = {f"adam/{at}/{name}": tensor.numpy().copy() for at, one in memory.items() for name, tensor in one.items()}
        return weights | kept

    def load(self, state: Arrays) -> None:
        """Take a state back."""
        tensors = {name: self._torch.from_numpy(np.array(array)) for name, array in state.items()}
        weights = {name.removeprefix("weights/"): one for name, one in tensors.items() if name.startswith("weights/")}
        self._layers.load_state_dict(weights)
        memory: dict[int, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            if name.startswith("adam/"):
                _, at, what = name.split("/")
                memory.setdefault(int(at), {})[what] = tensor
        self._adam.load_state_dict({**self._adam.state_dict(), "state": memory})
