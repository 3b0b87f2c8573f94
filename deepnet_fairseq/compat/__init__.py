"""What fairseq needs on current Python and torch. Nothing else in the package patches anything.

The user-dir is imported before arguments are parsed and before any checkpoint is opened (train, generate, interactive,
validate) or before training starts (hydra-train), so what is put in place here holds for the whole run.
"""


def apply() -> None:
    """Idempotent: a process that imports the package twice under two names patches once."""
    from . import noise

    noise.silence()  # before fairseq is imported
    from .. import checkpoints, distributed, divergence
    from . import arithmetic, command_line, launch, literals, moving_average, optimisers, pairing, tasks, yaml_config
    from .checkpoints import copies, reading, shared_memory
    from .data import batches, binarised, buckets, language_models, prefixes

    noise.calm_root_logger()  # after
    arithmetic.flush_denormals()
    batches.count_last_update()
    batches.keep_last_batch()
    batches.resume_on_any_number()
    binarised.explain_broken_data()
    buckets.bucket_lengths()
    reading.allow_plain_data()
    command_line.explain_mistakes()
    copies.replace_in_one_move()
    distributed.install()
    divergence.install()
    checkpoints.install()
    language_models.explain_mistakes()
    launch.start_and_watch()
    literals.read_without_running()
    moving_average.average_all_at_once()
    optimisers.bring_their_own_half_precision()
    shared_memory.keep_views()
    tasks.accept_yaml()
    pairing.refuse_misfits()
    prefixes.explain_mistakes()
    yaml_config.explain_mistakes()
    reading.explain_unreadable_files()  # around what the rooms do to a checkpoint
