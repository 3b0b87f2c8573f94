"""A user's mistake with a language model ends in one line that names the flag or the file."""

import pytest
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from deepnet_fairseq.errors import user_error_line

from .support.sentiment import some_data  # noqa: F401  a fixture

LM = ("--task", "language_modeling", "--arch", "deepnet_lm_tiny_6")
MASKED = ("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "deepnet_masked_lm_tiny_6")
CLASSES = ("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--arch", "deepnet_masked_lm_tiny_6")
OF_TEXT = {
    "translation model": ((*LM, "--arch", "deepnet_transformer"), "--task language_modeling", "--task translation"),
    "no task": (("--arch", "normformer_lm_125m"), "--task translation", "--task language_modeling"),
    "causal model": ((*MASKED, "--arch", "deepnet_lm"), "--task masked_lm", "--task language_modeling"),
    "no encoder": ((*LM, "--encoder-layers", "3"), "unknown: --encoder-layers"),
    "norm place": ((*LM, "--decoder-normalize-before"), "--decoder-normalize-before: --method deepnorm"),
    "classes of text": ((*CLASSES, "--num-classes", "2"), "holds no input0/dict.txt", "docs/language_models.md"),
}
OF_CLASSES = {
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


def test_a_part_that_is_not_there(data):
    """Its name in one line."""
    for flags in (LM, MASKED):
        task, _cfg = task_of(data / "text", *flags)
        with pytest.raises(FileNotFoundError, match="test") as error:
            task.load_dataset("test")
        assert user_error_line(error.value) == str(error.value)
