"""The names of DeltaTorch: batches of a Delta table for PyTorch, read by Penstock."""

from __future__ import annotations

import penstock.torch as _torch  # noqa: F401 - it raises the error of a missing torch
from penstock.deltatorch.deltadataset import DeltaIterableDataset, FieldSpec
from penstock.deltatorch.id_based_deltadataset import IDBasedDeltaDataset
from penstock.deltatorch.pytorch import create_pytorch_dataloader

__all__ = ["DeltaIterableDataset", "FieldSpec", "IDBasedDeltaDataset", "create_pytorch_dataloader"]
