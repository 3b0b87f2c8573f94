"""Tests of the form of a training text: found in text or in a dictionary, recorded, and given to other text."""

from __future__ import annotations

import json
from unicodedata import normalize

import pytest

from deepnet_fairseq.data.parallel_text import prepare_text
from deepnet_fairseq.data.text_form import NAME, Form, TextForm, read_form, text_pieces

from ..support.errors import refused

VIETNAMESE = "Tiếng Việt có nhiều dấu thanh"
NUKTA_COMPOSED = "\u095c"  # a letter of Hindi as one character, which NFC has as two
NUKTA_APART = "\u0921\u093c"


@pytest.fixture
def form_of(tmp_path):
    """Provide a function that returns the form of a text, given by lines, as it is recorded and read again."""

    def record_and_read(*lines: str) -> Form:
        found = TextForm(["xx", "yy"])
        for line in lines:
            found.add((line, "other"))
        found.write(tmp_path)
        form = read_form(tmp_path, "xx")
        assert form is not None
        return form

    return record_and_read


@pytest.mark.parametrize("text", [VIETNAMESE, "Ελληνικά γράμματα", "한국어 텍스트", "がぎぐ カタカナ", "Łódź élève"])
@pytest.mark.parametrize("trained, typed", [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "NFC"), ("NFD", "NFD")])
def test_text_gets_the_normal_form_of_the_training_text(text, trained, typed, form_of):
    form = form_of(normalize(trained, text))

    assert form.apply(normalize(typed, text)) == normalize(trained, text)


def test_a_training_text_of_both_forms_leaves_text_alone(form_of):
    composed = normalize("NFC", VIETNAMESE)
    decomposed = normalize("NFD", VIETNAMESE)

    mixed = form_of(*[composed] * 30, *[decomposed] * 20)

    assert mixed.apply(composed) == composed
    assert mixed.apply(decomposed) == decomposed


def test_one_line_in_a_thousand_of_another_form_does_not_make_a_text_mixed(form_of):
    composed = normalize("NFC", VIETNAMESE)
    decomposed = normalize("NFD", VIETNAMESE)

    form = form_of(*[composed] * 1000, decomposed)

    assert form.apply(decomposed) == composed


@pytest.mark.parametrize("trained", [NUKTA_COMPOSED, NUKTA_APART])
@pytest.mark.parametrize("typed", [NUKTA_COMPOSED, NUKTA_APART])
def test_letters_that_nfc_takes_apart_are_as_in_the_training_text(trained, typed, form_of):
    """A text with Hindi's nukta as one character keeps it, though NFC would write two."""
    form = form_of(*[f"ल{trained}का"] * 5)

    assert form.apply(f"ल{typed}") == f"ल{trained}"


TYPED = [  # training text, typed, given to the model
    ("\"a\" it's - ...", "“a” it’s – …", "\"a\" it's - ..."),
    ("it’s", "it's", "it’s"),  # the training text's own apostrophe
    ("“a” \"b\"", "“a” \"b\"", "“a” \"b\""),  # it has both: nothing to replace
    ("a", "“a”", "“a”"),  # it has no plain one
    ("ABC 123!", "ＡＢＣ\u3000１２３！", "ABC 123!"),
    ("，。！１２", ",12!", "，１２！"),
    ("カガ", "ｶｶﾞ", "カガ"),
    ("a b", "a\u00a0b\u202fb\u2009a", "a b b a"),
    ("file", "ﬁle\u00ad\u200e", "file"),
    ("سلام", "ﺳﻼﻡ", "سلام"),
    ("10² 102", "10²", "10²"),
    ("ab", "½² ж", "½² ж"),
]  # fmt: skip


@pytest.mark.parametrize("trained, typed, given", TYPED)
def test_a_character_that_the_training_text_lacks_becomes_the_one_that_it_has(trained, typed, given, form_of):
    assert form_of(trained).apply(typed) == given


@pytest.mark.parametrize("trained", [case[0] for case in TYPED])
def test_the_training_text_stays_as_it_is(trained, form_of):
    assert form_of(trained).apply(trained) == trained


@pytest.mark.parametrize(
    ("pieces", "typed", "given"),
    [
        (["▁él", "ève", "'", "x"], normalize("NFD", "élève’x"), "élève'x"),
        (["▁e\u0301l", "e\u0300ve"], "é", "e\u0301"),
        (["▁e", "\u0301", "l"], "é", "e\u0301"),  # an accent alone is a piece of decomposed text
    ],
)
def test_the_pieces_of_a_dictionary_tell_the_form_of_their_text(pieces, typed, given):
    assert Form.of_pieces(pieces).apply(typed) == given


@pytest.mark.parametrize("pieces", [["▁é", "e\u0301"], ["▁é", "\u0301"]])
def test_pieces_of_both_forms_leave_text_alone(pieces):
    assert Form.of_pieces(pieces).apply("é e\u0301") == "é e\u0301"


def test_a_stray_accent_beside_many_composed_pieces_does_not_make_them_mixed():
    composed = [f"{chr(97 + number // 26)}{chr(97 + number % 26)}é" for number in range(120)]

    assert Form.of_pieces([*composed, "\u0301"]).apply("e\u0301") == "é"


def test_pieces_in_moses_escapes_tell_the_form_of_the_text_without_them():
    form = Form.of_pieces(["&quot;", "a@@", "b", "it", "&apos;s"], escaped=True)

    assert form.apply("“Ａb” it’s") == '"Ab" it\'s'


def test_symbols_that_stand_for_no_text_are_no_pieces():
    symbols = ["<s>", "a", "__de__", "madeupword0001", "<0xE7>"]

    assert text_pieces(symbols, other_than=["__de__"]) == ["a"]


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory):
    """Provide data of decomposed French with plain apostrophes and composed German with quotes of its own."""
    folder = tmp_path_factory.mktemp("forms")
    for split, count in {"train": 120, "valid": 5, "test": 5}.items():
        for lang, line in (("fr", normalize("NFD", "été d'hiver")), ("de", "schöner „Sommer“")):
            (folder / f"{split}.{lang}").write_text(f"{line}\n" * count, encoding="utf-8")
    prefixes = {split: str(folder / split) for split in ("train", "valid", "test")}
    prepare_text(("fr", "de"), prefixes, folder / "bin", vocab=40)
    return folder / "bin"


def test_prepared_data_say_the_form_of_each_language(prepared_folder):
    french = read_form(prepared_folder, "fr")
    german = read_form(prepared_folder, "de")

    assert french.apply("été d’hiver") == normalize("NFD", "été d'hiver")
    assert german.apply(normalize("NFD", "ö „“ ”")) == "ö „“ ”"


def test_a_language_that_the_data_do_not_have_has_no_form(prepared_folder):
    assert read_form(prepared_folder, "xx") is None


def test_data_without_the_file_have_no_form(tmp_path):
    assert read_form(tmp_path, "fr") is None


def test_a_file_of_another_content_is_named(tmp_path):
    (tmp_path / NAME).write_text(json.dumps({"fr": {"unicode": "NFX", "characters": "a", "joined": False}}))

    with refused(tmp_path / NAME):
        read_form(tmp_path, "fr")
