"""Tests of users' mistakes: exit status not 0, one line that names the flag or the file, nothing written."""

import pytest
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from deepnet_fairseq.errors import user_error_line

from ..conftest import TRAIN_FLAGS
from ..support import sentiment
from ..support.errors import assert_one_line, assert_refused
from ..support.helpers import ROOT, USER_DIR, run
from ..support.prepared_again import save_start

ARCH = ("--arch", "deepnet_transformer_tiny")
OF_TRAINING = {  # flags -> what the refusal names; None: these flags
    ("--method", "deepnrom"): None,
    ("--encoder-layers", "0"): None,
    ("--encoder-attention-heads", "7"): None,
    ("--encoder-embed-dim", "2"): None,
    ("--encoder-normalize-before",): None,
    ("--init-profile", "fairseq_head"): None,
    ("--dropout", "1.5"): None,
    ("--method", "admin", "--admin-profile", "nowhere.json"): "--admin-profile nowhere.json",
    ("--encoder-layerdrop", "0.1"): "--encoder-layerdrop",
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
OF_GENERATION = {  # mistake -> flags, what the refusal names
    "--replace-unk": (("--replace-unk",), "--replace-unk"),
    "codes that are no text": (("--bpe", "subword_nmt", "--bpe-codes", NO_TEXT), f"{NO_TEXT}, line 2"),
}
LM = ("--task", "language_modeling", "--arch", "deepnet_lm_tiny_6")
MASKED = ("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "deepnet_masked_lm_tiny_6")
CLASSES = ("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--arch", "deepnet_masked_lm_tiny_6")
OF_LANGUAGE_MODELS = {  # mistake -> data, flags, what the refusal names
    "a translation model": ("text", (*LM, *ARCH), ["--task language_modeling", "--task translation"]),
    "no task": ("text", ("--arch", "normformer_lm_125m"), ["--task translation", "--task language_modeling"]),
    "a causal model": ("text", (*MASKED, "--arch", "deepnet_lm"), ["--task masked_lm", "--task language_modeling"]),
    "no encoder": ("text", (*LM, "--encoder-layers", "3"), ["--encoder-layers"]),
    "the place of the norms": ("text", (*LM, "--decoder-normalize-before"), ["--decoder-normalize-before", "deepnorm"]),
    "a causal model for classes": (
        "classes", (*CLASSES, "--num-classes", "2", "--arch", "deepnet_lm"), ["--task language_modeling"],
    ),
}  # fmt: skip


def refusal_of(capsys, parser, *words) -> str:
    """Return the line with which a program of fairseq refuses a command line; only the command line is parsed."""
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(parser, [str(word) for word in words])
    line = capsys.readouterr().err.rstrip()
    assert ended.value.code == 2
    assert "\n" not in line
    assert "error: " in line
    assert len(line) < 400
    return line


@pytest.fixture(scope="module")
def language_data(tmp_path_factory):
    """Provide a folder with data of language models in text/, and of sentence_prediction in classes/."""
    return sentiment.make(tmp_path_factory.mktemp("sentiment"))


@pytest.mark.parametrize("flags", OF_TRAINING, ids=" ".join)
def test_a_mistaken_flag_of_training_is_named(flags, data, capsys):
    line = refusal_of(capsys, options.get_training_parser(), data, *TRAIN_FLAGS, *ARCH, *flags)

    assert (OF_TRAINING[flags] or " ".join(flags)) in line


@pytest.mark.parametrize("mistake", OF_GENERATION)
def test_a_mistaken_flag_of_generation_is_named(mistake, data, capsys):
    flags, named = OF_GENERATION[mistake]

    assert named in refusal_of(capsys, options.get_generation_parser(), data, *flags)


@pytest.mark.parametrize("mistake", OF_LANGUAGE_MODELS)
def test_a_mistaken_flag_of_a_language_model_s_training_is_named(mistake, language_data, capsys):
    folder, flags, named = OF_LANGUAGE_MODELS[mistake]

    line = refusal_of(capsys, options.get_training_parser(), language_data / folder, *flags)

    for flag in named:
        assert flag in line


def test_a_validation_without_a_task_is_asked_for_it(language_data, capsys):
    assert "--task" in refusal_of(capsys, options.get_validation_parser(), language_data / "classes")


def task_settings(data, flags):
    """Return the settings of the task of a training of a language model."""
    args = options.parse_args_and_arch(options.get_training_parser(), [str(data), *flags])
    return convert_namespace_to_omegaconf(args).task


@pytest.mark.parametrize("flags", [LM, MASKED], ids=["causal", "masked"])
def test_a_missing_split_is_named(flags, language_data):
    task = tasks.setup_task(task_settings(language_data / "text", flags))

    with pytest.raises(FileNotFoundError, match="test") as caught:
        task.load_dataset("test")

    assert user_error_line(caught.value) == str(caught.value)  # the line that a program prints


@pytest.mark.parametrize("flags", [LM, MASKED], ids=["causal", "masked"])
def test_a_missing_dictionary_is_named(flags, language_data):
    settings = task_settings(language_data / "text", flags)
    settings.data = str(language_data / "classes")

    with pytest.raises(FileNotFoundError, match=r"classes/dict\.txt"):
        tasks.setup_task(settings)


def test_a_training_without_an_architecture_is_refused_before_it_makes_a_folder(data, tmp_path):
    save = tmp_path / "save"
    done = run("fairseq-train", *TRAIN_FLAGS, "--save-dir", save, data, check=False)

    assert_one_line(done, "--arch")
    assert not save.exists()


def test_a_training_without_data_is_refused_before_it_makes_a_folder(tmp_path):
    save = tmp_path / "save"
    done = run("fairseq-train", *TRAIN_FLAGS, "--save-dir", save, tmp_path, *ARCH, check=False)

    assert_one_line(done, f"{tmp_path}: ", "dict.LANG.txt")
    assert not save.exists()


YAML_MISTAKES = {  # setting -> how the refusal begins; hydra prints it after all the settings
    "model.method=deepnrom": "--method deepnrom: ",
    "optimizer.adam_betas=\"__import__('os').abort()\"": "the config: adam_betas ",  # nothing of it is run
}


@pytest.mark.parametrize("setting", YAML_MISTAKES)
def test_a_mistake_in_yaml_is_refused(setting, data, tmp_path):
    flags = ("--config-dir", f"{USER_DIR}/../configs", "--config-name", "quickstart", f"hydra.run.dir={tmp_path}/hydra")
    settings = (f"common.user_dir={USER_DIR}", f"task.data={data}", f"checkpoint.save_dir={tmp_path}/save", setting)
    done = run("fairseq-hydra-train", *flags, *settings, check=False)

    assert done.returncode > 0  # not ended by a signal
    assert "Traceback" not in done.stdout
    refusals = [line for line in done.stdout.splitlines() if line.startswith(YAML_MISTAKES[setting])]
    assert len(refusals) == 1, done.stdout
    assert not list(tmp_path.rglob("*.pt"))


def test_a_checkpoint_of_another_model_is_refused_with_its_depth(data, tmp_path):
    path = tmp_path / "start" / "checkpoint_last.pt"
    save_start(path, data, *ARCH, "--share-all-embeddings", "--encoder-layers", "9", "--decoder-layers", "9")
    restore = ("--restore-file", path, "--save-dir", tmp_path / "save", "--max-update", "9")
    done = run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *restore, check=False)

    assert_one_line(done, str(path), "9 encoder layers")
    assert not list((tmp_path / "save").glob("*.pt"))


def test_an_unknown_method_is_named():
    assert_refused("--method nonsense", "methods", "nonsense")


def test_an_unknown_architecture_is_named():
    assert_refused("--arch nonsense", "methods", "--weights", "nonsense")


def test_a_model_without_layers_is_refused_by_the_command_in_one_line():
    assert_one_line(run("deepnet", "methods", "deepnorm", "--layers", "0,0", check=False), "--layers 0,0")
