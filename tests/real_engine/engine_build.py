"""Builds llama.cpp's server from the source archive of the package `llama-cpp-python`, and a model for it; both cached.

Needs cmake, ninja and a C++ compiler; 9 minutes on two idle cores. Knows nothing of the gateway. Units: seconds.
"""

import subprocess
import sys
import tarfile
from pathlib import Path

from checkout import ROOT

CACHE = ROOT / "build" / "real-engine"
VERSION = "0.3.36"  # of llama-cpp-python
TOOLS = ("gguf==0.19.0", "numpy==2.4.6", "scikit-build-core==1.1.2")  # the archive's metadata is made with the last
VOCABULARY, TEMPLATE = "models/ggml-vocab-qwen2.gguf", "models/templates/Qwen-Qwen2.5-7B-Instruct.jinja"
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
)
_STEP_S_MAX = 7200.0


def built(jobs: int) -> tuple[Path, Path]:
    """The server and the model, made if they are not there.

    Args:
        jobs: compilers at a time.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    server, model = CACHE / "server" / "bin" / "llama-server", CACHE / "random.gguf"
    if server.exists() and model.exists():
        return server, model
    python = CACHE / "tools" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(python.parents[1]))
        _run(*pip, "install", *TOOLS)
    source = _source(pip)
    if not server.exists():
        _run("cmake", "-G", "Ninja", "-S", str(source), "-B", str(CACHE / "server"), *FLAGS)
        _run("cmake", "--build", str(CACHE / "server"), "--target", "llama-server", "-j", str(jobs))
    if not model.exists():
        program = Path(__file__).with_name("random_model.py")
        _run(str(python), str(program), *map(str, (source / VOCABULARY, source / TEMPLATE, model)))
    return server, model


def _source(pip: list[str]) -> Path:
    """The unpacked archive's copy of llama.cpp."""
    name = f"llama_cpp_python-{VERSION}"
    source = CACHE / name / "vendor" / "llama.cpp"
    if not source.exists():
        archive = CACHE / f"{name}.tar.gz"
        if not archive.exists():
            wanted = f"llama-cpp-python=={VERSION}"
            plain = ("--no-binary", "llama-cpp-python", "--no-deps", "--no-build-isolation")
            _run(*pip, "download", *plain, "--dest", str(CACHE), wanted)
        with tarfile.open(archive) as packed:
            packed.extractall(CACHE, filter="data")
    return source


def _run(*command: str) -> None:
    print("+", " ".join(command), file=sys.stderr)
    subprocess.run(command, check=True, timeout=_STEP_S_MAX)
