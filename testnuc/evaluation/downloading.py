"""Download of the paper's datasets from the reference repository, verified by checksum."""

from __future__ import annotations

import sys
from hashlib import sha1
from pathlib import Path

from testnuc.errors import InvalidInputError, MissingDependencyError

__all__ = ["BASE_URL", "download"]

#: The commit that the checksums belong to.
_COMMIT = "098caa574abc78ceda12e39cffc2227d5e269889"
BASE_URL = f"https://raw.githubusercontent.com/HenryPengZou/TestNUC/{_COMMIT}/data/datasets"

#: Object ids of the files in that commit: the SHA-1 of a header with the length, and the content.
BLOBS = {
    ("banking77", "large"): "ce31d98f6462434e1f273b844a168e90ad68573f",
    ("banking77", "small"): "15a15c3156122582258c8d28e6f3147155d9054e",
    ("clinc", "large"): "21796aa943bde9a83362ac1510378447130e70a3",
    ("clinc", "small"): "b2bf713bfea96dce267be6458342c04c3eb15e15",
    ("clinc_domain", "large"): "486f5c2a94f33336f2b30c13983de59956f603ea",
    ("clinc_domain", "small"): "7852889ace6fbb2336b25b3ab08fddfad8110528",
    ("few_event", "large"): "04995e2ae4db29eb9dec78ec0ab39c39048e0a6f",
    ("few_event", "small"): "30eadacecdbc91eb9c9e386c865799a132c7b5c2",
    ("go_emotion", "large"): "efeceed027b43dd77ea7a8d9713da168d3242123",
    ("go_emotion", "small"): "1774727af796d19263340a8124fd6e998e19c3ba",
    ("mtop_domain", "large"): "8b642ec43f4ac8e714d29c7b214eee8d22913739",
    ("mtop_domain", "small"): "c95c2da6860cc4a9d8b32d8c59487af8fe2ebc02",
    ("reddit", "large"): "cd6847b8aa97b26e495ae2c9cbaf336e62e5e2f0",
    ("reddit", "small"): "bef45d4a2d5e0e68382f2a028774a92366291a55",
    ("stackexchange", "large"): "37729e1dee47976166e7ba0ce7fc7fbbbad5f454",
    ("stackexchange", "small"): "8becb405588e556b8d0f9129bbb448a517fed098",
}


def download(name: str, split: str, base_url: str | None = None) -> Path:
    """Return the path of a dataset in the user's cache; downloads it if missing."""
    try:
        import pooch
    except ImportError as exc:
        raise MissingDependencyError(
            f"downloading {name!r} needs pooch: pip install 'testnuc[data]'; or set data_dir to a "
            "copy of the reference repository's data"
        ) from exc
    folder = Path(pooch.os_cache("testnuc"))
    url = f"{(base_url or BASE_URL).rstrip('/')}/{name}/{split}.jsonl"
    expected = BLOBS[name, split]
    path = folder / "datasets" / expected[:12] / name / f"{split}.jsonl"
    if path.is_file() and _git_object_id(path) == expected:
        return path
    # a truncated download must not stay in the cache
    path.unlink(missing_ok=True)
    try:
        # pooch cannot verify git object ids; they are verified below
        pooch.retrieve(
            url, known_hash=None, fname=path.name, path=path.parent, progressbar=sys.stderr.isatty()
        )
    except Exception as exc:
        raise InvalidInputError(
            f"cannot download {url}: {exc}. Set data_dir to a copy of the reference repository's "
            "data, or base_url to a mirror"
        ) from exc
    found = _git_object_id(path)
    if found != expected:
        path.unlink()
        raise InvalidInputError(
            f"checksum mismatch: {url} has git object id {found}, expected {expected}; set "
            "data_dir to a copy that you trust"
        )
    return path


def _git_object_id(path: Path) -> str:
    content = path.read_bytes()
    digest = sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest()
