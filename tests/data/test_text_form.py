"""Tests of the form of a training text: found in text or in a dictionary, recorded, and given to other text.

The form is Unicode's NFC (é is one character, composed) or NFD (e and an accent, decomposed), and which of several
characters that read alike the text has, as straight or curly quotes.
"""

from __future__ import annotations

import json
from typing import NamedTuple
from unicodedata import normalize

import pytest

from deepnet_fairseq.data.parallel_text import prepare_text
from deepnet_fairseq.data.text_form import NAME, Form, TextForm, read_form, text_pieces

from ..support.errors import refused

VIETNAMESE = "Tiếng Việt có nhiều dấu thanh"
COMPOSED = normalize("NFC", VIETNAMESE)
DECOMPOSED = normalize("NFD", VIETNAMESE)
NUKTA_AS_ONE = "\u095c"  # a letter of Hindi as one character; NFC, against its rule, writes it as two
NUKTA_AS_TWO = "\u0921\u093c"


@pytest.fixture
def form_of(tmp_path):
    """Provide a function that returns the form of a training text, given by its lines.

    The form is recorded in text_form.json, and read from there. The text is one side, "xx", of parallel text.
    """

    def record_and_read(*lines: str) -> Form:
        found = TextForm(["xx", "yy"])
        for line in lines:
            found.add((line, "line of yy"))
        found.write(tmp_path)
        form = read_form(tmp_path, "xx")
        assert form is not None
        return form

    return record_and_read


@pytest.mark.parametrize("text", [VIETNAMESE, "Ελληνικά γράμματα", "한국어 텍스트", "がぎぐ カタカナ", "Łódź élève"])
@pytest.mark.parametrize("trained", ["NFC", "NFD"])  # normal form of the training text
@pytest.mark.parametrize("typed", ["NFC", "NFD"])  # of the text that a user types
def test_text_gets_the_normal_form_of_the_training_text(text, trained, typed, form_of):
    form = form_of(normalize(trained, text))

    assert form.apply(normalize(typed, text)) == normalize(trained, text)


@pytest.mark.parametrize("typed", [COMPOSED, DECOMPOSED], ids=["composed", "decomposed"])
def test_a_training_text_of_both_forms_leaves_text_alone(typed, form_of):
    form = form_of(*[COMPOSED] * 30, *[DECOMPOSED] * 20)

    assert form.apply(typed) == typed


def test_one_line_in_a_thousand_of_another_form_does_not_count(form_of):
    form = form_of(*[COMPOSED] * 1000, DECOMPOSED)

    assert form.apply(DECOMPOSED) == COMPOSED


@pytest.mark.parametrize("trained", [NUKTA_AS_ONE, NUKTA_AS_TWO], ids=["trained as one", "trained as two"])
@pytest.mark.parametrize("typed", [NUKTA_AS_ONE, NUKTA_AS_TWO], ids=["typed as one", "typed as two"])
def test_letters_that_nfc_takes_apart_are_as_in_the_training_text(trained, typed, form_of):
    form = form_of(*[f"ल{trained}का"] * 5)

    assert form.apply(f"ल{typed}") == f"ल{trained}"


class Typed(NamedTuple):
    """Training text, what a user types, and what the model should get."""

    trained: str
    typed: str
    given: str


TYPED = [
    Typed("\"a\" it's - ...", "“a” it’s – …", "\"a\" it's - ..."),
    Typed("it’s", "it's", "it’s"),  # the training text's own apostrophe
    Typed("“a” \"b\"", "“a” \"b\"", "“a” \"b\""),  # the training text has both
    Typed("a", "“a”", "“a”"),  # the training text has neither “ nor \"
    Typed("ABC 123!", "ＡＢＣ\u3000１２３！", "ABC 123!"),  # full width
    Typed("，。！１２", ",12!", "，１２！"),
    Typed("カガ", "ｶｶﾞ", "カガ"),  # half width
    Typed("a b", "a\u00a0b\u202fb\u2009a", "a b b a"),  # other spaces of Unicode
    Typed("file", "ﬁle\u00ad\u200e", "file"),  # a ligature, and marks that are invisible
    Typed("سلام", "ﺳﻼﻡ", "سلام"),  # shapes of Arabic letters by their places in the word
    Typed("10² 102", "10²", "10²"),  # the training text has ²
    Typed("ab", "½² ж", "½² ж"),  # plain characters would mean something else, or there are none
]  # fmt: skip


@pytest.mark.parametrize(("trained", "typed", "given"), TYPED)
def test_a_character_that_the_training_text_lacks_becomes_the_one_that_it_has(trained, typed, given, form_of):
    assert form_of(trained).apply(typed) == given


@pytest.mark.parametrize("trained", [case.trained for case in TYPED])
def test_the_training_text_stays_as_it_is(trained, form_of):
    assert form_of(trained).apply(trained) == trained


@pytest.mark.parametrize(
    ("pieces", "typed", "given"),
    [
        (["▁él", "ève", "'", "x"], normalize("NFD", "élève’x"), "élève'x"),  # composed, with a straight apostrophe
        (["▁e\u0301l", "e\u0300ve"], "é", "e\u0301"),  # decomposed
        (["▁e", "\u0301", "l"], "é", "e\u0301"),  # decomposed, for the accent is a piece of its own
    ],
)
def test_the_pieces_of_a_dictionary_tell_the_form_of_their_text(pieces, typed, given):
    assert Form.of_pieces(pieces).apply(typed) == given


@pytest.mark.parametrize("pieces", [["▁é", "e\u0301"], ["▁é", "\u0301"]])
def test_pieces_of_both_forms_leave_text_alone(pieces):
    assert Form.of_pieces(pieces).apply("é e\u0301") == "é e\u0301"


def test_an_accent_beside_more_than_100_composed_pieces_does_not_count():
    composed = [f"é{number}" for number in range(101)]

    assert Form.of_pieces([*composed, "\u0301"]).apply("e\u0301") == "é"


def test_pieces_in_moses_escapes_tell_the_form_of_the_text_without_them():
    """&quot; stands for ", &apos; for '; upper case counts as known, because such text may be lower-cased later."""
    form = Form.of_pieces(["&quot;", "a@@", "b", "it", "&apos;s"], escaped=True)

    assert form.apply("“Ａb” it’s") == '"Ab" it\'s'


def test_symbols_that_stand_for_no_text_are_no_pieces():
    symbols = ["<s>", "a", "__de__", "madeupword0001", "<0xE7>"]

    assert text_pieces(symbols, other_than=["__de__"]) == ["a"]


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory):
    """Provide data of decomposed French with straight apostrophes, and of composed German with quotes „ and “."""
    folder = tmp_path_factory.mktemp("forms")
    french = normalize("NFD", "été d'hiver\n")
    german = "schöner „Sommer“\n"
    for split, count in {"train": 120, "valid": 5, "test": 5}.items():
        (folder / f"{split}.fr").write_text(french * count, encoding="utf-8")
        (folder / f"{split}.de").write_text(german * count, encoding="utf-8")
    prefixes = {split: str(folder / split) for split in ("train", "valid", "test")}
    prepare_text(("fr", "de"), prefixes, folder / "bin", vocab=40)
    return folder / "bin"


def test_prepared_data_say_the_form_of_each_language(prepared_folder):
    french = read_form(prepared_folder, "fr")
    german = read_form(prepared_folder, "de")

    assert french.apply("été d’hiver") == normalize("NFD", "été d'hiver")
    assert german.apply(normalize("NFD", "ö „“ ”")) == "ö „“ ”"  # German has no " to put in the place of ”


def test_a_language_that_the_data_do_not_have_has_no_form(prepared_folder):
    assert read_form(prepared_folder, "xx") is None


def test_data_without_text_form_json_have_no_form(tmp_path):
    assert read_form(tmp_path, "fr") is None


def test_a_text_form_json_with_an_unknown_normal_form_is_refused(tmp_path):
    (tmp_path / NAME).write_text(json.dumps({"fr": {"unicode": "NFX", "characters": "a", "joined": False}}))

    with refused(tmp_path / NAME):
        read_form(tmp_path, "fr")
