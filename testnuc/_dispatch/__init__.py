"""Scheduling of LLM calls: cache keys, single-flight, leases, fair queueing, workers."""
