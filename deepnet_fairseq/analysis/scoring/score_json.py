"""score.json of a run."""

from __future__ import annotations

from pathlib import Path

from sacrebleu.metrics import CHRF

from ...errors import UserError
from .corpus import read_corpus
from .generated import generation_speed
from .kinds import PaperKinds
from .metrics import entry, resample
from .multilingual import check_complete, summarise
from .outputs import find_outputs, is_multilingual
from .perplexity import KIND as PERPLEXITY
from .perplexity import perplexity
from .prepared import Prepared, prepare
from .tokenizers import SPBLEU, bleu_metric, tokenizer_for


def score(
    path: Path,
    data: str | Path | None = None,
    tokenize: str | None = None,
    paper: str | None = None,
    partial: bool = False,
) -> dict:
    """The content of score.json: scores in 0..100, seconds, tokens a second; or perplexities, if `paper` asks for them.

    path: see find_outputs and perplexity; data: see read_corpus; tokenize: sacreBLEU's tokenizer, for flores101 and
    flores200 that of spBLEU, instead of the corpus's; paper: what "bleu" is, see PaperKinds. UserError if directions
    are missing, unless `partial`.
    """
    if paper == PERPLEXITY:
        if data is not None or tokenize is not None or partial:
            raise UserError("--paper perplexity: is of logs; drop --data, --tokenize and --partial")
        return perplexity(path)
    outputs, corpus = find_outputs(path), read_corpus(data)
    kinds = PaperKinds(paper, tokenize)
    if not is_multilingual(outputs):
        return _rounded(score_output(prepare(outputs[0], corpus), tokenize, kinds.of(outputs[0].subset)))
    missing = check_complete(path, outputs, corpus, partial)
    sets: dict[str, dict[str, dict]] = {}
    for output in outputs:
        scores = score_output(prepare(output, corpus), tokenize, kinds.of(output.subset))
        sets.setdefault(output.subset, {})[output.direction] = scores
    return _rounded(summarise(sets) | {"missing": missing})


def score_output(prepared: Prepared, tokenize: str | None = None, paper: str = "sacrebleu") -> dict:
    """score.json of one direction, not rounded; UserError if the paper's kind of BLEU cannot be had."""
    pieces = tokenize if tokenize in SPBLEU else SPBLEU[0] if paper == "spbleu" else None
    words = tokenizer_for(tokenize if tokenize and tokenize != pieces else prepared.tokenizer, prepared.target)
    text, lowercase = (prepared.hypotheses, prepared.references), prepared.corpus.lowercase
    bleu, chrf = bleu_metric(words, lowercase), CHRF(lowercase=lowercase)
    value = resample(bleu, *text)
    spbleu = bleu_metric(pieces, lowercase) if pieces else None
    kinds = {
        "sacrebleu": entry(bleu, value),
        "tokenised": _tokenised(prepared) if prepared.corpus.in_words or paper == "tokenised" else None,
        "spbleu": entry(spbleu, resample(spbleu, *text)) if spbleu else None,
    }
    if kinds[paper] is None:
        raise UserError(f"--paper {paper}: {prepared.path} has no references of fairseq-generate (lines T-n)")
    return {
        "bleu": kinds[paper]["score"],
        "kind": paper,
        "signature": kinds[paper]["signature"],
        **kinds,
        "chrf": entry(chrf, resample(chrf, *text)),
        "reference": prepared.reference,
        "sentences": len(prepared.hypotheses),
        "length_ratio": value.ratio,  # type: ignore[attr-defined]  # BLEU's score has one
        "generation": generation_speed(prepared.path),
    }


def _tokenised(prepared: Prepared) -> dict | None:
    """BLEU of words between blanks, as fairseq's own scorer counts them."""
    if prepared.tokenised_references is None:
        return None
    metric = bleu_metric("none")
    value = metric.corpus_score(prepared.tokenised_hypotheses, [prepared.tokenised_references])
    return {"score": float(value.score), "signature": str(metric.get_signature())}


def _rounded(value, digits: int = 2):
    """To two decimals, as sacreBLEU prints its scores; ratios to four."""
    if isinstance(value, dict):
        return {key: _rounded(inner, 4 if key == "length_ratio" else 2) for key, inner in value.items()}
    return round(value, digits) if isinstance(value, float) else value
