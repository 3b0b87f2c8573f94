"""A user's mistake with a language model ends in one line that names the flag or the file."""

import shutil

import pytest
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from deepnet_fairseq.errors import UserError

from .support.sentiment import some_data, write  # noqa: F401  a fixture

LM = ("--task", "language_modeling", "--arch", "deepnet_lm_tiny_6")
MASKED = ("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "deepnet_masked_lm_tiny_6")
CLASSES = ("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--arch", "deepnet_masked_lm_tiny_6")
OF_TEXT = {
    "translation model": ((*LM, "--arch", "deepnet_transformer"), "--task language_modeling", "--task translation"),
    "no task": (("--arch", "normformer_lm_125m"), "--task translation", "--task language_modeling"),
    "causal model": ((*MASKED, "--arch", "deepnet_lm"), "--task masked_lm", "--task language_modeling"),
    "another loss": ((*LM, "--criterion", "masked_lm"), "--criterion masked_lm", "--criterion cross_entropy"),
    "adaptive softmax": ((*LM, "--adaptive-softmax-cutoff", "9"), "--adaptive-softmax-cutoff: fairseq's"),
    "character model": ((*LM, "--character-embeddings"), "fairseq's `transformer_lm` has it, deepnet_lm does not"),
    "no encoder": ((*LM, "--encoder-layers", "3"), "--encoder-layers: deepnet_transformer has it"),
    "norm place": ((*LM, "--decoder-normalize-before"), "--decoder-normalize-before: --method deepnorm"),
    "shares": ((*MASKED, "--random-token-prob", "0.5", "--leave-unmasked-prob", "0.6"), "--leave-unmasked-prob and"),
    "no length": ((*LM, "--tokens-per-sample", "0"), "--tokens-per-sample 0"),
    "classes of text": ((*CLASSES, "--num-classes", "2"), "holds no input0/dict.txt", "docs/language_models.md"),
}
OF_CLASSES = {
    "number of classes": (CLASSES, "--num-classes"),
    "loss": ((*CLASSES[:2], *CLASSES[4:], "--num-classes", "2"), "--criterion cross_entropy", "sentence_prediction"),
    "model": ((*CLASSES, "--num-classes", "2", "--arch", "deepnet_lm"), "deepnet_lm", "--task language_modeling"),
    "text of classes": (MASKED, "holds no dict.txt", "deepnet prepare-lm"),
}


def line_of(capsys, folder, *flags, parser=options.get_training_parser) -> str:
    """What fairseq-train says as it ends; nothing but the command line has been looked at."""
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(parser(), [str(folder), *flags])
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0 and len(said) < 400
    return said


@pytest.mark.parametrize("mistake", OF_TEXT | OF_CLASSES)
def test_flags(mistake, data, capsys):
    flags, *named = (OF_TEXT | OF_CLASSES)[mistake]
    said = line_of(capsys, data / ("text" if mistake in OF_TEXT else "classes"), *flags)
    assert all(word in said for word in named), said


def test_flags_of_a_validation(data, capsys):
    said = line_of(capsys, data / "classes", parser=options.get_validation_parser)
    assert "--task" in said and "checkpoint" in said
    words = ("--task", "sentence_prediction", "--num-classes", "2")
    said = line_of(capsys, data / "classes", *words, parser=options.get_validation_parser)
    assert "--criterion sentence_prediction" in said


def test_what_fits_is_not_refused(data):
    fitting = [(*LM, "--criterion", loss) for loss in ("cross_entropy", "label_smoothed_cross_entropy")]
    fitting += [MASKED, (*MASKED, "--criterion", "cross_entropy")]
    for flags in fitting:
        options.parse_args_and_arch(options.get_training_parser(), [str(data / "text"), *flags])
    words = [str(data / "classes"), *CLASSES, "--num-classes", "1", "--regression-target"]
    options.parse_args_and_arch(options.get_training_parser(), words)


def task_of(folder, *flags):
    args = options.parse_args_and_arch(options.get_training_parser(), [str(folder), *flags])
    cfg = convert_namespace_to_omegaconf(args)
    return tasks.setup_task(cfg.task), cfg


def refused(do, *named):
    with pytest.raises(UserError) as error:
        do()
    assert "\n" not in str(error.value)
    assert all(str(word) in str(error.value) for word in named), str(error.value)


@pytest.mark.parametrize("flags", [LM, MASKED, (*CLASSES, "--num-classes", "2")], ids=["LM", "masked LM", "classes"])
def test_a_part_that_is_not_there_and_a_sentence_that_is_too_long(flags, data):
    """The way out is one: with it the same data go through."""
    classes = "sentence_prediction" in flags
    folder, name = (data / "classes", "--max-positions") if classes else (data / "text", "--tokens-per-sample")
    flags = flags if classes else (*flags, "--sample-break-mode", "eos")

    def batches(length):
        task, cfg = task_of(folder, *flags, name, str(length))
        model = task.build_model(cfg.model)
        task.load_dataset("valid")
        return task.get_batch_iterator(task.dataset("valid"), max_tokens=64, max_positions=model.max_positions())

    task, _cfg = task_of(folder, *flags)
    refused(lambda: task.load_dataset("test"), folder, "test")
    refused(lambda: batches(8), "is invalid", "max_positions=8", name)
    assert len(batches(16)) > 0


LABELS = {
    "a third class": ([["0"], ["1"], ["2"]], "--num-classes 2"),
    "two for one": ([["0", "1"], ["1"], ["0"]], "4 labels for 3 sentences"),
    "no label's name": ([["0"], ["1"], ["good"]], "<unk>"),
}


@pytest.mark.parametrize("mistake", LABELS)
def test_labels(mistake, data, tmp_path):
    lines, *named = LABELS[mistake]
    shutil.copytree(data / "classes" / "input0", tmp_path / "input0")
    names = Dictionary()
    for name in "012":
        names.add_symbol(name)
    symbols = Dictionary.load(str(tmp_path / "input0" / "dict.txt"))
    write(tmp_path / "input0" / "odd", [["good1"], ["bad1"], ["bad2"]], symbols)
    write(tmp_path / "label" / "odd", lines, names)
    task, _cfg = task_of(tmp_path, *CLASSES, "--num-classes", "2")
    refused(lambda: task.load_dataset("odd"), tmp_path / "label" / "odd", *named)


WITHOUT_FLAGS = {  # model, length of a text
    ("deepnet_masked_lm_6", 32): ("--task language_modeling", "masked_lm or sentence_prediction"),
    ("deepnet_lm_6", 0): ("--tokens-per-sample 0",),
}


@pytest.mark.parametrize(("model", "length"), WITHOUT_FLAGS)
def test_a_mistake_where_no_flags_were_parsed(model, length, data):
    """As fairseq-hydra-train makes the task."""
    task = {"_name": "language_modeling", "data": str(data / "text"), "tokens_per_sample": length}
    cfg = OmegaConf.create({"task": task, "model": {"_name": model}})
    refused(lambda: tasks.setup_task(cfg.task), *WITHOUT_FLAGS[model, length])
