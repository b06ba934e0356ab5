"""How a rate is written, and what is none."""

import pytest

from postroad.core.errors import DeclarationError
from postroad.core.rate import Rate


@pytest.mark.parametrize(
    ("text", "per_second", "burst"),
    [("200/s", 200, 20), ("5/s", 5, 1), ("30/m", 0.5, 1), ("90000/h", 25, 2), ("1/d", 1 / 86400, 1), ("0.5/s", 0.5, 1)],
)
def test_a_rate_is_so_many_in_a_time_and_a_tenth_of_a_second_at_once(text: str, per_second: float, burst: int) -> None:
    rate = Rate.parse(text)

    assert rate.per_second == pytest.approx(per_second)
    assert rate.burst == burst
    assert Rate.parse(str(rate), rate.burst) == rate


def test_a_burst_may_be_given() -> None:
    assert Rate.parse("2/s", 50) == Rate(2.0, 50)


NONE = (
    "0/s",
    "-1",
    "-1/s",
    "1e9/s",
    "9999999999/s",
    "1000001/s",
    "0.5/d",
    "5",
    "5/",
    "/s",
    "5/y",
    "5 /s",
    "٣/s",
    "off",
    "",
)


@pytest.mark.parametrize("text", [*NONE, 5, None])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(DeclarationError, match=r"such as 200/s|not between 1/d and 1,000,000/s"):
        Rate.parse(text)


@pytest.mark.parametrize("burst", [0, -1, 1.5, True, 10**7, "5"])
def test_a_burst_is_a_whole_number_from_1(burst: int) -> None:
    with pytest.raises(DeclarationError, match="burst"):
        Rate.parse("5/s", burst)
