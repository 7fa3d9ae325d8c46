"""The name under which version 0.1.0 pickled its vote settings."""

from __future__ import annotations

from testnuc.trust.vote_settings import VoteSettings as Counting

__all__ = ["Counting"]
