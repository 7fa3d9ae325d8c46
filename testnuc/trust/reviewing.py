"""The module that version 0.1.0 pickled an item of `review_queue` from."""

from __future__ import annotations

from testnuc.trust.review_queue import ReviewReason as Review

__all__ = ["Review"]
