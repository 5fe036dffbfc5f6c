"""The network of the demo, on torch if it is installed, else on NumPy.

Both have the same interface, start with the same weights and take the same steps of Adam, so they learn alike up to rounding.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.cli._digits import CLASSES, SIDE
from penstock.dataset import Dataset
from penstock.loading import loader as numpy_loader
from penstock.randomness import generator

__all__ = ["Network", "NumpyNetwork", "TorchNetwork", "gradients", "initial", "new_network"]

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

# So small that several threads would spend most of the time of a step on waiting for each other.
HALF, HIDDEN = SIDE // 2, 40
INPUTS = HALF * HALF
RATE, BETA_MEAN, BETA_SQUARE, EPSILON = 5e-3, 0.9, 0.999, 1e-8  # of Adam


def new_network(seed: int) -> Network:
    """Return an untrained network, on torch if it can be imported."""
    try:
        return TorchNetwork(seed)
    except (ImportError, OSError):  # OSError: torch is installed, and its libraries are not
        return NumpyNetwork(seed)


def initial(seed: int) -> Arrays:
    """Return the initial weights, with a column of weights per neuron, and the initial biases.

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
    """Return images at half their size, as rows of numbers around zero."""
    quarters = images.reshape(len(images), HALF, 2, HALF, 2).astype(np.float32)
    scaled: npt.NDArray[np.float32] = quarters.mean(axis=(2, 4)).reshape(len(images), -1) / np.float32(255) - np.float32(0.5)
    return scaled


def _outputs(weights: Arrays, inputs: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the activations of the hidden layer and of the output layer."""
    hidden = np.maximum(inputs @ weights["weight.1"] + weights["bias.1"], 0)
    return hidden, hidden @ weights["weight.2"] + weights["bias.2"]


def gradients(weights: Arrays, inputs: npt.NDArray[Any], labels: npt.NDArray[Any]) -> tuple[float, Arrays]:
    """Return the mean cross-entropy of the softmax, and its gradient by each weight."""
    hidden, scores = _outputs(weights, inputs)
    rows = np.arange(len(labels))
    shifted = scores - scores.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(axis=1, keepdims=True)
    loss = float(np.mean(np.log(total[:, 0]) - shifted[rows, labels]))
    gradient = exponentials / total
    gradient[rows, labels] -= 1
    gradient /= len(labels)
    back = (gradient @ weights["weight.2"].T) * (hidden > 0)
    return loss, {
        "weight.1": inputs.T @ back,
        "bias.1": back.sum(axis=0),
        "weight.2": hidden.T @ gradient,
        "bias.2": gradient.sum(axis=0),
    }


class NumpyNetwork:
    """The network on NumPy.

    Example:
        >>> NumpyNetwork(seed=0).guess(np.zeros((2, 28, 28), np.uint8)).shape
        (2,)
    """

    kind = "NumPy"

    def __init__(self, seed: int) -> None:
        """Store the initial weights and the state of Adam."""
        self._weights = initial(seed)
        self._means = {f"mean.{name}": np.zeros_like(array) for name, array in self._weights.items()}
        self._squares = {f"square.{name}": np.zeros_like(array) for name, array in self._weights.items()}
        self._steps = 0

    def loader(self, ds: Dataset) -> Any:
        """Return a loader of arrays."""
        return numpy_loader(ds)

    def learn(self, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
        """Take one step of Adam, and return the loss before it."""
        loss, slopes = gradients(self._weights, _inputs(images), labels)
        self._steps += 1
        rate = RATE * (1 - BETA_SQUARE**self._steps) ** 0.5 / (1 - BETA_MEAN**self._steps)
        for name, slope in slopes.items():
            mean, square = self._means[f"mean.{name}"], self._squares[f"square.{name}"]
            mean += (1 - BETA_MEAN) * (slope - mean)
            square += (1 - BETA_SQUARE) * (slope * slope - square)
            self._weights[name] -= (rate * mean / (np.sqrt(square) + EPSILON)).astype(np.float32)
        return loss

    def guess(self, images: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the predicted digits."""
        digits: npt.NDArray[np.int64] = _outputs(self._weights, _inputs(images))[1].argmax(axis=1)
        return digits

    def state(self) -> Arrays:
        """Return the weights and the state of Adam."""
        arrays = {**self._weights, **self._means, **self._squares}
        return {**{name: array.copy() for name, array in arrays.items()}, "steps": np.array(self._steps)}

    def load(self, state: Arrays) -> None:
        """Load a state."""
        for arrays in (self._weights, self._means, self._squares):
            arrays.update({name: state[name].copy() for name in arrays})
        self._steps = int(state["steps"])


class TorchNetwork:
    """The network on torch, on the CPU.

    Raises:
        ImportError: If torch is not installed.
    """

    kind = "torch"

    def __init__(self, seed: int) -> None:
        """Store the initial weights and the optimizer."""
        torch: Any = import_module("torch")
        torch.set_num_threads(1)  # the network is too small for several
        self._torch = torch
        self._layers = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES))
        with torch.no_grad():
            for parameter, array in zip(self._layers.parameters(), initial(seed).values(), strict=True):
                parameter.copy_(torch.from_numpy(array.T.copy()))
        betas = (BETA_MEAN, BETA_SQUARE)
        self._adam = torch.optim.Adam(self._layers.parameters(), lr=RATE, betas=betas, eps=EPSILON)

    def loader(self, ds: Dataset) -> Any:
        """Return a loader of tensors, with all rows on this process."""
        return import_module("penstock.torch").loader(ds, rank=0, world_size=1)

    def learn(self, images: Any, labels: Any) -> float:
        """Take one step of Adam, and return the loss before it."""
        loss = self._torch.nn.functional.cross_entropy(self._scores(images), self._torch.as_tensor(labels))
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()
        return float(loss.detach())

    def guess(self, images: Any) -> npt.NDArray[np.int64]:
        """Return the predicted digits."""
        with self._torch.no_grad():
            digits: npt.NDArray[np.int64] = self._scores(images).argmax(dim=1).numpy()
        return digits

    def _scores(self, images: Any) -> Any:
        """Return the output of the network for images, which are scaled as in `_inputs`."""
        quarters = self._torch.as_tensor(images).reshape(len(images), HALF, 2, HALF, 2).float()
        return self._layers(quarters.mean(dim=(2, 4)).reshape(len(images), -1) / 255 - 0.5)

    def state(self) -> Arrays:
        """Return the weights and the state of Adam."""
        tensors = {f"weights/{name}": tensor for name, tensor in self._layers.state_dict().items()}
        for number, values in self._adam.state_dict()["state"].items():
            tensors |= {f"adam/{number}/{name}": tensor for name, tensor in values.items()}
        return {name: tensor.numpy().copy() for name, tensor in tensors.items()}

    def load(self, state: Arrays) -> None:
        """Load a state."""
        weights, adam = {}, dict[int, dict[str, Any]]()
        for name, array in state.items():
            kind, *rest = name.split("/")
            tensor = self._torch.from_numpy(np.array(array))
            if kind == "weights":
                weights[rest[0]] = tensor
            else:
                adam.setdefault(int(rest[0]), {})[rest[1]] = tensor
        self._layers.load_state_dict(weights)
        self._adam.load_state_dict({**self._adam.state_dict(), "state": adam})


Network: TypeAlias = NumpyNetwork | TorchNetwork
