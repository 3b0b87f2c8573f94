"""Two hundred lines of unusual text that tokenizers treat differently."""

from __future__ import annotations

# Texts around a sentence, which replaces {}: quotation marks, look-alikes of special symbols and of language tags,
# escapes, numbers, combining and invisible characters, blanks of all kinds, emoji, and marks of tokenizers.
FRAMES = (
    ">>{}<<", ">>de<< {}", ">> {} <<", "„{}“", "«{}»", "“{}”, ‘{}’", "'{}'", '"{}"', "{}…", "{} – {}", "{}--{}",
    "({}) [{}]", "{} </s>", "</s> {}", "<s>{}</s>", "<unk> {} <pad>", "<mask>{}", "__de__ {}", "{} __en__", "[de] {}",
    "{} &amp; &lt;b&gt;", "{}²³", "10² {} 10⁻³", "½ {} ¼", "ﬁ{}ﬂ", "Ａ{}Ｂ", "① {} Ⅳ", "٣ {} ۴", "{} 1.234,56 €",
    "3×{}÷2≠∞", "e\u0301 {}", "é {}", "Å{}A\u030a", "{}\u200c{}", "{}\u200d{}", "{}\u200b", "\ufeff{}", "{}\u00ad{}",
    "{}\u00a0{}", "{}\u3000{}", "{}\u2028{}", "\t{}\t{}", "   {}   {}", "👍🏽 {}", "{} 🇩🇪☃\ufe0f", "☃{}☃☃", "▁{} ▁ {}",
    "@@ {}@@ {}", "{}|{}", "http://a.b/{}?c=d#e",
)  # fmt: skip


def odd_lines(plain: list[str]) -> list[str]:
    """Put the first three words of each of the first four lines of `plain` into every frame; return the lines."""
    beginnings = [" ".join(line.split()[:3]) for line in plain[:4]]
    lines = []
    for frame in FRAMES:
        lines += [frame.replace("{}", beginning) for beginning in beginnings]
    return lines
