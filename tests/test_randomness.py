"""Random numbers depend on a position only, and never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import randomness


@given(st.integers(0, 3_000), st.integers(0, 1 << 40))
def test_permutations_are_those_of_the_frozen_generator(count: int, position: int) -> None:
    """Every permutation equals that of `RandomState`, whose streams NumPy guarantees."""
    drawn = randomness.permutation(count, "rows", position)

    assert drawn.tolist() == randomness.generator("rows", position).permutation(count).tolist()


@pytest.mark.parametrize("count", [1 << 16, (1 << 17) - 1, (1 << 20) + 1, 3_000_000])
def test_large_permutations_are_those_of_the_frozen_generator(count: int) -> None:
    """Permutations of many rows equal those of `RandomState` too."""
    drawn = randomness.permutation(count, "rows", 7)

    assert np.array_equal(drawn, randomness.generator("rows", 7).permutation(count))


def test_permutations_stay_the_same_if_generators_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permutations stay the same with a NumPy whose `Generator` permutes differently."""
    before = randomness.permutation(1000, "rows", 7)

    class Changed(np.random.Generator):
        def permutation(self, x: int) -> np.ndarray:  # type: ignore[override] # one of its signatures
            return super().permutation(x)[::-1]

    monkeypatch.setattr(np.random, "Generator", Changed)
    randomness._generators_agree.cache_clear()
    try:
        assert not randomness._generators_agree()
        assert np.array_equal(randomness.permutation(1000, "rows", 7), before)
    finally:
        monkeypatch.undo()
        randomness._generators_agree.cache_clear()
    assert randomness._generators_agree()
