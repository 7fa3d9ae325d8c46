"""Label a Ray dataset on all CPUs of a machine or a cluster.

    pip install 'testnuc[ray,demo]'
    python examples/ray_dataset.py

Needs no API key: a local test server acts as the LLM. With a real provider, set its model and omit
`base_url` and `embedder`; on a cluster, use ``ray.init(address="auto")``.
"""

import ray
import ray.data

import testnuc
from testnuc import Limits
from testnuc.ray import classify_dataset
from testnuc.testing import HashEmbedder, LoopbackLLM

LABELS = {
    "refund": "wants money back",
    "delivery": "asks where a parcel is",
    "login": "cannot sign in",
}
PHRASES = {
    "refund": ["please return my payment", "I want my money back", "refund my order"],
    "delivery": ["where is my parcel", "my package has not arrived", "the courier lost it"],
    "login": ["I cannot log in", "my password does not work", "my account is locked"],
}


def tickets(n: int) -> list[dict[str, object]]:
    """Return n tickets, each with a phrase of one of the intents."""
    names = list(PHRASES)
    return [
        {"ticket": i, "text": f"{PHRASES[names[i % 3]][i // 3 % 3]}, order {i // 9}"}
        for i in range(n)
    ]


def answer(text: str) -> tuple[str, float]:
    """Answer as an LLM that is wrong for some texts."""
    correct = next(name for name, phrases in PHRASES.items() if any(p in text for p in phrases))
    others = [name for name in PHRASES if name != correct]
    return (others[0], 0.6) if len(text.encode()) * 7 % 11 == 0 else (correct, 0.9)


def main(n: int = 600) -> None:
    """Label n tickets; print the usage and the labels that the vote changed."""
    ray.init(ignore_reinit_error=True)
    ray.data.DataContext.get_current().enable_progress_bars = False
    with LoopbackLLM(answer) as llm:
        labeled = classify_dataset(
            ray.data.from_items(tickets(n), override_num_blocks=4),
            LABELS,
            "openai/any",
            base_url=llm.base_url,
            api_key="none",
            embedder=HashEmbedder(),
            policy="weighted",
            # limits apply to the whole job, not to each actor
            limits=Limits(requests_per_minute=60_000, budget=testnuc.Budget(calls=n)),
            predict_actors=2,
            batch_size=128,
        )
        print(f"{labeled.texts} distinct texts, {labeled.usage.calls} calls")
        for row in labeled.dataset.iter_rows():
            if row["label"] != row["own_label"]:
                print(f"{row['own_label']} -> {row['label']}: {row['text']}")


if __name__ == "__main__":
    main()
