"""Scheduling of LLM calls: cache keys, single-flight, leases, fair queueing, workers.

::

    predictor       from a text to a prediction: key, prompt, call, label
    partial_labels  prompts that show some of many labels
    scheduler       one call for each key: store, in-flight requests, leases, then the queue
    inflight        asks, runs, and the registry of in-flight requests
    leases          keys that another process asks for
    queue           requests that wait for a worker, round-robin over runs; workers, on demand
"""
