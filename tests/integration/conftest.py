import aiohttp
import pytest

from tests.integration.database import serve


@pytest.fixture
async def session():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield session


@pytest.fixture(scope="session")
def database():
    """A running PostgreSQL server, one for all tests."""
    yield from serve()
