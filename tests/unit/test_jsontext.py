"""JSON that Postgres keeps is let through as it is; all other is refused with the place of the fault."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad import PostroadError, Status
from postroad.core import jsontext
from postroad.core.errors import UnstorableError
from postroad.core.jsontext import DEEPEST, check, decode, encode, encode_checked

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)
"""Any JSON."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"null", None),
        (b" [1, -2.5, 1e3, true] ", [1, -2.5, 1000.0, True]),
        (b'{"a": {"b": []}}', {"a": {"b": []}}),
        (b'"\\u00e9\\ud83d\\ude00"', "é😀"),
        ('"é😀"'.encode(), "é😀"),
        (b'{"": ""}', {"": ""}),
        (b'"\\\\u0000"', r"\u0000"),
        (str(2**1024 - 1).encode(), 2**1024 - 1),
        (str(-(2**1024) + 1).encode(), -(2**1024) + 1),
        (b"1.7976931348623157e308", 1.7976931348623157e308),
        (b"1e-999", 0.0),
        (b"[" * DEEPEST + b"]" * DEEPEST, None),
    ],
)
def test_what_postgres_keeps_is_decoded(text: bytes, value: Any) -> None:
    decoded = decode(text)

    assert decoded == value or value is None
    assert json.loads(encode(decoded)) == decoded


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Expecting value in line 1, column 1"),
        (b"{", "in line 1, column 2"),
        (b'{"a": 1,\n "b" 2}', "Expecting ':' delimiter in line 2, column 6"),
        (b"[1] [2]", "Extra data in line 1, column 5"),
        (b"'a'", "Expecting value"),
        (b"[1,]", "in line 1, column"),
        (b'"\t"', "Invalid control character"),
        (b"01", "Extra data"),
        (b"[" + b"7" * 5000, "Expecting ',' delimiter in line 1, column 5002"),
        (b"NaN", "NaN is no JSON number"),
        (b'{"a": [NaN]}', "NaN is no JSON number"),
        (b"[Infinity]", "Infinity is no JSON number"),
        (b"-Infinity", "-Infinity is no JSON number"),
        (b"\xff", "the body is not UTF-8: byte 0 is wrong"),
        (b'{"a": "\xc3"}', "the body is not UTF-8: byte 7 is wrong"),
        (b'"\xed\xa0\x80"', "the body is not UTF-8: byte 1 is wrong"),
        ('"a"'.encode("utf-16"), "the body is not UTF-8: byte 0 is wrong"),
        (b'\xef\xbb\xbf{"a": 1}', "Unexpected UTF-8 BOM"),
    ],
)
def test_what_is_no_json_is_malformed(text: bytes, message: str) -> None:
    with pytest.raises(UnstorableError) as caught:
        decode(text)

    assert message in caught.value.detail
    assert caught.value.malformed
    assert caught.value.pointer == ""


@pytest.mark.parametrize(
    ("text", "pointer", "message"),
    [
        (b"1e999", "", "a number is not finite, or too large for a double"),
        (b'{"a": [0, -1e999]}', "/a/1", "a number is not finite, or too large for a double"),
        (b'["\\u0000"]', "/0", r"Postgres cannot keep the character \u0000"),
        (b'{"a": {"b": "x\\u0000y"}}', "/a/b", r"Postgres cannot keep the character \u0000"),
        ('{"a": "é\\u0000"}'.encode(), "/a", r"Postgres cannot keep the character \u0000"),
        (b'{"a": {"\\u0000": 1}}', "/a", r"Postgres cannot keep the character \u0000"),
        (b'{"a": "\\ud800"}', "/a", "one half of a surrogate pair"),
        (b'{"a": "\\ude00\\ud83d"}', "/a", "one half of a surrogate pair"),
        (b'[{"\\udfff": 1}]', "/0", "one half of a surrogate pair"),
        (b'{"a/b": {"c~d": [1e999]}}', "/a~1b/c~0d/0", "a number is not finite"),
        (b'{"": 1e999}', "/", "a number is not finite"),
        (b'{"a": 1, "a": 2}', "", "an object has two members named 'a'"),
        (b'[0, {"b": {"a": 1, "c": 2, "a": 1}}]', "/1/b", "an object has two members named 'a'"),
        (b'{"a": 1, "\\u0061": 2}', "", "an object has two members named 'a'"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "", r"an object has two members named '\ud800'"),
        (str(2**1024).encode(), "", "a number is larger than 2^1024"),
        (b'{"a": [' + str(-(2**1024)).encode() + b"]}", "/a/0", "a number is larger than 2^1024"),
        (b'{"a": [1, ' + b"9" * 5000 + b"]}", "/a/1", "too large"),
        (b'{"a": -' + b"9" * 5000 + b"}", "/a", "too large"),
    ],
)
def test_what_postgres_would_refuse_or_alter_is_told_with_its_place(text: bytes, pointer: str, message: str) -> None:
    with pytest.raises(UnstorableError) as caught:
        decode(text)

    assert message in caught.value.detail
    assert caught.value.pointer == pointer
    assert not caught.value.malformed
    str(caught.value).encode()  # it goes into an answer, which is UTF-8


@pytest.mark.parametrize("levels", [DEEPEST + 1, 5_000, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["array", "object"])
def test_deep_nesting_is_refused_in_the_same_way_however_deep(opening: bytes, closing: bytes, levels: int) -> None:
    with pytest.raises(UnstorableError) as caught:
        decode(opening * levels + b"0" * (opening != b"[") + closing * levels)

    assert "nested deeper than 100 levels" in caught.value.detail
    assert not caught.value.malformed
    assert caught.value.pointer == ""


def test_a_deep_text_that_is_broken_is_refused_too() -> None:
    with pytest.raises(UnstorableError):
        decode(b"[" * 5_000)


@pytest.mark.parametrize(
    ("value", "pointer", "message"),
    [
        ({"a": {1, 2}}, "/a", "a set is no JSON value"),
        ({"a": [b"x"]}, "/a/0", "a bytes is no JSON value"),
        ([datetime.now(UTC)], "/0", "a datetime is no JSON value"),
        (Decimal(1), "", "a Decimal is no JSON value"),
        ({"a": {1: 2}}, "/a", "the name of a member is int, not a string"),
        ({None: 1}, "", "the name of a member is NoneType, not a string"),
        ([float("nan")], "/0", "a number is not finite"),
        (("a", "\x00"), "/1", r"Postgres cannot keep the character \u0000"),
        ("\ud800", "", "one half of a surrogate pair"),
    ],
)
def test_what_is_not_made_of_json_types_is_not_encoded(value: Any, pointer: str, message: str) -> None:
    with pytest.raises(UnstorableError) as caught:
        encode(value)

    assert message in caught.value.detail
    assert caught.value.pointer == pointer


def test_a_value_that_holds_itself_is_not_encoded() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(UnstorableError, match="nested deeper"):
        encode(value)


def test_tuples_and_enumerations_are_encoded_like_what_they_hold() -> None:
    assert encode({"a": (1, Status.FAILED)}) == '{"a":[1,"failed"]}'


def test_the_message_ends_with_the_pointer() -> None:
    with pytest.raises(UnstorableError, match=r"too large for a double \(at /a\)$"):
        decode(b'{"a": 1e999}')


def test_an_unstorable_error_is_one_of_ours_and_a_value_error() -> None:
    assert issubclass(UnstorableError, PostroadError)
    assert issubclass(UnstorableError, ValueError)


storable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**1024) + 1, 2**1024 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\x00")), inner)
    ),
)


@settings(deadline=None)  # the machine may be busy
@given(storable)
def test_whatever_is_storable_comes_back_as_it_went(value: Any) -> None:
    text = encode(value)

    assert text.isascii()
    assert decode(text.encode()) == value


@settings(deadline=None)
@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_decoded_or_refused(text: bytes) -> None:
    try:
        value = decode(text)
    except UnstorableError:
        return
    check(value)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"\\u0061":2}',
        b'{"a" :1,"a":2}',
        b'{"a"\n:1,"a":2}',
        b'[{"":":","":1}]',
        b'{"a":":a","a":"b"}',
    ],
)
def test_a_name_that_stands_twice_is_found_however_it_is_written(text: bytes) -> None:
    with pytest.raises(UnstorableError, match="two members named"):
        decode(text)


@given(VALUES, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]), st.booleans())
def test_what_is_read_fast_is_what_is_read_with_care(value: Any, separators: tuple[str, str], ascii: bool) -> None:
    text = json.dumps(value, separators=separators, ensure_ascii=ascii).encode("utf-8", "replace")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "_decode_plain", lambda text: None)
        slow = _outcome(text)
    fast = _outcome(text)

    assert repr(fast) == repr(slow)  # 1 and 1.0 are equal
    if not isinstance(fast, str):
        assert json.loads(encode_checked(fast[0])) == fast[0]


def _outcome(text: bytes) -> Any:
    try:
        return [decode(text)]
    except UnstorableError as error:
        return str(error)
