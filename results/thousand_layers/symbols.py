"""Train a Transformer of any depth, on torch alone, to copy or reverse short sentences of random symbols.

Every update draws its sentences anew, from all but a few that are held out; at the end the model copies or reverses
those. Two entropies say what a loss means. A model that has learnt only how often each symbol occurs reaches the
unigram entropy. A decoder that ignores its source, but knows where a sentence ends, reaches the source-blind entropy. A
model with a loss below that reads its source through all the layers of its encoder.

    python results/thousand_layers/symbols.py OUT --layers 500 --lr 2.5e-4

writes OUT/result.json when it ends. If it is killed, the same command resumes from OUT/state.pt.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deepnet_fairseq.core import EOS, METHODS, SPECIALS, beam_search, build
from deepnet_fairseq.core.profile import profile_omegas
from deepnet_fairseq.files import save_tensors, whole

SYMBOLS = 20  # kinds of symbols, besides the end of the sentence
LENGTH = 3  # symbols of a sentence: there are 8,000 sentences
SENTENCES = 64  # of a batch
WIDTH, FFN, HEADS = 32, 64, 2  # embed_dim, ffn_embed_dim and attention_heads of encoder and decoder
BETAS = (0.9, 0.98)  # of Adam
HELD = 0.7  # share of the updates after the warm-up in which the rate stays at its peak, before it falls to 0
LOGGED = 10  # updates from one line of the log to the next
SAVED = 50  # updates from one checkpoint to the next; whole intervals of the log, so that no loss is lost between them
HELD_OUT = 20  # sentences that no update trains on; the trained model copies or reverses them by beam search
HELD_OUT_SEED = 42

# Of the LENGTH + 1 tokens of a target, LENGTH are symbols, all equally frequent, and one is the end of the sentence.
SYMBOL_SHARE, END_SHARE = LENGTH / (LENGTH + 1), 1 / (LENGTH + 1)
# The two entropies above, in bits per token
UNIGRAM = -(SYMBOL_SHARE * math.log2(SYMBOL_SHARE / SYMBOLS) + END_SHARE * math.log2(END_SHARE))
SOURCE_BLIND = SYMBOL_SHARE * math.log2(SYMBOLS)


def held_out() -> Tensor:
    """Draw the sentences that no update trains on: int64 (HELD_OUT, LENGTH), the same for all trainings."""
    return draw(HELD_OUT, HELD_OUT_SEED)


def draw(count: int, seed: int) -> Tensor:
    """Draw `count` sentences, each symbol independently: token numbers, int64 (count, LENGTH).

    A symbol is a token of the dictionary behind the SPECIALS special ones (padding, end of sentence and so on).
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SPECIALS, SPECIALS + SYMBOLS, (count, LENGTH), generator=generator)


def batch(task: str, seed: int, update: int) -> tuple[Tensor, Tensor]:
    """Draw the batch of an update: SENTENCES sources and their targets, none of them held out.

    `pairs` says the shapes. task: copy or reverse; seed: of the training; update: counted from 1; 0 gives a batch that
    no update has.
    """
    # with random numbers of its own, so that a resumed training draws the same batch; twice as many as are needed,
    # since those held out are left out
    symbols = draw(2 * SENTENCES, seed * 10_000_000 + update)
    equal = (symbols[:, None] == held_out()).all(2)  # bool (sentence, held-out sentence)
    is_held_out = equal.any(1)
    return pairs(task, symbols[~is_held_out][:SENTENCES])


def pairs(task: str, symbols: Tensor) -> tuple[Tensor, Tensor]:
    """Return sources and targets of sentences: each int64 (count, LENGTH + 1), with EOS at the end of every sentence.

    task: copy, for targets that equal the sources, or reverse; symbols: the sentences, (count, LENGTH).
    """
    end = symbols.new_full((len(symbols), 1), EOS)
    wanted = symbols.flip(1) if task == "reverse" else symbols
    source = torch.cat([symbols, end], 1)
    target = torch.cat([wanted, end], 1)
    return source, target


def model_of(method: str, layers: int, task: str, seed: int) -> nn.Module:
    """Build a model with weights drawn from `seed`. layers: of the encoder, and as many of the decoder.

    A method that is profiled, as Admin, takes its factors (omega) from the variances of the branches in a forward pass
    on a batch of the task.
    """
    torch.manual_seed(seed)
    model = build(
        "deepnet_transformer", SPECIALS + SYMBOLS, method=method, encoder_layers=layers, decoder_layers=layers,
        encoder_embed_dim=WIDTH, encoder_ffn_embed_dim=FFN, encoder_attention_heads=HEADS, dropout=0.0,
        share_all_embeddings=True,
    )  # fmt: skip
    if METHODS[method].profiled:
        source, target = batch(task, seed, 0)
        # the decoder's input is the target shifted by a token; the end of the sentence comes first
        inputs = {"src_tokens": source, "src_lengths": None, "prev_output_tokens": target.roll(1, 1)}
        profile_omegas(model, inputs, seed=seed)
    return model


def rate_at(update: int, peak: float, warmup: int, updates: int) -> float:
    """Return the learning rate of an update: it rises linearly to `peak`, stays there, and falls linearly to 0.

    update: counted from 1; warmup: number of updates of the warm-up; updates: of the whole training.
    """
    if update <= warmup:
        return peak * update / warmup
    fall_begins = warmup + HELD * (updates - warmup)
    share_left = (updates - update + 1) / (updates - fall_begins)  # of the fall; above 1 before it begins
    return peak * min(1.0, share_left)


def silent_layers(model: nn.Module) -> dict[str, int]:
    """Count the layers whose weights all have a gradient of exactly zero: {"encoder": ..., "decoder": ...}.

    Gradients that vanish over many layers end as zeros, since float32 has no smaller numbers: such layers do not learn.
    """
    counts = {}
    for name, stack in model.stacks().items():
        counts[name] = 0
        for layer in stack.layers:
            gradients = [weight.grad for weight in layer.parameters() if weight.grad is not None]
            if not any(gradient.count_nonzero() for gradient in gradients):
                counts[name] += 1
    return counts


def train(args: argparse.Namespace) -> dict:
    """Train to the end, or until the model is stuck or its loss is not finite; return what is recorded of it.

    args: the flags of `main`. Goes on from the checkpoint args.out/state.pt, if there is one. Returns
    - "ended": trained, stuck or diverged; "update": the last logged one; "logged_every": LOGGED;
    - "loss" (bits per token) and "right" (share of tokens predicted right): lists of the means of each logged interval;
    - "seconds" and "processor_seconds": processor time up to the last logged update and in all, of all attempts,
      without what a killed one did after its last checkpoint;
    - "silent_layers" at the last logged update, {} if this attempt made none; and the entries of `translate`, unless
      the training diverged.
    """
    model = model_of(args.method, args.layers, args.task, args.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=BETAS, fused=True)
    state_file = args.out / "state.pt"
    # what is logged so far, entries of the result; a checkpoint holds it, too
    done: dict = {"update": 0, "loss": [], "right": [], "seconds": 0.0}
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
        print(f"resumed after update {done['update']}", flush=True)

    seconds_before = done["seconds"]  # of the attempts before this one
    started = time.process_time()
    ended = "trained"
    silent: dict[str, int] = {}
    losses = []  # of each update since the last line of the log
    rights = []  # shares of right tokens, likewise
    for update in range(done["update"] + 1, args.updates + 1):
        source, target = batch(args.task, args.seed, update)
        optimizer.param_groups[0]["lr"] = rate_at(update, args.lr, args.warmup, args.updates)
        # the decoder's input is the target shifted by a token; the end of the sentence comes first
        scores, _ = model(source, None, target.roll(1, 1))
        loss = cross_entropy(scores.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() / math.log(2))  # cross_entropy is in nats
        rights.append(scores.argmax(-1).eq(target).double().mean().item())

        if update % LOGGED == 0 or update == args.updates:
            done["loss"].append(round(sum(losses) / len(losses), 4))
            done["right"].append(round(sum(rights) / len(rights), 4))
            done |= {"update": update, "seconds": round(seconds_before + time.process_time() - started, 1)}
            silent = silent_layers(model)
            losses = []
            rights = []
            report(done, args.updates)
            if not math.isfinite(done["loss"][-1]):
                ended = "diverged"
                break
            may_stop = args.stop_stuck and update >= args.stop_stuck  # a --stop-stuck of 0 never stops
            last_50_updates = done["loss"][-5:]  # a loss every 10 updates
            if may_stop and min(last_50_updates) > UNIGRAM - 0.05:  # hardly better than guessing
                ended = "stuck"
                break
        if update % SAVED == 0:
            save_tensors({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, state_file)

    result = {"ended": ended, **done, "silent_layers": silent, "logged_every": LOGGED}
    if ended != "diverged":
        result |= translate(model, args)
    return result | {"processor_seconds": round(seconds_before + time.process_time() - started, 1)}


def report(done: dict, updates: int) -> None:
    """Print a line of the log.

    done: entries of the result of `train`, up to the last logged update; updates: of the whole training.
    """
    print(
        f"update {done['update']} of {updates}: {done['loss'][-1]:.2f} bits a token (unigram entropy {UNIGRAM:.2f}, "
        f"without the source {SOURCE_BLIND:.2f}), {done['right'][-1]:.0%} of tokens right, {done['seconds']:.0f} s",
        flush=True,
    )


def translate(model: nn.Module, args: argparse.Namespace) -> dict:
    """Copy or reverse the held-out sentences by beam search, count those that are right as a whole, and print some.

    args: the flags of `main`, of which the task counts. Returns "sentences_right", and "sentences": all of them.
    """
    source, target = pairs(args.task, held_out())
    beams = beam_search(model, source, beams=4, max_length=2 * LENGTH)
    number_right = 0
    for number, (symbols, hypotheses, wanted) in enumerate(zip(source, beams, target, strict=True)):
        tokens = hypotheses[0].tokens.tolist()  # of the best hypothesis, without the end of the sentence
        right = tokens == wanted[:-1].tolist()
        if right:
            number_right += 1
        if number < 3:  # as examples
            print(*symbols[:-1].tolist(), "->", *tokens, "" if right else "(wrong)")
    print(f"{number_right} of {HELD_OUT} sentences are right", flush=True)
    return {"sentences_right": number_right, "sentences": HELD_OUT}


def main() -> None:
    """Parse the flags, train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the checkpoint and the result")
    parser.add_argument("--task", choices=("copy", "reverse"), default="copy", help="what to learn (default: copy)")
    parser.add_argument("--method", choices=sorted(METHODS), default="deepnorm", help="method to train with "
                        "(default: deepnorm)")  # fmt: skip
    parser.add_argument(
        "--layers", type=int, default=500, help="layers of the encoder, and of the decoder (default: 500)"
    )
    parser.add_argument("--lr", type=float, default=2.5e-4, help="peak learning rate (default: 2.5e-4)")
    parser.add_argument("--updates", type=int, default=700, help="number of updates to make (default: 700)")
    parser.add_argument("--warmup", type=int, default=40, help="updates until the peak rate is reached (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="random seed of weights and sentences (default: 1)")
    parser.add_argument(
        "--stop-stuck", type=int, default=0, metavar="N",
        help="from update N on, stop when 50 updates stay at the unigram entropy (default: never)",
    )  # fmt: skip
    args = parser.parse_args()
    result_file = args.out / "result.json"
    if result_file.exists():
        print(f"{result_file} is there, so this training is over; name another folder to train anew")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))  # by default 1, as the layers are narrow
    result = train(args)
    with whole(result_file) as part:
        part.write_text(json.dumps(result) + "\n", encoding="utf-8")
    (args.out / "state.pt").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
