"""Train, save, resume and load the models of the core with fairseq; patches.py lists the changes to fairseq.

This file silences warnings that a user can do nothing about, by patterns of their text.
"""

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


def silence() -> None:
    """Ignore the warnings in MESSAGES, an overflow in fairseq's text blocks, and a log line that asks for tensorboardX.

    Call this before fairseq is imported, because the import gives some of them. A second call changes nothing.
    """
    for message in MESSAGES:
        warnings.filterwarnings("ignore", message=message)
    # for an empty line of text, which is one token, fairseq computes 1 - 2 in unsigned numbers; the result is the end
    # of past_target, which only --past-target reads
    overflow = "overflow encountered in scalar subtract"
    warnings.filterwarnings("ignore", overflow, RuntimeWarning, r"fairseq\.data\.token_block_dataset")
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def calm_root_logger() -> None:
    """Set the root logger, which importing fairseq sets to DEBUG, to INFO and fairseq's own format.

    A logger with another level, or a level that the environment variable LOGLEVEL has chosen, stays as it is.
    """
    root = logging.getLogger()
    if "LOGLEVEL" not in os.environ and root.level == logging.DEBUG:
        root.setLevel(logging.INFO)
        for handler in root.handlers:
            handler.setFormatter(logging.Formatter(FORMAT, "%Y-%m-%d %H:%M:%S"))
