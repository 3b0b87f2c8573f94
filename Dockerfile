# The package with torch for NVIDIA GPUs. UNTESTED: neither built nor run; docs/install.md.
#   docker build -t deepnet_fairseq .
#   docker run --gpus all --shm-size 8g -v "$PWD:/work" deepnet_fairseq deepnet quickstart
FROM python:3.12-slim
# torch's compiled kernels are linked by a C++ compiler at run time; fairseq-fixed has a wheel for 3.12
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY setup.py pyproject.toml README.md LICENSE scripts/constraints.txt /src/
COPY deepnet_fairseq /src/deepnet_fairseq
RUN pip install --no-cache-dir -c /src/constraints.txt "/src[fairseq,data]" && rm -rf /src
WORKDIR /work
