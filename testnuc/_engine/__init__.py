"""The engine behind the public classes: embed, retrieve, predict, vote.

::

    engine            all operations of a client; `components` creates and closes its parts
    parameters        flat option names, and the arguments they belong to
    inputs            input texts and labels, checked and deduplicated
    pipeline          one run: `prepare`, then `predict`
    first_calls       calls for own labels, before and while texts are embedded
    retrieval         neighborhoods: neighbors from the pool, predictions from the store
    neighborhoods     texts, neighbors, predictions and votes of a run; `multilabel`
    sampling          the samples that a method asks for; `examples` for few-shot prompts
    shortlist         the labels that a prompt shows; `whole_list` compares with all labels
    rows              results, made on access
    streaming         a stream of texts, window by window
    estimate          calls and cost before a run
    pool_predictions  the predictions of the whole pool, diagnosed for the auto policy
    small_pool        warnings about a pool that is too small

    learning          review and learn; `learning_base`, `multilabel_learning`, `judgment_arrays`
    applying          labels by what was learned
    escalation        a referee, a better model: it judges, and labels the least trusted texts
    sparing           texts that a head labels instead of the LLM; `distilling` writes a head
"""
