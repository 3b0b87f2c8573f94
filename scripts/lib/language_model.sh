# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Language models: NormFormer's hyper-parameters, the text, and a row from its word to its perplexity. A row's word is a
# method of `deepnet methods`, followed by options after plus signs, as normformer+scale_residual+head_scale=none, and
# by a learning rate after @ that replaces the grid's.

evaluated=(valid test)
probe_interval=200
probed=125m-lr1e-3  # rows that the figures show; some methods do not train at higher rates

language_model() {  # language_model TASK CRITERION LENGTH BREAK: sets the task, on samples of LENGTH tokens
    [ -z "$smoke" ] || set -- "$1" "$2" 64 "$4"
    task=(--task "$1" --tokens-per-sample "$3" --sample-break-mode "$4")
    criterion=(--criterion "$2")
    length="$3"
    [ "${MAX_TOKENS:-$length}" -ge "$length" ] || fail "MAX_TOKENS=$MAX_TOKENS: a sample has $length"
}

settle_lm() {  # settle_lm WARMUP UPDATES FLAGS...: sets setting, with a learning rate that falls to 0 at the end
    schedule=(--lr-scheduler polynomial_decay --warmup-updates "$1" --total-num-update "$2")
    setting=("${batch_flags[@]}" --weight-decay 0.01 --clip-norm 0.0 --max-update "$2" "${@:3}")
}

clm_setting() {  # clm_setting SIZE: Shleifer et al. 2021, Table 1, by the commands in fairseq's examples/normformer
    local updates=572204 dropout=0.1
    language_model language_modeling cross_entropy 2048 none
    arch="normformer_lm_$1" label="${1^^}" stack=decoder half=memory-efficient-
    grid="1e-4 3e-4 6e-4 1e-3 3e-3" row_words="pre_ln normformer"
    case "$1" in
        125m) depth=12 row_words+=" normformer+scale_residual post_ln@1e-3" ;;  # Post-LN is in Figure 3 only
        355m) depth=24 row_words+=" normformer+scale_residual" dropout=0.0 ;;
        1.3b) depth=24 updates=286102 grid="1e-4 2e-4 3e-4 6e-4 1e-3 3e-3" ;; # 2e-4 is GPT-3's
        2.7b) depth=32 updates=286102 grid="1e-4 1.6e-4 3e-4 6e-4 1e-3 3e-3" ;; # 1.6e-4 is GPT-3's
        *) fail "SIZES: $1 is none of 125m, 355m, 1.3b, 2.7b" ;;
    esac
    [ -z "$smoke" ] || grid="1e-3 3e-3" row_words="pre_ln normformer post_ln@1e-3"
    if [ "$updates" -eq 572204 ]; then batch 32768 16; else batch 8192 128; fi
    settle_lm 750 "$updates" --dropout "$dropout" --attention-dropout "$dropout" --fp16-init-scale 4 \
        --checkpoint-activations
}

ablation_setting() {  # compares the parts of NormFormer, at the best learning rate of the whole
    clm_setting "$1"
    grid=3e-3 row_words="normformer+scale_residual normformer+scale_residual+no_attention_norm"
    row_words+=" normformer+scale_residual+no_ffn_norm normformer normformer+scale_residual+head_scale=none pre_ln"
}

mlm_setting() {  # the paper states none: RoBERTa base's in fairseq's examples/roberta
    [ "$1" = base ] || fail "SIZES: $1: masked language models have base alone"
    language_model masked_lm masked_lm 512 complete
    arch="normformer_masked_lm_$1" label="$1" stack=encoder half=""
    depth=12 grid="5e-4 1e-3" row_words="pre_ln normformer"
    batch 8192 128
    settle_lm 10000 125000 --dropout 0.1 --attention-dropout 0.1 --adam-eps 1e-6
    task+=(--skip-invalid-size-inputs-valid-test)  # longer paragraphs, which training leaves out
}

miniature_lm() {  # miniature_lm UPDATES: shrinks the setting for two CPU cores if SMOKE=1
    [ -n "$smoke" ] || return 0
    depth=4 probe_interval=10
    schedule+=(--warmup-updates 20 --total-num-update "$1")
    setting+=("--$stack-layers" "$depth" "--$stack-embed-dim" 64 "--$stack-ffn-embed-dim" 128
        "--$stack-attention-heads" 2 --dropout 0.0 --attention-dropout 0.0 --max-tokens 1000 --update-freq 1
        --max-update "$1" --num-workers 0)
}

lm_figures() {  # lm_figures: draws NormFormer's Figures 3 and 4 from the probed runs
    ! compgen -G "$out/normformer_clm/*-$probed-*/probes.jsonl" >/dev/null || finish figure normformer3
    ! compgen -G "$out/normformer_clm/normformer-$probed-*/probes.jsonl" >/dev/null || finish figure normformer4
}

text() {  # text: sets data: the user's, or what prepare_text will make of TEXT or, if SMOKE=1, generate
    mapfile -t texts < <(xargs -rn 1 printf '%s\n' <<<"${TEXT:-}")
    corpus="of TEXT" paper_corpus="CC100-En, BookCorpus, Wikipedia and Common Crawl"
    data="${DATA:-$out/data/text}"
    data_folder="$data"
    if [ -n "${DATA:-}" ]; then
        corpus="of DATA"
        [ -f "$DATA/dict.txt" ] && [ -f "$DATA/train.idx" ] || fail "DATA=$DATA: holds no data of deepnet prepare lm"
    elif [ "${#texts[@]}" -eq 0 ]; then
        [ -n "$smoke" ] ||
            fail "the paper's text is not public: DATA=DIR of deepnet prepare lm, TEXT=\"TRAIN VALID TEST\", or SMOKE=1"
        corpus=generated
    elif [ "${#texts[@]}" -ne 3 ]; then
        fail "TEXT=${texts[*]}: name three files, TRAIN VALID TEST"
    fi
}

prepare_text() {  # prepare_text: prepares the text that `text` has chosen
    local plain="$out/data/plain"
    if [ -n "${DATA:-}" ]; then
        return
    elif [ "${#texts[@]}" -gt 0 ]; then
        make_once "$data" deepnet prepare lm "${texts[@]}" "$data" --bpe gpt2
    else
        make_once "$plain" deepnet prepare language "$plain" --nouns 60 --verbs 30
        make_once "$data" deepnet prepare lm "$plain/"{train,valid,test}.qab "$data" --vocab 500
    fi
}

make_once() {  # make_once DEST COMMAND...: runs the command unless DEST exists
    if [ -n "$dry_run" ]; then
        printf '%q ' "${@:2}"
        echo
    elif [ ! -d "$1" ]; then
        step "$2 $3"
        "${@:2}"
    fi
}

lm_rows() {  # lm_rows PART: runs each of its rows, sizes, learning rates and seeds, in parallel
    local size word rates lr
    for seed in $seeds; do
        for size in $sizes; do
            "$1_setting" "$size"
            miniature_lm 100
            for word in ${METHODS:-$row_words}; do
                rates="${LRS:-$grid}"
                if [[ "$word" == *@* ]]; then rates="${word#*@}" word="${word%@*}"; fi
                for lr in $rates; do
                    if [ "$launch" = slurm ] && [ -z "${SLURM_JOB_ID:-}$planning" ]; then
                        submit "${word//[+=]/-}-$size-lr$lr" PARTS="$1" METHODS="$word" SIZES="$size" LRS="$lr"
                    else
                        queue lm_row "$word" "$size" "$lr"
                    fi
                done
            done
        done
    done
}

lm_row() {  # lm_row WORD SIZE LR: trains one model and evaluates its perplexity on valid and test
    local run="${1//[+=]/-}-$2-lr$3-seed$seed" option flags=() method_words variant=""
    method="${1%%+*}"
    if [[ "$1" == *+* ]]; then variant="${1#*+}"; fi
    for option in ${variant//+/ }; do
        flags+=("--${method//_/-}-$(tr _ - <<<"${option%%=*}")")
        [[ "$option" != *=* ]] || flags+=("${option#*=}")
    done
    [ "$variant $2-lr$3" != " $probed" ] ||
        flags+=(--deepnet-probe "gradient_l1,learned_scale" --probe-interval "$probe_interval")
    read -r -a method_words < <(grep -E "^--method $method( |$)" <<<"$method_flags")
    facts="\"method\": \"$method\", \"${stack}_layers\": $depth, \"variant\": \"$variant\", \"size\": \"$label\", \"lr\": \"$3\""
    run_train "$run" "$facts" "${method_words[@]}" "${flags[@]}" "${setting[@]}" "${save_flags[@]}" --log-interval 25 --lr "$3"
    run_perplexity "$run"
    [ -n "$dry_run" ] || tidy "$out/$experiment/$run"
}

logged() { "$@" 2>&1; }  # fairseq logs to stdout or stderr, depending on what is installed

run_perplexity() {  # run_perplexity NAME: writes RUN/evaluated/SUBSET.txt and score.json
    local run="$out/$experiment/$1" subset words
    if [ -z "$dry_run" ]; then
        [ ! -f "$run/score.json" ] && [ -f "$run/checkpoint_last.pt" ] && [ ! -f "$run/diverged" ] && [ ! -f "$run/stuck" ] || return 0
        mkdir -p "$run/evaluated"
    fi
    for subset in "${evaluated[@]}"; do
        words=(fairseq-validate "$data" --valid-subset "$subset" --log-format json)
        [ "$stack" = encoder ] ||
            words=(fairseq-eval-lm "$data" --gen-subset "$subset" --context-window 0)
        words+=(--user-dir deepnet_fairseq --path "$run/checkpoint_last.pt" "${task[@]}" --max-tokens $((4 * length))
            --num-workers 0 "${decoding[@]}")
        if [ -n "$dry_run" ]; then
            printf '%q ' "${words[@]}"
            echo
        else
            do_once "evaluating $run on $subset" "$run/evaluated/$subset.txt" "$run/evaluated/$subset.txt.part" \
                logged "${words[@]}"
        fi
    done
    do_once "scoring $run" "$run/score.json" "$run/score.log" deepnet score "$run/evaluated" --json --paper perplexity
}
