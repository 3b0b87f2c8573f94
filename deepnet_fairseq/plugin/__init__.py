"""What fairseq needs on current Python and torch. Nothing else in the package patches anything.

The user-dir is imported before arguments are parsed and before any checkpoint is opened (train, generate, interactive,
validate) or before training starts (hydra-train), so what is put in place here holds for the whole run. Here, too, are
the lines a user sees at every start and can do nothing about, silenced by their exact text.
"""

import functools
import logging
import os
import warnings

FORMAT = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
MESSAGES = (
    # hydra 1.3 under fairseq's calls for hydra 1.0
    r"\n?The version_base parameter is not specified",
    r"hydra\.experimental\.\w+\(\) is no longer experimental",
    r"\n?\s*The strict flag in the compose API is deprecated",
    r"In 'config': Usage of deprecated keyword in package header",
    r".*provides no value for the 'defaults' list",
    r"\s*'config' is validated against ConfigStore schema with the same name",
    # torch under fairseq's calls for older releases
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated",
    r"`torch\.jit\.script(_method)?` is deprecated",
    r"Support for mismatched key_padding_mask and attn_mask is deprecated",  # of fairseq's own transformer_lm
)
LOGGED = {  # logger -> how its messages begin
    "matplotlib": ("Matplotlib created a temporary cache directory", "mkdir -p failed for path"),  # HOME not writable
    "matplotlib.font_manager": ("generated new fontManager", "Matplotlib is building the font cache"),
}


def apply() -> None:
    """Idempotent: a process that imports the package twice under two names patches once."""
    silence()  # before fairseq is imported
    from .distributed import launch

    launch.end_with_launcher()
    from . import arithmetic, checkpoints, command_line, datasets, yaml_config
    from .checkpoints import reading
    from .distributed import sharded_trainer
    from .divergence import watched_trainer

    calm_root_logger()  # after
    arithmetic.flush_denormals()
    arithmetic.average_all_at_once()
    arithmetic.bring_their_own_half_precision()
    datasets.lose_no_sentence()
    datasets.explain_broken_data()
    reading.allow_plain_data()
    command_line.explain_mistakes()
    sharded_trainer.install()
    watched_trainer.install()
    checkpoints.install()
    launch.start_and_watch()
    yaml_config.read_without_running()
    reading.keep_views()
    yaml_config.explain_mistakes()
    command_line.refuse_misfits()
    reading.explain_unreadable_files()  # around what the rooms do to a checkpoint


def silence() -> None:
    """Warning filters, and loggers: one asks for tensorboardX whenever fairseq is imported. Idempotent."""
    for message in MESSAGES:
        warnings.filterwarnings("ignore", message=message)
    # fairseq's unsigned offsets at an empty line, shifted by two tokens: used by nothing but "past" targets
    overflow = "overflow encountered in scalar subtract"
    warnings.filterwarnings("ignore", overflow, RuntimeWarning, r"fairseq\.data\.token_block_dataset")
    for name, beginnings in LOGGED.items():
        logging.getLogger(name).filters[:] = [functools.partial(_is_news, beginnings)]
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def _is_news(beginnings: tuple[str, ...], record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(beginnings)


def calm_root_logger() -> None:
    """Back to INFO and fairseq's own format: importing fairseq sets the root logger to DEBUG."""
    root = logging.getLogger()
    if "LOGLEVEL" not in os.environ and root.level == logging.DEBUG:
        root.setLevel(logging.INFO)
        for handler in root.handlers:
            handler.setFormatter(logging.Formatter(FORMAT, "%Y-%m-%d %H:%M:%S"))
