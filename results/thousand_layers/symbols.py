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
WIDTH, FFN, HEADS = 32, 64, 2
BETAS = (0.9, 0.98)
HELD = 0.7  # share of the updates after the warm-up in which the rate stays at its peak, before it falls to 0
LOGGED = 10  # updates from one line of the log to the next
SAVED = 50  # updates from one checkpoint to the next
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
    """Draw `count` sentences, each symbol independently: int64 (count, LENGTH)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SPECIALS, SPECIALS + SYMBOLS, (count, LENGTH), generator=generator)


def batch(task: str, seed: int, update: int) -> tuple[Tensor, Tensor]:
    """Draw the sources and targets of an update, none of them held out; see `pairs` for their shapes."""
    symbols = draw(2 * SENTENCES, seed * 10_000_000 + update)  # twice as many as needed: some are left out
    equal = (symbols[:, None] == held_out()).all(2)  # (sentence, held-out sentence)
    is_held_out = equal.any(1)
    return pairs(task, symbols[~is_held_out][:SENTENCES])


def pairs(task: str, symbols: Tensor) -> tuple[Tensor, Tensor]:
    """Make sources and targets of sentences (count, LENGTH), each (count, LENGTH + 1) with the end of the sentence."""
    end = symbols.new_full((len(symbols), 1), EOS)
    wanted = symbols.flip(1) if task == "reverse" else symbols
    source = torch.cat([symbols, end], 1)
    target = torch.cat([wanted, end], 1)
    return source, target


def model_of(method: str, layers: int, task: str, seed: int) -> nn.Module:
    """Build the model. A method whose initialisation is profiled, as Admin's is, is so on a batch of the task."""
    torch.manual_seed(seed)
    model = build(
        "deepnet_transformer", SPECIALS + SYMBOLS, method=method, encoder_layers=layers, decoder_layers=layers,
        encoder_embed_dim=WIDTH, encoder_ffn_embed_dim=FFN, encoder_attention_heads=HEADS, dropout=0.0,
        share_all_embeddings=True,
    )  # fmt: skip
    if METHODS[method].profiled:
        source, target = batch(task, seed, 0)
        inputs = {"src_tokens": source, "src_lengths": None, "prev_output_tokens": target.roll(1, 1)}
        profile_omegas(model, inputs, seed=seed)
    return model


def rate_at(update: int, peak: float, warmup: int, updates: int) -> float:
    """Compute the learning rate of an update, counted from 1: linear warm-up, constant, linear to 0."""
    if update <= warmup:
        return peak * update / warmup
    fall_begins = warmup + HELD * (updates - warmup)
    return peak * min(1.0, (updates - update + 1) / (updates - fall_begins))


def silent_layers(model: nn.Module) -> dict[str, int]:
    """Count the layers of each stack whose weights all have a gradient of exactly zero."""
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

    args: the flags of `main`. The result has the last logged "update"; by logged interval the mean "loss" (bits per
    token) and the share of "right" tokens; how the training "ended"; and the numbers of `translate`.
    """
    model = model_of(args.method, args.layers, args.task, args.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=BETAS, fused=True)
    state_file = args.out / "state.pt"
    # what is logged so far; a checkpoint holds it, too
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
    losses = []  # of the updates since the last line of the log, as the shares of right tokens
    rights = []
    for update in range(done["update"] + 1, args.updates + 1):
        source, target = batch(args.task, args.seed, update)
        optimizer.param_groups[0]["lr"] = rate_at(update, args.lr, args.warmup, args.updates)
        # the decoder's input is the target shifted by a token; the end of the sentence comes first
        scores, _ = model(source, None, target.roll(1, 1))
        loss = cross_entropy(scores.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() / math.log(2))
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
            may_stop = args.stop_stuck and update >= args.stop_stuck
            if may_stop and min(done["loss"][-5:]) > UNIGRAM - 0.05:  # no better than guessing for 50 updates
                ended = "stuck"
                break
        if update % SAVED == 0:
            save_tensors({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, state_file)

    result = {"ended": ended, **done, "silent_layers": silent, "logged_every": LOGGED}
    if ended != "diverged":
        result |= translate(model, args)
    return result | {"processor_seconds": round(seconds_before + time.process_time() - started, 1)}


def report(done: dict, updates: int) -> None:
    """Print a line of the log. done: as in `train`; updates: of the whole training."""
    print(
        f"update {done['update']} of {updates}: {done['loss'][-1]:.2f} bits a token (unigram entropy {UNIGRAM:.2f}, "
        f"without the source {SOURCE_BLIND:.2f}), {done['right'][-1]:.0%} of tokens right, {done['seconds']:.0f} s",
        flush=True,
    )


def translate(model: nn.Module, args: argparse.Namespace) -> dict:
    """Copy or reverse the held-out sentences by beam search; count those that are right as a whole."""
    source, target = pairs(args.task, held_out())
    beams = beam_search(model, source, beams=4, max_length=2 * LENGTH)
    number_right = 0
    for number, (symbols, hypotheses, wanted) in enumerate(zip(source, beams, target, strict=True)):
        tokens = hypotheses[0].tokens.tolist()  # of the best hypothesis, without the end of the sentence
        right = tokens == wanted[:-1].tolist()
        if right:
            number_right += 1
        if number < 3:
            print(*symbols[:-1].tolist(), "->", *tokens, "" if right else "(wrong)")
    print(f"{number_right} of {HELD_OUT} sentences are right", flush=True)
    return {"sentences_right": number_right, "sentences": HELD_OUT}


def main() -> None:
    """Parse the flags, train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the checkpoint and the result")
    parser.add_argument("--task", choices=("copy", "reverse"), default="copy", help="what to learn (default: copy)")
    parser.add_argument("--method", choices=sorted(METHODS), default="deepnorm", help="default: deepnorm")
    parser.add_argument("--layers", type=int, default=500, help="of encoder and of decoder (default: 500)")
    parser.add_argument("--lr", type=float, default=2.5e-4, help="peak learning rate (default: 2.5e-4)")
    parser.add_argument("--updates", type=int, default=700, help="default: 700")
    parser.add_argument("--warmup", type=int, default=40, help="updates of warm-up (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and sentences (default: 1)")
    parser.add_argument(
        "--stop-stuck", type=int, default=0,
        help="from this update on, stop when 50 updates stay at the unigram entropy (default: never)",
    )  # fmt: skip
    args = parser.parse_args()
    result_file = args.out / "result.json"
    if result_file.exists():
        print(f"{result_file} is there: this training is over")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    result = train(args)
    with whole(result_file) as part:
        part.write_text(json.dumps(result) + "\n", encoding="utf-8")
    (args.out / "state.pt").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
