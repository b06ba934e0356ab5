"""Splitter: the lines of a body are the same however it was cut on its way."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.intake.lines import Splitter

LIMIT = 7

pieces = st.lists(st.text(alphabet="ab\n\r é€𝄞", max_size=12).map(str.encode) | st.binary(max_size=12), max_size=12)


def split(pieces: list[bytes]) -> list[bytes | None]:
    splitter = Splitter(LIMIT)
    return [line for piece in pieces for line in splitter.feed(piece)] + splitter.end()


@given(pieces)
def test_where_a_body_is_cut_makes_no_difference(pieces: list[bytes]) -> None:
    *lines, last = b"".join(pieces).split(b"\n")

    told = split(pieces)

    assert told == [line if len(line) <= LIMIT else None for line in (*lines, *([last] if last else []))]
    assert told == split([bytes([byte]) for byte in b"".join(pieces)])


def test_a_last_line_needs_no_newline() -> None:
    assert split([b"a\nb"]) == split([b"a\nb\n"]) == [b"a", b"b"]
    assert split([b""]) == []
    assert split([b"\n"]) == [b""]


def test_a_character_may_be_cut_in_two() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]

    assert split([b"a" + first, second + b"\n"]) == ["aé".encode()]


def test_of_a_line_that_is_too_long_nothing_is_kept() -> None:
    splitter = Splitter(LIMIT)

    for _ in range(100):
        assert splitter.feed(b"x" * LIMIT) == []
        assert len(splitter._rest) <= LIMIT

    assert splitter.feed(b"x\nshort\n") == [None, b"short"]
    assert splitter.feed(b"x" * (LIMIT + 1)) == []
    assert splitter.end() == [None]
