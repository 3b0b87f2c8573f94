"""Tests of language codes and pairs, as they occur in names of files, folders and flags."""

import pytest

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.languages import check_pair, parse_pair, readings

PAIRS = """de en, zho_Hans eng_Latn, es_419 en, zh-Hans en, en zh-Hans, sr-Latn-RS en, pt-BR zh-Hant-TW, ca-valencia en,
    ca_valencia es-419, de-1996 en, qaa qab, DE EN, english german"""
WRONG = {
    "zh-tw-en": "--pairs zh-tw-en: may be zh and tw-en or zh-tw and en; write _ for - within a code, as zh_tw-en",
    "en": "--pairs 'en': is no pair", "-en": "is no pair", "de-": "is no pair", "de.x-en": "is no pair",
    "de--en": "is no pair", "a" * 41 + "-en": "is no pair", "zh-Hans-zh-Hans": "the same language twice",
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS.split(","))
def test_pairs(pair):
    assert parse_pair("--pairs", pair.strip().replace(" ", "-")) == tuple(pair.split())


def test_known_codes_go_before_the_usual_form():
    assert readings("zh-tw-en", known=["en", "zh-tw", "de"]) == [("zh-tw", "en")]
    assert readings("my-notes") and not readings("my-notes", words=False)
    assert readings("zh_Hans-en", words=False) and readings("DE-EN", words=False)


@pytest.mark.parametrize("name", WRONG)
def test_no_pairs(name):
    with pytest.raises(UserError) as caught:
        parse_pair("--pairs", name)
    assert WRONG[name] in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("code", ["", "a.b", "de/en", "ca@valencia", "日本", "de ", "de\n", "_de", "--help", "x" * 41])
def test_no_codes(code):
    with pytest.raises(UserError, match="SOURCE .*is no code of a language"):
        check_pair("SOURCE", "en", code)
