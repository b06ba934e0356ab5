"""What JSON the door takes, case by case: the table that docs/http-api.md sums up.

A name begins with ``y_`` if every JSON parser must accept the text, ``n_`` if each must refuse it, and ``i_`` where RFC
8259 leaves it to the implementation: then ``why`` says what we have decided.
"""

from dataclasses import dataclass

BODY_LIMIT = 128 * 1024
"""Bytes of a body, and of a line, at the door of these cases. More than ``LARGE`` are read in a thread."""

LEVELS = 100
"""Levels of a body, with the object that is the task: a payload has one less."""


@dataclass(frozen=True, slots=True)
class Case:
    """A text, and what is answered.

    If ``status`` is 202, ``shown`` is the payload as ``GET`` shows it and ``stored`` as Postgres writes it. If it is
    422, ``pointer`` is that of the only fault.
    """

    name: str
    text: bytes
    status: int
    shown: bytes = b""
    stored: str = ""
    pointer: str = ""
    why: str = ""

    @property
    def slug(self) -> str:
        """The kind of problem that a refusal is."""
        return {400: "malformed", 413: "too-large", 422: "invalid"}[self.status]


def y(name: str, text: bytes, shown: bytes | None = None, stored: str | None = None, *, why: str = "") -> Case:
    """Accepted; shown as it came, and stored as shown, unless said otherwise."""
    shown = text.strip() if shown is None else shown
    return Case(name, text, 202, shown, shown.decode() if stored is None else stored, why=why)


def n(name: str, text: bytes, status: int = 400, pointer: str = "", *, why: str = "") -> Case:
    """Refused: with 400 as no JSON, or with 422 at ``pointer``."""
    return Case(name, text, status, pointer=pointer, why=why)


HERE = "#/payload"

_NUL = "Postgres has no NUL: said rather than dropped"
_HALF = "no character, and UTF-8 cannot write it: said rather than replaced"
_DOUBLE = "numbers with a fraction or an exponent are doubles, as in most languages"
_RANGE = "what no double holds would be infinite in most languages"
_DIGITS = "Postgres writes all of them"
_EXACT = "whole numbers are kept digit by digit, up to 2^1024"
_NAMES = "parsers differ on which of the two counts"
_DEEP = f"{LEVELS} levels: parsers differ beyond a few hundred"
_BOM = "RFC 8259 forbids to send one, and lets us refuse it"

PAYLOADS = [
    # Literals and what is none
    y("y_null", b"null"),
    y("y_true", b"true"),
    y("y_false", b"false"),
    n("n_nul", b"nul"),
    n("n_literal_in_capitals", b"True"),
    n("n_literal_and_more", b"nullx"),
    n("n_two_literals", b"true false"),
    n("n_undefined", b"undefined"),
    n("n_word", b"rome"),
    n("n_nothing", b""),
    n("n_only_a_space", b" "),
    # Structure
    y("y_empty_array", b"[]"),
    y("y_empty_object", b"{}"),
    y("y_array_of_all_kinds", b'[null,true,1,"a",[],{}]', stored='[null, true, 1, "a", [], {}]'),
    y("y_object_of_all_kinds", b'{"a":null,"b":[1],"c":{"d":""}}', stored='{"a": null, "b": [1], "c": {"d": ""}}'),
    y("y_members_in_any_order", b'{"bb":1,"a":2}', b'{"a":2,"bb":1}', '{"a": 2, "bb": 1}', why="without order"),
    n("n_trailing_comma_in_an_array", b"[1,]"),
    n("n_trailing_comma_in_an_object", b'{"a":1,}'),
    n("n_leading_comma", b"[,1]"),
    n("n_two_commas", b"[1,,2]"),
    n("n_only_a_comma", b"[,]"),
    n("n_no_comma_in_an_array", b"[1 2]"),
    n("n_no_comma_in_an_object", b'{"a":1 "b":2}'),
    n("n_colon_in_an_array", b"[1:2]"),
    n("n_comma_for_a_colon", b'{"a",1}'),
    n("n_semicolon", b"[1;2]"),
    n("n_double_colon", b'{"a"::1}'),
    n("n_no_colon", b'{"a" 1}'),
    n("n_no_value", b'{"a":}'),
    n("n_no_name", b"{:1}"),
    n("n_only_a_name", b'{"a"}'),
    n("n_name_without_quotes", b"{a:1}"),
    n("n_name_that_is_a_number", b"{1:1}"),
    n("n_name_that_is_null", b"{null:1}"),
    n("n_name_in_single_quotes", b"{'a':1}"),
    n("n_unclosed_array", b"[1"),
    n("n_unclosed_array_after_a_comma", b"[1,"),
    n("n_unclosed_object", b'{"a":1'),
    n("n_closed_by_the_wrong_bracket", b'{"a":1]'),
    n("n_array_closed_by_a_brace", b"[1}"),
    n("n_closed_twice", b"[1]]"),
    n("n_only_closed", b"]"),
    n("n_line_comment", b"[1] // one"),
    n("n_comment", b"[1/* one */]"),
    n("n_hash_comment", b"[1] # one"),
    n("n_spread", b"[...a]"),
    n("n_parentheses", b"(1)"),
    n("n_angle_brackets", b"<null/>"),
    n("n_two_documents", b"[1][2]"),
    n("n_two_documents_apart", b"{} {}"),
    # White space
    y("y_spaces_and_tabs", b" [ 1 ,\t2 ] ", b"[1,2]", "[1, 2]"),
    y("y_carriage_return", b"\r[\r1\r]\r", b"[1]"),
    y("y_spaces_about_a_colon", b'{"a" :\t1}', b'{"a":1}', '{"a": 1}'),
    n("n_form_feed", b"[1\x0c]"),
    n("n_vertical_tab", b"[1\x0b]"),
    n("n_backspace", b"[1\x08]"),
    n("n_raw_nul", b"[1\x00]"),
    n("n_nul_after_the_end", b"[1]\x00"),
    n("n_no_break_space", b"[\xc2\xa01]"),
    n("n_em_space", "[\u20031]".encode()),
    n("n_line_separator_as_space", "[\u20281]".encode()),
    n("n_word_joiner", "[\u20601]".encode()),
    n("n_byte_order_mark_inside", b"\xef\xbb\xbf1"),
    n("n_escape_as_space", rb"[\u00201]"),
    # Strings
    y("y_empty_string", b'""'),
    y("y_ascii", b'"a B 7 ~"'),
    y("y_all_short_escapes", rb'"\"\\\/\b\f\n\r\t"', rb'"\"\\/\b\f\n\r\t"'),
    y("y_escaped_control_characters", rb'"\u0001\u001f"'),
    y("y_escaped_letter", rb'"\u0041"', b'"A"'),
    y("y_escape_in_capitals", rb'"\u00E9\u00e9"', '"éé"'.encode()),
    y("y_two_bytes", '"é"'.encode()),
    y("y_three_bytes", '"中"'.encode()),
    y("y_four_bytes", '"🐎"'.encode()),
    y("y_surrogate_pair", rb'"\ud83d\udc0e"', '"🐎"'.encode()),
    y("y_last_code_point", rb'"\udbff\udfff"', '"\U0010ffff"'.encode()),
    y("y_escaped_backslash_before_u", rb'"\\u0000"'),
    y("y_delete", b'"\x7f"'),
    y("y_c1_control_character", '"\x85"'.encode()),
    y("y_line_and_paragraph_separator", '"\u2028\u2029"'.encode()),
    y("y_combining_character_first", '"\u0301"'.encode()),
    y("y_not_normalised", '"e\u0301 é"'.encode()),
    y("y_right_to_left", '"\u202eabc"'.encode()),
    y("y_byte_order_mark_in_a_string", '"\ufeff"'.encode()),
    y("y_noncharacters", '"\ufffe\uffff\U0001ffff"'.encode()),
    y("y_escaped_noncharacter", rb'"\ufdd0"', '"\ufdd0"'.encode()),
    y("y_private_use", '"\ue000"'.encode()),
    y("y_code_in_a_string", b"\"'; drop table task; --\""),
    y("y_markup_in_a_string", b'"</script>&amp;<!--"'),
    y("y_placeholders_in_a_string", b'"%s %(a)s :a $1 {0} ?"'),
    y("y_100000_characters", b'"' + b"a" * 100_000 + b'"'),
    n("n_single_quotes", b"'a'"),
    n("n_typographic_quotes", "“a”".encode()),
    n("n_unclosed_string", b'"a'),
    n("n_quote_alone", b'"'),
    n("n_quote_in_a_string", b'"a"b"'),
    n("n_string_that_ends_in_an_escape", b'"a\\"'),
    n("n_raw_newline", b'"\r"'),
    n("n_raw_tab", b'"\t"'),
    n("n_raw_nul_in_a_string", b'"\x00"'),
    n("n_raw_unit_separator", b'"\x1f"'),
    n("n_escaped_letter_that_is_none", rb'"\a"'),
    n("n_escaped_zero", rb'"\0"'),
    n("n_hexadecimal_escape", rb'"\x41"'),
    n("n_escaped_single_quote", rb'"\'"'),
    n("n_escaped_raw_tab", b'"\\\t"'),
    n("n_escaped_emoji", '"\\🐎"'.encode()),
    n("n_short_escape", rb'"\u004"'),
    n("n_escape_without_digits", rb'"\u"'),
    n("n_escape_that_is_no_hexadecimal", rb'"\u00g1"'),
    n("n_escape_in_braces", rb'"\u{41}"'),
    n("n_escape_with_a_capital_u", rb'"\U00000041"'),
    n("n_escape_with_a_sign", rb'"\u+041"'),
    n("n_escape_with_an_underscore", rb'"\u0_41"'),
    n("n_escape_in_arabic_digits", '"\\u٠٠٤١"'.encode()),
    n("i_escaped_nul", rb'"\u0000"', 422, HERE, why=_NUL),
    n("i_escaped_nul_in_the_middle", rb'{"a":["x\u0000y"]}', 422, f"{HERE}/a/0", why=_NUL),
    n("i_high_surrogate_alone", rb'["\ud800"]', 422, f"{HERE}/0", why=_HALF),
    n("i_low_surrogate_alone", rb'"\udfff"', 422, HERE, why=_HALF),
    n("i_surrogates_the_wrong_way_round", rb'"\udc0e\ud83d"', 422, HERE, why=_HALF),
    n("i_high_surrogate_twice", rb'"\ud83d\ud83d\udc0e"', 422, HERE, why=_HALF),
    n("i_high_surrogate_and_a_letter", rb'"\ud83da"', 422, HERE, why=_HALF),
    n("i_high_surrogate_and_an_escape", rb'"\ud83d\n"', 422, HERE, why=_HALF),
    n("n_high_surrogate_and_half_an_escape", rb'"\ud83d\udc"'),
    # UTF-8
    n("n_byte_that_begins_nothing", b'"\xff"'),
    n("n_continuation_alone", b'"\x80"'),
    n("n_character_that_breaks_off", b'"\xe4\xb8"'),
    n("n_latin_1", b'"\xe9"'),
    n("n_overlong_slash", b'"\xc0\xaf"'),
    n("n_overlong_nul", b'"\xc0\x80"'),
    n("n_overlong_in_three_bytes", b'"\xe0\x80\xaf"'),
    n("n_overlong_in_four_bytes", b'"\xf0\x80\x80\xaf"'),
    n("n_overlong_quote", b"\xc0\xa2a\xc0\xa2"),
    n("n_surrogate_in_utf_8", b'"\xed\xa0\x80"'),
    n("n_pair_of_surrogates_in_utf_8", b'"\xed\xa0\xbd\xed\xb0\x8e"'),
    n("n_beyond_the_last_code_point", b'"\xf4\x90\x80\x80"'),
    n("n_five_bytes", b'"\xf8\x88\x80\x80\x80"'),
    n("n_wrong_utf_8_outside_of_a_string", b"[1\xff]"),
    # Numbers
    y("y_zero", b"0"),
    y("y_minus_one", b"-1"),
    y("y_fraction", b"0.5"),
    y("y_fraction_with_zeros", b"1.50", b"1.5"),
    y("y_exponent", b"1e2", b"100.0"),
    y("y_exponent_in_capitals_with_a_plus", b"1.5E+2", b"150.0"),
    y("y_negative_exponent", b"25e-1", b"2.5"),
    y("y_exponent_with_zeros", b"1e-007", b"1e-07", "0.0000001"),
    y("y_whole_fraction", b"1.0"),
    y("y_2_to_53", b"9007199254740992"),
    n("n_leading_zero", b"01"),
    n("n_two_zeros", b"00"),
    n("n_minus_and_leading_zero", b"-01"),
    n("n_plus", b"+1"),
    n("n_two_minuses", b"--1"),
    n("n_only_a_minus", b"-"),
    n("n_minus_apart", b"- 1"),
    n("n_no_digit_before_the_point", b".5"),
    n("n_no_digit_after_the_point", b"1."),
    n("n_no_digit_before_the_exponent", b"1.e2"),
    n("n_no_digit_in_the_exponent", b"1e"),
    n("n_only_a_sign_in_the_exponent", b"1e+"),
    n("n_exponent_with_a_fraction", b"1e1.5"),
    n("n_two_exponents", b"1e1e1"),
    n("n_two_points", b"1.2.3"),
    n("n_comma_for_a_point", b"1,5"),
    n("n_thousands", b"1 000"),
    n("n_underscore", b"1_000"),
    n("n_hexadecimal", b"0x1"),
    n("n_octal", b"0o7"),
    n("n_suffix", b"1n"),
    n("n_fullwidth_digit", "１".encode()),
    n("n_superscript", "2²".encode()),
    n("n_minus_sign_of_unicode", "−1".encode()),
    n("n_nan", b"NaN"),
    n("n_minus_nan", b"-NaN"),
    n("n_infinity", b"Infinity"),
    n("n_minus_infinity_inside", b'{"a":[-Infinity]}'),
    n("n_inf", b"inf"),
    y("i_minus_zero", b"-0", b"0", why="a whole number, and of these there is one zero"),
    y("i_minus_zero_with_a_fraction", b"-0.0", b"0.0", why="Postgres' numbers have one zero"),
    y("i_2_to_53_and_one", b"9007199254740993", why=_EXACT),
    y("i_2_to_64", b"18446744073709551616", why=_EXACT),
    y("i_minus_2_to_64", b"-18446744073709551616", why=_EXACT),
    y("i_2_to_1024_less_one", str(2**1024 - 1).encode(), why=_EXACT),
    n("i_2_to_1024", str(2**1024).encode(), 422, HERE, why=_RANGE),
    n("i_minus_2_to_1024", b"[%d]" % -(2**1024), 422, f"{HERE}/0", why=_RANGE),
    n("i_10000_digits", b"7" * 10_000, 422, HERE, why=_RANGE),
    n("i_minus_10000_digits_inside", b'{"a":-' + b"7" * 10_000 + b"}", 422, f"{HERE}/a", why=_RANGE),
    y("i_10000_digits_after_the_point", b"0." + b"3" * 10_000, b"0.3333333333333333", why=_DOUBLE),
    y("i_10000_zeros_after_the_point", b"1." + b"0" * 10_000, b"1.0", why=_DOUBLE),
    n("i_1e400", b"1e400", 422, HERE, why=_RANGE),
    n("i_minus_1e400_inside", b'[0,{"a":-1e400}]', 422, f"{HERE}/1/a", why=_RANGE),
    n("i_endless_exponent", b"1e" + b"9" * 1000, 422, HERE, why=_RANGE),
    n("i_largest_exponent_of_postgres", b"1e131071", 422, HERE, why=_RANGE),
    y("i_zero_with_an_endless_exponent", b"0e" + b"9" * 1000, b"0.0", why=_DOUBLE),
    y("i_1e_minus_400", b"1e-400", b"0.0", why=_DOUBLE),
    y("i_smallest_exponent_of_postgres", b"1e-16383", b"0.0", why=_DOUBLE),
    y("i_largest_double", b"1.7976931348623157e308", b"17976931348623157" + b"0" * 292, why=_DIGITS),
    n("i_larger_than_the_largest_double", b"1.797693134862316e308", 422, HERE, why=_RANGE),
    y("i_smallest_double", b"5e-324", b"5e-324", f"0.{'0' * 323}5", why=_DIGITS),
    y("i_1e20", b"1e20", b"100000000000000000000", why=_DIGITS),
    y("i_more_digits_than_a_double", b"0.1234567890123456789", b"0.12345678901234568", why=_DOUBLE),
    y("i_large_with_a_fraction", b"100000000000000000000.1", b"100000000000000000000", why=_DOUBLE),
    y("i_halfway_between_doubles", b"9007199254740993.0", b"9007199254740992.0", why=_DOUBLE),
    # Names
    y("y_empty_name", b'{"":0}', stored='{"": 0}'),
    y("y_name_of_spaces", b'{" ":0}', stored='{" ": 0}'),
    y("y_names_of_prototypes", b'{"__proto__":{},"constructor":1}', stored='{"__proto__": {}, "constructor": 1}'),
    y("y_names_that_are_our_words", b'{"payload":1,"pipeline":2}', stored='{"payload": 1, "pipeline": 2}'),
    y("y_name_of_a_number", b'{"0":1}', stored='{"0": 1}'),
    y("y_name_with_an_escape", rb'{"\u0061\n":1}', rb'{"a\n":1}', r'{"a\n": 1}'),
    y("y_name_beyond_ascii", '{"é🐎":1}'.encode(), stored='{"é🐎": 1}'),
    y("y_names_that_only_look_alike", '{"é":1,"e\u0301":2}'.encode(), stored='{"é": 1, "e\u0301": 2}'),
    y("y_names_in_two_cases", b'{"A":1,"a":2}', stored='{"A": 1, "a": 2}'),
    y("y_name_of_50000_characters", b'{"' + b"n" * 50_000 + b'":1}', stored=f'{{"{"n" * 50_000}": 1}}'),
    n("i_name_twice", b'{"a":1,"a":2}', 422, HERE, why=_NAMES),
    n("i_name_twice_with_one_value", b'{"a":1,"a":1}', 422, HERE, why=_NAMES),
    n("i_name_twice_inside", b'[{"b":{"a":1,"c":2,"a":3}}]', 422, f"{HERE}/0/b", why=_NAMES),
    n("i_name_twice_by_an_escape", rb'{"a":1,"\u0061":2}', 422, HERE, why=_NAMES),
    n("i_name_twice_by_a_surrogate_pair", '{"🐎":1,"\\ud83d\\udc0e":2}'.encode(), 422, HERE, why=_NAMES),
    n("i_empty_name_twice", b'{"":1,"":2}', 422, HERE, why=_NAMES),
    n("i_name_with_a_nul", rb'{"a":{"\u0000":1}}', 422, f"{HERE}/a", why=_NUL),
    n("i_name_with_half_a_character", rb'[{"\udead":1}]', 422, f"{HERE}/0", why=_HALF),
    n("i_fault_below_names_to_be_escaped", b'{"a/b":{"c~d":{"%":1e400}}}', 422, f"{HERE}/a~1b/c~0d/%25", why=_RANGE),
    n("i_fault_below_an_empty_name", b'{"":1e400}', 422, f"{HERE}/", why=_RANGE),
    n(
        "i_fault_below_a_huge_name", b'{"a":{"' + b"n" * 50_000 + b'":[1e400]}}', 422, f"{HERE}/a",
        why="an answer names the nearest place that 200 characters can name",
    ),
    # Nesting
    y("y_99_arrays", b"[" * (LEVELS - 1) + b"]" * (LEVELS - 1)),
    y(
        "y_99_objects", b'{"a":' * (LEVELS - 2) + b"{}" + b"}" * (LEVELS - 2),
        stored='{"a": ' * (LEVELS - 2) + "{}" + "}" * (LEVELS - 2),
    ),
    y("y_many_arrays_side_by_side", b"[" + b",".join([b"[]"] * 2000) + b"]", stored=f"[{', '.join(['[]'] * 2000)}]"),
    y("y_brackets_in_a_string", b'"' + b"[{" * 5000 + b'"'),
    n("i_100_arrays", b"[" * LEVELS + b"]" * LEVELS, 422, "#", why=_DEEP),
    n("i_100_objects", b'{"a":' * LEVELS + b"1" + b"}" * LEVELS, 422, "#", why=_DEEP),
    n("i_50000_arrays", b"[" * 50_000 + b"]" * 50_000, 422, "#", why=_DEEP),
    n("i_20000_objects", b'{"a":' * 20_000 + b"1" + b"}" * 20_000, 422, "#", why=_DEEP),
    n("n_150_unclosed_arrays", b"[" * 150),
    n("i_100000_unclosed_arrays", b"[" * 100_000, 422, "#", why="no JSON either, but nobody looks so far down"),
]  # fmt: skip
"""Texts that stand for the payload of a task, alone and in a line of a batch."""


def _task(payload: bytes = b"1", size: int = 0) -> bytes:
    return (b'{"pipeline":"travel","payload":%s}' % payload).ljust(size)


BODIES = [
    y("y_task", _task(), b"1"),
    y("y_space_about_a_task", b" \t\r\n" + _task(b"\n1\n") + b"\r\n", b"1"),
    y("y_task_with_escaped_names", rb'{"\u0070ipeline":"trave\u006c","payload":1}', b"1"),
    y("y_null_members", b'{"pipeline":"travel","payload":null,"labels":null,"task_id":null}', b"null"),
    y("y_task_as_large_as_may_be", _task(size=BODY_LIMIT), b"1"),
    n("n_empty", b""),
    n("n_white_space", b" \t\r\n"),
    n("n_newline_in_a_string", _task(b'"\n"')),
    n("n_task_without_an_end", _task()[:-1]),
    n("n_two_tasks", _task() + b"\n" + _task()),
    n("n_task_and_a_comma", _task() + b","),
    n("n_task_and_a_nul", _task() + b"\x00"),
    n("n_form", b"pipeline=travel&payload=1"),
    n("n_yaml", b"pipeline: travel\npayload: 1"),
    n("n_utf_7", b"+AHs-+ACI-"),
    n("n_task_in_quotes_that_are_not_closed", b'"' + _task()),
    n("n_one_byte_too_many", _task(size=BODY_LIMIT + 1), 413),
    n("i_byte_order_mark", b"\xef\xbb\xbf" + _task(), why=_BOM),
    n("i_only_a_byte_order_mark", b"\xef\xbb\xbf", why=_BOM),
    n("i_utf_16", _task().decode().encode("utf-16"), why="RFC 8259 wants UTF-8 between systems"),
    n("i_utf_16_without_a_mark", _task().decode().encode("utf-16-le"), why="the same"),
    n("i_utf_16_the_other_way_round", _task().decode().encode("utf-16-be"), why="the same"),
    n("i_utf_32", _task().decode().encode("utf-32"), why="the same"),
    n("i_member_twice", b'{"pipeline":"travel","payload":1,"payload":1}', 422, "#", why=_NAMES),
    n("i_member_twice_by_an_escape", rb'{"pipeline":"travel","payload":1,"p\u0061yload":1}', 422, "#", why=_NAMES),
    n("i_nul_in_a_pipeline", rb'{"pipeline":"travel\u0000","payload":1}', 422, "#/pipeline", why=_NUL),
    n("y_null_for_a_task", b"null", 422, "#"),
    n("y_number_for_a_task", b"1", 422, "#"),
    n("y_string_for_a_task", b'"travel"', 422, "#"),
    n("y_array_of_a_task", b"[" + _task() + b"]", 422, "#"),
    n("y_no_payload", b'{"pipeline":"travel"}', 422, "#/payload"),
    n("y_name_in_capitals", b'{"pipeline":"travel","payload":1,"Payload":1}', 422, "#/Payload"),
    n("y_prototype_for_a_member", b'{"pipeline":"travel","payload":1,"__proto__":{}}', 422, "#/__proto__"),
    n("y_empty_name_of_a_member", b'{"pipeline":"travel","payload":1,"":1}', 422, "#/"),
    n("y_huge_name_of_a_member", b'{"pipeline":"travel","payload":1,"%s":1}' % (b"n" * 50_000), 422, "#"),
]
"""Whole bodies. Among them is JSON (``y_``) that is no task."""


def _line(key: str) -> bytes:
    return b'{"pipeline":"travel","payload":1,"idempotency_key":"%s"}' % key.encode()


LINES: list[tuple[str, bytes, dict[int, int]]] = [
    ("no newline at the end", _line("1"), {1: 202}),
    ("one at the end", _line("2") + b"\n", {1: 202}),
    ("of Windows", _line("3") + b"\r\n" + _line("4") + b"\r\n", {1: 202, 2: 202}),
    ("blank lines", b"\n" + _line("5") + b"\n \t\r\n" + _line("6") + b"\n\n", {2: 202, 4: 202}),
    ("nothing", b"", {}),
    ("carriage returns alone do not end a line", _line("n7") + b"\r" + _line("n8"), {1: 400}),
    ("nor does a form feed", _line("n9") + b"\x0c" + _line("n10"), {1: 400}),
    ("nor a line separator", _line("n11") + "\u2028".encode() + _line("n12"), {1: 400}),
    ("two tasks in a line", _line("n13") + _line("n14") + b"\n" + _line("15"), {1: 400, 2: 202}),
    ("a task in two lines", _line("n16").replace(b",", b",\n", 1), {1: 400, 2: 400}),
    ("an array of lines", b"[\n" + _line("17") + b"\n]", {1: 400, 2: 202, 3: 400}),
    ("an array in a line", b"[" + _line("n18") + b"]", {1: 422}),
    ("commas at the ends", _line("n19") + b",\n" + _line("20"), {1: 400, 2: 202}),
    ("a string over two lines", b'"\n"\n' + _line("21"), {1: 400, 2: 400, 3: 202}),
    ("a comment", b"# tasks\n" + _line("22"), {1: 400, 2: 202}),
    ("a byte order mark", b"\xef\xbb\xbf" + _line("n23") + b"\n" + _line("24"), {1: 400, 2: 202}),
    ("wrong UTF-8 in one line", b"\xff\n" + _line("25"), {1: 400, 2: 202}),
    ("UTF-16", (_line("n26") + b"\n").decode().encode("utf-16-le"), {1: 400, 2: 400}),
    ("a record separator", b"\x1e" + _line("n27") + b"\n" + _line("28"), {1: 400, 2: 202}),
    ("a depth bomb", b"[" * 100_000 + b"\n" + _line("29"), {1: 422, 2: 202}),
    ("a line that is too long", _line("n30").ljust(BODY_LIMIT + 1) + b"\n" + _line("31"), {1: 413, 2: 202}),
    ("a line as long as may be", _line("32").ljust(BODY_LIMIT) + b"\n" + _line("33"), {1: 202, 2: 202}),
    ("a key twice in a line", _line("n34")[:-1] + b',"idempotency_key":"n34"}', {1: 422}),
]
"""Bodies of ``/v1/tasks:batch``, and the status of each of their lines by its number. Keys that begin with ``n`` are of
tasks that are not accepted."""
