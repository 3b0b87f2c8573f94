"""Names of languages: OPUS goes by ISO 639-1 as M2M-100 does, Flores-101 by codes of its own near ISO 639-3."""

from __future__ import annotations

CODES = """
af:afr am:amh ar:ara as:asm ast:ast az:azj be:bel bg:bul bn:ben bs:bos ca:cat ceb:ceb ckb:ckb cs:ces cy:cym da:dan
de:deu el:ell en:eng es:spa et:est fa:fas ff:ful fi:fin fr:fra ga:gle gl:glg gu:guj ha:hau he:heb hi:hin hr:hrv hu:hun
hy:hye id:ind ig:ibo is:isl it:ita ja:jpn jv:jav ka:kat kam:kam kea:kea kk:kaz km:khm kn:kan ko:kor ky:kir lb:ltz
lg:lug ln:lin lo:lao lt:lit luo:luo lv:lav mi:mri mk:mkd ml:mal mn:mon mr:mar ms:msa mt:mlt my:mya ne:npi nl:nld no:nob
ns:nso ny:nya oc:oci om:orm or:ory pa:pan pl:pol ps:pus pt:por ro:ron ru:rus sd:snd sk:slk sl:slv sn:sna so:som sr:srp
sv:swe sw:swh ta:tam te:tel tg:tgk th:tha tl:tgl tr:tur uk:ukr umb:umb ur:urd uz:uzb vi:vie wo:wol xh:xho yo:yor
zh:zho_simpl zh_TW:zho_trad zu:zul
"""
FLORES: dict[str, str] = dict(code.split(":") for code in CODES.split())
