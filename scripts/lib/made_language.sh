# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Small experiments on the quickstart's corpus, in its setting: width 64, fp32, the CPU, no checkpoints. They are not
# miniatures of a paper's experiments, and every training runs to its last update.

begin_small() {  # begin_small EXPERIMENT "$@": calls begin, whatever SMOKE is, with no plan and one training at a time
    STOP_STUCK="${STOP_STUCK:-0}" JOBS="${JOBS:-1}" PLAN=0 SMOKE=1
    begin "$1" 1 "${@:2}"
    smoke="" corpus="the quickstart's" paper_corpus="the quickstart's"
    pair="$out/data/pair" text="$out/data/text" lm="$out/data/lm"
    make_once "$text" deepnet prepare language "$text" --nouns 60 --verbs 30
}

small_translation() {  # small_translation UPDATES: sets the task, 20,000 pairs, with the quickstart's flags
    make_once "$pair" deepnet prepare text qaa qab "$text/"{train,valid,test} "$pair" --vocab 1000
    data="$pair" arch=deepnet_transformer_tiny task=()
    criterion=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1)
    small_setting "$1" 200 --share-all-embeddings --max-tokens-valid 4000
}

small_language_model() {  # small_language_model UPDATES: sets the task to a language model of the target side
    make_once "$lm" deepnet prepare lm "$text/"{train,valid,test}.qab "$lm" --vocab 1000
    data="$lm" arch=deepnet_lm_tiny task=(--task language_modeling --tokens-per-sample 64)
    criterion=(--criterion cross_entropy)
    small_setting "$1" 100 --share-decoder-input-output-embed --max-tokens-valid 4096
}

small_setting() {  # small_setting UPDATES WARMUP FLAGS...: sets the shared hyper-parameters
    schedule=(--lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates "$2" --warmup-init-lr 1e-7)
    setting=(--dropout 0.0 --max-tokens 1000 --max-update "$1" --no-save --num-workers 0
        --validate-interval 999 --validate-interval-updates 100 --log-interval 25 "${@:3}")
}
