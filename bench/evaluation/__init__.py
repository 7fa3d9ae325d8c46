"""The studies of the paper, on a recording of a dataset.

::

    dataset = load("banking77", data_dir="data")
    recording = await record(dataset, model="openai/gpt-4o-mini", store="answers.db")
    table = accuracy_over_k(recording)          # a pandas table
    plot(table).savefig("accuracy_over_k.png")  # matplotlib

`record` calls the LLM once per text. The studies then work on arrays of predictions and neighbors,
and take seconds each. ``python -m bench study`` and ``python -m bench paper`` run them.
"""
