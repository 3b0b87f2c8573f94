"""Compute score.json of a run: scores of one direction by sacreBLEU, of many and their means, or perplexities.

The content of score.json is a dictionary. The docstring of score_output lists the entries for one direction, that of
with_means those for many directions, that of perplexity those for a language model. A subset is a test set, as "test";
a direction is a pair of languages, "de-en".
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric, Score
from sacrebleu.tokenizers import tokenizer_spm
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS

from ...data.lines import read_lines
from ...errors import UserError
from ...languages import parse_pair
from ...text_table import render
from ...wording import counted
from .generated import (
    AlignedText,
    Corpus,
    Output,
    align_with_references,
    find_outputs,
    generation_speed,
    known_target,
    read_corpus,
)
from .resampling import score_of_text, score_with_samples
from .words import Words, base_language, bleu_metric, bleu_of_language, tokeniser, written_without_blanks

KINDS = {  # kind of BLEU that papers report -> what it compares, as the lines below the table say it
    "tokenised": "of the tokens that fairseq printed (D-n and T-n), without further splitting",
    "sacrebleu": "of text, split by sacreBLEU's tokenizer for the target language or that of --tokenize",
    "spbleu": "of text, in the pieces of Flores-101's SentencePiece model",
    "m2m": "of text, split by M2M-100's protocol",  # words.py
}
SPBLEU = "flores101"  # sacreBLEU's name of the tokenizer of spBLEU
GROUPS = ("to_english", "from_english", "between_others")  # of directions
MEANS = {  # entry of score.json -> its name in the table
    "bleu": "mean",
    "to_english": "into English",
    "from_english": "from English",
    "between_others": "between others",
}
REFERENCES = {  # value of the entry "reference" of score.json -> the line that explains it
    "raw": "references: raw text of the corpus",
    "generated": "references: lines T-n of fairseq-generate; --data BIN compares with raw text where the corpus has it",
}
NAMED = 5  # directions that a message lists at most
PERPLEXITY = "perplexity"  # in place of a kind of BLEU
CAUSAL = re.compile(r"Loss \(base 2\): (\S+), Perplexity: ")  # a line of fairseq-eval-lm
MASKED = re.compile(r'\| INFO \| (\S+) \| \{.*"\1_loss": "([^"]*)"')  # a line of fairseq-validate: subset and loss
HIGHEST = 100.0  # bits a token that are believed; an untrained model is at log2 of its vocabulary, so below 20


def score(
    path: Path,
    data: str | Path | None = None,
    paper: str | None = None,
    partial: bool = False,
    tokenize: str | None = None,
) -> dict:
    """Return the content of score.json: scores in 0..100, lengths, speed; or perplexities, if `paper` asks for them.

    path: a file that fairseq-generate printed, or a folder of such files (see find_outputs); for perplexities a log or
    a folder of logs. data: the binarised data that were translated, beside which the raw references are. paper:
    PERPLEXITY, or the kind of BLEU that the paper reports, for some subsets another (see kinds_of_bleu). partial:
    accept that directions are missing, which is a UserError otherwise. tokenize: name of sacreBLEU's tokenizer; None
    for the one of the target language.
    """
    if paper == PERPLEXITY:
        if data is not None or partial or tokenize:
            raise UserError("--paper perplexity", "is of logs; drop --data, --partial and --tokenize")
        return perplexity(path)

    corpus = read_corpus(data)
    kinds = kinds_of_bleu(paper)
    outputs = find_outputs(path, corpus)

    def scored(output: Output) -> dict:
        """Return the scores of one output, as score_output does."""
        kind = kinds.get(output.subset, kinds[None])
        return score_output(align_with_references(output, corpus), kind, tokenize)

    if len(outputs) == 1 and outputs[0].subset is None:  # a bilingual run
        return _rounded(scored(outputs[0]))

    sets: dict[str, dict[str, Output]] = {}  # subset -> direction -> output; "" for a direction that is unknown
    for output in outputs:
        assert output.subset is not None  # find_outputs knows the subsets of several outputs
        sets.setdefault(output.subset, {})[output.direction or ""] = output
    missing = missing_directions(path, sets, corpus, partial=partial)

    scores = {}  # subset -> direction -> its scores
    for subset, by_direction in sets.items():
        scores[subset] = {direction: scored(output) for direction, output in by_direction.items()}
    return _rounded(with_means(scores, corpus) | {"missing": missing})


def bleu_metric_of(aligned: AlignedText, tokenize: str | None = None) -> BLEU:
    """Return sacreBLEU's BLEU for a text: with the tokenizer of its language, unless `tokenize` names another.

    Raises a UserError for a text of unknown language that is written without blanks between words, because the usual
    tokenizer would take its phrases for words.
    """
    if not (aligned.target or tokenize) and written_without_blanks(aligned.references):
        raise UserError(
            aligned.generated.path,
            "which languages? BLEU depends on it; keep fairseq-generate's log beside it, "
            "name the file SRC-TGT.txt, or give --data or --tokenize",
        )
    return bleu_of_language(aligned.target, aligned.corpus.lowercase, tokenize)


def score_output(aligned: AlignedText, paper: str = "sacrebleu", tokenize: str | None = None) -> dict:
    """Return the content of score.json for one direction, not rounded.

    paper: the kind of BLEU that the paper reports, one of KINDS; tokenize: name of sacreBLEU's tokenizer, None for the
    one of the target language. Raises a UserError if the paper's BLEU or sacreBLEU's cannot be computed. The entries:

    - "bleu", "kind", "signature": the paper's BLEU, its kind and its signature.
    - "sacrebleu", "tokenised", "spbleu", "m2m", "chrf", "ter": dictionaries that metric_entry makes; "tokenised" has
      neither mean nor interval. Of the kinds of BLEU only sacreBLEU and the paper's are computed, TER only beside
      tokenised BLEU; the others are None.
    - "reference": a key of REFERENCES. "sentences": their number. "length_ratio": tokens of the translations over those
      of the references. "generation": the speed, see generation_speed. "notes": what makes the scores doubtful, a
      sentence each.
    """
    text = (aligned.hypotheses, aligned.references)
    # as fairseq printed them, for TER, which is computed only where tokenised BLEU has found references
    tokens = (aligned.generated.translations, aligned.generated.references or [])
    lowercase = aligned.corpus.lowercase

    bleu = bleu_metric_of(aligned, tokenize)
    notes = [*aligned.notes]
    if bleu.tokenizer_signature == "13a" and not tokenize and written_without_blanks(aligned.references):
        notes.append(f"{aligned.target} is written without blanks: tokenizer 13a leaves phrases whole; see --tokenize")
    result = score_with_samples(bleu, *text)

    kinds: dict[str, dict | None] = {
        "sacrebleu": metric_entry(bleu, result),
        "tokenised": None,
        "spbleu": None,
        "m2m": None,
    }
    if paper == "tokenised":
        kinds[paper] = _tokenised(aligned)
    elif paper == "spbleu":
        kinds[paper] = score_with_interval(_spbleu(lowercase), *text)
    elif paper == "m2m":
        kinds[paper] = _m2m(aligned)
    reported = kinds[paper]
    if reported is None:  # _tokenised found no references
        raise UserError(
            f"--paper {paper}", f"{aligned.generated.path} has no references of fairseq-generate (lines T-n)"
        )

    return {
        "bleu": reported["score"],
        "kind": paper,
        "signature": reported["signature"],
        **kinds,
        "chrf": score_with_interval(ChrF(lowercase=lowercase), *text),
        "ter": score_with_interval(TER(), *tokens) if paper == "tokenised" else None,
        "reference": "raw" if aligned.raw else "generated",
        "sentences": len(aligned.hypotheses),
        "length_ratio": result.ratio,
        "generation": generation_speed(aligned.generated),
        "notes": notes,
    }


def _tokenised(aligned: AlignedText) -> dict | None:
    """Compute the BLEU of the tokens that fairseq printed, as fairseq's own scorer does.

    Returns {"score": ..., "signature": ...}, without the bootstrap's mean and interval; None if fairseq printed no
    references (lines T-n).
    """
    generated = aligned.generated
    if generated.references is None:
        return None
    metric = bleu_metric(tokenize="none")
    value = score_of_text(metric, generated.translations, generated.references)
    return {"score": float(value.score), "signature": str(metric.get_signature())}


def _m2m(aligned: AlignedText) -> dict:
    """Compute the BLEU of M2M-100's protocol, see words.py; return it as metric_entry does.

    The signature names the tokeniser.
    """
    split, name = tokeniser(known_target(aligned.generated.path, aligned.target))
    metric = bleu_metric(aligned.corpus.lowercase, Words(split, f"m2m.{name}"))
    return score_with_interval(metric, aligned.hypotheses, aligned.references)


def _rounded(value, digits: int = 2):
    """Return the content of score.json with its floats rounded: to two decimals, as sacreBLEU prints; ratios to four.

    value: the content, or a value in it, to which this function is applied in turn; digits: decimals of a float.
    """
    if isinstance(value, dict):
        return {key: _rounded(inner, digits=4 if key == "length_ratio" else 2) for key, inner in value.items()}
    if isinstance(value, float):
        return round(value, digits)
    return value


def group_of_direction(source: str, target: str) -> str:
    """Return the one of GROUPS that a direction belongs to; source, target: its languages, as "de" or "zho_Hans"."""
    if base_language(target) == "en":
        return "to_english"
    if base_language(source) == "en":
        return "from_english"
    return "between_others"


def missing_directions(path: Path, sets: dict[str, dict], corpus: Corpus, partial: bool) -> dict[str, list[str]]:
    """Return {subset: sorted directions of the corpus that have no output}; a subset that lacks nothing is left out.

    path: of the outputs, for messages; sets: subset -> direction -> output. Raises a UserError if a direction is
    missing, unless `partial`.
    """
    missing = {}
    for subset, outputs in sets.items():
        directions = sorted(corpus.required_directions(subset) - outputs.keys())
        if not directions:
            continue
        if not partial:
            names = ", ".join(directions[:NAMED])
            if len(directions) > NAMED:
                names += ", ..."
            raise UserError(
                path,
                f"{subset} lacks {counted(len(directions), 'direction')} of pairs.txt ({names}); "
                "translate them, or give --partial for the mean of the others",
            )
        missing[subset] = directions
    return missing


def with_means(sets: dict[str, dict[str, dict]], corpus: Corpus) -> dict:
    """Return the content of score.json for many directions: their scores and means of them.

    sets: subset -> direction -> scores of score_output. Entries of the result:

    - "sets": for each subset the means of its directions, and under "directions" their scores, as _means returns them.
    - "bleu", "directions" and the others of _means: those of the subset "test"; without it the means over all subsets.
    - "generation": {"seconds": of translating all directions}; None if the log of one of them is missing.
    """
    summaries = {}  # subset -> its entries of _means
    for subset, directions in sets.items():
        parts = [_with_group(direction, scores, corpus) for direction, scores in directions.items()]
        summaries[subset] = _means(parts, directions)

    top = summaries.get("test")
    if top is None:
        # several subsets may have the same directions, which one dictionary cannot hold
        top_directions = next(iter(sets.values())) if len(sets) == 1 else {}
        top = _means(list(summaries.values()), top_directions)

    speeds = []
    for directions in sets.values():
        speeds += [scores["generation"] for scores in directions.values()]
    generation = {"seconds": sum(speed["seconds"] for speed in speeds)} if all(speeds) else None
    return {**top, "sets": summaries, "generation": generation}


def _with_group(direction: str, scores: dict, corpus: Corpus) -> dict:
    """Return the scores with one more entry, the direction's BLEU under its group, so that _means averages it by group.

    scores: of score_output. direction: "" if it is unknown; it then has no group.
    """
    if not direction:
        return scores
    source, target = parse_pair("direction", direction, corpus.languages)
    return scores | {group_of_direction(source, target): scores["bleu"]}


def _means(parts: list[dict], directions: dict[str, dict]) -> dict:
    """Return a dictionary with the means of "bleu" and of GROUPS over `parts`, None for a group that no part has.

    In the result "kind" and "signature" list those of the parts, and "directions" is the parameter. parts: for each
    direction its scores with its group, see _with_group, or for each subset its means; all have equal weights.
    directions: direction -> scores.
    """

    def mean(key: str) -> float | None:
        values = [part[key] for part in parts if part.get(key) is not None]
        return fmean(values) if values else None

    return {
        "bleu": mean("bleu"),
        "kind": " and ".join(sorted({part["kind"] for part in parts})),
        "signature": " or ".join(sorted({part["signature"] for part in parts})),
        **{name: mean(name) for name in GROUPS},
        "directions": directions,
    }


def score_table(content: dict) -> str:
    """Format the content of score.json as a table, with notes and signatures below it."""
    if content["kind"] == PERPLEXITY:
        return _perplexity_table(content)

    header = ["set", "direction", "sentences", "kind", "BLEU", "sacreBLEU", "95% interval", "chrF2", "95% interval"]
    header += ["length ratio", "sentences/s"]
    rows = [header]
    lines = []  # below the table

    sets = content.get("sets") or {"": {"directions": {"": content}}}  # a bilingual run is a set without a name
    for subset, summary in sets.items():
        for direction, scores in summary["directions"].items():
            rows.append([subset, direction, *_cells(scores)])
            lines += _lines_below(scores)

    for subset, summary in content.get("sets", {}).items():
        for key, name in MEANS.items():
            if summary[key] is not None:
                row = [subset, name, "", "", _two_decimals(summary[key])]  # as far as the column BLEU
                empty_cells = [""] * (len(header) - len(row))
                rows.append(row + empty_cells)

    for subset, directions in content.get("missing", {}).items():
        lines.append(f"{subset}: without {', '.join(directions)}")
    return "\n".join([render(_without_empty_columns(rows)), "", *dict.fromkeys(lines)])  # each line once


def _perplexity_table(content: dict) -> str:
    """Format the perplexities of one or several test sets as a table; content: what `perplexity` returned."""
    rows = [["set", "perplexity", "bits a token"]]
    sets = content.get("sets") or {"": content}  # a single log is a set without a name
    for name, scores in sets.items():
        rows.append([name, _two_decimals(scores["perplexity"]), _two_decimals(scores["loss"])])
    return render(rows)


def _cells(scores: dict) -> list[str]:
    """Return the cells of one direction in score_table, from "sentences" on; scores: of score_output.

    If the paper's kind of BLEU is sacreBLEU, the cells for the kind and for sacreBLEU would repeat it, and are empty.
    """
    kind = ""
    sacrebleu = ""
    if scores["kind"] != "sacrebleu":
        kind = scores["kind"]
        sacrebleu = _two_decimals(scores["sacrebleu"]["score"])
    speed = scores["generation"] or {}
    return [
        f"{scores['sentences']:,}",
        kind,
        _two_decimals(scores["bleu"]),
        sacrebleu,
        _interval(scores["sacrebleu"]),
        _two_decimals(scores["chrf"]["score"]),
        _interval(scores["chrf"]),
        f"{scores['length_ratio']:.3f}",
        _two_decimals(speed.get("sentences_per_second")),
    ]


def _lines_below(scores: dict) -> list[str]:
    """Return the lines below the table on one direction.

    They are notes, what each BLEU is where the table has two, TER, signatures, and where its references come from.
    scores: of score_output.
    """
    lines = [f"note: {note}" for note in scores["notes"]]
    kind = scores["kind"]
    if kind != "sacrebleu":
        lines.append(f'column BLEU: {kind}, {KINDS[kind]}; chosen by --paper, and "bleu" in the JSON')
        lines.append(f"column sacreBLEU and the interval beside it: sacrebleu, {KINDS['sacrebleu']}")
    if scores["ter"]:
        lines.append(f"TER: {scores['ter']['score']:.2f}")
    for name in (*KINDS, "chrf"):
        if scores[name]:
            lines.append(f"{name}: {scores[name]['signature']}")
    lines.append(REFERENCES[scores["reference"]])
    return lines


def _without_empty_columns(rows: list[list[str]]) -> list[list[str]]:
    """Return the rows, of which the first is the header, without the columns that are empty below it."""
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    return [[row[column] for column in kept] for row in rows]


def _interval(metric: dict) -> str:
    """Format a metric's 95% interval as "26.90 to 28.14"; metric: of metric_entry."""
    return f"{metric['mean'] - metric['ci']:.2f} to {metric['mean'] + metric['ci']:.2f}"


def _two_decimals(value: float | None) -> str:
    """Format with two decimals; "" for None."""
    return "" if value is None else f"{value:.2f}"


def perplexity(path: Path) -> dict:
    """Return the content of score.json of a language model.

    For a single log it is {"kind": PERPLEXITY, "perplexity": per token, "loss": log2 of the perplexity, in bits a
    token}; for a folder of logs {"kind": PERPLEXITY, "sets": {SUBSET: {"perplexity": ..., "loss": ...}}}.

    path: a log of fairseq-eval-lm or of `fairseq-validate --log-format json`, or a folder of such logs SUBSET.txt.
    Raises a UserError if a log has no loss, or one above HIGHEST.
    """
    if not path.is_dir():
        return {"kind": PERPLEXITY} | _loss_and_perplexity(path)
    sets = {log.stem: _loss_and_perplexity(log) for log in sorted(path.glob("*.txt"))}
    if not sets:
        raise UserError(path, "holds no log of an evaluation, SUBSET.txt")
    return {"kind": PERPLEXITY, "sets": sets}


def _loss_and_perplexity(path: Path) -> dict:
    """Return {"perplexity": 2 ** loss, "loss": bits a token} of the last evaluation in a log; UserError without one."""
    text = "\n".join(read_lines(path))
    losses = CAUSAL.findall(text) or [loss for _subset, loss in MASKED.findall(text)]  # as texts
    try:
        loss = float(losses[-1])
    except (IndexError, ValueError):
        raise UserError(
            path, "has no loss of fairseq-eval-lm or fairseq-validate --log-format json; evaluate again"
        ) from None
    if not 0 <= loss <= HIGHEST:
        raise UserError(path, f"a loss of {loss} bits has no perplexity; was this model trained?")
    return {"perplexity": round(2**loss, 2), "loss": round(loss, 4)}


def _spbleu(lowercase: bool) -> BLEU:
    """Return sacreBLEU's BLEU of SentencePiece pieces; raise a UserError if it would have to download their model."""
    url = SPM_MODELS[SPBLEU]["url"]
    path = Path(tokenizer_spm.SACREBLEU_DIR) / "models" / Path(url).name
    if not path.is_file():
        raise UserError("--paper spbleu", f"needs the SentencePiece model {url}; download it and put it at {path}")
    return bleu_metric(lowercase, SPBLEU)


def kinds_of_bleu(words: str | None) -> dict[str | None, str]:
    """Return {subset: kind of BLEU that the paper reports}, with the kind of all other subsets under None.

    words: the value of --paper. "spbleu" is for all subsets; "m2m,flores=spbleu" is m2m, but spbleu for the subset
    flores; None is sacrebleu. Kinds are those of KINDS. Raises a UserError for an unknown kind.
    """
    kinds: dict[str | None, str] = {None: "sacrebleu"}
    if not words:
        return kinds
    for word in words.split(","):
        subset, _, kind = word.rpartition("=")  # without a "=" the subset is "", for all subsets
        if kind not in KINDS:
            raise UserError(f"--paper {words}", f"{kind or word} is none of {', '.join(KINDS)}")
        kinds[subset or None] = kind
    return kinds


class ChrF(CHRF):
    """sacreBLEU's chrF, whose scores are always floats.

    In sacreBLEU 2.6.0 the score of a bootstrap sample without any match is no float, and samples then cannot be
    averaged.
    """

    def _compute_f_score(self, statistics: list[int]) -> float:
        """Return the F score of a text; statistics: sacreBLEU's counts of n-grams in it."""
        return float(super()._compute_f_score(statistics))


def score_with_interval(metric: Metric, translations: list[str], references: list[str]) -> dict:
    """Score translations, one text for each sentence, against references; return the metric's entry in score.json."""
    return metric_entry(metric, score_with_samples(metric, translations, references))


def metric_entry(metric: Metric, result: Score) -> dict:
    """Return a metric's entry in score.json, a dictionary with these keys.

    "score": 0..100. "signature": sacreBLEU's text of its settings. "mean", "ci": the mean of the bootstrap samples, and
    half the width of their 95% interval, which is mean - ci to mean + ci. result: what score_with_samples returned.
    """
    return {
        "score": float(result.score),
        "mean": float(result._mean),  # sacreBLEU has no public name for it, nor for _ci
        "ci": float(result._ci),
        "signature": str(metric.get_signature()),
    }
