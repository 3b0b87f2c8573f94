"""Tests of the form of a training text: found in text or in a dictionary, recorded, and given to other text."""

from __future__ import annotations

import json
from unicodedata import normalize

import pytest

from deepnet_fairseq.data.parallel_text import prepare_text
from deepnet_fairseq.data.text_form import NAME, Form, TextForm, read_form, text_pieces
from deepnet_fairseq.errors import UserError

VIETNAMESE = "Tiếng Việt có nhiều dấu thanh"
NUKTA = "\u095c", "\u0921\u093c"  # a letter of Hindi as one character, which NFC has as two


def form_of(tmp_path, *lines: str) -> Form:
    """Return the form of a text, through the file."""
    found = TextForm(["xx", "yy"])
    for line in lines:
        found.add((line, "other"))
    found.write(tmp_path)
    form = read_form(tmp_path, "xx")
    assert form is not None
    return form


@pytest.mark.parametrize("text", [VIETNAMESE, "Ελληνικά γράμματα", "한국어 텍스트", "がぎぐ カタカナ", "Łódź élève"])
@pytest.mark.parametrize("trained, typed", [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "NFC"), ("NFD", "NFD")])
def test_composed_and_decomposed_text(text, trained, typed, tmp_path):
    assert form_of(tmp_path, normalize(trained, text)).apply(normalize(typed, text)) == normalize(trained, text)


def test_text_of_both_forms_and_strays(tmp_path):
    """Mixed text leaves lines alone; one line in a thousand of another form does not make a text mixed."""
    composed, decomposed = (normalize(form, VIETNAMESE) for form in ("NFC", "NFD"))
    mixed = form_of(tmp_path, *[composed] * 30, *[decomposed] * 20)
    assert mixed.apply(composed) == composed and mixed.apply(decomposed) == decomposed
    assert form_of(tmp_path, *[composed] * 1000, decomposed).apply(decomposed) == composed


@pytest.mark.parametrize("trained", NUKTA)
def test_letters_that_nfc_takes_apart(trained, tmp_path):
    """A text with Hindi's nukta as one character keeps it, though NFC would write two."""
    form = form_of(tmp_path, *[f"ल{trained}का"] * 5)
    assert {form.apply(f"ल{typed}") for typed in NUKTA} == {f"ल{trained}"}


@pytest.mark.parametrize("trained, typed, wanted", [
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
])  # fmt: skip
def test_characters_by_keyboard(trained, typed, wanted, tmp_path):
    """A character that the training text never has becomes the one that it has; what it knows stays as it is."""
    assert form_of(tmp_path, trained).apply(typed) == wanted
    assert form_of(tmp_path, trained).apply(trained) == trained


def test_a_dictionary_tells_the_form():
    """Pieces tell the form of data without the file, unless both forms are in them or accents stand alone."""
    composed = Form.of_pieces(["▁él", "ève", "'", "x"])
    assert composed.apply(normalize("NFD", "élève’x")) == "élève'x"
    assert Form.of_pieces(["▁e\u0301l", "e\u0300ve"]).apply("é") == "e\u0301"
    assert Form.of_pieces(["▁e", "\u0301", "l"]).apply("é") == "e\u0301"
    for unclear in (["▁é", "e\u0301"], ["▁é", "\u0301"]):
        assert Form.of_pieces(unclear).apply("é e\u0301") == "é e\u0301"
    many = [f"{chr(97 + number // 26)}{chr(97 + number % 26)}é" for number in range(120)]
    assert Form.of_pieces([*many, "\u0301"]).apply("e\u0301") == "é"  # a stray accent beside 120 composed pieces
    moses = Form.of_pieces(["&quot;", "a@@", "b", "it", "&apos;s"], escaped=True)
    assert moses.apply("“Ａb” it’s") == '"Ab" it\'s'
    assert text_pieces(["<s>", "a", "__de__", "madeupword0001", "<0xE7>"], other_than=["__de__"]) == ["a"]


def test_prepared_data_say_their_form(tmp_path):
    """`deepnet prepare text` records each language's own form; a file of another content is named."""
    for split, count in {"train": 120, "valid": 5, "test": 5}.items():
        for lang, line in (("fr", normalize("NFD", "été d'hiver")), ("de", "schöner „Sommer“")):
            (tmp_path / f"{split}.{lang}").write_text(f"{line}\n" * count, encoding="utf-8")
    prefixes = {split: str(tmp_path / split) for split in ("train", "valid", "test")}
    prepare_text(("fr", "de"), prefixes, tmp_path / "bin", vocab=40)
    french, german = (read_form(tmp_path / "bin", lang) for lang in ("fr", "de"))
    assert french.apply("été d’hiver") == normalize("NFD", "été d'hiver")
    assert german.apply(normalize("NFD", "ö „“ ”")) == "ö „“ ”"
    assert read_form(tmp_path / "bin", "xx") is None and read_form(tmp_path, "fr") is None

    (tmp_path / "bin" / NAME).write_text(json.dumps({"fr": {"unicode": "NFX", "characters": "a", "joined": False}}))
    with pytest.raises(UserError, match=NAME):
        read_form(tmp_path / "bin", "fr")
