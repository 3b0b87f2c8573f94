"""What fairseq needs on current Python and torch. Nothing else in the package patches anything.

The user-dir is imported before arguments are parsed and before any checkpoint is opened (train, generate, interactive,
validate) or before training starts (hydra-train), so what is put in place here holds for the whole run.
"""


def apply() -> None:
    """Idempotent: a process that imports the package twice under two names patches once."""
    from . import noise

    noise.silence()  # before fairseq is imported
    from .. import distributed
    from . import (
        arithmetic,
        batches,
        buckets,
        checkpoints,
        command_line,
        copies,
        launch,
        moving_average,
        nan_detector,
        optimisers,
        saving,
        tasks,
        yaml_config,
    )

    noise.calm_root_logger()  # after
    arithmetic.flush_denormals()
    batches.keep_last_batch()
    buckets.bucket_lengths()
    checkpoints.allow_plain_data()
    checkpoints.explain_unreadable_files()
    command_line.explain_mistakes()
    copies.replace_in_one_move()
    distributed.install()
    launch.start_and_watch()
    moving_average.average_all_at_once()
    nan_detector.hook_leaves()
    optimisers.bring_their_own_half_precision()
    saving.keep_views()
    tasks.accept_yaml()
    yaml_config.explain_mistakes()
