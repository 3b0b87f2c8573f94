"""Write the README.md of an exported folder: what the model is, and some lines of Python that use it.

The folder readmes/ has the templates: huggingface.md for transformers, and for CTranslate2 one for each kind of pieces.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...data.text_form import Form
from .hub_models import AUTO, Port
from .served import Served

READMES = Path(__file__).parent / "readmes"
# sentences of the README.md: how long a text may be, and what tags are
LIMIT = "A text may have {longest:,} pieces; split what is longer: {fate}."
TAGS = (
    " It translates between {languages}; the tags in the code are those of {source} to {target}, and another "
    "language's is one of {tags}."
)


def write_readme(served: Served, folder: Path) -> None:
    """Write the README.md of a translation model in a folder for CTranslate2."""
    assert served.text is not None
    described = served.text.described
    source, target = served.direction
    source_tags, target_tags = described.tags(source, target)
    chain = described.chain or {}
    source_positions, target_positions = described.positions

    # lines of Python in the template: tags in front of the source, tags that decoding begins with, and their removal
    before = prefix = after = ""
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
    """Write the README.md of a folder for transformers, its model card; ported: the model in it."""
    # values of the template's fields, first those of a language model
    pipeline = "text-generation"
    language = ""  # the card's list of languages
    before = ""  # a line of Python before generate(), which sets the tag of the source
    options = ", max_new_tokens=50"  # of generate()
    form = None
    if served.text is not None:
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
    if ported.bounded:
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
        forced=options,
        **_form_code(form),
    )


def _form_code(form: Form | None) -> dict[str, str]:
    """Return Python that brings `lines` to the form of the training text: "imports" and "form", lines of a template.

    form: None for a language model, whose text is not changed.
    """
    if form is None:
        return {"imports": "", "form": ""}

    imports = "import json\n"
    changed = 'line.translate(str.maketrans(form["replace"]))'
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
    """Fill in the template readmes/NAME.md with the values of its {fields}; write it into a folder as README.md."""
    text = (READMES / f"{name}.md").read_text(encoding="utf-8").format(**values)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _head(served: Served) -> str:
    """Return the title and the first sentences of a README.md: languages, size, method, data."""
    title = "A language model"
    tags = ""  # a sentence about them
    if served.text is not None:
        described = served.text.described
        source, target = served.direction
        title = f"{source} to {target}"
        if described.symbols:
            title = f"{len(described.languages)} languages"
            languages = ", ".join(described.languages)
            known = ", ".join(described.symbols.values())
            tags = TAGS.format(languages=languages, source=source, target=target, tags=known)

    config = served.folded.config
    stacks = [stack for stack in ("encoder", "decoder") if f"{stack}_layers" in config]
    depths = "-".join(str(config[f"{stack}_layers"]) for stack in stacks)
    width = config[f"{stacks[-1]}_embed_dim"]
    return (
        f"# {title}, {depths} layers\n\nA Transformer of {depths} {'-'.join(stacks)} layers and width "
        f"{width}, trained with `{served.folded.method}` by deepnet_fairseq on "
        f"`{Path(served.data).name}`; the method's factors are in the weights.{tags}"
    )
