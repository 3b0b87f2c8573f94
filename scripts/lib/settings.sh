# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Set what the trainings of an experiment have in common. A later flag overrides an earlier one of the same name.

average=1                         # number of checkpoints to average
vocabulary=32000 corpus_tokens=0  # pieces, and approximate target tokens of an epoch: used by the plan only
half=""                           # memory-efficient-: weights without a copy in fp32

of_method() {  # of_method METHOD: sets mixed, the flag of half precision
    mixed=()
    [ "$precision" = fp32 ] || mixed=("--$half$precision")
}

save_every() {  # save_every UPDATES: sets save_flags, for a resume
    [ -z "$smoke" ] || set -- 50
    save_flags=(--save-interval-updates "$1" --keep-interval-updates 1 --no-epoch-checkpoints)
}
