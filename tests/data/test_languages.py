"""Tests of language codes and pairs, as they occur in names of files, folders and flags."""

import pytest

from deepnet_fairseq.languages import check_pair, parse_pair, possible_pairs

from ..support.errors import refused

PAIRS = """de en, zho_Hans eng_Latn, es_419 en, zh-Hans en, en zh-Hans, sr-Latn-RS en, pt-BR zh-Hant-TW, ca-valencia en,
    ca_valencia es-419, de-1996 en, qaa qab, DE EN, english german"""
NO_PAIRS = ["en", "-en", "de-", "de.x-en", "de--en", "a" * 41 + "-en"]
NO_CODES = ["", "a.b", "de/en", "ca@valencia", "日本", "de ", "de\n", "_de", "--help", "x" * 41]


@pytest.mark.parametrize("pair", PAIRS.split(","))
def test_a_pair_is_two_codes_with_a_hyphen_between(pair):
    source, target = pair.split()

    assert parse_pair("--pairs", f"{source}-{target}") == (source, target)


def test_a_reading_by_known_codes_goes_before_the_usual_form_of_codes():
    assert possible_pairs("zh-tw-en", known=["en", "zh-tw", "de"]) == [("zh-tw", "en")]


def test_words_in_place_of_codes_are_a_pair_only_if_they_may_be():
    assert possible_pairs("my-notes")
    assert not possible_pairs("my-notes", words=False)


@pytest.mark.parametrize("name", ["zh_Hans-en", "DE-EN"])
def test_codes_are_a_pair_where_words_are_none(name):
    assert possible_pairs(name, words=False)


@pytest.mark.parametrize("name", NO_PAIRS)
def test_what_is_no_pair_of_codes_is_refused(name):
    with refused(f"--pairs {name!r}"):
        parse_pair("--pairs", name)


def test_the_same_language_twice_is_refused():
    with refused("--pairs zh-Hans-zh-Hans"):
        parse_pair("--pairs", "zh-Hans-zh-Hans")


def test_a_pair_that_can_be_read_in_two_ways_is_refused_with_a_clear_one():
    with refused("--pairs zh-tw-en") as caught:
        parse_pair("--pairs", "zh-tw-en")

    assert "zh and tw-en" in caught.value.way_out
    assert "zh-tw and en" in caught.value.way_out
    assert "zh_tw-en" in caught.value.way_out


@pytest.mark.parametrize("code", NO_CODES)
def test_what_is_no_code_of_a_language_is_refused(code):
    with refused(f"SOURCE {code!r}"):
        check_pair("SOURCE", "en", code)
