"""`deepnet export` of translation models: stock fairseq without our package, CTranslate2, refusals."""

from __future__ import annotations

import argparse
import re
from contextlib import redirect_stdout
from io import StringIO

import ctranslate2
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator

from deepnet_fairseq.cli import main
from deepnet_fairseq.plugin.building import from_checkpoint

from .conftest import TRAIN_FLAGS, make_data
from .support.helpers import FIRST, PAD, USER_DIR, run, sentences, teach

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "2", "--dropout", "0")
ARCH += ("--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32")
SEARCH = ("--beam", "5", "--max-len-a", "1", "--max-len-b", "5", "--cpu", "--max-tokens", "2000")
SENTENCES = 104


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("export"), test=SENTENCES)


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    """A checkpoint of fairseq-train, its 2L-2L DeepNorm model then taught to copy."""
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


def export(*words) -> None:
    """In this process."""
    main(["export", *map(str, words)])


def hypotheses(printed: str) -> dict[str, str]:
    return dict(re.findall(r"^H-(\d+)\t[^\t]+\t(.*)$", printed, re.MULTILINE))


def test_stock_fairseq_translates_alike(data, checkpoint, exported):
    """Plain fairseq-generate, no --user-dir: the same words for every sentence."""
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
    out, said = checkpoint.with_name("ct2"), StringIO()
    with redirect_stdout(said):
        export(checkpoint, "--to", "ctranslate2", "--out", out)
    assert "on 20 sentences" in said.getvalue()
    assert float(re.search(r"at most (\S+),", said.getvalue()).group(1)) < 1e-4
    return out


def words(dictionary, tokens) -> list[str]:
    return [dictionary[i] for i in tokens.tolist() if i not in (dictionary.eos(), dictionary.pad())]


def test_ctranslate2_translates_alike(checkpoint, converted):
    """Beam 5, piece by piece."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    source, longest = sentences(SENTENCES, len(task.source_dictionary)), 30
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)}}
    search = SequenceGenerator(models, task.target_dictionary, beam_size=5, max_len_a=0, max_len_b=longest)
    ours = [words(task.target_dictionary, found[0]["tokens"]) for found in search.generate(models, sample)]
    sources = [words(task.source_dictionary, tokens) for tokens in source]
    translator = ctranslate2.Translator(str(converted), intra_threads=1)
    found = [f.hypotheses[0] for f in translator.translate_batch(sources, beam_size=5, max_decoding_length=longest)]
    ended = [i for i in range(SENTENCES) if len(ours[i]) < longest - 1]  # fairseq forces an end, CTranslate2 just stops
    assert [found[i] for i in ended] == [ours[i] for i in ended]
    assert len(ended) >= 100 and len({tuple(ours[i]) for i in ended}) > 50


def test_int8(checkpoint, capsys):
    out = checkpoint.with_name("int8")
    export(checkpoint, "--to", "ctranslate2", "--quantization", "int8", "--out", out)
    average = re.search(r", (\S+) on average", capsys.readouterr().out).group(1)
    assert 1e-4 < float(average) < 5  # 8 bits cost something, 1.3 where a CPU's sums of them saturate (AVX2)
    assert (out / "model.bin").exists()


REFUSED = {
    "quantized transformer": (("{checkpoint}", "--to", "transformer", "--quantization", "int8"), "--quantization"),
    "fp16 ctranslate2": (("{checkpoint}", "--to", "ctranslate2", "--fp16"), "--quantization float16"),
    "no folder": (("{checkpoint}", "--to", "transformer", "--out", "no/such/x.pt"), "--out no/such.*make it first"),
    "a file": (("{checkpoint}", "--to", "ctranslate2", "--out", "{text}"), "--out .*name a new folder"),
    "not empty": (("{checkpoint}", "--to", "ctranslate2", "--out", "{folder}"), "--out .*name a new folder"),
    "stock model": (("{exported}", "--to", "transformer"), "holds a transformer"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, data, checkpoint, exported, tmp_path):
    """In one line, and nothing is written or lost."""
    (words, message), text = REFUSED[case], data.parent / "text" / "test.qaa"
    places = {"checkpoint": checkpoint, "exported": exported, "text": text, "folder": text.parent}
    words = [word.format(**places) for word in words]
    out = () if "--out" in words else ("--out", tmp_path / "out")
    before = {path: path.read_bytes() for path in text.parent.iterdir()}
    with pytest.raises(SystemExit, match=f"^deepnet: error: [^\n]*{message}[^\n]*$"):
        export(*words, *out)
    assert not list(tmp_path.iterdir()) and before == {path: path.read_bytes() for path in text.parent.iterdir()}
