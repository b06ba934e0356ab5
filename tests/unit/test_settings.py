"""Settings: where each comes from, and what is said of a bad one."""

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroad import PostroadError, Settings
from postroad.core.errors import SettingsError
from postroad.core.settings import duration, masked


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "postroad.toml"


def test_defaults_hold_where_nothing_is_said() -> None:
    assert Settings.read(environ={}) == Settings()
    assert Settings().lease == timedelta(seconds=15)


def test_the_file_wins_over_the_default(file: Path) -> None:
    file.write_text('lease = "20s"\npool = 7\nprefix = "ours"\ndatabase_url = "postgresql://file/road"\n')

    settings = Settings.read(environ={}, file=file)

    assert settings == Settings(
        lease=timedelta(seconds=20), pool=7, prefix="ours", database_url="postgresql://file/road"
    )


def test_the_environment_wins_over_the_file(file: Path) -> None:
    file.write_text('lease = "20s"\npool = 7\n')

    settings = Settings.read(environ={"POSTROAD_LEASE": "2m"}, file=file)

    assert settings == Settings(lease=timedelta(minutes=2), pool=7)


def test_a_flag_wins_over_the_environment(file: Path) -> None:
    file.write_text('lease = "20s"\npool = 7\n')
    environ = {"POSTROAD_LEASE": "2m", "POSTROAD_POOL": "8", "DATABASE_URL": "postgresql://environment/road"}

    settings = Settings.read({"lease": "1h", "shards": 4}, environ=environ, file=file)

    assert settings == Settings(
        lease=timedelta(hours=1), pool=8, shards=4, database_url="postgresql://environment/road"
    )


def test_an_absent_flag_and_an_empty_variable_say_nothing() -> None:
    assert Settings.read({"lease": None}, environ={"POSTROAD_POOL": ""}) == Settings()


def test_a_flag_may_be_of_the_right_type_already() -> None:
    assert Settings.read({"lease": timedelta(seconds=3), "port": 0}, environ={}).lease == timedelta(seconds=3)


def test_the_file_is_looked_for_where_the_process_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert Settings.read(environ={}) == Settings()

    file.write_text("pool = 9\n")

    assert Settings.read(environ={}).pool == 9


def test_the_environment_of_the_process_is_read_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_POOL", "11")

    assert Settings.read().pool == 11
    assert Settings.read(environ={}).pool == Settings().pool


def test_variables_of_others_and_of_the_tests_are_not_ours() -> None:
    assert Settings.read(environ={"POOL": "x", "POSTROADS": "1", "POSTROAD_TEST_REDIS_IMAGE": "redis"}) == Settings()


def test_a_child_process_reads_the_same_settings() -> None:
    settings = Settings(
        database_url="postgresql://u:p@host:1/road",
        direct_url="postgresql://u:p@host:2/road",
        redis_url="rediss://host/3",
        app="shop.tasks:road",
        schema="other",
        prefix="A.b-c_9",
        shards=3,
        lease=timedelta(seconds=1.5),
        grace=timedelta(),
        crash_limit=2,
        pool=3,
        host="::",
        port=0,
        retention=timedelta(days=7),
        public_url="https://tasks.example.com",
        body_limit=1024,
        batch_limit=1 << 30,
        auth="required",
        api_key="prk_1_2",
        open_tasks_limit=0,
        outbox_age_limit=timedelta(hours=1),
        request_time=timedelta(seconds=5),
        connections=9,
        workers=2,
        metrics="[::1]:9464",
    )
    assert all(getattr(settings, field.name) != field.default for field in dataclasses.fields(settings)), (
        "each differs from its default"
    )

    assert Settings.read(environ=settings.environment()) == settings


@pytest.mark.parametrize(
    ("flags", "environ", "text", "message"),
    [
        ({"leese": "1s"}, {}, "", "--leese is no setting of postroad; did you mean lease?"),
        ({"body_limits": "1"}, {}, "", "--body-limits is no setting of postroad; did you mean body_limit?"),
        ({}, {"POSTROAD_LEESE": "1s"}, "", "POSTROAD_LEESE is no setting of postroad; did you mean POSTROAD_LEASE?"),
        (
            {},
            {"POSTROAD_DATABASE_URL": "x"},
            "",
            "POSTROAD_DATABASE_URL is no setting of postroad; did you mean DATABASE_URL?",
        ),
        ({}, {"POSTROAD_QQQQQQQQQQQQ": ""}, "", "POSTROAD_QQQQQQQQQQQQ is no setting of postroad"),
        ({}, {}, "leese = 1", "'leese' is no setting of postroad; did you mean lease?"),
        ({}, {}, "[redis]\nurl = ''", "'redis' is no setting of postroad; did you mean redis_url?"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest_known_one(
    flags: dict[str, Any], environ: dict[str, str], text: str, message: str, file: Path
) -> None:
    file.write_text(text)

    with pytest.raises(SettingsError) as caught:
        Settings.read(flags, environ=environ, file=file)

    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    ("flags", "environ", "text", "message"),
    [
        ({"body_limit": "big"}, {}, "", "--body-limit: 'big' is not valid: not a whole number"),
        ({}, {"POSTROAD_POOL": "2.5"}, "", "POSTROAD_POOL: '2.5' is not valid: not a whole number"),
        ({}, {"POSTROAD_POOL": "9" * 5000}, "", "POSTROAD_POOL: "),
        ({}, {"POSTROAD_LEASE": "soon"}, "", "POSTROAD_LEASE: 'soon' is not valid: not a duration such as 500ms"),
        ({}, {"POSTROAD_LEASE": "-1s"}, "", "POSTROAD_LEASE: '-1s' is not valid: not a duration such as 500ms"),
        ({}, {"POSTROAD_LEASE": "9" * 12 + "d"}, "", "POSTROAD_LEASE: '999999999999d' is not valid: too long"),
        ({}, {"POSTROAD_LEASE": "9" * 400}, "", "is not valid: too long"),
        ({}, {}, "pool = true", "pool: True is not valid: not a whole number"),
        ({}, {}, "pool = 7.0", "pool: 7.0 is not valid: not a whole number"),
        ({}, {}, "pool = [7]", "pool: [7] is not valid: not a whole number"),
        ({}, {}, "app = true", "app: True is not valid: not text"),
        ({}, {}, "[app]\nmodule = 'x'", "app: {'module': 'x'} is not valid: not text"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_with_where_it_stands(
    flags: dict[str, Any], environ: dict[str, str], text: str, message: str, file: Path
) -> None:
    file.write_text(text)

    with pytest.raises(SettingsError) as caught:
        Settings.read(flags, environ=environ, file=file)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", "Road"),
        ("schema", "ro ad"),
        ("schema", 'road"; drop'),
        ("schema", ""),
        ("schema", "r" * 41),
        ("prefix", "a{0}b"),
        ("prefix", "a:b"),
        ("prefix", ""),
        ("auth", "sometimes"),
        ("auth", ""),
        ("api_key", "prk_1 2"),
        ("api_key", "prk_1\n"),
        ("open_tasks_limit", -1),
        ("outbox_age_limit", timedelta(seconds=-1)),
        ("request_time", timedelta()),
        ("connections", 0),
        ("shards", 0),
        ("shards", 1025),
        ("crash_limit", 0),
        ("pool", 2),
        ("port", -1),
        ("port", 65536),
        ("body_limit", 1023),
        ("batch_limit", (1 << 30) + 1),
        ("lease", timedelta(milliseconds=999)),
        ("grace", timedelta(microseconds=-1)),
        ("database_url", "mysql://host/road"),
        ("database_url", "host/road"),
        ("redis_url", "http://host"),
    ],
)
def test_a_value_out_of_bounds_names_its_setting(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: "):
        Settings(**{name: value})


@pytest.mark.parametrize("url", ["postgres://h/d", "postgresql://h/d", "postgresql+psycopg://h/d", ""])
def test_the_usual_ways_to_write_a_database_url_are_taken(url: str) -> None:
    assert Settings(database_url=url).database_url == url


@pytest.mark.parametrize("url", ["redis://h", "rediss://h:1/2", "unix:///run/redis.sock", "valkey://h", "valkeys://h"])
def test_the_usual_ways_to_write_a_redis_url_are_taken(url: str) -> None:
    assert Settings(redis_url=url).redis_url == url


def test_a_file_that_is_none_is_told_by_its_name(file: Path) -> None:
    with pytest.raises(SettingsError, match=r"postroad\.toml cannot be read: No such file"):
        Settings.read(environ={}, file=file)

    file.write_text("pool =")
    with pytest.raises(SettingsError, match=r"postroad\.toml is no TOML: Invalid value"):
        Settings.read(environ={}, file=file)

    file.write_bytes(b"app = '\xff'")
    with pytest.raises(SettingsError, match=r"postroad\.toml is no TOML"):
        Settings.read(environ={}, file=file)


def test_a_settings_error_is_one_of_ours_and_a_value_error() -> None:
    assert issubclass(SettingsError, PostroadError)
    assert issubclass(SettingsError, ValueError)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("15s", 15),
        ("15", 15),
        ("1.5s", 1.5),
        ("2m", 120),
        ("1h", 3600),
        ("30d", 30 * 86400),
        (" 1s ", 1),
    ],
)
def test_durations_are_written_with_their_unit(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "s", "1 s", "1w", "1e3", "+1s", "1s2m", "0x1"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration such as 500ms, 15s or 2m"):
        duration(text)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:secret@host:5432/road", "postgresql://user:***@host:5432/road"),
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("postgresql://user:se:cr@et@host/road?sslmode=require", "postgresql://user:***@host/road?sslmode=require"),
        ("postgresql://user:se/cret@host/road", "postgresql://user:***@host/road"),
        ("postgresql://user:se?cr#et@host/road", "postgresql://user:***@host/road"),
        ("postgresql://user:se[cret@host/road", "postgresql://user:***@host/road"),
        (
            "postgresql://host/road?password=secret&sslmode=require",
            "postgresql://host/road?password=***&sslmode=require",
        ),
        (
            "postgresql://host/road?sslmode=require&sslpassword=secret",
            "postgresql://host/road?sslmode=require&sslpassword=***",
        ),
        ("unix:///run/redis.sock?password=secret", "unix:///run/redis.sock?password=***"),
        ("postgresql://user:@host/road", "postgresql://user:***@host/road"),
        ("postgresql://user@host:5432/road", "postgresql://user@host:5432/road"),
        ("postgresql://[::1]:5432/road", "postgresql://[::1]:5432/road"),
        ("", ""),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert "secret" not in masked(url)


@pytest.mark.parametrize("scheme", ["mysql", "nonsense"])
@pytest.mark.parametrize("password", ["secret", "se[cret", "se/cret"])
def test_a_refused_url_is_told_without_its_password(scheme: str, password: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(database_url=f"{scheme}://user:{password}@host/road")

    assert f"'{scheme}://user:***@host/road'" in str(caught.value)


def test_a_key_is_not_shown_with_the_settings() -> None:
    assert "prk_secret" not in repr(Settings(api_key="prk_secret"))
