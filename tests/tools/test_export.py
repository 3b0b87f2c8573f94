"""Tests of `deepnet export` for translators: stock fairseq without our package, CTranslate2, transformers, refusals."""

from __future__ import annotations

import argparse
import json
import re
from contextlib import redirect_stdout
from io import StringIO

import ctranslate2
import pytest
import sentencepiece
import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.cli import main
from deepnet_fairseq.plugin.building import from_checkpoint

from ..conftest import TRAIN_FLAGS, make_data
from ..support.broken import contents
from ..support.helpers import FIRST, PAD, USER_DIR, run, sentences, teach

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2", "--dropout", "0")
ARCH += ("--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32")
SEARCH = ("--beam", "5", "--max-len-a", "1", "--max-len-b", "5", "--cpu", "--max-tokens", "2000")
SENTENCES, LANGS = 104, ("qaa", "qab")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("export"), test=SENTENCES)


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    """Provide a checkpoint of fairseq-train whose 2L-2L DeepNorm model was then trained to copy."""
    path = tmp_path_factory.mktemp("deepnorm") / "checkpoint_last.pt"
    run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, "--max-update", "1", "--save-dir", path.parent)
    state, (model, _) = torch.load(path), from_checkpoint(str(path))
    vocab = model.encoder.embed_tokens.num_embeddings

    def to_copy(step):
        source = sentences(64, vocab, seed=step)
        target = source.masked_fill(source.eq(PAD), FIRST)
        return (source[32:], None, target[32:].roll(1, 1)), target[32:]

    teach(model, 300, to_copy)
    torch.save(state | {"model": model.state_dict()}, path)
    return path


@pytest.fixture(scope="module")
def exported(checkpoint):
    out = checkpoint.with_name("transformer.pt")
    printed = run("deepnet", "export", checkpoint, "--to", "transformer", "--out", out).stdout
    assert float(re.search(r"log-probabilities (\S+)", printed).group(1)) < 1e-4
    return out


def export(*words) -> str:
    """Run `deepnet export` in this process; return its output."""
    with redirect_stdout(StringIO()) as output:
        main(["export", *map(str, words)])
    return output.getvalue()


def hypotheses(printed: str) -> dict[str, str]:
    return dict(re.findall(r"^H-(\d+)\t[^\t]+\t(.*)$", printed, re.MULTILINE))


def test_stock_fairseq_translates_alike(data, checkpoint, exported):
    """Stock fairseq-generate without --user-dir translates every sentence with the same words."""
    ours = hypotheses(run("fairseq-generate", data, *SEARCH, "--path", checkpoint, "--user-dir", USER_DIR).stdout)
    theirs = hypotheses(run("fairseq-generate", data, *SEARCH, "--path", exported).stdout)
    assert len(ours) == SENTENCES and ours == theirs
    assert len(set(theirs.values())) > 5


def test_the_file_is_plain_data_without_optimiser(checkpoint, exported):
    state = torch.load(exported, weights_only=True)
    assert state["args"] is None and isinstance(state["cfg"]["model"], dict)
    assert not isinstance(state["cfg"]["task"], argparse.Namespace)
    assert exported.stat().st_size < 0.5 * checkpoint.stat().st_size  # Adam kept two numbers a weight
    assert not [name for name in state["model"] if "alpha" in name or "residual" in name]


def test_half_precision(checkpoint, exported):
    out = checkpoint.with_name("half.pt")
    export(checkpoint, "--to", "transformer", "--fp16", "--out", out)
    half, full = torch.load(out)["model"], torch.load(exported)["model"]
    assert {value.dtype for name, value in half.items()} == {torch.float16}
    assert all(torch.equal(half[name], full[name].half()) for name in full)


@pytest.fixture(scope="module")
def converted(checkpoint):
    out = checkpoint.with_name("ct2")
    output = export(checkpoint, "--to", "ctranslate2", "--out", out)
    assert float(re.search(r"at most (\S+)", output).group(1)) < 1e-4
    return out


def words(dictionary, tokens) -> list[str]:
    return [dictionary[i] for i in tokens.tolist() if i not in (dictionary.eos(), dictionary.pad())]


def test_ctranslate2_translates_alike(checkpoint, converted):
    """CTranslate2 with beam 5 translates every sentence with the same pieces."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    source, longest = sentences(SENTENCES, len(task.source_dictionary)), 30
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)}}
    search = SequenceGenerator(models, task.target_dictionary, beam_size=5, max_len_a=0, max_len_b=longest)
    ours = [words(task.target_dictionary, beam[0]["tokens"]) for beam in search.generate(models, sample)]
    sources = [words(task.source_dictionary, tokens) for tokens in source]
    translator = ctranslate2.Translator(str(converted), intra_threads=1)
    theirs = [f.hypotheses[0] for f in translator.translate_batch(sources, beam_size=5, max_decoding_length=longest)]
    ended = [i for i in range(SENTENCES) if len(ours[i]) < longest - 1]  # fairseq forces an end, CTranslate2 just stops
    assert [theirs[i] for i in ended] == [ours[i] for i in ended]
    assert len(ended) >= 100 and len({tuple(ours[i]) for i in ended}) > 50


def test_int8(checkpoint):
    output = export(checkpoint, "--to", "ctranslate2", "--quantization", "int8", "--out", checkpoint.with_name("int8"))
    assert 1e-3 < float(re.search(r"at most (\S+)", output).group(1)) < 50  # 8 bits cost something


@pytest.fixture(scope="module", name="hub")
def a_hub(checkpoint):
    """Provide a folder exported for transformers."""
    out = checkpoint.with_name("hub")
    output = export(checkpoint, "--to", "huggingface", "--out", out, "--lenpen", "0.6")
    assert float(re.search(r"a FSMT; its logits differ by at most (\S+)", output).group(1)) < 1e-4
    return out


def test_transformers_translates_alike(data, checkpoint, hub):
    """generate() of transformers translates text, with beam 5, as our search and the trained model do."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    kinds = (AutoModelForSeq2SeqLM, AutoTokenizer)
    model, tokenizer = (kind.from_pretrained(hub, local_files_only=True) for kind in kinds)
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    processor = sentencepiece.SentencePieceProcessor(model_file=str(data / "spm.model"))
    lines = (data.parent / "text" / "test.qaa").read_text().split("\n")[:20]
    lines[0] = f">>quoted<< {lines[0]}"
    rows = [task.source_dictionary.encode_line(" ".join(processor.encode(line, out_type=str)), add_if_not_exist=False)
            for line in lines]  # fmt: skip
    source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).long()
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)}}
    search = SequenceGenerator(models, task.target_dictionary, beam_size=5, max_len_a=0, max_len_b=200, len_penalty=0.6)
    best = [one[0]["tokens"] for one in search.generate(models, sample)]
    ours = [processor.decode(words(task.target_dictionary, tokens)) for tokens in best]
    generated = model.eval().generate(**tokenizer(lines, return_tensors="pt", padding=True))
    theirs = tokenizer.batch_decode(generated, skip_special_tokens=True)
    assert sum(one == two for one, two in zip(ours, theirs, strict=True)) >= 19 and len(set(ours)) > 15


def test_the_folder_says_what_it_is(checkpoint, hub):
    card, search = (hub / "README.md").read_text(), json.loads((hub / "generation_config.json").read_text())
    assert "`deepnorm`" in card and "2-2 encoder-decoder layers" in card and search["length_penalty"] == 0.6
    assert "# qaa to qab" in card and 'language: ["qaa", "qab"]' in card
    assert {"num_beams": 5, "length_penalty": 0.6, "early_stopping": True}.items() <= search.items()
    assert (hub / "model.safetensors").exists() and not list(hub.glob("*.bin"))
    for path in hub.glob("*.json"):  # no path of the machine
        assert str(checkpoint.parent) not in path.read_text()


def test_greedy_search_has_no_penalty(checkpoint, hub, tmp_path):
    """An export for greedy search has no length penalty, which transformers refuses with one beam."""
    export(checkpoint, "--to", "huggingface", "--out", tmp_path / "hub", "--beam", "1", "--lenpen", "0.6")
    search = json.loads((tmp_path / "hub" / "generation_config.json").read_text())
    assert search.get("num_beams", 1) == 1 and not search.get("early_stopping")


REFUSED = {  # beside the checkpoint's name: flags, words of the refusal
    "quantized transformer": (("--to", "transformer", "--quantization", "int8"), "--quantization"),
    "fp16 ctranslate2": (("--to", "ctranslate2", "--fp16"), "--quantization float16"),
    "no folder": (("--to", "transformer", "--out", "no/such/x.pt"), "--out no/such.*make it first"),
    "a file": (("--to", "ctranslate2", "--out", "{text}"), "--out .*name a new folder"),
    "not empty": (("--to", "ctranslate2", "--out", "{folder}"), "--out .*name a new folder"),
    "beams of fairseq": (("--to", "ctranslate2", "--beam", "5"), "--beam: only with --to huggingface"),
}


def assert_refused(case, data, path, folder) -> None:
    """Check that an export is refused in one line, and that no file is written or lost."""
    (words, message), text = case, data.parent / "text" / "test.qaa"
    words = [word.format(text=text, folder=text.parent) for word in words]
    out = () if "--out" in words else ("--out", folder / "out")
    before = contents(text.parent)
    with pytest.raises(SystemExit, match=f"^deepnet: error: [^\n]*{message}[^\n]*$"):
        export(path, *words, *out)
    assert not list(folder.iterdir()) and before == contents(text.parent)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, data, checkpoint, tmp_path):
    assert_refused(REFUSED[case], data, checkpoint, tmp_path)


def test_a_stock_model_has_nothing_to_fold(data, exported, tmp_path):
    assert_refused((("--to", "transformer"), "holds a transformer"), data, exported, tmp_path)
