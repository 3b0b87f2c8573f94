"""Tests of `deepnet export` for translators: stock fairseq without our package, CTranslate2, transformers, refusals."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import ctranslate2
import pytest
import sentencepiece
import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.core import archs
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.threads import VARIABLES
from deepnet_fairseq.tools.translation import translate
from deepnet_fairseq.tools.translation.description import read_description

from ..conftest import TRAIN_FLAGS
from ..support.corpora import make_data
from ..support.errors import assert_refused, refusal, refused
from ..support.exports import export, python_example, reported_difference
from ..support.helpers import PAD, USER_DIR, run, sentences, teach
from ..support.prepared import files_in
from ..support.prepared_again import save_start
from ..support.single_stacks import stock

ARCH = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2", "--dropout", "0",
    "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32",
)  # fmt: skip
SEARCH = ("--beam", "5", "--max-len-a", "1", "--max-len-b", "5", "--cpu", "--max-tokens", "2000")
SENTENCES = 104  # in the test set, and drawn at random for CTranslate2
ROUNDING = 1e-4  # most that two log-probabilities may differ by rounding in float32, in nats


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Provide a folder of binarised data, with spm.model and 104 sentence pairs of test text; text/ beside it is plain.

    The fixture takes the place of conftest's `data`, whose test set is smaller.
    """
    return make_data(tmp_path_factory.mktemp("export"), {"train": 400, "valid": 20, "test": SENTENCES})


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    """Provide a checkpoint of fairseq-train whose 2L-2L DeepNorm model was then trained to copy.

    A model that copies reads its source, and translates different sentences differently.
    """
    path = tmp_path_factory.mktemp("deepnorm") / "checkpoint_last.pt"
    run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, "--max-update", "1", "--save-dir", path.parent)
    state = torch.load(path)
    model, _ = from_checkpoint(str(path))
    vocabulary = model.encoder.embed_tokens.num_embeddings

    def copied_sentences(step):
        source = sentences(64, vocabulary, seed=step)[32:]  # the half without padding
        previous = source.roll(1, 1)  # the end of sentence comes first
        return (source, None, previous), source

    teach(model, 300, copied_sentences)
    torch.save(state | {"model": model.state_dict()}, path)
    return path


def pieces(dictionary, tokens) -> list[str]:
    """Return the symbols of a row of tokens, without ends and padding."""
    return [dictionary[token] for token in tokens.tolist() if token not in (dictionary.eos(), dictionary.pad())]


class FairseqsSearch:
    """fairseq's own beam search, with beam 5, by the model of a checkpoint; task: of its training."""

    def __init__(self, checkpoint: Path):
        self.models, _, self.task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])

    def translate(self, source, longest: int, penalty: float = 1.0) -> list[list[str]]:
        """Return the pieces of the best translation of each row of source (B, T).

        longest: most pieces of a translation; penalty: for its length, as --lenpen.
        """
        target = self.task.target_dictionary
        search = SequenceGenerator(
            self.models, target, beam_size=5, max_len_a=0, max_len_b=longest, len_penalty=penalty
        )
        sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)}}
        return [pieces(target, beams[0]["tokens"]) for beams in search.generate(self.models, sample)]


@pytest.fixture
def fairseqs_search(checkpoint) -> FairseqsSearch:
    """Provide fairseq's search by the trained model, before any export."""
    return FairseqsSearch(checkpoint)


# stock fairseq


@pytest.fixture(scope="module")
def plain_checkpoint(checkpoint):
    """Provide the checkpoint exported for stock fairseq, in float32."""
    out = checkpoint.with_name("transformer.pt")
    printed = run("deepnet", "export", checkpoint, "--to", "transformer", "--out", out).stdout
    assert reported_difference(printed) < ROUNDING
    return out


def generated_by_fairseq(data, checkpoint, *flags) -> dict[str, str]:
    """Translate the test set with fairseq-generate; return the pieces of each translation by its number."""
    printed = run("fairseq-generate", data, *SEARCH, "--path", checkpoint, *flags).stdout
    return dict(re.findall(r"^H-(\d+)\t[^\t]+\t(.*)$", printed, re.MULTILINE))


def test_stock_fairseq_generates_the_same_translations(data, checkpoint, plain_checkpoint):
    """Stock fairseq-generate without --user-dir translates every sentence with the same words."""
    ours = generated_by_fairseq(data, checkpoint, "--user-dir", USER_DIR)
    stock = generated_by_fairseq(data, plain_checkpoint)

    assert len(ours) == SENTENCES
    assert stock == ours
    assert len(set(stock.values())) > 5  # were all translations alike, equal ones would say little


def test_the_file_for_stock_fairseq_is_plain_data(plain_checkpoint):
    """The file holds no classes. weights_only would refuse to load those that are not torch's."""
    state = torch.load(plain_checkpoint, weights_only=True)

    assert state["args"] is None
    assert isinstance(state["cfg"]["model"], dict)
    assert not isinstance(state["cfg"]["task"], argparse.Namespace)


def test_the_file_for_stock_fairseq_has_no_state_of_the_optimiser(checkpoint, plain_checkpoint):
    assert torch.load(plain_checkpoint)["last_optimizer_state"] is None
    assert plain_checkpoint.stat().st_size < 0.5 * checkpoint.stat().st_size  # Adam kept two numbers a weight


def test_the_file_for_stock_fairseq_has_the_parameters_of_its_transformer(plain_checkpoint):
    """The file has no parameter of a method, such as DeepNorm's alpha."""
    transformer = stock(archs.MODEL_NAME, layers=2, share_all_embeddings=True)

    assert torch.load(plain_checkpoint)["model"].keys() == transformer.state_dict().keys()


def test_an_export_in_half_precision_is_the_whole_one_rounded(checkpoint, plain_checkpoint):
    out = checkpoint.with_name("half.pt")

    export(checkpoint, "--to", "transformer", "--fp16", "--out", out)

    half = torch.load(out)["model"]
    full = torch.load(plain_checkpoint)["model"]
    assert half.keys() == full.keys()
    for name, value in half.items():
        assert value.dtype == torch.float16
        assert torch.equal(value, full[name].half()), name


# CTranslate2


@pytest.fixture(scope="module")
def ctranslate2_folder(checkpoint):
    """Provide the checkpoint exported for CTranslate2, in float32."""
    out = checkpoint.with_name("ct2")
    output = export(checkpoint, "--to", "ctranslate2", "--out", out)
    assert reported_difference(output) < ROUNDING
    return out


def test_ctranslate2_gives_the_same_translations(fairseqs_search, ctranslate2_folder):
    """CTranslate2 with beam 5 translates every sentence with the same pieces."""
    longest = 30
    dictionary = fairseqs_search.task.source_dictionary
    source = sentences(SENTENCES, len(dictionary))
    ours = fairseqs_search.translate(source, longest)

    translator = ctranslate2.Translator(str(ctranslate2_folder), intra_threads=1)
    source_pieces = [pieces(dictionary, tokens) for tokens in source]
    results = translator.translate_batch(source_pieces, beam_size=5, max_decoding_length=longest)
    theirs = [result.hypotheses[0] for result in results]

    # at the limit of length, fairseq forces an end and CTranslate2 just stops: such translations may differ
    ended = [place for place in range(SENTENCES) if len(ours[place]) < longest - 1]
    assert len(ended) >= 100
    assert [theirs[place] for place in ended] == [ours[place] for place in ended]
    different_translations = {tuple(ours[place]) for place in ended}
    assert len(different_translations) > 50


def test_an_export_in_eight_bits_is_smaller_and_less_exact(checkpoint, ctranslate2_folder):
    out = checkpoint.with_name("int8")

    output = export(checkpoint, "--to", "ctranslate2", "--quantization", "int8", "--out", out)

    assert 10 * ROUNDING < reported_difference(output) < 50  # nats, at the least probable of all symbols
    # only the matrices of layers and embeddings shrink; the tables of positions stay in float32
    assert (out / "model.bin").stat().st_size < (ctranslate2_folder / "model.bin").stat().st_size


@pytest.fixture
def threads_of_models(monkeypatch) -> list[int | None]:
    """Provide a list that gets, for each model that CTranslate2 loads, its number of threads; None for its default."""
    threads = []
    load = ctranslate2.Translator

    def noted(*args, **options):
        threads.append(options.get("intra_threads"))
        return load(*args, **options)

    monkeypatch.setattr(ctranslate2, "Translator", noted)
    return threads


def test_the_example_in_an_exports_readme_computes_with_one_thread(ctranslate2_folder, threads_of_models, monkeypatch):
    """Several threads wait for each other where another program has a core."""
    monkeypatch.chdir(ctranslate2_folder)

    exec(python_example(ctranslate2_folder), {})

    assert threads_of_models == [1]


def test_a_narrow_export_is_compared_with_one_thread(checkpoint, threads_of_models, monkeypatch, tmp_path):
    """The model is loaded to compare scores, and again for translations. No variable says how many threads."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    export(checkpoint, "--to", "ctranslate2", "--out", tmp_path / "out")

    assert threads_of_models == [1, 1]


# transformers


@pytest.fixture(scope="module")
def hub_folder(checkpoint):
    """Provide the checkpoint exported for transformers, with a length penalty of 0.6."""
    out = checkpoint.with_name("hub")
    output = export(checkpoint, "--to", "huggingface", "--out", out, "--lenpen", "0.6")
    assert "FSMT" in output  # the model of transformers that is a Post-LN
    assert reported_difference(output) < ROUNDING
    return out


def translated_by_fairseq(search: FairseqsSearch, lines: list[str], data) -> list[str]:
    """Cut lines by the data's SentencePiece model, translate them by fairseq's search, and join the pieces again."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(data / "spm.model"))
    dictionary = search.task.source_dictionary
    rows = []
    for line in lines:
        cut = " ".join(processor.encode(line, out_type=str))
        rows.append(dictionary.encode_line(cut, add_if_not_exist=False))
    source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).long()

    return [processor.decode(best) for best in search.translate(source, longest=200, penalty=0.6)]


def translated_by_transformers(folder, lines: list[str]) -> list[str]:
    """Translate lines by the exported tokenizer, the exported model's generate(), and the settings beside it."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    generated = model.generate(**tokenizer(lines, return_tensors="pt", padding=True))
    return tokenizer.batch_decode(generated, skip_special_tokens=True)


def test_transformers_gives_the_same_translations(data, fairseqs_search, hub_folder):
    """generate() of transformers translates text, with beam 5, as fairseq's search and the trained model do."""
    lines = (data.parent / "text" / "test.qaa").read_text().split("\n")[:20]
    lines[0] = f">>quoted<< {lines[0]}"  # which some tokenizers of transformers take for a language

    ours = translated_by_fairseq(fairseqs_search, lines, data)
    theirs = translated_by_transformers(hub_folder, lines)

    same = [one for one, other in zip(ours, theirs, strict=True) if one == other]
    assert len(same) >= 19  # of 20: where two beams score nearly alike, rounding may decide
    assert len(set(ours)) > 15


def test_an_exports_readme_says_what_the_model_is(hub_folder):
    """The README has method, layers of encoder and decoder, and languages, also in the form that the Hub reads."""
    card = (hub_folder / "README.md").read_text()

    assert "`deepnorm`" in card
    assert "2-2 encoder-decoder" in card
    assert "qaa to qab" in card
    assert 'language: ["qaa", "qab"]' in card


def test_an_export_keeps_the_settings_of_search(hub_folder):
    """The length penalty is the one given, the beams are 5 by default, and a search ends as fairseq's does."""
    search = json.loads((hub_folder / "generation_config.json").read_text())

    assert search["num_beams"] == 5
    assert search["length_penalty"] == 0.6
    assert search["early_stopping"] is True


def test_an_export_has_weights_in_safetensors_alone(hub_folder):
    assert (hub_folder / "model.safetensors").exists()
    assert not list(hub_folder.glob("*.bin"))


def test_an_export_names_no_path_of_the_machine(checkpoint, hub_folder):
    files = list(hub_folder.glob("*.json"))

    assert files
    for path in files:
        assert str(checkpoint.parent) not in path.read_text()


def test_an_export_for_greedy_search_has_no_length_penalty(checkpoint, tmp_path):
    """transformers refuses a length penalty with a single beam."""
    export(checkpoint, "--to", "huggingface", "--out", tmp_path / "hub", "--beam", "1", "--lenpen", "0.6")

    search = json.loads((tmp_path / "hub" / "generation_config.json").read_text())
    assert search.get("num_beams", 1) == 1
    assert search.get("length_penalty") is None
    assert not search.get("early_stopping")


def start_with_tables(data, folder, source: int, target: int):
    """Write a checkpoint of a model with learned positions for `source` and `target` tokens; return its path.

    The model has initial weights, with which it repeats pieces until it has no more positions.
    """
    path = folder / "run" / "checkpoint_last.pt"
    tables = ("--encoder-learned-pos", "--decoder-learned-pos", "--max-source-positions", source)
    save_start(path, data, *ARCH, "--share-all-embeddings", *tables, "--max-target-positions", target)
    return path


SHORT_LINES = 8  # lines, each of which has a position for every piece in a table of TABLE
TABLE = 40


def short_lines(data) -> list[str]:
    """Return lines of the test text that have fewer characters than TABLE has positions, so fewer pieces, too."""
    lines = (data.parent / "text" / "test.qaa").read_text().split("\n")
    return [line for line in lines if line and len(line) < TABLE][:SHORT_LINES]


@pytest.mark.parametrize(("source", "target"), [(TABLE, TABLE), (TABLE + 20, TABLE), (TABLE, TABLE - 10)])
def test_translations_by_a_table_of_positions_are_as_long_in_transformers(source, target, data, tmp_path):
    """The translations take all positions of the decoder."""
    path = start_with_tables(data, tmp_path, source, target)
    lines = short_lines(data)

    export(path, "--to", "huggingface", "--out", tmp_path / "hub", "--beam", "1")

    ours = translate(path, lines, beam=1)
    assert translated_by_transformers(tmp_path / "hub", lines) == ours
    assert translate(tmp_path / "hub", lines, beam=1) == ours


def test_an_export_whose_tables_are_of_two_lengths_says_the_smaller_one(data, tmp_path):
    """FSMT has one limit for both. Beyond the smaller table it would use positions that the model has not learned."""
    path = start_with_tables(data, tmp_path, TABLE + 20, TABLE)
    line = " ".join(short_lines(data))

    export(path, "--to", "huggingface", "--out", tmp_path / "hub")

    assert read_description(tmp_path / "hub").positions == (TABLE, TABLE)
    with refused("line 1"):
        translate(tmp_path / "hub", [line])


# refusals


# name of a mistake -> words of the command behind the checkpoint, and what the refusal names;
# {new}: a path that does not exist; {text}: a folder with files
REFUSED = {
    "quantized transformer": ("--to transformer --quantization int8 --out {new}", ["--quantization"]),
    "fp16 ctranslate2": ("--to ctranslate2 --fp16 --out {new}", ["--quantization float16"]),
    "a missing folder": ("--to transformer --out no/such/x.pt", ["--out no/such"]),
    "a file in place of a folder": ("--to ctranslate2 --out {text}/test.qaa", ["--out {text}/test.qaa"]),
    "a folder with files": ("--to ctranslate2 --out {text}", ["--out {text}"]),
    "settings of another reader": ("--to ctranslate2 --beam 5 --out {new}", ["--beam", "--to huggingface"]),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_wrong_export_is_refused_and_no_file_is_written_or_lost(mistake, data, checkpoint, tmp_path):
    words, named = REFUSED[mistake]
    text = data.parent / "text"
    before = files_in(text)

    line = refusal("export", checkpoint, *words.format(text=text, new=tmp_path / "out").split())

    for name in named:
        assert name.format(text=text) in line
    assert files_in(text) == before
    assert not list(tmp_path.iterdir())


def test_a_stock_model_has_nothing_to_export(plain_checkpoint, tmp_path):
    """The checkpoint of a stock model is an export already."""
    words = ("export", plain_checkpoint, "--to", "transformer", "--out", tmp_path / "out")

    assert_refused(f"{plain_checkpoint}: ", *words)

    assert not list(tmp_path.iterdir())
