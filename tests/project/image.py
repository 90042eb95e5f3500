"""Builds docker/Dockerfile without Docker, and checks the image as docker/README.md uses it; for scripts/verify-image.

Needs root, and of Debian: apt install buildah podman runc debootstrap. The base image is taken from podman's storage if
it is there, else made with debootstrap and Debian's Python under the same name. Everything made is removed at the end,
except what Buildah leaves when its build is killed. The containers use this machine's network, on free ports. Every
wait has a limit. Standard library only. Units: seconds, tokens.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

DOCKER = Path(__file__).resolve().parents[2] / "docker"
IMAGE = "ttft-gateway:verify"
REPLICA_HOST = "127.83.0.{}"  # compose's replicas all listen on one port: each gets a loopback address of its own
STREAM_TOKENS = 16
DRAIN_TOKENS = 200  # 3 s at 15 ms: well over the second during which a draining gateway still accepts
BUILD_S_MAX = 900.0
SIZE_BYTES_MAX = 200_000_000
CALL_S_MAX = 60.0
READY_S_MAX = 30.0

TOOLS = ("buildah", "podman", "runc", "debootstrap")
PODMAN = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--log-level", "fatal")
# Limits that root without CAP_SYS_RESOURCE may set, too. Podman's own health checks need systemd.
FILES = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20_000)
LIMITS = (f"--ulimit=nofile={FILES}:{FILES}", "--ulimit=nproc=4096:4096")
RUN = ("run", "--network=host", "--health-interval=disable", *LIMITS)
CLOSED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")

AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"  # a proxy before the package index may have one of its own
PACKAGES = "python3,python3-pip-whl,ca-certificates"
# Debian's Python as base images have it: called `python`, not compiled, and with a pip that may be removed.
FINISH_BASE = """
set -eu
PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) python3 -m pip install --quiet --break-system-packages \
  --root-user-action ignore --no-index --find-links /usr/share/python-wheels pip
ln -s ../../bin/python3 /usr/local/bin/python
rm -rf /usr/share/python-wheels /usr/lib/python3*/EXTERNALLY-MANAGED
find /usr/lib/python3* -name __pycache__ -prune -exec rm -r {} +
rm -rf /var/cache/apt/* /var/lib/apt/lists/* /usr/share/doc /usr/share/locale /usr/share/man
"""
# Run in the container: its user, and the folders that it can write to.
LOOK_AROUND = """
import importlib.util, json, os, pathlib, shutil
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/1/status").read_text().splitlines())
folders = [folder for folder, _, _ in os.walk("/") if not folder.startswith(("/dev", "/proc", "/sys"))]
written = []
for folder in folders:
    try:
        open(os.path.join(folder, "verify-image"), "x").close()
        written.append(folder)
    except OSError:
        pass
found = [tool for tool in ("pip", "cc", "gcc") if shutil.which(tool) or importlib.util.find_spec(tool)]
print(json.dumps({**status, "folders": len(folders), "written": written, "tools": found}))
"""


class Failed(Exception):
    """A check has failed; the message names it."""


def call(*command: str, limit_s: float = CALL_S_MAX) -> str:
    """Run a command and return its output."""
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, stdout=pipe, stderr=both, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout.strip()


def podman(*arguments: str) -> str:
    """Run podman."""
    return call(*PODMAN, *arguments)


def tell(what: str, value: str) -> None:
    """Print one line of the result."""
    print(f"{what:24}{value}", flush=True)


def must(holds: object, otherwise: str) -> None:
    """Fail unless something holds."""
    if not holds:
        raise Failed(otherwise)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    end_s = time.monotonic() + READY_S_MAX
    while not holds():
        must(time.monotonic() < end_s, f"not within {READY_S_MAX:g} s: {what}")
        time.sleep(0.01)


def exists(image: str) -> bool:
    """Return True if podman has an image."""
    return podman("images", "--quiet", image) != ""


def make_base(name: str) -> None:
    """Make an image under the base's name; its last part is Debian's release."""
    with tempfile.TemporaryDirectory(prefix="verify-image-") as work:
        tree = f"{work}/base"
        what = ("--variant=minbase", f"--include={PACKAGES}", name.rpartition("-")[2])
        call("debootstrap", *what, tree, limit_s=BUILD_S_MAX)
        call("chroot", tree, "sh", "-c", FINISH_BASE)
        if Path(AUTHORITIES).exists():
            shutil.copy(AUTHORITIES, f"{tree}{AUTHORITIES}")
        call("tar", "-C", tree, "-cf", f"{tree}.tar", ".")
        podman("import", "--quiet", f"{tree}.tar", name)


def build(base: str) -> None:
    """Build the image."""
    begin_s = time.monotonic()
    how = ("--isolation", "chroot", "--pull-never", "--format", "docker")  # the OCI format has no HEALTHCHECK
    call("buildah", "bud", *how, "-f", f"{DOCKER}/Dockerfile", "-t", IMAGE, str(DOCKER.parent), limit_s=BUILD_S_MAX)
    tell("build", f"{time.monotonic() - begin_s:.0f} s, nothing cached")
    size, base_size = (int(podman("image", "inspect", name, "--format", "{{.Size}}")) for name in (IMAGE, base))
    tell("image size", f"{size / 1e6:.0f} MB, {base_size / 1e6:.0f} MB of it the base")
    must(size <= SIZE_BYTES_MAX, f"the image has {size} bytes instead of at most {SIZE_BYTES_MAX}")
    labels = json.loads(podman("image", "inspect", IMAGE, "--format", "{{json .Labels}}"))
    title, version = (labels.get(f"org.opencontainers.image.{name}") for name in ("title", "version"))
    in_image = podman(*RUN, "--rm", IMAGE, "version").split()[1]
    must(version == in_image, f"the label has version {version}, and the gateway in it is {in_image}")
    tell("labels", f"{title} {version}")


def status(port: int, path: str) -> int:
    """Return the status of a GET, 0 without an answer."""
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0


@contextlib.contextmanager
def asked(port: int, key: str, tokens: int) -> Iterator[http.client.HTTPResponse]:
    """Yield the unread answer to a streaming request."""
    message = {"role": "user", "content": "Hello"}
    body = json.dumps({"model": "demo", "stream": True, "max_tokens": tokens, "messages": [message]})
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_S_MAX)) as connection:
        connection.request("POST", "/v1/chat/completions", body, headers)
        yield connection.getresponse()


def read(answer: http.client.HTTPResponse, tokens: int, then: Callable[[], float] = time.monotonic) -> float:
    """Read a whole stream; return the result of `then`, which is called at the first token."""
    count, time_s = 0, 0.0
    for line in iter(answer.readline, b"data: [DONE]\n"):
        must(line, f"a stream ended after {count} of {tokens} tokens, with status {answer.status}")
        choices = json.loads(line[6:]).get("choices") if line.startswith(b"data: {") else None
        if choices and choices[0]["delta"].get("content"):
            count += 1
            time_s = time_s or then()
    must(count == tokens, f"a stream had {count} of {tokens} tokens")
    return time_s


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Gateway:
    """A container that is ready, and the key that it printed."""

    def __init__(self, name: str, *command: str, options: Sequence[str] = ()) -> None:
        self.name = f"verify-image-{name}"
        self.port = free_port()
        listen = {"LISTEN": self.port, "ADMIN_LISTEN": free_port()}
        env = [f"--env=TTFT_GATEWAY_{name}=0.0.0.0:{port}" for name, port in listen.items()]
        begin_s = time.monotonic()
        podman(*RUN, "--detach", "--name", self.name, *CLOSED, *env, *options, IMAGE, *command)
        until(lambda: status(self.port, "/readyz") == 200, f"{name}: /readyz says 200")
        tell(f"{name}: ready", f"{time.monotonic() - begin_s:.1f} s after podman run")
        until(lambda: bool(self.keys()), f"{name}: the log has a key")  # which podman writes later
        keys = self.keys()
        must(len(keys) == 1, f"{name} printed {len(keys)} keys instead of one")
        [self.key] = keys
        with asked(self.port, "wrong", 1) as answer:
            must(answer.status == 401, f"{name} answered a wrong key with {answer.status} instead of 401")
        tell("  one-time key", "printed; another is answered with 401")

    def keys(self) -> set[str]:
        """Return the keys in the log so far."""
        return set(re.findall(r"ttft-[0-9a-f]{32}", podman("logs", self.name)))

    def check_stream(self) -> None:
        """Check that a stream arrives whole."""
        begin_s = time.monotonic()
        with asked(self.port, self.key, STREAM_TOKENS) as answer:
            ttft_s = read(answer, STREAM_TOKENS) - begin_s
        tell("  stream", f"{STREAM_TOKENS} tokens and [DONE], the first after {1000 * ttft_s:.0f} ms")

    def check_health(self) -> None:
        """Check that the image is healthy."""
        begin_s = time.monotonic()
        podman("healthcheck", "run", self.name)
        took_s = time.monotonic() - begin_s
        state = podman("inspect", self.name, "--format", "{{.State.Health.Status}}")
        must(state == "healthy", f"{self.name} is {state}")
        tell("  health", f"{state}; asking took {1000 * took_s:.0f} ms, podman's part included")

    def check_closed(self) -> None:
        """Check that the gateway is not root, cannot become root, and can write to no folder."""
        found = json.loads(podman("exec", self.name, "python", "-c", LOOK_AROUND))
        uids = found["Uid"].split()
        must("0" not in uids, "it is root")
        must(int(found["CapBnd"], 16) == 0 and int(found["NoNewPrivs"]) == 1, "it could get privileges")
        tell("  not root", f"uid {uids[0]}, no capabilities, no new privileges")
        must(not found["written"], f"it can write to {found['written']}")
        must(not found["tools"], f"it has {found['tools']}")
        tell("  read-only", f"no file can be made in any of {found['folders']} folders; no pip, no compiler")
        tell("  memory", f"{int(found['VmRSS'].split()[0]) / 1e3:.0f} MB, {int(found['Threads'])} threads")

    def check_drain(self) -> None:
        """Check that SIGTERM ends the process after its running requests, and new ones are rejected."""

        def term() -> float:
            podman("kill", "--signal", "TERM", self.name)
            begin_s = time.monotonic()
            until(lambda: status(self.port, "/readyz") == 503, "while draining /readyz says 503")
            until(lambda: status(self.port, "/readyz") == 0, "while draining nobody new is let in")
            took_s = time.monotonic() - begin_s
            tell("  drain", f"SIGTERM: /readyz says 503, and after {took_s:.1f} s nobody new is let in")
            return begin_s

        with asked(self.port, self.key, DRAIN_TOKENS) as answer:
            begin_s = read(answer, DRAIN_TOKENS, term)
        took_s = time.monotonic() - begin_s
        code = podman("wait", self.name)
        must(code == "0", f"it ended with {code}: {podman('logs', self.name)[-3000:]}")
        tell("", f"a running stream came to its end after {took_s:.1f} s; then exit code 0")


def check_image() -> None:
    """Run the image as docker/README.md describes."""
    gateway = Gateway("default")
    gateway.check_health()
    gateway.check_closed()
    gateway.check_stream()

    to_json = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.argv[1])))"
    compose = (DOCKER / "compose.yaml").read_text()
    services = json.loads(podman(*RUN, "--rm", "--entrypoint=python", IMAGE, "-c", to_json, compose))["services"]
    served = services.pop("gateway")
    hosts = {name: REPLICA_HOST.format(number) for number, name in enumerate(services, 1)}
    for name, service in services.items():
        program, *arguments = service["entrypoint"] + service["command"] + ["--host", hosts[name]]
        container = ("--detach", "--name", f"verify-image-{name}", *CLOSED, f"--entrypoint={program}")
        podman(*RUN, *container, IMAGE, *arguments)

    replicas = [f"--replica=http://{host}:8000" for host in hosts.values()]
    Gateway("options", "serve", "--model", "demo", *replicas).check_stream()

    mounts = [f"--volume={DOCKER}/{volume}" for volume in served["volumes"]]
    names = [f"--add-host={name}:{host}" for name, host in hosts.items()]
    gateway = Gateway("compose", *served["command"], options=[*mounts, *names])
    gateway.check_stream()
    gateway.check_drain()


def remove_containers() -> None:
    """Remove all containers, running or not."""
    if left := podman("ps", "--all", "--quiet", "--filter", "name=^verify-image-").split():
        podman("rm", "--force", "--time", "0", *left)


def main() -> int:
    """Build and check; return 0 if every check holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave the images, to look at or for a quicker next time")
    keep = parser.parse_args().keep
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if os.geteuid() or missing:
        print(f"verify-image needs root and {', '.join(TOOLS)}; not found: {missing}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is run
    match = re.search(r"^ARG BASE=(\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    base = match[1] if match else ""
    made = [IMAGE] if exists(base) else [IMAGE, base]
    remove_containers()  # of a run that was killed
    try:
        if base in made:
            make_base(base)
        build(base)
        check_image()
    except (Failed, OSError, http.client.HTTPException, subprocess.TimeoutExpired) as error:
        print(f"verify-image: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        remove_containers()
        if not keep:
            podman("rmi", "--force", *filter(exists, made))
    print("all of it holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
