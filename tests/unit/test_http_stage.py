"""Declaring a service: which URLs may be called, what is shown of them, how requests are signed."""

import base64
from typing import Any

import pytest

from postroad import CommandStage, HttpStage, Pipeline
from postroad.core.errors import DeclarationError
from postroad.core.http_stage import check_url, shown
from postroad.stages.service import signature


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[fd00:ec2::254]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::1]/",
        "http://100.100.100.200/",
        "http://0.0.0.0/",
        "http://[::]/",
        "http://224.0.0.1/",
        "http://2852039166/",
        "http://169.254.43518/",
        "http://0251.0376.0251.0376/",
        "ftp://host/",
        "//host/path",
        "host/path",
        "http://",
        "http:///path",
        "http://host:99999/",
        "http://[::1/",
        "http://host/a b",
        "http://host/#part",
        "http://host/\nx",
        "",
    ],
)
def test_a_url_that_must_not_be_called_is_refused(url: str) -> None:
    with pytest.raises(DeclarationError):
        HttpStage(url)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8080/x", "https://host", "http://10.0.0.7/", "http://[::1]:80/", "http://user:pw@host/?q=1"],
)
def test_a_url_of_a_service_may_be_called(url: str) -> None:
    assert check_url(url).hostname


def test_what_is_link_local_can_be_allowed() -> None:
    HttpStage("http://169.254.169.254/", allow_link_local=True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://user:pw@host:8443/path?token=x", "https://***@host:8443/path?***"),
        ("https://token@host/", "https://***@host/"),
        ("https://host/a@b", "https://host/a@b"),
        ("user:pw@host/", "***@host/"),
        ("${WHERE}/path", "${WHERE}/path"),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, said: str) -> None:
    assert shown(url) == said


def test_neither_text_nor_repr_of_a_service_tells_its_secrets() -> None:
    secret = "whsec_" + base64.b64encode(b"s" * 24).decode()
    service = HttpStage("https://u:pw@host/?k=v", secrets=secret, headers={"authorization": "Bearer t0k3n"})

    for text in (str(service), repr(service)):
        assert not any(part in text for part in ("pw", "k=v", secret, "t0k3n"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"secrets": ("a", "b", "c")}, "secrets are one, or two"),
        ({"secrets": "whsec_short"}, "a secret is whsec_ and 24 to 64 bytes"),
        ({"secrets": "whsec_" + base64.b64encode(b"x" * 23).decode()}, "not 23 bytes"),
        ({"secrets": "whsec_" + base64.b64encode(b"x" * 65).decode()}, "not 65 bytes"),
        ({"headers": {"a b": "c"}}, "'a b' is no name of a header"),
        ({"headers": {"Content-Length": "1"}}, "is set by postroad itself"),
        ({"headers": {"webhook-id": "1"}}, "is set by postroad itself"),
        ({"headers": {"x": "a\nb"}}, "must be printable ASCII"),
        ({"completion": "async"}, "completion is 'answer' or 'callback'"),
    ],
)
def test_a_service_that_could_not_be_called_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        HttpStage("https://host/", **options)


def test_requests_are_signed_as_standard_webhooks_says() -> None:
    """With the example of its specification."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    assert signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [secret]) == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(
    "command", [[], "convert", ["a", 3], ["a\x00b"]], ids=["nothing", "one string", "a number", "NUL"]
)
def test_a_program_that_could_not_be_run_is_refused(command: Any) -> None:
    with pytest.raises(DeclarationError, match="command is a list"):
        CommandStage(command)


def test_services_and_programs_are_stages_like_others() -> None:
    road = Pipeline("road")
    road.add("ride", HttpStage("http://host/"))
    road.add("rest", CommandStage(["true"]), after="ride", retries=2)

    ride, rest = road.graph().values()
    assert (ride.concurrency, ride.transaction, ride.is_async) == (100, None, True)
    assert (rest.concurrency, rest.after, rest.retries) == (4, ("ride",), 2)
