"""Write the README.md of an exported folder: what the model is, and some lines of Python that use it.

The folder readmes/ has the templates: huggingface.md for transformers, and for CTranslate2 one for each kind of pieces
into which text is cut (a key of translation/pieces.KINDS). `served` in all functions is the exported model with its
text (served.py). A tag is the symbol of a language, with which a multilingual model's source or translation begins.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...data.text_form import Form
from .hub_models import AUTO, Port
from .served import Served

READMES = Path(__file__).parent / "readmes"
# sentences of the README.md: how long a text may be, and what becomes of a longer one; which tags there are
LIMIT = "A text may have {longest:,} pieces; split what is longer: {fate}."
TAGS = (
    " It translates between {languages}; the tags in the code are those of {source} to {target}, and another "
    "language's is one of {tags}."
)


def write_readme(served: Served, folder: Path) -> None:
    """Write the README.md of a translation model in a folder for CTranslate2."""
    assert served.text is not None
    described = served.text.described
    source, target = served.direction  # languages
    source_tags, target_tags = described.tags(source, target)  # each a list of one tag, or empty
    chain = described.chain or {}  # settings of Moses' tokenizer, {} for other pieces
    source_positions, target_positions = described.positions  # numbers of tokens, the end of sentence counted

    # Python for the template's fields; "" for a model without tags
    before = ""  # puts the tag in front of the source's pieces
    prefix = ""  # makes decoding begin with the tag
    after = ""  # removes that tag from the translation
    if source_tags:
        before = f"{source_tags} + "
    if target_tags:
        prefix = f"[{target_tags}] * len(rows), "
        after = "[1:]"

    _write(
        folder,
        described.pieces,
        head=_head(served),
        source=source,
        target=target,
        longest=target_positions - 1,
        limit=LIMIT.format(longest=source_positions - 1, fate="CTranslate2 refuses it"),
        before=before,
        prefix=prefix,
        after=after,
        aggressive=bool(chain.get("aggressive")),
        lower=".lower()" if chain.get("lowercase") else "",
        **_form_code(described.form),
    )


def write_card(served: Served, folder: Path, ported: Port) -> None:
    """Write the README.md of a folder for transformers, its model card; ported: the model in it (hub_models.py)."""
    # values of the template's fields, first those of a language model
    pipeline = "text-generation"
    language = ""  # the card's list of languages
    before = ""  # a line of Python before generate(), which sets the tag of the source
    options = ", max_new_tokens=50"  # further arguments of generate(), as Python
    form = None
    if served.text is not None:  # a translation model
        described = served.text.described
        source_tags, target_tags = described.tags(*served.direction)
        pipeline = "translation"
        language = f"language: {json.dumps(list(described.languages))}\n"
        options = ""
        form = described.form
        if source_tags:
            before = f"tokenizer.prefix_tokens = tokenizer.convert_tokens_to_ids({source_tags})\n"
        if target_tags:
            options = f', forced_bos_token_id=tokenizer.convert_tokens_to_ids("{target_tags[0]}")'

    limit = ""
    if ported.bounded:  # one of its positions is for the end of sentence, or the token before a language model's text
        limit = LIMIT.format(longest=ported.longest - 1, fate="the model has no more positions")

    _write(
        folder,
        "huggingface",
        head=_head(served),
        pipeline=pipeline,
        language=language,
        method=served.folded.method,
        model=ported.name,
        limit=limit,
        auto=AUTO[ported.head],
        before=before,
        options=options,
        **_form_code(form),
    )


def _form_code(form: Form | None) -> dict[str, str]:
    """Return Python that brings the list `lines` to the form of the training text (data/text_form.py).

    It is {"imports": the import statements that it needs, "form": the other statements}, for the template's fields of
    these names. form: replacements of characters, Unicode normal form and joined letters; None for a language model,
    whose text is not changed.
    """
    if form is None:
        return {"imports": "", "form": ""}

    imports = "import json\n"
    changed = 'line.translate(str.maketrans(form["replace"]))'  # expression for a changed line
    if form.unicode:
        imports += "import unicodedata\n"
        changed = f'unicodedata.normalize("{form.unicode}", {changed})'

    code = 'form = json.load(open(f"{folder}/translation.json", encoding="utf-8"))["form"]  # of the training text\n'
    code += f"lines = [{changed} for line in lines]\n"
    if form.join:
        code += 'for letters, letter in form["join"].items():\n'
        code += "    lines = [line.replace(letters, letter) for line in lines]\n"
    return {"imports": f"{imports}\n", "form": code}


def _write(folder: Path, name: str, **values) -> None:
    """Fill in the template readmes/NAME.md with the values of its {fields}; write it to README.md in `folder`."""
    text = (READMES / f"{name}.md").read_text(encoding="utf-8").format(**values)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _head(served: Served) -> str:
    """Return the title and the first sentences of a README.md: languages, size, method, data, tags."""
    title = "A language model"
    tags = ""  # a sentence about languages and tags, for a multilingual model
    if served.text is not None:
        described = served.text.described
        source, target = served.direction
        title = f"{source} to {target}"
        if described.symbols:  # language -> tag, of a multilingual model
            title = f"{len(described.languages)} languages"
            languages = ", ".join(described.languages)
            known = ", ".join(described.symbols.values())
            tags = TAGS.format(languages=languages, source=source, target=target, tags=known)

    config = served.folded.config
    stacks = [stack for stack in ("encoder", "decoder") if f"{stack}_layers" in config]
    depths = "-".join(str(config[f"{stack}_layers"]) for stack in stacks)  # "18-18", or "24" of a language model
    width = config[f"{stacks[-1]}_embed_dim"]
    noun = "layer" if depths == "1" else "layers"
    size = f"{depths} {'-'.join(stacks)} {noun} and width {width}"
    training = f"trained with `{served.folded.method}` by deepnet_fairseq on `{Path(served.data).name}`"
    return (
        f"# {title}, {depths} {noun}\n\n"
        f"A Transformer of {size}, {training}; the method's factors are in the weights.{tags}"
    )
