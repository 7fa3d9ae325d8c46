"""``testnuc discover``."""

import random
from types import SimpleNamespace

from testnuc._engine.parameters import client_arguments
from testnuc.cli.classify import cost
from testnuc.cli.files import require_kind, require_new
from testnuc.cli.label_files import read_labels, write_labels
from testnuc.cli.memory import AnswerStore
from testnuc.cli.options_of_run import command, with_embedder
from testnuc.cli.reading import read_input, to_stderr, usable
from testnuc.discovery import KEYWORDS, MOST_TEXTS, discover, expected_cost

#: Options that the next command repeats.
_OF_RUN = ("model", "base_url", "embedder", "instructions")


async def run(given: SimpleNamespace) -> None:
    """Find labels for the texts of a file, and write a label file."""
    output, client = given.output, given.client
    require_kind(output, ".yaml", ".yml", ".json")
    require_new(output, overwrite=given.overwrite or given.dry_run)
    table = read_input(given, guess=False)
    _, valid = usable(table, given.file)
    texts = list(dict.fromkeys(str(table.texts[at]) for at in valid))
    if len(texts) > MOST_TEXTS:
        to_stderr(f"labels are found in {MOST_TEXTS:,} texts of {len(texts):,}, drawn at random")
        texts = random.Random(0).sample(texts, MOST_TEXTS)  # noqa: S311 - the same in every run
    store = AnswerStore.of_results(client["store"], output)
    client = await with_embedder(client, store.where)
    options = client_arguments(client.but(store=None if given.dry_run else store.where))
    labels, model = options.pop("labels"), options.pop("model")
    if given.dry_run:
        calls, tokens, usd = expected_cost(texts, model, given.n, tree=given.tree, **options)
        price = "price unknown" if usd is None else f"about {usd:.2f} USD"
        said = f"at most {calls:,} calls, about {tokens:,} input tokens, {price}"
        print(f"{model}: nothing was sent; {said}")
        return
    store.create_folder()
    known = None if labels is None else read_labels(labels)
    to_stderr(f"embedding and clustering {len(texts):,} texts; then {model} names the clusters")
    found = await discover(texts, model, labels=known, n=given.n, tree=given.tree, **options)
    write_labels(output, found.labels, found.examples)
    print(found)
    parts = (f"{len(found.labels):,} labels, written to {output}", cost(found.usage))
    to_stderr(", ".join(filter(None, (f"{found.usage.calls:,} calls", *parts))))
    asked = client.given(_OF_RUN[2:] if model == KEYWORDS else _OF_RUN)
    asked |= {"labels": output, "none_label": "none of these"}
    to_stderr(f"next, label the texts: {command('classify', given.file, asked, '-o', 'out.csv')}")
