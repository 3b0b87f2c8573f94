"""Two hundred lines of unusual text that tokenizers treat differently."""

from __future__ import annotations

FRAMES = (
    ">>{}<<", ">>de<< {}", ">> {} <<", "„{}“", "«{}»", "“{}”, ‘{}’", "'{}'", '"{}"', "{}…", "{} – {}", "{}--{}",
    "({}) [{}]", "{} </s>", "</s> {}", "<s>{}</s>", "<unk> {} <pad>", "<mask>{}", "__de__ {}", "{} __en__", "[de] {}",
    "{} &amp; &lt;b&gt;", "{}²³", "10² {} 10⁻³", "½ {} ¼", "ﬁ{}ﬂ", "Ａ{}Ｂ", "① {} Ⅳ", "٣ {} ۴", "{} 1.234,56 €",
    "3×{}÷2≠∞", "e\u0301 {}", "é {}", "Å{}A\u030a", "{}\u200c{}", "{}\u200d{}", "{}\u200b", "\ufeff{}", "{}\u00ad{}",
    "{}\u00a0{}", "{}\u3000{}", "{}\u2028{}", "\t{}\t{}", "   {}   {}", "👍🏽 {}", "{} 🇩🇪☃\ufe0f", "☃{}☃☃", "▁{} ▁ {}",
    "@@ {}@@ {}", "{}|{}", "http://a.b/{}?c=d#e",
)  # fmt: skip


def odd_lines(plain: list[str]) -> list[str]:
    """Return each frame around four lines of `plain`, each cut to its first three words."""
    words = [" ".join(line.split()[:3]) for line in plain]
    return [frame.replace("{}", words[place]) for frame in FRAMES for place in range(4)]
