"""Tests of users' mistakes: exit status not 0, one line that names the flag or the file, nothing written."""

from typing import NamedTuple

import pytest
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.file_io import PathManager

from deepnet_fairseq.errors import user_error_line
from deepnet_fairseq.files import split_paths
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags

from ..conftest import TRAIN_FLAGS
from ..support import sentiment
from ..support.errors import assert_one_line, assert_refused, refusal, refused
from ..support.helpers import ROOT, USER_DIR, run
from ..support.prepared_again import save_start

ARCH = ("--arch", "deepnet_transformer_tiny")
ALONE = [  # mistaken flags of a training, which the refusal names as they are
    "--method deepnrom",
    "--encoder-layers 0",
    "--encoder-attention-heads 7",
    "--encoder-embed-dim 2",
    "--encoder-normalize-before",
    "--init-profile fairseq_head",
    "--dropout 1.5",
    "--restore-file nowhere.pt",
    "--finetune-from-model nowhere.pt",
    "--warmup-updates 0",
    "--stop-stuck -1",
]
IN_PART = {  # flags of a training -> the part of them, or the other flag, that the refusal names
    "--method admin --admin-profile nowhere.json": "--admin-profile nowhere.json",
    "--encoder-layerdrop 0.1": "--encoder-layerdrop",
    "--encoder-leyers 3": "--encoder-leyers",
    "--criterion label_smoothed_cross_entropy_with_alignment": "--criterion",
    "--task multilingual_translation": "--task",
    "--num-batch-buckets 4": "--num-batch-buckets",
    "--decoder-embed-dim 32": "--share-all-embeddings",  # of TRAIN_FLAGS; the encoder is 64 wide
    "--arch deepnet_transformer_18_19": "--arch deepnet_transformer_18_19",
}
NO_TEXT = f"{ROOT}/tests/golden/checkpoints/fp32/checkpoint_last.pt"
OF_GENERATION = {  # what the refusal names -> flags
    "--replace-unk": ["--replace-unk"],
    f"{NO_TEXT}, line 2": ["--bpe", "subword_nmt", "--bpe-codes", NO_TEXT],  # the first line that is not UTF-8
}
LM = ("--task", "language_modeling", "--arch", "deepnet_lm_tiny_6")
MASKED = ("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "deepnet_masked_lm_tiny_6")
CLASSES = ("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--arch", "deepnet_masked_lm_tiny_6")


class Mistake(NamedTuple):
    """A folder of `language_data`, flags of a training on it (the last --arch counts), and what the refusal names."""

    folder: str
    flags: tuple[str, ...]
    named: list[str]


OF_LANGUAGE_MODELS = {
    "translation model": Mistake("text", (*LM, *ARCH), ["--task language_modeling", "--task translation"]),
    "no task": Mistake(  # fairseq's default is translation
        "text", ("--arch", "normformer_lm_125m"), ["--task translation", "--task language_modeling"]
    ),
    "causal model for masked_lm": Mistake(
        "text", (*MASKED, "--arch", "deepnet_lm"), ["--task masked_lm", "--task language_modeling"]
    ),
    "layers of an encoder": Mistake("text", (*LM, "--encoder-layers", "3"), ["--encoder-layers"]),
    "place of the norms": Mistake(  # which the method decides
        "text", (*LM, "--decoder-normalize-before"), ["--decoder-normalize-before", "deepnorm"]
    ),
    "causal model for classes": Mistake(
        "classes", (*CLASSES, "--num-classes", "2", "--arch", "deepnet_lm"), ["--task language_modeling"]
    ),
}


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


@pytest.mark.parametrize("flag", ALONE)
def test_a_mistaken_flag_of_training_is_named(flag, data, capsys):
    line = refusal_of(capsys, options.get_training_parser(), data, *TRAIN_FLAGS, *ARCH, *flag.split())

    assert flag in line


@pytest.mark.parametrize("folders", ["s3://bucket/one", "s3://bucket/one|s3://bucket/two"])
def test_data_at_a_url_that_is_not_there_are_named_whole(folders, capsys):
    line = refusal_of(capsys, options.get_training_parser(), folders, *TRAIN_FLAGS, *ARCH)

    assert "s3://bucket/one:" in line


def test_data_and_models_at_urls_are_taken_by_those_who_have_a_handler_for_them(monkeypatch):
    asked = []
    monkeypatch.setattr(PathManager, "exists", lambda path: asked.append(path) or path.startswith("s3://bucket/"))
    models = "s3://bucket/a.pt|s3://bucket/b.pt"

    args = options.parse_args_and_arch(
        options.get_generation_parser(), ["s3://bucket/one|s3://bucket/two", "--path", models]
    )

    assert args.path == models
    assert asked == ["s3://bucket/one", "s3://bucket/a.pt", "s3://bucket/b.pt"]


@pytest.mark.parametrize("paths", ["", "one", "one:two", "/a b/ü:two", "s3://bucket/x", "s3://bucket/x|manifold://y/z"])
def test_a_list_of_paths_is_split_as_fairseq_splits_it(paths):
    assert split_paths(paths) == utils.split_paths(paths)


@pytest.mark.parametrize("flags", IN_PART)
def test_the_flag_among_others_that_makes_the_mistake_is_named(flags, data, capsys):
    line = refusal_of(capsys, options.get_training_parser(), data, *TRAIN_FLAGS, *ARCH, *flags.split())

    assert IN_PART[flags] in line


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("--warm-up-updates", "--warmup-updates"),  # of the schedule
        ("--encoder-leyers", "--encoder-layers"),  # of the model
        ("--batchsize", "--batch-size"),
        ("--max_token", "--max-tokens"),
    ],
)
def test_a_misspelt_flag_of_training_is_named_with_the_one_that_it_resembles(misspelt, meant, data, capsys):
    line = refusal_of(capsys, options.get_training_parser(), data, *TRAIN_FLAGS, *ARCH, misspelt, "3")

    assert f"{misspelt} 3" in line
    assert f"{meant}?" in line


@pytest.mark.parametrize("named", OF_GENERATION, ids=["--replace-unk", "codes that are no text"])
def test_a_mistaken_flag_or_file_of_generation_is_named(named, data, capsys):
    line = refusal_of(capsys, options.get_generation_parser(), data, *OF_GENERATION[named])

    assert named in line


@pytest.mark.parametrize("mistake", OF_LANGUAGE_MODELS)
def test_a_mistaken_flag_of_a_language_model_s_training_is_named(mistake, language_data, capsys):
    folder, flags, named = OF_LANGUAGE_MODELS[mistake]

    line = refusal_of(capsys, options.get_training_parser(), language_data / folder, *flags)

    for flag in named:
        assert flag in line


def test_a_validation_without_its_task_is_asked_for_it(language_data, capsys):
    line = refusal_of(capsys, options.get_validation_parser(), language_data / "classes")

    assert "--task" in line


def task_settings(data, flags):
    """Return the settings of the task of a training of a language model."""
    args = options.parse_args_and_arch(options.get_training_parser(), [str(data), *flags])
    return convert_namespace_to_omegaconf(args).task


@pytest.mark.parametrize("flags", [LM, MASKED], ids=["causal", "masked"])
def test_a_missing_split_is_named(flags, language_data):
    task = tasks.setup_task(task_settings(language_data / "text", flags))

    with pytest.raises(FileNotFoundError) as caught:
        task.load_dataset("test")  # there are train and valid

    assert str(language_data / "text" / "test") in str(caught.value)
    assert user_error_line(caught.value) == str(caught.value)  # the line that a program prints


@pytest.mark.parametrize("flags", [LM, MASKED], ids=["causal", "masked"])
def test_a_missing_dictionary_is_named(flags, language_data):
    settings = task_settings(language_data / "text", flags)
    settings.data = str(language_data / "classes")  # whose dictionaries are in its subfolders

    with pytest.raises(FileNotFoundError, match=r"classes/dict\.txt"):
        tasks.setup_task(settings)


def test_a_training_without_an_architecture_is_refused_before_it_makes_a_folder(data, tmp_path):
    save = tmp_path / "save"

    done = run("fairseq-train", *TRAIN_FLAGS, "--save-dir", save, data, check=False)

    assert_one_line(done, "--arch")
    assert not save.exists()


def test_a_training_without_an_optimizer_asks_for_one(data):
    """fairseq has no default optimiser, and would end in a traceback."""
    words = [word for word in TRAIN_FLAGS if word not in ("--optimizer", "adam")]
    trainer = build_trainer(parse_training_flags([str(data), *words, *ARCH]))

    with refused("--optimizer"):
        trainer.zero_grad()  # needs the optimiser


def test_a_training_without_data_is_refused_before_it_makes_a_folder(tmp_path):
    save = tmp_path / "save"

    done = run("fairseq-train", *TRAIN_FLAGS, "--save-dir", save, tmp_path, *ARCH, check=False)

    assert_one_line(done, f"{tmp_path}: ", "dict.LANG.txt")
    assert not save.exists()


YAML_MISTAKES = {  # setting -> what the refusal's line begins with; hydra prints the line after all the settings
    "model.method=deepnrom": "--method deepnrom: ",
    "optimizer.adam_betas=\"__import__('os').abort()\"": "the config: adam_betas ",  # nothing of it is run
}


@pytest.mark.parametrize("setting", YAML_MISTAKES)
def test_a_mistake_in_yaml_is_refused(setting, data, tmp_path):
    flags = ("--config-dir", f"{USER_DIR}/../configs", "--config-name", "quickstart", f"hydra.run.dir={tmp_path}/hydra")
    settings = (f"common.user_dir={USER_DIR}", f"task.data={data}", f"checkpoint.save_dir={tmp_path}/save", setting)

    done = run("fairseq-hydra-train", *flags, *settings, check=False)

    assert done.returncode > 0  # below 0 it would be a signal's, as that of os.abort
    assert "Traceback" not in done.stdout
    # hydra prints the error itself; under a debugger or coverage it leaves that to the program, with its name in front
    lines = [line.removeprefix("fairseq-hydra-train: error: ") for line in done.stdout.splitlines()]
    refusals = [line for line in lines if line.startswith(YAML_MISTAKES[setting])]
    assert len(refusals) == 1, done.stdout
    assert not list(tmp_path.rglob("*.pt"))


def test_a_checkpoint_of_another_model_is_refused_with_its_depth(data, tmp_path):
    path = tmp_path / "start" / "checkpoint_last.pt"
    save_start(path, data, *ARCH, "--share-all-embeddings", "--encoder-layers", "9", "--decoder-layers", "9")
    restore = ("--restore-file", path, "--save-dir", tmp_path / "save", "--max-update", "9")

    done = run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *restore, check=False)

    assert_one_line(done, str(path), "9 encoder layers")
    assert not list((tmp_path / "save").glob("*.pt"))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("translate", "model", "text", "--bean", "2"), "--beam"),
        (("prepare", "text", "de", "en", "train", "valid", "test", "bin", "--vocab-smaple=3"), "--vocab-sample"),
        (("path", "--jsn"), "--json"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_a_misspelt_flag_of_a_command_is_named_with_the_one_that_it_resembles(words, meant):
    line = refusal(*words)

    (misspelt,) = [word for word in words if word.startswith("--")]
    assert misspelt in line
    assert f"{meant}?" in line


def test_an_unknown_method_is_named():
    assert_refused("--method nonsense", "methods", "nonsense")


def test_an_unknown_architecture_is_named():
    assert_refused("--arch nonsense", "methods", "--weights", "nonsense")


def test_a_model_without_layers_is_refused_by_the_command_in_one_line():
    done = run("deepnet", "methods", "deepnorm", "--layers", "0,0", check=False)

    assert_one_line(done, "--layers 0,0")
