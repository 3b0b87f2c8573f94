"""`deepnet train --config FILE`: what fairseq-hydra-train trains, with every mistake in the YAML in one line.

fairseq-hydra-train reads and checks a YAML before it imports --user-dir: what it says of one until then is its own, a
traceback, or lines that do not name the file; a file that is not there it replaces by defaults, and it writes out
aliases of aliases until the memory ends. Here the plug-in is there first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import warnings
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from fairseq import models, registry, tasks, utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.initialize import add_defaults, hydra_init
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from ..errors import UserError, behind, user_error_line
from ..files import WRONG_VALUES
from .yaml_config import did_you_mean

SECTIONS = tuple(one.name for one in fields(FairseqConfig) if not one.name.startswith("_"))
TYPED: dict[str, Any] = {one.name: one.type for one in fields(FairseqConfig) if dataclasses.is_dataclass(one.type)}
LARGEST = 1 << 20  # bytes
MOST_VALUES = 100_000
DEEPEST = 50  # levels; omegaconf ends at some 100
REQUIRED = ("task", "model", "criterion", "optimizer", "lr_scheduler")  # sections without which nothing trains
PACKAGE = Path(__file__).parents[1]


def train(file: Path, settings: list[str]) -> None:
    """Trains what `file` and `settings` say, in the folder where it is called; UserError for a mistake."""
    cfg = composed(file, settings)
    from fairseq_cli import hydra_train  # which brings all of fairseq-train

    logging.getLogger("fairseq").setLevel(logging.NOTSET)  # which `deepnet` keeps quiet
    with _in_one_line(file, settings):
        hydra_train._hydra_main(cfg)


def composed(file: Path, settings: list[str]) -> DictConfig:
    """The whole config, as hydra and fairseq make it of `file` and `settings`, words as hydra takes them.

    common.user_dir is this package where nobody says otherwise. UserError for what cannot be read, unknown sections,
    keys and names, values of another type, interpolations that lead nowhere, and ??? that nobody filled in.
    """
    node = read(file)
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{file}: has no sections, as `common:` with settings below it")
    if file.suffix != ".yaml":
        raise UserError(f"{file}: hydra reads files that end in .yaml; rename it")
    if file.stem in SECTIONS:
        raise UserError(f"{file}: hydra takes a file of this name for the section alone; rename it")
    with _in_one_line(file, settings, WRONG_VALUES), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra's, of fairseq's calls for an older one
        for name, value in node.value:
            if name.value in TYPED and not isinstance(value, yaml.MappingNode):
                raise UserError(f"{name.value}: is a section; write its settings below it")
        hydra_init(file.stem)  # the schema of a file is found by its name
        with initialize_config_dir(str(file.parent.resolve()), version_base="1.1"):
            cfg = compose(file.stem, settings)
        if OmegaConf.is_missing(cfg.common, "user_dir") or not cfg.common.user_dir:
            cfg.common.user_dir = str(PACKAGE)
        for section in sorted(set(map(str, cfg)) - {*SECTIONS, "_name"}):
            raise UserError(f"{section}: no such section{did_you_mean(section, SECTIONS)}")
        for section, kind in TYPED.items():  # for what a + has added
            known = [one.name for one in fields(kind)]
            for name in sorted(set(map(str, cfg[section])).difference(known)):
                raise UserError(f"{section}.{name}: no such setting{did_you_mean(name, known)}")
        for key in sorted(OmegaConf.missing_keys(cfg)):
            raise UserError(f"{key}: is for you to give; {key}=VALUE")
        utils.import_user_module(cfg.common)  # which may have names of its own
        _check_names(cfg)
        add_defaults(cfg)
        OmegaConf.to_container(cfg, resolve=True)
    return cfg


def _check_names(cfg: DictConfig) -> None:
    """UserError for a section without a _name, or with one that fairseq and this package do not have."""
    known: dict[str, Collection[str]] = {name: kind["registry"] for name, kind in registry.REGISTRIES.items()}
    known |= {"task": tasks.TASK_REGISTRY, "model": models.MODEL_REGISTRY | models.ARCH_MODEL_REGISTRY}
    for section, names in known.items():
        chosen = cfg.get(section)
        if isinstance(chosen, DictConfig):
            chosen = chosen.get("_name")
        elif chosen is not None and not isinstance(chosen, str):
            raise UserError(f"{section}: has settings of its own below it; {section}._name says which")
        if chosen is None and (section in REQUIRED or cfg.get(section) is not None):
            raise UserError(f"{section}._name: is missing; say which")
        if chosen is not None and chosen not in names:
            raise UserError(f"{section}._name: {chosen} is unknown{did_you_mean(chosen, names)}")


def check_before_loading(load, repository, config_path: str):
    """Around hydra's reading of a file, also of one that a `defaults` list names."""
    source = next((one for one in repository.get_sources() if one.is_config(config_path)), None)
    if source is not None and source.scheme() == "file":
        read(Path(source.path, config_path if config_path.endswith((".yaml", ".yml")) else f"{config_path}.yaml"))
    return load(repository, config_path)


def read(file: Path) -> yaml.Node | None:
    """Its YAML as nodes, each with its line; None if it is empty.

    UserError for a file that is none, that is no YAML or that unfolds to too much.
    """
    if file.is_dir():
        raise UserError(f"{file}: is a folder; name the YAML in it")
    if not file.is_file():
        raise UserError(f"{file}: {'is no ordinary' if file.exists() else 'no such'} file")
    if file.stat().st_size > LARGEST:
        raise UserError(f"{file}: is larger than {LARGEST >> 20} MiB, no settings are")
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        if node is not None:
            _unfolded(node, "", {}, file, 0)
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: is no text in UTF-8 (byte {error.start})") from error
    except yaml.YAMLError as error:
        raise UserError(_said(error, file)) from error
    except RecursionError as error:
        raise UserError(f"{file}: is nested too deeply") from error
    return node


def _said(error: yaml.YAMLError, file: Path) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:  # a character that YAML does not know
        return f"{file}: {' '.join(str(error).split())}"
    return f"{file}, line {mark.line + 1}: " + ("a tab; indent with spaces" if "'\\t'" in problem else problem)


def _unfolded(node: yaml.Node, key: str, sizes: dict[int, int], file: Path, deep: int) -> int:
    """How many values it is when its aliases are written out, each counted once; UserError for too many.

    sizes: those of nodes that are done, by identity; 0 for those that this one is in.
    """
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise UserError(f"{file}, line {node.start_mark.line + 1}: {key}: an alias stands for what it is in")
        return sizes[id(node)]
    if deep > DEEPEST:
        raise UserError(f"{file}, line {node.start_mark.line + 1}: is nested too deeply")
    sizes[id(node)], size, seen = 0, 1, set()
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            size += _unfolded(item, key, sizes, file, deep + 1)
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            below = f"{key}.{name.value}".lstrip(".")
            if isinstance(name, yaml.ScalarNode) and name.value in seen:
                raise UserError(f"{file}, line {name.start_mark.line + 1}: {below}: is there twice; drop one")
            seen.add(str(name.value))
            size += 1 + _unfolded(value, below, sizes, file, deep + 1)
    if size > MOST_VALUES:
        raise UserError(f"{file}, line {node.start_mark.line + 1}: {key}: aliases unfold to {size:,} values")
    sizes[id(node)] = size
    return size


@contextlib.contextmanager
def _in_one_line(file: Path, settings: list[str], others: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """What hydra, omegaconf and the plug-in say of a setting becomes a UserError that begins with where it stands.

    others: what a wrong file makes hydra raise besides, where nothing but the file is at work.
    """
    lines = dict(_lines(read(file)))  # a training may outlive the file
    try:
        yield
    except yaml.YAMLError as error:
        raise UserError(_said(error, file)) from error
    except Exception as error:
        line = user_error_line(error)
        if line is None and isinstance(error, (HydraException, OmegaConfBaseException, *others)):
            line = _of_hydra(error)
            line = _placed(line, file, lines, settings) or f"{getattr(error, 'override', None) or file}: {line}"
        if line is None:
            raise
        raise UserError(_placed(line, file, lines, settings) or line) from error


def _of_hydra(error: BaseException) -> str:
    """KEY: WHAT, of the first error that knows its key; else the first line of all that hydra says."""
    for one in behind(error):
        if isinstance(one, OmegaConfBaseException) and one.full_key:
            node, said = one.parent_node, str(one.msg).splitlines()[0]
            if not isinstance(one, (ConfigKeyError, ConfigAttributeError)) or not isinstance(node, DictConfig):
                return f"{one.full_key}: {said}"
            if one.object_type is dict:
                return f"{one.full_key}: is not in the file; a + in front adds it"
            kind = "setting" if "." in str(one.full_key) else "section"
            return f"{one.full_key}: no such {kind}{did_you_mean(one.key, node)}"
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _placed(line: str, file: Path, lines: dict[str, int], settings: list[str]) -> str:
    """`line` behind the word of the command or the line of the file that it is about; "" if it names no setting."""
    match = re.match(r"--([\w-]+)|([\w.]+)(\[\d+\])?: ", line)
    key = (match.group(2) or "") if match else ""
    if match and match.group(1):  # a flag, as fairseq-train's
        of_flag = (f"{section}.{match.group(1).replace('-', '_')}" for section in SECTIONS)
        key = next((one for one in of_flag if one in lines or one in map(_key, settings)), "")
    elif key.partition(".")[0] not in {*SECTIONS, *lines, *(_key(word).partition(".")[0] for word in settings)}:
        key = ""
    for word in settings:
        if key and (_key(word) == key or (key not in lines and _key(word).startswith(f"{key}."))):
            return f"{word}: {line}"
    above = key
    while above and above not in lines:
        above = above.rpartition(".")[0]
    number = f", line {lines[above]}" if above else ""
    return f"{file}{number}: {line}" if key else ""


def _key(word: str) -> str:
    """Of KEY=VALUE, +KEY=VALUE, ~KEY."""
    return re.split("[=@]", word.lstrip("+~"))[0]


def _lines(node: yaml.Node, above: str = "") -> Iterator[tuple[str, int]]:
    """Each key of a mapping with its line, from 1."""
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        key = f"{above}{name.value}"
        yield key, name.start_mark.line + 1
        yield from _lines(value, f"{key}.")
