"""The table of known causes: what a log line means, and what to do about it.

The order is the diagnosis. A failed start leaves a chain of lines (a missing library, a swallowed import, an
attribute error, a dead engine, a failed deployment); the first entry of this table that matches any of
them is the one that a person has to act on, however early or late it was printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .finding import Finding

REFUSED = "ingot: refused:"  # our own launchers begin the line of a refusal with this


@dataclass(frozen=True)
class Cause:
    """A pattern of a log line and its meaning; ``what`` and ``action`` may use the pattern's named groups."""

    id: str
    pattern: re.Pattern[str]
    what: str
    action: str
    transient: bool = False


def _cause(cause_id: str, pattern: str, what: str, action: str, *, transient: bool = False) -> Cause:
    return Cause(cause_id, re.compile(pattern), what, action, transient)


TABLE: tuple[Cause, ...] = (
    _cause(
        "refused",
        rf"{REFUSED} (?P<what>.+?)\. Do: (?P<do>.+)",
        "{what}",
        "{do}",
    ),
    _cause(
        "wrong-processor",
        r"status=4/ILL|died with signal 4|exitcode[:=] ?-4|Illegal instruction|SIGILL",
        "A process was ended by an instruction that this processor does not have.",
        "The engine was compiled for another core: `ingot doctor` compares them. Launch the image on an "
        "instance type with that core, or launch the image of this type.",
    ),
    _cause(
        "missing-library",
        r"(?:error while loading shared libraries: |ImportError: |OSError: "
        r")(?P<library>lib[\w.+-]+\.so[\w.]*)"
        r": cannot open shared object file",
        "The shared library {library} is not on this machine.",
        "Install the package that holds it (`apt-file search {library}`; libnuma.so.1 is in libnuma1, "
        "libgomp.so.1 in libgomp1), or launch from an image that was baked with the role vllm.",
    ),
    _cause(
        "undefined-symbol",
        r"(?P<file>/\S+\.so\S*): undefined symbol: (?P<symbol>\S+)",
        "{file} was built against another version of what it links to (symbol {symbol} is missing).",
        "Rebuild the environment from its lock file: torch and the extension must come from the same lock.",
    ),
    _cause(
        "extension-not-imported",
        r"(?:module 'torch\.ops\._C'|'_C'|'_OpNamespace' '_C') (?:object )?has no attribute '(?P<name>\w+)'",
        "vLLM's compiled extension was not imported (vLLM swallows the failed import; this is what is "
        "left of it).",
        "Run `ingot doctor` as root on this node: its library sweep names what is missing. By hand: "
        "`/opt/ingot/venvs/vllm/bin/python -c 'import torch, vllm._C'` as the service user.",
    ),
    _cause(
        "wrong-token",
        r"InvalidAuthToken|Invalid or missing authentication token|token authentication is "
        r"enabled.*no.*token",
        "The Ray token of this node is not the head's.",
        "Put the head's token into /etc/ingot/credentials/ray-token (site.yml does), then restart the unit.",
    ),
    _cause(
        "version-mismatch",
        r"Version mismatch: |RuntimeError: Version mismatch",
        "This node runs another Ray or Python than the head.",
        "Launch both from the same image; `cat /opt/ingot/venvs/vllm/.ingot-lock` must be equal on all "
        "nodes.",
    ),
    _cause(
        "credentials",
        r"Failed to set up credentials|status=243/CREDENTIALS",
        "A credential of the unit is missing below /etc/ingot/credentials.",
        "Run site.yml: its configure phase writes them.",
    ),
    _cause(
        "environment-file",
        r"Failed to load environment files: No such file|Error: parsing file \"/etc/ingot/.+: no such file",
        "The node has not been configured: the unit's environment file is missing.",
        "Run site.yml against this node.",
    ),
    _cause(
        "disk-full",
        r"[Nn]o space left on device|\[Errno 28\]",
        "A disk is full.",
        "`df -h`, then make room or grow the volume; compile caches are below /var/cache/ingot.",
    ),
    # What Podman and its runtime crun say under the unit of a container (roles/serving, vllm.container.j2).
    _cause(
        "container-missing",
        r"Error: (?P<image>\S+@sha256:[0-9a-f]{64}): image not known",
        "The image {image} is not on this node.",
        "Launch from an image baked with vllm_method container and this vllm_container_image, or run "
        "site.yml.",
    ),
    _cause(
        "container-storage",
        r"Error: configure storage: (?P<why>.+)",
        "Podman cannot use its storage on this node: {why}.",
        "/var/lib/containers must be on ext4 or xfs, where root may make device nodes, and not on an "
        "overlay. `podman info` tries it by hand.",
    ),
    _cause(
        "container-program-missing",
        r"default OCI runtime \"\w+\" not found|no valid executable found for OCI runtime"
        r"|could not find a working conmon binary",
        "A program that Podman starts containers with, crun or conmon, is not on this node.",
        "Install the packages crun and conmon, or launch from an image baked with vllm_method container.",
    ),
    _cause(
        "container-secret",
        r"no secret with name or id \"(?P<name>[^\"]+)\"",
        "Podman has no secret {name}, from which the container takes the API key.",
        "The unit makes it before each start from /etc/ingot/credentials/api-key: run site.yml, and see in "
        "`systemctl cat vllm` whether that ExecStartPre= is there.",
    ),
    _cause(
        "container-user",
        r"unable to find user \S+: no matching entries in passwd|cannot setres[ug]id to `\d+`"
        r"|doesn't map [UG]ID \d+|insufficient UIDs or GIDs available"
        r"|not enough unused IDs in user namespace",
        "The container cannot have the user that it is to run as: the image does not know its name, or this "
        "machine may not use its number.",
        "The unit gives a number and no user namespace: compare `systemctl cat vllm` with the quadlet in "
        "/usr/share/ingot/quadlets. A machine that is a container itself has only the numbers of "
        "/proc/self/uid_map, and needs CAP_SETUID and CAP_SETGID.",
    ),
    _cause(
        "container-limits",
        r"setrlimit `(?P<limit>RLIMIT_\w+)`: (?P<why>[^:]+)",
        "The container may not have the {limit} that it is given: {why}.",
        "The unit leaves its own limits to it (--ulimit=host): compare `systemctl cat vllm` with the quadlet "
        "in /usr/share/ingot/quadlets. RLIMIT_NOFILE may be as much as `sysctl fs.nr_open` at most; a "
        "machine that is a container itself may raise none without CAP_SYS_RESOURCE.",
    ),
    _cause(
        "container-path",
        r"Error: statfs (?P<path>/\S+): (?P<why>.+)",
        "{path}, which the container is to see, cannot be mounted into it: {why}.",
        "Run site.yml: the roles base, model_store and serving make the directories and files.",
    ),
    _cause(
        "container-mount",
        r"mount `(?P<source>[^`]+)` to `(?P<target>[^`]+)`: (?P<why>[^:]+)",
        "Podman's runtime could not mount {source} to {target} in the container: {why}.",
        "What is mounted and its target in the image must both be directories, or both files. Where it is "
        "not permitted, this machine is a container itself: it needs CAP_SYS_ADMIN, and a /proc with nothing "
        "mounted over it.",
    ),
    _cause(
        "container-command",
        r"executable file `(?P<program>[^`]+)` not found",
        "The image of the container has no program {program}.",
        "It is not one with vLLM for `python3`: name another in vllm_container_image (docs/containers.md), "
        "and bake anew.",
    ),
    _cause(
        "container-fails",
        r"Error: (?:OCI runtime error: )?(?:crun|runc): (?P<why>.+)",
        "Podman's runtime could not start the container: {why}",
        "`journalctl -u vllm` has what it said before. On a machine that is a container itself it is most "
        "often something that this was not given.",
    ),
    _cause(
        "out-of-memory",
        r"Out of memory: Killed process (?P<pid>\d+)|killed by the OOM killer|due to the node running low "
        r"on memory"
        r"|can't allocate memory: you tried to allocate|std::bad_alloc|^MemoryError|: MemoryError"
        r"|Failed with result 'oom-kill'",
        "The machine ran out of memory.",
        "Take a larger instance type, or lower serving_max_model_len so that the KV cache shrinks.",
    ),
    _cause(
        "killed",
        r"Main process exited, code=killed, status=9/KILL|died with signal 9|exitcode[:=] ?-9"
        r"|SIGKILL|exit code -9",
        "A process was killed with SIGKILL, most likely for want of memory.",
        "Compare `free -m` with what the sizing asks for (`ingot doctor --json`), and see `journalctl -k`.",
    ),
    _cause(
        "kv-cache-too-small",
        r"(?:Available memory on node .* is less than desired|No available memory for the cache blocks"
        r"|KV cache is needed, which is larger than|larger than the maximum number of tokens that can be "
        r"stored)",
        "The KV cache does not fit what the engine was given.",
        "Lower serving_max_model_len, or take a larger instance type.",
        transient=True,
    ),
    _cause(
        "model-unreadable",
        r"Permission denied: '(?P<path>/[^']*models/[^']*)'",
        "The service user may not read {path}.",
        "The store must be readable by everybody: run the role model_store, or `chmod -R a+rX` on the "
        "directory.",
    ),
    _cause(
        "model-missing",
        r"does not appear to have a file named (?P<file>\S+?)\.? |Invalid repository ID or local "
        r"directory specified"
        r"|Repo id must be in the form|Failed to load Hugging Face config|outgoing traffic has been disabled",
        "The model's files are not where the engine looks for them.",
        "Run site.yml (role model_store), or correct serving_model_path.",
    ),
    _cause(
        "model-damaged",
        r"SafetensorError|Error while deserializing header|safetensors_rust\.\w+",
        "A weight file is damaged or cut short.",
        "Remove the model's directory and run site.yml: model_store fetches it again and checks the hashes.",
    ),
    _cause(
        "permission",
        r"Permission denied: '(?P<path>[^']+)'",
        "The service user may not open {path}.",
        "Look at the path's owner and mode; the unit may write below /var/lib/ingot and /var/cache/ingot "
        "only.",
    ),
    _cause(
        "port-taken",
        r"[Aa]ddress already in use(?:[^\[]*\[(?P<address>[\d.:]+)\])?|Failed to bind to address "
        r"'(?P<bind>[^']+)'",
        "A port that this node needs is taken.",
        "`ss -ltnp` names the process that holds it: stop that one, or choose another port.",
        transient=True,
    ),
    _cause(
        "no-compiler",
        r"InvalidCxxCompiler|No working C\+\+ compiler found|C\+\+ compiler .* not found",
        "torch.compile needs a C++ compiler and finds none.",
        "Install g++ (role vllm does), or set serving_enforce_eager.",
    ),
    _cause(
        "compiler-fails",
        r"CppCompileError|C\+\+ compile error|cc1plus: (?:fatal )?error|internal compiler error",
        "The C++ compiler cannot compile what torch.compile wrote for this processor.",
        "As the service user: `/opt/ingot/venvs/vllm/bin/python -I /usr/lib/ingot/vllm/engine.py compile`"
        " shows its first error. Install a GCC from 12 on, or set serving_enforce_eager.",
    ),
    _cause(
        "neuron-recompile",
        r"Unable to find precompiled artifacts from (?P<path>\S+?)\. Recompiling",
        "vLLM's plugin for Neuron could not load the programs in {path}, and went on to compile its own.",
        "The line before says why. `ingot doctor` compares them with what is wanted; compile them again with "
        "playbooks/compile.yml.",
    ),
    _cause(
        "limits",
        # Not where vLLM warns at every start of what a low limit may lead to, in backquotes.
        r"Too many open files(?!`)|pthread_create failed|can't start new thread|failed to create thread",
        "A limit of the unit (open files, threads) is too low.",
        "Compare `systemctl show -p LimitNOFILE -p TasksMax` with the role's; a drop-in may have lowered it.",
    ),
    _cause(
        "engine-argument",
        r"error: (?P<text>unrecognized arguments: .+|argument .+)|Unknown engine argument: (?P<name>\S+)",
        "The engine does not know an argument that it was given.",
        "Correct serving_engine_flags: names are those of this vLLM version.",
    ),
    _cause(
        "module-missing",
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'",
        "The Python package {module} is not in the environment.",
        "Rebuild the environment from its lock file (role python_runtime).",
    ),
    _cause(
        "executable",
        r"status=203/EXEC|Failed to locate executable (?P<path>\S+)",
        "The unit's program does not exist or cannot be executed.",
        "Was the environment moved or the image baked without it? The role python_runtime makes it.",
    ),
    _cause(
        "sandbox",
        r"status=226/NAMESPACE",
        "systemd could not set up the unit's sandbox: a directory that it names does not exist.",
        "The line of systemd before this one names the path; the role base makes the layout's directories.",
    ),
    _cause(
        "gcs-unreachable",
        r"Failed to connect to GCS|Timed out while waiting for GCS|Unable to connect to GCS"
        r"|ingot: the head (?P<head>\S+) does not answer",
        "The Ray head does not answer.",
        "On the head: `systemctl status ray-head`. Between: does the security group let the port through "
        "(`ray_gcs_port`, 6379 unless set)?",
        transient=True,
    ),
    _cause(
        "haproxy-config",
        r"\[ALERT\].*?config : (?P<text>parsing \[.+)",
        "HAProxy refuses its configuration: {text}",
        "Run the role gateway, which checks the file before it is put in place.",
    ),
    _cause(
        "deployment-failed",
        r"failed to start \d+ times in a row",
        "Ray Serve could not start a replica.",
        "`ingot doctor` on every node: the cause is in a worker's log on the node where it happened.",
    ),
    _cause(
        "start-limit",
        r"Start request repeated too quickly",
        "The unit failed too often in a row and systemd has given up.",
        "Mend the cause, then `systemctl reset-failed` and start it.",
    ),
)

RANK_CHECK = 10  # a defect that a check saw with its own eyes outranks every log line
RANK_LOG = 100


def match(line: str) -> Finding | None:
    """The meaning of one line, or None."""
    for rank, cause in enumerate(TABLE):
        found = cause.pattern.search(line)
        if not found:
            continue
        groups = {name: text or "" for name, text in found.groupdict().items()}
        return Finding(
            cause=cause.id,
            what=cause.what.format(**groups),
            action=cause.action.format(**groups),
            rank=RANK_LOG + rank,
            evidence=line.strip()[:400],
            transient=cause.transient,
        )
    return None


def first_cause(lines: Iterable[str]) -> Finding | None:
    """The finding of the lowest rank among ``lines``; of equals the earliest."""
    best: Finding | None = None
    for line in lines:
        finding = match(line)
        if finding and (best is None or finding.rank < best.rank):
            best = finding
    return best
