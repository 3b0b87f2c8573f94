# shellcheck shell=bash disable=SC2034,SC2154  # what one room sets, others use
# Hyper-parameters of the papers, a function each: sets setting (flags of the training), average (checkpoints), beam,
# metric (what the paper reports) and, by batch, batch_flags. A later flag overrides an earlier one of the same name.

no_norm_setting=() no_norm=""  # of methods without LayerNorm
full_precision=rezero  # unstable in fp16 even when shallow, says the paper, which trained it in fp32 everywhere
average=1              # checkpoints to average
layer_size=1           # memory of a layer, in layers of width 512
half=""                # memory-efficient- for weights without a copy in fp32
arch=deepnet_transformer criterion=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1)
beam=(--beam 5)

settle() {  # settle WARMUP FLAGS...: setting, of the width, the batch, and FLAGS; the schedule is the same in all papers
    schedule=(--lr-scheduler inverse_sqrt --warmup-updates "$1" --warmup-init-lr 1e-7)
    setting=("${width_flags[@]}" "${batch_flags[@]}" --share-all-embeddings "${@:2}")
}

iwslt14_setting() {  # DeepNet, Table 4; Figure 6: BLEU of the last checkpoint after 8,000 updates
    metric=tokenised beam=(--beam 5)
    batch 4000 1
    width 512 2048 8
    settle 4000 --lr 5e-4 --dropout 0.4 --weight-decay 1e-4 --clip-norm 0.0 --max-update 8000
}

wmt17_setting() {  # DeepNet, Table 5; checkpoints and beam as in admin-torch's replication: the paper does not give them
    metric=tokenised average=10 beam=(--beam 4 --lenpen 0.6)
    batch 4096 128
    width 512 2048 8
    settle 4000 --lr 1.5e-3 --dropout 0.4 --weight-decay 1e-4 --clip-norm 0.0 --max-update 100000
    no_norm_setting=(--lr 5e-4) no_norm="$(deepnet methods --norm none)"
}

wmt17_large_setting() {  # DeepNet, Table 6: what widths are compared at
    metric=tokenised
    batch 4096 128
    width 512 2048 8
    settle 4000 --lr 5e-4 --dropout 0.4 --weight-decay 0.0 --clip-norm 1.0 --adam-eps 1e-6 --max-update 30000
}

opus100_setting() {  # DeepNet, Table 7
    metric=sacrebleu beam=(--beam 5 --lenpen 1.0)
    batch 4096 128
    width 512 2048 8
    settle 4000 --lr 5e-4 --dropout 0.1 --weight-decay 0.0 --clip-norm 0.0 --max-epoch 4 \
        --disable-validation
}

m2m_setting() {  # DeepNet, Table 8, 100L-100L of width 1024
    metric=m2m,flores=spbleu layer_size=2 beam=(--beam 5 --lenpen 1.0)
    batch 4096 256
    width 1024 4096 16
    settle 6000 --lr 5e-4 --dropout 0.1 --weight-decay 0.0 --clip-norm 1.0 --adam-eps 1e-6 \
        --max-update 260000 --disable-validation
}

admin_wmt14_setting() {  # Admin (Liu et al. 2020), WMT-14 En-De: the authors' recipe
    metric=tokenised average=10 beam=(--beam 4 --lenpen 0.6)
    batch 8192 4
    width 512 2048 8
    settle 8000 --lr 1e-3 --optimizer radam --dropout 0.1 --attention-dropout 0.1 \
        --activation-dropout 0.1 --weight-decay 0.0 --clip-norm 0.0 --max-epoch 100 --max-update 500000
}

miniature() {  # miniature UPDATES: the same flags at a size for two CPU cores, if SMOKE=1
    [ -n "$smoke" ] || return 0
    width 64 128 2
    setting+=("${width_flags[@]}" --max-tokens 1000 --update-freq 1 --lr 1e-3 --dropout 0.0
        --attention-dropout 0.0 --activation-dropout 0.0 --max-epoch 0 --max-update "$1" --num-workers 0)
    schedule+=(--warmup-updates 100)
    no_norm_setting=() metric="${metric%%,*}"  # spBLEU needs a file from the network
    average=$((average < 2 ? average : 2))
    beam+=(--max-len-a 1.5 --max-len-b 10)  # one that has learnt nothing would go on to fairseq's 200
}

of_method() {  # of_method METHOD: sets method_setting and mixed, what the paper trains that method with
    method_setting=() mixed=()
    case " $no_norm " in *" $1 "*) method_setting=("${no_norm_setting[@]}") ;; esac
    case "$precision $full_precision " in fp32* | *" $1 "*) ;; *) mixed=("--$half$precision") ;; esac
}

save_every() {  # save_every UPDATES: what a resume needs, and the last epochs' checkpoints to average
    [ -z "$smoke" ] || set -- 50
    save_flags=(--save-interval-updates "$1" --keep-interval-updates 1)
    if [ "$average" -gt 1 ]; then
        save_flags+=(--keep-last-epochs "$average")
    else
        save_flags+=(--no-epoch-checkpoints)
    fi
}

memory() {  # memory LAYERS: what a model of so many encoder and decoder layers needs to fit: sets memory_flags
    memory_flags=()
    [ "$1" -lt 200 ] || memory_flags=(--checkpoint-activations)
    if [ "$1" -ge 400 ] && [ "$world" -gt 1 ]; then
        memory_flags+=(--zero-sharding os --optimizer deepnet_adam)  # Adam in shards, in the same numbers
    fi
}
