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


@pytest.mark.parametrize("mistake", OF_TEXT | OF_CLASSES)
def test_flags(mistake, data, capsys):
    """fairseq-train says one line as it ends, and nothing but the command line has been looked at."""
    (flags, *named), folder = (OF_TEXT | OF_CLASSES)[mistake], "text" if mistake in OF_TEXT else "classes"
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(options.get_training_parser(), [str(data / folder), *flags])
    said = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and "\n" not in said and len(said) < 400
    assert all(word in said for word in named), said


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
