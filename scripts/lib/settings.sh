# shellcheck shell=bash disable=SC2034,SC2154  # variables set in one file are used in others
# Set the papers' hyper-parameters, one function for each: setting (flags of the training), average (checkpoints) and
# average_epochs (last:N or A-B), beam, metric and tokenizer (as the paper reports) and, through batch, batch_flags. A
# later flag overrides an earlier one of the same name.

apart="" apart_setting=()         # methods for which the paper has other flags, and these flags
full_precision=""                 # methods that the paper trains in fp32
average=1 average_epochs=last:1   # number of checkpoints to average, and their epochs
vocabulary=32000 corpus_tokens=0  # pieces, and approximate target tokens of an epoch: used by the plan only
layer_size=1                      # memory of a layer, in units of a layer of width 512
half=""                           # memory-efficient-: weights without a copy in fp32
arch=deepnet_transformer criterion=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1)
beam=(--beam 5) tokenizer=()

settle() {  # settle WARMUP FLAGS...: sets setting from the width, the batch and FLAGS; all papers share the schedule
    local shared="${SHARE_EMBEDDINGS:-1}"
    schedule=(--lr-scheduler inverse_sqrt --warmup-updates "$1" --warmup-init-lr 1e-7)
    setting=("${width_flags[@]}" "${batch_flags[@]}")
    case "$shared" in
        1) setting+=(--share-all-embeddings) ;;
        0) ;;
        *) fail "SHARE_EMBEDDINGS=$shared: choose 1 or 0" ;;
    esac
    setting+=("${@:2}")
}

averages() {  # averages N: averages the last N epochs, as the paper does, unless AVERAGE overrides it
    local said="${AVERAGE:-$1}" first last
    first="${said%-*}" last="${said#*-}"
    [[ "$said" =~ ^[1-9][0-9]*(-[1-9][0-9]*)?$ && "$first" -le "$last" ]] ||
        fail "AVERAGE=$said: how many of the last epochs, as 10, or which, as 36-45"
    average="$said" average_epochs="last:$said"
    [ "$first" = "$said" ] || average=$((last - first + 1)) average_epochs="$said"
}

paper_seeds() {  # paper_seeds "SEEDS": uses the authors' seeds unless SEEDS is set; a miniature takes the first
    [ -z "${SEEDS:-${SEED:-}}" ] || return 0
    seeds="$1" seed="${1%% *}"
    [ -z "$smoke" ] || seeds="$seed"
}

iwslt14_setting() {  # DeepNet, Table 4; Figure 6: BLEU of the last checkpoint after 8,000 updates
    metric=tokenised beam=(--beam 5) vocabulary=10144 corpus_tokens=4400000
    averages 1
    full_precision=rezero  # the paper says so of Figure 6 only
    batch 4000 1
    width 512 2048 8
    settle 4000 --lr 5e-4 --dropout 0.4 --weight-decay 1e-4 --clip-norm 0.0 --max-update 8000
}

wmt17_setting() {  # DeepNet, Table 5. The paper does not state beam and length penalty (here those of admin-torch's
    # replication), the average (here of the last ten epochs; theirs is AVERAGE=36-45), or shared embeddings
    metric=tokenised beam=(--beam 4 --lenpen 0.6) vocabulary=40000 corpus_tokens=131000000
    averages 10
    batch 4096 128
    width 512 2048 8
    settle 4000 --lr 1.5e-3 --dropout 0.4 --weight-decay 1e-4 --clip-norm 0.0 --max-update 100000 \
        --validate-interval 1000  # epochs, which take minutes; validation runs by updates, at every save
    apart_setting=(--lr 5e-4) apart="rezero r_fixup t_fixup"  # methods without LayerNorm: the table's second column
}

wmt17_large_setting() {  # DeepNet, Table 6: for the comparison of widths
    metric=tokenised vocabulary=40000 corpus_tokens=131000000
    batch 4096 128
    width 512 2048 8
    settle 4000 --lr 5e-4 --dropout 0.4 --weight-decay 0.0 --clip-norm 1.0 --adam-eps 1e-6 --max-update 30000
}

opus100_setting() {  # DeepNet, Table 7
    metric=sacrebleu tokenizer=(--tokenize 13a) beam=(--beam 5 --lenpen 1.0) vocabulary=250000 corpus_tokens=4700000000
    averages 1
    batch 4096 128
    width 512 2048 8
    settle 4000 --lr 5e-4 --dropout 0.1 --weight-decay 0.0 --clip-norm 0.0 --max-epoch 4 \
        --disable-validation
}

m2m_setting() {  # DeepNet, Table 8, 100L-100L of width 1024
    metric=m2m,flores=spbleu layer_size=2 beam=(--beam 5 --lenpen 1.0) vocabulary=250000
    averages 1
    batch 4096 256
    width 1024 4096 16
    settle 6000 --lr 5e-4 --dropout 0.1 --weight-decay 0.0 --clip-norm 1.0 --adam-eps 1e-6 \
        --max-update 260000 --disable-validation
}

admin_setting() {  # Admin (Liu et al. 2020), shared by the authors' recipes: TOKENS COUNT of a batch, WARMUP FLAGS...
    metric=tokenised
    averages 10
    # the baselines' init is that of the authors' fairseq of 2019; this floor of the loss scale is never reached in fp16
    apart_setting=(--init-profile xavier_legacy) apart="post_ln pre_ln"
    batch "$1" "$2"
    settle "$3" --optimizer radam --attention-dropout 0.1 --activation-dropout 0.1 --clip-norm 0.0 \
        --fp16-scale-window 256 --threshold-loss-scale 0.03125 "${@:4}"
}

recipe() {  # chooses the commands: LiyuanLucasLiu/Transformer-Clinic's, of Admin's paper, or microsoft/deepnmt's, of
    # the paper on 60L-12L (arXiv 2008.07772); sets suffix, of the experiment and of its table
    [[ "${RECIPE:=clinic}" =~ ^(clinic|deepnmt)$ ]] || fail "RECIPE=$RECIPE: choose clinic or deepnmt"
    suffix="_$RECIPE"
    suffix="${suffix#_clinic}"
}

admin_wmt14_setting() {  # WMT-14 En-De; deepnmt by the paper's text, as no command is published; Clinic's batch
    local warmup=8000 length=(--max-epoch 100 --max-update 500000)
    beam=(--beam 4 --lenpen 0.6) vocabulary=32764 corpus_tokens=131000000
    [ -z "$suffix" ] || warmup=4000 length=(--max-epoch 50)
    paper_seeds 1111
    width 512 2048 8
    admin_setting 8192 4 "$warmup" --lr 1e-3 --dropout 0.1 --weight-decay 0.0 "${length[@]}"
}

admin_wmt14_en_fr_setting() {  # WMT-14 En-Fr, 50 epochs; deepnmt as in run_wmt14_en_fr.sh, on 16 GPUs, and eval_enfr.sh
    local words=(8000 80 8000 --lr 7e-4 --dropout 0.1)
    beam=(--beam 5 --lenpen 0.8) vocabulary=40000 corpus_tokens=1100000000
    [ -z "$suffix" ] || words=(3200 128 8000 --lr 1e-3 --dropout 0.2) beam=(--beam 10 --lenpen 1.0)
    paper_seeds 1111
    width 512 2048 8
    admin_setting "${words[@]}" --weight-decay 0.0 --max-epoch 50
}

admin_iwslt14_setting() {  # IWSLT-14 De-En, 90 epochs of a narrower model
    beam=(--beam 5) vocabulary=10144 corpus_tokens=4400000
    paper_seeds "1111 2222 3333 4444 5555"
    width 512 1024 4
    admin_setting 4096 1 6000 --lr 7e-4 --dropout 0.3 --weight-decay 1e-4 --max-epoch 90 --max-update 100000 \
        --validate-interval 1000  # epochs; validation runs by updates
}

miniature() {  # miniature UPDATES [TOKENS] [LR]: shrinks the setting for two CPU cores if SMOKE=1
    [ -n "$smoke" ] || return 0
    width 64 128 2
    setting+=("${width_flags[@]}" --max-tokens "${2:-1000}" --update-freq 1 --lr "${3:-1e-3}" --dropout 0.0
        --attention-dropout 0.0 --activation-dropout 0.0 --max-epoch 0 --max-update "$1" --num-workers 0)
    schedule+=(--warmup-updates 100)
    apart_setting=() vocabulary=500 metric="${metric%%,*}"  # spBLEU would download a file
    [ "$average" -eq 1 ] || [ -n "${AVERAGE:-}" ] || AVERAGE='' averages 2
    beam+=(--max-len-a 1.5 --max-len-b 10)  # a model that has learnt nothing would generate up to fairseq's 200
}

of_method() {  # of_method METHOD: sets method_setting and mixed, the method's own flags and precision
    method_setting=() mixed=()
    case " $apart " in *" $1 "*) method_setting=("${apart_setting[@]}") ;; esac
    case "$precision $full_precision " in fp32* | *" $1 "*) ;; *) mixed=("--$half$precision") ;; esac
}

save_every() {  # save_every UPDATES: sets save_flags for a resume, and for the weights of the epochs to average
    [ -z "$smoke" ] || set -- 50
    save_flags=(--save-interval-updates "$1" --keep-interval-updates 1)
    if [ "$average" -gt 1 ]; then
        save_flags+=(--epoch-weights "$average_epochs")
    else
        save_flags+=(--no-epoch-checkpoints)
    fi
}

memory() {  # memory LAYERS: sets memory_flags for a model of so many layers if no plan is made
    memory_flags=()
    [ "${PLAN:-}" = 0 ] || return 0
    [ "$1" -lt 200 ] || [ -n "${RECOMPUTE:-}" ] || memory_flags=(--checkpoint-activations)
    if [ "$1" -ge 400 ] && [ "$world" -gt 1 ]; then
        memory_flags+=(--zero-sharding os --optimizer deepnet_adam)  # shards Adam's state, with equal results
    fi
}
