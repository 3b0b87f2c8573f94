"""Tests of language codes and pairs, as they occur in names of files, folders and flags."""

from __future__ import annotations

import pytest

from deepnet_fairseq.languages import check_pair, parse_pair, possible_pairs

from ..support.errors import refused

# Each is a source and a target: codes of ISO 639 and BCP 47 (language, script, region, variant), some with _, or words
PAIRS = """de en, zho_Hans eng_Latn, es_419 en, zh-Hans en, en zh-Hans, sr-Latn-RS en, pt-BR zh-Hant-TW, ca-valencia en,
    ca_valencia es-419, de-1996 en, qaa qab, DE EN, english german"""
NO_PAIRS = ["en", "-en", "de-", "de.x-en", "de--en", "a" * 41 + "-en"]  # a code has at most 40 characters
NO_CODES = ["", "a.b", "de/en", "ca@valencia", "日本", "de ", "de\n", "_de", "--help", "x" * 41]


@pytest.mark.parametrize("pair", PAIRS.split(","))
def test_a_pair_is_two_codes_with_a_hyphen_between(pair):
    source, target = pair.split()

    assert parse_pair("--pairs", f"{source}-{target}") == (source, target)


def test_a_pair_of_known_codes_goes_before_codes_of_the_usual_form():
    """Without known codes either hyphen of zh-tw-en may be the one between the two codes."""
    assert possible_pairs("zh-tw-en", known=["en", "zh-tw", "de"]) == [("zh-tw", "en")]


def test_words_may_stand_in_the_place_of_codes():
    assert possible_pairs("english-german") == [("english", "german")]


def test_words_are_no_codes_where_names_may_be_of_other_things():
    """In a folder with notes, my-notes.txt is no text of a language pair."""
    assert possible_pairs("my-notes", words=False) == []


@pytest.mark.parametrize(("name", "pair"), [("zh_Hans-en", ("zh_Hans", "en")), ("DE-EN", ("DE", "EN"))])
def test_codes_are_a_pair_where_words_are_none(name, pair):
    assert possible_pairs(name, words=False) == [pair]


@pytest.mark.parametrize("name", NO_PAIRS)
def test_a_name_that_is_no_pair_of_codes_is_refused(name):
    with refused(f"--pairs {name!r}"):
        parse_pair("--pairs", name)


def test_the_same_language_twice_is_refused():
    with refused("--pairs zh-Hans-zh-Hans"):
        parse_pair("--pairs", "zh-Hans-zh-Hans")


def test_an_ambiguous_pair_is_refused_with_its_readings_and_a_clear_name():
    """Either hyphen of zh-tw-en may be the one between the two codes."""
    with refused("--pairs zh-tw-en") as caught:
        parse_pair("--pairs", "zh-tw-en")

    assert "zh and tw-en" in caught.value.way_out
    assert "zh-tw and en" in caught.value.way_out
    assert "zh_tw-en" in caught.value.way_out


@pytest.mark.parametrize("code", NO_CODES)
def test_a_name_that_is_no_code_of_a_language_is_refused(code):
    with refused(f"SOURCE {code!r}"):
        check_pair("SOURCE", "en", code)
