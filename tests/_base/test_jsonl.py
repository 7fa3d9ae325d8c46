"""Atomic writes of files."""

from __future__ import annotations

import pytest

from testnuc._base.jsonl import write_whole
from testnuc.errors import InvalidInputError


def test_two_runs_that_write_one_file_do_not_share_a_temporary_one(tmp_path):
    out = tmp_path / f"{'ö' * 120}.csv"

    def parts():
        yield b"a"
        write_whole(out, [b"of the other run"])
        assert out.read_bytes() == b"of the other run"
        yield b"b"

    write_whole(out, parts())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(out.name, b"ab")]


def test_what_ends_a_write_leaves_no_part(tmp_path):
    def parts():
        yield b"a"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "out.csv", parts())
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInputError, match="folder cannot be written"):
        write_whole(tmp_path / "folder", [b"a"])
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
