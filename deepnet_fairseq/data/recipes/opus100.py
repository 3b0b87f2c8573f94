"""OPUS-100 v1.0 (Zhang et al., 2020): 99 pairs with English, up to a million sentence pairs each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError
from ..archive import stream_lines
from ..download import RemoteFile
from ..lines import align
from ..multilingual.pair_text import PairText, Sentences, one_line, parse_pair
from ..multilingual.recipe import MultilingualRecipe
from .base import Options

SITE = "https://object.pouta.csc.fi/OPUS-100/v1.0"
MINIATURE = ("an-en", "de-en", "en-fr", "en-ru")
SPLITS = {"train": "train", "valid": "dev", "test": "test"}  # fairseq's name -> the corpus'
BINARISED = 4  # bytes of binarised data for each of the archive, about
ORIGIN = "the datasets library, datasets/opus100/dataset_infos.json"
WITHOUT_TEST = frozenset({"an-en", "dz-en", "en-hy", "en-mn", "en-yo"})
SHORT_DEV = {"en-gd": 1605, "en-ig": 1843, "en-kn": 917, "en-or": 1317, "en-tk": 1852}
SHORT_TEST = {"en-gd": 1606, "en-ig": 1843, "en-kn": 918, "en-or": 1318, "en-tk": 1852}
TABLE = """
af-en 7505036 275512 d5b1ac19fdc41508fdfd946e1c51ae6777d181474f5e77b1fee88bf76d254d52
am-en 7004193 89027 c68d7590fd4c708d6b80639389cf73bd1ebc3ca39bbaeaaaf7c6d48140c780c4
an-en 96148 6961 8083ade0f12af4abf1600f497f4327af45a4d074cf85134a82e07bd7dfdff876
ar-en 55286865 1000000 efc55eaab636e5c469b1ab3e2543bcfdc57f375ee6d57f248cfcfa589b46594b
as-en 4183517 138479 adf38305e6256bb5e338b6c9d9dd08b5755acb637b255196dda1b78e23e130dd
az-en 18897341 262089 a3a3ba50c98ffa8cfb453d0023be3da9f4e5c6cf03ce03ae3c402b1c8745c7ab
be-en 1906088 67312 f5a047de898b222f413bea7316ef60fbad99a5f4ab11b3041e1ea0d9d4439dab
bg-en 36980744 1000000 ee019090235379a17e90422fe739667b3af913da1ee55e662db10db317d6ec5a
bn-en 72999655 1000000 03cecc49791aef3788ebe6bd36908462e3e198916d42ca1165c74c7443580845
br-en 3323458 153447 1dde74dd2f935df7bb5db8909c77bd0e19cef97e60195c9e9c2154a8f270af08
bs-en 30746956 1000000 de8747c8b5dd34f5e19aa9ccf3734626cf7f7c0b82ef4920a33e3c722acb70e2
ca-en 36267794 1000000 40aa2a23d4fb5408b05f9a2f95544e7b7195f7e0aa405fac93263930a77ab19a
cs-en 39673827 1000000 e870a377d0eb7327ad9f5e4d979feb41ad0e0a331bc176fcdd7e45ecdda1ff0f
cy-en 6487005 289521 935145550ed2fbef59ba947b9a15d5281039fbbc5377624af3011ed4d454f6b0
da-en 50404122 1000000 20fcc66a488897a549495a11427a9f3b84926a323ddaa0372f03b14fabee4f14
de-en 67205361 1000000 aca2cb2f71268700c5734c7b177fbc91dcadc1ac59844000a85d9d10d0bb19c0
dz-en 17814 624 c873dfd45a93420ac96bdd05d2835a7ee57bceff7f2258cfda8aecb2787bbe05
el-en 43973686 1000000 2992dd7a8cadd2c3db7b7267dd3df4cc5f3dee21a2514d6218a718891f543f99
en-eo 9999313 337106 1db2518821cac8d313085f2a79dc3dcaa30ca35dab8436786e70921209c52a87
en-es 55534068 1000000 e361cd112e9831d50e48d59fa0a9630a51daf323ed6e555fa25464b5e409c649
en-et 46235623 1000000 9fefd0239214e3620b8e525c7bab5ddbac4b8cdcdaf784936be9cedde5cef421
en-eu 46389313 1000000 b280ab292fad2b0c20599b0c0032eb1232706327228cdfe91611bbcf64979b9a
en-fa 44568447 1000000 000305cca8a8c6278f8d036c06845f4c994d1343f4710873f99b705aeb529e51
en-fi 42563103 1000000 fa888ce283e2887a6932ab007518f2b2586e6d80ebe44856f8648e47e0c83b0f
en-fr 81009778 1000000 c5521d61d7a158bcdebdd590c86b6e26e7d434cb1e02ca12681f8f82ed998c2d
en-fy 1522187 54342 bc86f0ee0e99d4fd9e2bb3c1c27ce8f50ee0ca56fe12b75e3d8d4abb97a267eb
en-ga 14998873 289524 8f278d5c9cdc9e4ce660a9afe72a286ef4651adfb9f4d2fe0f38b4cacb8be449
en-gd 564053 16316 fc567fb3065c700046120bbdcd3b5a54eb8f2cfe3d7a97dcad5270ff2e342343
en-gl 18056665 515344 ff2e4ca48fd491a8bff5400a5584087ba05c893778845f2167c218ad2d57f4a3
en-gu 9407543 318306 ea614ac05ca527f903604603cf674b2825058e12a1bfb74eba40c77d52e773f5
en-ha 6898482 97983 e2c24892c72a530e43eaea0e3033291b8ea166a2c8665955a074f56cacd69136
en-he 31214136 1000000 693831c44c3afc5f34d7e3881dddd9eea6ba9ad5ec08d63359f4ab9bb033a758
en-hi 35993452 534319 f6efc00fd95972b9b13157167356152766d962db07b6e73e6cc87479083c3b90
en-hr 30728154 1000000 7b2302e36e747700ed0036c119004d31a7955918af7e1f11dc868e81c4c9f537
en-hu 35696235 1000000 04b51fd88964c0a42f49dc779e1d515944872ae1a998a6d3602cf63aa4d2d216
en-hy 215246 7059 dbcd452a3a0eb3c1485621ea314a096ab5ddf89e84e1f02fe7b4bdf4cc268dcc
en-id 29914089 1000000 3466dd5f90b0e44542edafac932c25fbeabcad65b5cd50d264319f1fd18c1b8d
en-ig 391849 18415 4cbee7925658026f1791d2638edbc1f72435306f39428f76627fa84506142755
en-is 28831218 1000000 1dfc59b45631dbf849c75a23b14379b05296cf651e24dd2df7ab3ab85f916624
en-it 50903618 1000000 54da7db3f7bcbd21e8b41180551d4fd5de0eb1802bfb2ec2b5d44bb919ba464a
en-ja 34452575 1000000 78e83ee1b0e17834a02c2f51df1ce71d455b9211e46f113b97d441e40fed0681
en-ka 12743188 377306 6b189050fad96016e21a24869b8164da7450214197c473584ed1445bf626f617
en-kk 2425372 79927 be76b8a0d8a60809cbb90320e7d484501c86686eb65c5aac585ad94b979da850
en-km 5193620 111483 b65cbbf241a1eeeafd6b39c366f219356e6ce6e065d146a1e847200f055dd39b
en-kn 525449 14537 5c100de50142e36e750e6a0d595aeedccda7f1479d781b4a4a337c8361bfe87a
en-ko 37602794 1000000 f9040eb06807cf1cb2c0d3352249b38546bdbff668c242b98c95bfae84190fd2
en-ku 14252198 144844 b198288af58893bcb19e999565eb0180d100505003d5064643f51329024bf117
en-ky 616902 27215 2694ed66518822f283bfa8097e94160256e1dc9c405545258eb7962282ec62b4
en-li 450092 25535 e17e96b9331e90542e3a5145ae27e36a29a6433cbe1e4b6352bd6634546dfe7c
en-lt 69388131 1000000 af798e0d92f37805bc9a8f3a13ff48a1e016b67938062016558f3a7cc39f8ded
en-lv 78952903 1000000 5b824a15347a139655a8e630a724bc6df2d7d454d35b20da028630aa4969bb53
en-mg 52470504 590771 b6f7242fd0d535422ca8958fdf295808ef5a47bb3f9901d26dc08ff2a8cbb843
en-mk 39517761 1000000 2fdb6bbfb189dbd6db5cea247488b26bf0d943cb82415a5f4cbe2d664d964fb1
en-ml 48654808 822746 0121284cdb5582b95aa344de6fd31322202da58e938763037e5cbf40d39e7644
en-mn 42039 4294 52cbcf55978c5cc6be6062a3669edeb0c4833e0e8cdc235295a6c011b4fdaf7b
en-mr 910211 27007 0988cfa9bac2da79b15c2a7a1cde0e31851b0d418c1edf3a0027c9b6fa6d43c2
en-ms 29807607 1000000 9f46a5e7dee938b2f9e51182b0d7939a3cea61c5cdda6d4fc0ba724d99688cd4
en-mt 84757608 1000000 327f2fbab86f4aec9df76c7e39d3f32b8f56b97877df1579f73c10f431f7305e
en-my 1038600 24594 5338dfdbdea5a6178f4b3654e4f8644906d7c6d9b102d7e9c3631b65ab9debc9
en-nb 5706626 142906 f184509d7a781fe60aaf617ca23a373488c369ca8eb6d5c2eebf7c74e747d6a7
en-ne 11711988 406381 0939f62d42db0f070c309b0fb02c4733e3e943cdbc504739fc0e4b42cbcd3ba8
en-nl 45374708 1000000 8d59b586929585de9aa0f9805bc9873c5b9ea5075d34bf23ffb2714b02499308
en-nn 12742134 486055 31c1fde5fb4b95c37cd9ceafcaf6104574727dc31b15d4b255f0ab71df4c6579
en-no 28851262 1000000 a8b20ca8dfd25581b54303a780c19105eab3645ad7981a1a821e93d634bfc4f6
en-oc 607192 35791 9fe531860f1a7f89d97053fc4144b71fdbf6e734dc2d3d52dbc20714493cd0d4
en-or 499401 14273 dc15a00dbb19541ae46491490184d08302095faf7ed88d962f45cec768d87b05
en-pa 2589682 107296 1107d5ae7c5b5c6a8575bce896cecb1e2b45b7dc454294222062245b6fe3f947
en-pl 39320454 1000000 8684ef187956bfab33896f84437722e2c41ea00341eee7096039f0e39c4f2ddc
en-ps 1223087 79127 591b83f63a43b534653523681ac880bcaea2ff69c8f266112c66223bf44e90f5
en-pt 48087550 1000000 550e3382309dee492c77f8ce88c32fb559211ad4f032dca2d34c10ec0b0fe75d
en-ro 35032743 1000000 4c87e36f2ff5eae5ffefb66abcf6c65a5f8af673946c911f10ab42bc468c5d42
en-ru 68501634 1000000 422c96c952e37a0e7ae924538f6c521a9dcedb200e0b29eab07a6e3fd00cca9d
en-rw 5233241 173823 ac65b6ee8d4900c078a53d90af463952b1f2f67333f36ccd53bc34cafa424ee4
en-se 806982 35907 ccc109d695c8d238f5d8c318b1a329b4f4bd434452bd178c0db90e7df60bae0a
en-sh 22357505 267211 68018403e648b55cca750e13d7c91cf6ec12be3a3cabcf83247200150fa39594
en-si 33247484 979109 2a654e11df7040ab70f36cde1d84a431696cb834c5d25abe0bfbd375615262a6
en-sk 46618395 1000000 1641ebabc596e1dad84ec1bfccfdc0d8c65837fc8739631eb7826066bb328f05
en-sl 37536724 1000000 57e5149d179d95eb7364220bcf10afbf419d94b402ad6dd8108610ae3e9e6760
en-sq 42697338 1000000 e2a9b220ad63824188297d184596a449c4a8c1ef3e1a681b63d46a9819c9ba62
en-sr 31260575 1000000 a5660570f8dbb47f1c275bce55542f0e1e1a938645d24c7bdd01c941d5481b4f
en-sv 46694960 1000000 ab83d088b08bc1a9f7da7895b4caf4dd467a57b1be9096bc0b5c88d045156119
en-ta 17652443 227014 612322d09aa48b7875ee5eee94791aa5bc22ebd2b0411997d66682a0329b61d4
en-te 2011832 64352 8bb0c2405cc62b37c1ec21584765e703b5739c2730c04898e6a18ff416c08529
en-tg 11389877 193882 30caf792aa42db984dcc7704a09250b15a1a1b46a7d82e79d2c116ee4c7eeefa
en-th 38147204 1000000 223dc991bd45ff25e96dada988f97bedb0c6f28e930bd8ab3ff1344e4a2a5bb6
en-tk 157481 13110 afbbf17a9600d41176c522a760a54d1e143e7855063893934159cbda8e4e427b
en-tr 30892429 1000000 0d4a941721721c94e99013052491894062d7782efb94a6593a91fd1f0f06cba0
en-tt 9940523 100843 d23d7043364d55f5cf47abf93193a831bfdc5c0ec38052ac84bdb166b98348fb
en-ug 8687743 72170 176ccf6f66439cda78892db6c0f8bad67fc3f9ebe25feac7cd405ecff2d785d7
en-uk 37415496 1000000 09a689c33567da03908d134d240c6e353319408ada4fddd949e46bc7d2a675ea
en-ur 81092186 753913 5e6dfe7bb1c956b37594a2b81213dde5f7dba1c0e49ecccdebcb4aa73af23711
en-uz 11791643 173157 364902a0e71c5e7b3dcb6bae4517fd094a445cad02566d81889222b06bed2650
en-vi 30647296 1000000 6a37b14536cfa554ea90f8560e3f93e5273c5783e062fc07bb2e3ffbc07daf95
en-wa 2119821 104496 5b60c912eb04afe15df000ca3f3e01c33a63ced61062bb1bb79d007a78bb021d
en-xh 20503199 439671 89030efe5382cce5c1c4085651fad222e04f43487ac1082b7aeeed8b6f8e2bf4
en-yi 284031 15010 d064b552fedb167dcdf9979db338e4c239cabbe238fd03755d61775c4dbb3945
en-yo 177540 10375 42a74826c0c29b35255186a706c3b15b43995d9ca34b0e68aa60700be9069e06
en-zh 83265500 1000000 c417af397ec380032528a9de8e2fbed40e2de78e0bcc6bace0de257a01ae6635
en-zu 889951 38616 0b488dd9205d2801b80ae9e72a946ef1f8ecd4dbe47c54c8788c8c62b7397056
"""


class Archive(NamedTuple):
    """One pair: bytes of its archive, its SHA-256, and sentence pairs of each split."""

    size: int
    sha256: str
    train: int
    dev: int
    test: int


def _archives() -> dict[str, Archive]:
    archives = {}
    for pair, size, train, sha256 in map(str.split, TABLE.split("\n")[1:-1]):
        held_out = 0 if pair in WITHOUT_TEST else 2000
        archives[pair] = Archive(
            int(size), sha256, int(train), SHORT_DEV.get(pair, held_out), SHORT_TEST.get(pair, held_out)
        )
    return archives


ARCHIVES = _archives()


class Opus100(MultilingualRecipe):
    """The vocabulary is of 250,000 pieces: what the parameters in Table 2 of the DeepNet paper leave room for."""

    name = "opus100"
    title = "OPUS-100 v1.0, 99 pairs with English, for 100 languages in one model (Table 2, Figure 8 of DeepNet)"
    vocab = 250_000
    expected = {f"{split}, all pairs": sum(getattr(a, split) for a in ARCHIVES.values()) for split in SPLITS.values()}

    def files(self, options: Options) -> tuple[RemoteFile, ...]:
        return tuple(_archive(pair) for pair in self.pairs(options))

    def needs(self, options: Options) -> int:
        return (1 + BINARISED) * sum(ARCHIVES[pair].size for pair in self.pairs(options))

    def pairs(self, options: Options) -> tuple[str, ...]:
        """In the order of the alphabet, as the corpus names them; --pairs en-de means de-en, too."""
        if options.pairs is None:
            return MINIATURE if options.miniature else tuple(ARCHIVES)
        pairs = tuple("-".join(sorted(parse_pair(pair))) for pair in options.pairs)
        for pair in pairs:
            if pair not in ARCHIVES:
                raise UserError(f"--pairs {pair}: OPUS-100 has no such pair; it has {', '.join(ARCHIVES)}")
        return pairs

    def text(self, options: Options, pair: str) -> PairText:
        archive = ARCHIVES[pair]
        subsets = {
            subset: partial(_read, options.downloads / _archive(pair).name, pair, split, options.miniature)
            for subset, split in SPLITS.items()
            if getattr(archive, split)
        }
        return PairText(parse_pair(pair), subsets, {"sha256": archive.sha256, "miniature": options.miniature})


def _archive(pair: str) -> RemoteFile:
    name, archive = f"opus-100-corpus-{pair}-v1.0.tar.gz", ARCHIVES[pair]
    return RemoteFile(name, (f"{SITE}/{name}",), archive.size, f"sha256:{archive.sha256}", ORIGIN)


def _read(archive: Path, pair: str, split: str, miniature: bool) -> Sentences:
    """The pairs of one split; UserError if they are not as many as were published."""
    if not archive.is_file():
        raise UserError(f"{archive}: is gone; name {pair} in --pairs, and it is downloaded again")
    published = None if miniature else getattr(ARCHIVES[pair], split)
    stem = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{split}"
    members = tuple(f"{stem}.{lang}" for lang in parse_pair(pair))
    source, target = (_as_many(stream_lines(archive, name), published, f"{archive}: {name}") for name in members)
    return align(source, target, members, empty="drop" if split == "train" else "keep")


def _as_many(lines: Iterator[str], published: int | None, what: str) -> Iterator[str]:
    count = 0
    for line in lines:
        count += 1
        yield one_line(line)
    if published is not None and count != published:
        raise UserError(f"{what} has {count:,} lines instead of {published:,}; remove the archive and start again")
