"""Alias for unpickling the vote settings of version 0.1.0."""

from __future__ import annotations

from testnuc.trust.vote_settings import VoteSettings as Counting

__all__ = ["Counting"]
