"""What an app should make once and share, by the types of objects that come with each client, engine and pool. Pure.

A client that is given connections which others use too costs little. So the type of the object that holds connections
tells. The libraries are not imported: the names are those of the counts. messages/client-per-request.md says where the
libraries say so.
"""

from __future__ import annotations

from collections.abc import Mapping

# By the type that tells, the type that users of the library know, which may be the same.
SHAREABLE: Mapping[str, str] = {
    "httpx.AsyncHTTPTransport": "httpx.AsyncClient",
    "httpx.HTTPTransport": "httpx.Client",
    "httpx2.AsyncHTTPTransport": "httpx2.AsyncClient",
    "httpx2.HTTPTransport": "httpx2.Client",
    "aiohttp.connector.TCPConnector": "aiohttp.client.ClientSession",
    "requests.adapters.HTTPAdapter": "requests.sessions.Session",
    "sqlalchemy.engine.base.Engine": "sqlalchemy.engine.base.Engine",
    "redis.asyncio.connection.ConnectionPool": "redis.asyncio.client.Redis",
    "redis.connection.ConnectionPool": "redis.client.Redis",
    "asyncpg.pool.Pool": "asyncpg.pool.Pool",
    "psycopg_pool.pool_async.AsyncConnectionPool": "psycopg_pool.pool_async.AsyncConnectionPool",
    "psycopg_pool.pool.ConnectionPool": "psycopg_pool.pool.ConnectionPool",
    "pymongo.asynchronous.mongo_client.AsyncMongoClient": "pymongo.asynchronous.mongo_client.AsyncMongoClient",
    "pymongo.synchronous.mongo_client.MongoClient": "pymongo.synchronous.mongo_client.MongoClient",
    "aiobotocore.client.AioClientCreator": "aiobotocore.client.AioClientCreator",
    "botocore.client.ClientCreator": "botocore.client.ClientCreator",
    "grpc.aio._channel.Channel": "grpc.aio._channel.Channel",
    "grpc._channel.Channel": "grpc._channel.Channel",
    "ssl.SSLContext": "ssl.SSLContext",
}


def made(kinds: Mapping[str, int]) -> dict[str, int]:
    """Return the shareable objects among those that a row creates in a typical request, by type, with their number.

    Where only the type that tells was created, as by a subclass of the client, that type is returned.
    """
    numbers: dict[str, int] = {}
    for tells, known_as in SHAREABLE.items():
        if tells in kinds:
            kind = known_as if known_as in kinds else tells
            numbers[kind] = kinds[kind]
    return numbers
