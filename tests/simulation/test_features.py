"""Features in random combination: whatever a client combines, what users rely on holds."""

from __future__ import annotations

import pytest

from tests.simulation.features import simulate


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 24, 8))
def test_what_users_rely_on_holds_in_every_combination(start):
    broken = {
        seed: world.broken for seed in range(start, start + 8) if (world := simulate(seed)).broken
    }
    assert broken == {}
