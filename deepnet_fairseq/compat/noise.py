"""Lines a user sees at every start and can do nothing about, silenced by their exact text."""

import logging
import os
import warnings

MESSAGES = (
    # hydra 1.3 under fairseq's calls for hydra 1.0
    r"\n?The version_base parameter is not specified",
    r"hydra\.experimental\.\w+\(\) is no longer experimental",
    r"\n?\s*The strict flag in the compose API is deprecated",
    r"In 'config': Usage of deprecated keyword in package header",
    r".*provides no value for the 'defaults' list",
    r"(?s).*Automatic schema-matching is deprecated",
    # torch under fairseq's calls for older releases
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated",
    r"`torch\.jit\.script(_method)?` is deprecated",
)


def silence() -> None:
    """Warning filters, and the root logger at INFO: a fairseq module sets it to DEBUG when it is imported."""
    for message in MESSAGES:
        warnings.filterwarnings("ignore", message=message)
    if "LOGLEVEL" not in os.environ and logging.getLogger().level == logging.DEBUG:
        logging.getLogger().setLevel(logging.INFO)
