"""What a key's rate means, and what is told of it."""

import pytest

from postroad.core.bucket import Grant, OwnShare
from postroad.core.errors import DeclarationError
from postroad.core.rate import Rate
from postroad.intake.keyring import Caller
from postroad.intake.keys import rate_of
from postroad.intake.problems import exceeded, malformed, overloaded
from postroad.intake.quota import fields, refusal


@pytest.mark.parametrize(
    ("rate", "burst", "policy"),
    [
        ("100/s", None, "q=100;w=1"),
        ("30/m", None, "q=30;w=60"),
        ("1000/h", None, "q=1000;w=3600"),
        ("10/d", None, "q=10;w=86400"),
        ("0.5/s", None, "q=1;w=2"),
        ("100/s", 500, "q=500;w=5"),
        ("100/s", 1, "q=1;w=1"),
        ("30/m", 7, "q=7;w=14"),
    ],
)
def test_the_policy_is_how_much_there_is_and_when_it_is_back(rate: str, burst: int | None, policy: str) -> None:
    parsed = rate_of(rate, burst)

    assert fields(parsed, Grant(1, left=0))["RateLimit-Policy"] == f'"key";{policy}'


@pytest.mark.parametrize(("rate", "burst"), [("100", None), ("fast", None), ("100/s", 0), ("0/s", None)])
def test_what_is_no_rate_is_refused(rate: str, burst: int | None) -> None:
    with pytest.raises(DeclarationError):
        rate_of(rate, burst)


@pytest.mark.parametrize(
    ("rate", "grant", "limit"),
    [
        (Rate(100, 100), Grant(1, left=42), "r=42;t=1"),
        (Rate(100, 500), Grant(1, left=499), "r=499;t=5"),
        (Rate(1 / 60, 5), Grant(1, left=4), "r=4;t=240"),
        (Rate(1 / 60, 5), Grant(1, left=0), "r=0;t=60"),
        (Rate(1 / 60, 5), Grant(0, wait=12.3), "r=0;t=13"),
    ],
)
def test_what_is_left_is_told_with_the_time_within_which_no_more_should_come(
    rate: Rate, grant: Grant, limit: str
) -> None:
    assert fields(rate, grant)["RateLimit"] == f'"key";{limit}'


def test_kinds_of_problems_that_are_not_ours_have_their_own_titles() -> None:
    slow, full = exceeded("key", "no", after=1), overloaded("outbox-age", "no", after=1)

    assert [slow.body()["title"], full.body()["title"]] == ["Quota Exceeded", "Temporary Reduced Capacity"]
    assert malformed("no").body()["title"] == "Bad Request"


@pytest.mark.parametrize(
    ("grant", "missing", "after"),
    [
        (Grant(0, wait=0.004), 1, 1),
        (Grant(0, wait=12.3), 1, 13),
        (Grant(0, wait=12.3), 2, 20),
        (Grant(5), 3, 30),
        (Grant(5), 1000, 50),
    ],
)
def test_a_refusal_says_when_to_come_again_and_never_earlier_than_the_field(
    grant: Grant, missing: int, after: int
) -> None:
    rate = Rate(0.1, 5)
    problem = refusal(Caller("0" * 12, "shop", rate=rate), grant, missing=missing)

    assert problem.headers["Retry-After"] == str(after)
    assert problem.members == {"violated-policies": ["key"]}
    assert "shop" in problem.detail
    assert "6/m" in problem.detail
    told = int(fields(rate, grant)["RateLimit"].rpartition("=")[2])
    assert grant.granted or told <= after


def test_a_process_by_itself_grants_no_more_than_the_rate() -> None:
    share, rate = OwnShare(), Rate(1 / 3600, 10)

    assert share.take(4, rate) == Grant(4, left=6)
    assert share.take(100, rate) == Grant(6, left=0)
    refused = share.take(1, rate)
    assert (refused.granted, refused.left) == (0, 0)
    assert 3590 < refused.wait <= 3600
