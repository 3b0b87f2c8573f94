"""Tests of users' mistakes: exit status not 0, one line that names the flag or the file, nothing written."""

import pytest
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from deepnet_fairseq.errors import user_error_line

from ..conftest import TRAIN_FLAGS
from ..support import sentiment
from ..support.errors import assert_one_line, assert_refused
from ..support.helpers import ROOT, USER_DIR, run

ARCH = ("--arch", "deepnet_transformer_tiny")
MISTAKES = {  # flags -> words of the refusal; None: the first flag
    ("--method", "deepnrom"): None,
    ("--encoder-layers", "0"): None,
    ("--encoder-attention-heads", "7"): None,
    ("--encoder-embed-dim", "2"): None,
    ("--encoder-normalize-before",): None,
    ("--init-profile", "fairseq_head"): None,
    ("--dropout", "1.5"): None,
    ("--method", "admin", "--admin-profile", "nowhere.json"): "--admin-profile nowhere.json",
    ("--encoder-layerdrop", "0.1"): "unknown: --encoder-layerdrop",
    ("--encoder-leyers", "3"): "--encoder-leyers",
    ("--restore-file", "nowhere.pt"): None,
    ("--finetune-from-model", "nowhere.pt"): None,
    ("--warmup-updates", "0"): None,
    ("--stop-stuck", "-1"): None,
    ("--criterion", "label_smoothed_cross_entropy_with_alignment"): "--criterion",
    ("--task", "multilingual_translation"): "--task",
    ("--num-batch-buckets", "4"): "--num-batch-buckets",
    ("--decoder-embed-dim", "32"): "--share-all-embeddings",
    ("--arch", "deepnet_transformer_18_19"): "--arch deepnet_transformer_18_19",
}
NO_TEXT = f"{ROOT}/tests/golden/checkpoints/fp32/checkpoint_last.pt"
OF_GENERATION = {  # flags -> words of the refusal
    ("--replace-unk",): "--replace-unk",
    ("--bpe", "subword_nmt", "--bpe-codes", NO_TEXT): f"{NO_TEXT}, line 2: not UTF-8",
}
LM = ("--task", "language_modeling", "--arch", "deepnet_lm_tiny_6")
MASKED = ("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "deepnet_masked_lm_tiny_6")
CLASSES = ("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--arch", "deepnet_masked_lm_tiny_6")
OF_LANGUAGE_MODELS = {  # data, flags, words of the refusal
    "translation model": ("text", (*LM, *ARCH), "--task language_modeling", "--task translation"),
    "no task": ("text", ("--arch", "normformer_lm_125m"), "--task translation", "--task language_modeling"),
    "causal model": ("text", (*MASKED, "--arch", "deepnet_lm"), "--task masked_lm", "--task language_modeling"),
    "no encoder": ("text", (*LM, "--encoder-layers", "3"), "unknown: --encoder-layers"),
    "norm place": ("text", (*LM, "--decoder-normalize-before"), "--decoder-normalize-before: --method deepnorm"),
    "model": ("classes", (*CLASSES, "--num-classes", "2", "--arch", "deepnet_lm"), "--task language_modeling"),
}


def line_of(capsys, *words, parser=options.get_training_parser) -> str:
    """Return the line with which fairseq-train refuses a command line; only the command line is parsed."""
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(parser(), [str(word) for word in words])
    line = capsys.readouterr().err.rstrip()
    assert ended.value.code == 2 and "\n" not in line and "error: " in line and len(line) < 400
    return line


@pytest.mark.parametrize("flags", MISTAKES, ids=" ".join)
def test_flags(flags, data, capsys):
    assert (MISTAKES[flags] or " ".join(flags)) in line_of(capsys, data, *TRAIN_FLAGS, *ARCH, *flags)


@pytest.mark.parametrize("flags", OF_GENERATION, ids=["replace_unk", "bpe_codes"])
def test_flags_of_generation(flags, data, capsys):
    assert OF_GENERATION[flags] in line_of(capsys, data, *flags, parser=options.get_generation_parser)


@pytest.fixture(scope="module")
def language_data(tmp_path_factory):
    return sentiment.make(tmp_path_factory.mktemp("sentiment"))


@pytest.mark.parametrize("mistake", OF_LANGUAGE_MODELS)
def test_flags_of_language_models(mistake, language_data, capsys):
    folder, flags, *named = OF_LANGUAGE_MODELS[mistake]
    line = line_of(capsys, language_data / folder, *flags)
    assert all(word in line for word in named), line


def test_a_validation_without_a_task(language_data, capsys):
    line = line_of(capsys, language_data / "classes", parser=options.get_validation_parser)
    assert "--task: name the one that the checkpoint was trained with" in line


@pytest.mark.parametrize("flags", [LM, MASKED], ids=["causal", "masked"])
def test_a_part_or_a_dictionary_that_is_not_there(flags, language_data):
    """A missing split or dictionary is named in one line."""
    args = options.parse_args_and_arch(options.get_training_parser(), [str(language_data / "text"), *flags])
    cfg = convert_namespace_to_omegaconf(args).task
    task = tasks.setup_task(cfg)
    with pytest.raises(FileNotFoundError, match="test") as error:
        task.load_dataset("test")
    assert user_error_line(error.value) == str(error.value)
    cfg.data = str(language_data / "classes")
    with pytest.raises(FileNotFoundError, match=r"classes/dict\.txt"):
        tasks.setup_task(cfg)


def test_a_mistake_ends_a_program(data, tmp_path):
    """Mistakes in model, architecture or data end fairseq-train before it makes a folder."""
    train, save = ("fairseq-train", *TRAIN_FLAGS, "--save-dir", tmp_path / "save"), tmp_path / "save"
    for words, named in (((data,), "--arch"), ((tmp_path, *ARCH), f"{tmp_path}: holds no dict.LANG.txt")):
        assert_one_line(run(*train, *words, check=False), named)
    assert not save.exists()


YAML_MISTAKES = {
    "model.method=deepnrom": "--method deepnrom: unknown",
    "optimizer.adam_betas=\"__import__('os').abort()\"": "is no plain value",
}


@pytest.mark.parametrize("setting", YAML_MISTAKES)
def test_a_mistake_in_yaml(setting, data, tmp_path):
    flags = ("--config-dir", f"{USER_DIR}/../configs", "--config-name", "quickstart", f"hydra.run.dir={tmp_path}/hydra")
    settings = (f"common.user_dir={USER_DIR}", f"task.data={data}", f"checkpoint.save_dir={tmp_path}/save", setting)
    done = run("fairseq-hydra-train", *flags, *settings, check=False)
    assert done.returncode != 0
    assert YAML_MISTAKES[setting] in done.stdout
    assert "Traceback" not in done.stdout
    assert not list(tmp_path.rglob("*.pt"))


def test_checkpoint_of_another_model(data, trained, tmp_path):
    path = trained / "checkpoint_last.pt"
    restore = ("--restore-file", path, "--save-dir", tmp_path / "save", "--max-update", "9")
    done = run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *restore, check=False)
    assert_one_line(done, str(path), "100 encoder layers")
    assert not list((tmp_path / "save").glob("*.pt"))


def test_deepnet_command():
    assert_refused("--method nonsense", "methods", "nonsense")
    assert_refused("--arch nonsense", "methods", "--weights", "nonsense")
    assert_one_line(run("deepnet", "methods", "deepnorm", "--layers", "0,0", check=False), "--layers 0,0: give two")
