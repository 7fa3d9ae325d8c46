"""The parts of a client, and what they do: embed, retrieve, predict, vote.

::

    components        the parts of a client: created, opened and closed
    reporting         what a run reports: progress, notes, warnings
    parameters        flat option names, and the arguments they belong to; what several labels allow
    inputs            input texts and labels, checked and deduplicated
    pipeline          one run: `prepare` embeds, and makes the first calls meanwhile; `predict`
    retrieval         neighbors from the pool, predictions from the store
    run               one run: `batch` (texts, neighbors and answers), `votes`, and the chain of
                      labelers
    sampling          the samples that a method asks for; `examples` for few-shot prompts
    shortlist         the labels that a prompt shows; `full_labels` compares with all labels
    rows              results, made on access
    streaming         a stream of texts, window by window
    estimate          calls and cost before a run
    describing        how labels were made, as a page
    pool_predictions  the predictions of the whole pool, diagnosed for the auto policy

    learning          review and learn; `argmax_learning` or `threshold_learning` fits a rule
    carried           judgments of other labels, as those of a client's
    applying          labels by what was learned
    escalation        a referee, a better model: it judges, and labels the least trusted texts
    uncertain         texts that a head labels instead of the LLM; `distilling` writes a head
"""
