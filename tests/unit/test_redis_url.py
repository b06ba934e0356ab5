"""Where Redis is: what a URL says, and what is told of one that is wrong."""

import pytest
from redis.asyncio import BlockingConnectionPool, SSLConnection
from redis.exceptions import MovedError, ResponseError

from postroad.core import broker
from postroad.core.errors import SettingsError
from postroad.core.redis_url import RedisUrl, Topology
from postroad.core.settings import Settings


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("redis://:p@h:1/2", "redis://:p@h:1/2"),
        ("rediss://h", "rediss://h"),
        ("valkey://h", "redis://h"),
        ("valkeys://h?ssl_cert_reqs=none", "rediss://h?ssl_cert_reqs=none"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
    ],
)
def test_one_server_is_left_to_the_driver(url: str, server: str) -> None:
    assert RedisUrl.parse(url) == RedisUrl(Topology.SERVER, server)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis+sentinel://a:1,b:2/road", ("redis://master/", (("a", 1), ("b", 2)), "road")),
        ("redis+sentinel://a/road/3", ("redis://master/3", (("a", 26379),), "road")),
        (
            "valkey+sentinel://u:p%2F@[::1]:5,b/my%20road",
            ("redis://u:p%2F@master/", (("::1", 5), ("b", 26379)), "my road"),
        ),
        ("rediss+sentinel://a/r?ssl_cert_reqs=none", ("rediss://master/?ssl_cert_reqs=none", (("a", 26379),), "r")),
    ],
)
def test_sentinels_are_told_with_the_name_of_their_master(
    url: str, expected: tuple[str, tuple[tuple[str, int], ...], str]
) -> None:
    assert RedisUrl.parse(url) == RedisUrl(Topology.SENTINEL, *expected)


def test_sentinels_may_have_a_password_of_their_own() -> None:
    url = RedisUrl.parse("redis+sentinel://:p@a/road?sentinel_username=u&sentinel_password=s%2F&ssl_cert_reqs=none")

    assert url.sentinel_login == (("username", "u"), ("password", "s/"))
    assert url.server == "redis://:p@master/?ssl_cert_reqs=none"


@pytest.mark.parametrize(
    "url", ["redis+cluster://:p@a:1,b", "redis+cluster://:p@a:1,b/", "valkey+cluster://:p@a:1,b/0"]
)
def test_a_cluster_is_told_by_some_of_its_nodes(url: str) -> None:
    parsed = RedisUrl.parse(url)

    assert (parsed.topology, parsed.nodes) == (Topology.CLUSTER, (("a", 1), ("b", 6379)))
    assert parsed.server.startswith("redis://:p@master/")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://h", "begins with redis://"),
        ("redis+other://h", "begins with redis://"),
        ("unix+cluster:///h", "begins with redis://"),
        ("redis", "begins with redis://"),
        ("redis+sentinel://a:1,b:2", "the name by which the sentinels know the master"),
        ("redis+sentinel://a:1,b:2/?sentinel_password=x", "the name by which the sentinels know the master"),
        ("redis+sentinel://a:1/road/one", "the number of a database"),
        ("redis+sentinel://a:1/road/1/2", "the number of a database"),
        ("redis+sentinel://a:port/road", "names its nodes as host:port,host2:port"),
        ("redis+sentinel:///road", "names its nodes as host:port,host2:port"),
        ("redis+sentinel://:p/w@a/road", "names its nodes as host:port,host2:port"),
        ("redis+cluster://a:1,,b:2", "names its nodes as host:port,host2:port"),
        ("redis+cluster://a:70000", "names its nodes as host:port,host2:port"),
        ("redis+cluster://a:", "names its nodes as host:port,host2:port"),
        ("redis+cluster://a/1", "a cluster has one database"),
        ("redis+cluster://a?sentinel_password=x", "a cluster has no sentinels"),
    ],
)
def test_what_is_wrong_is_told_when_settings_are_read(url: str, told: str) -> None:
    with pytest.raises(SettingsError, match=r"^redis_url: ") as caught:
        Settings(redis_url=url)

    assert told in str(caught.value)


def test_a_secret_is_not_told() -> None:
    for url in (
        "redis+sentinel://:secret@a,b",
        "redis+sentinel://a?sentinel_password=secret",
        "redis+cluster://:secret@",
    ):
        with pytest.raises(SettingsError) as caught:
            Settings(redis_url=url)

        assert "secret" not in str(caught.value)
        assert "***" in str(caught.value)


@pytest.mark.parametrize("url", ["rediss+sentinel://u:p@a/road", "valkeys+cluster://u:p@a"])
async def test_what_the_url_says_holds_for_every_connection(url: str) -> None:
    client = broker.command_client(Settings(redis_url=url), connections=3)
    pool = client.connection_pool
    await client.aclose()

    assert isinstance(pool, BlockingConnectionPool)
    assert pool.connection_class is SSLConnection
    assert pool.max_connections == 3
    assert [pool.connection_kwargs[name] for name in ("username", "password")] == ["u", "p"]
    assert pool.connection_kwargs["retry"] is None


def test_in_a_cluster_each_shard_has_a_client_of_its_own_and_elsewhere_all_share_one() -> None:
    cluster = broker.Clients(Settings(redis_url="redis+cluster://a", shards=2))
    server = broker.Clients(Settings(redis_url="redis://a", shards=2))

    assert cluster.of(0) is not cluster.of(1)
    assert cluster.of(1) is cluster.of(1)
    assert server.of(0) is server.of(1)


def test_what_redis_said_is_told_with_its_code() -> None:
    assert broker.told(MovedError("1584 127.0.0.1:6379", status_code="MOVED")) == "MOVED 1584 127.0.0.1:6379"
    assert broker.told(ResponseError("NOGROUP No such key\nor group")) == "NOGROUP No such key"
    assert broker.told(OSError("gone")) == "gone"
