"""The table of causes against the lines that real failures left."""

from __future__ import annotations

import pytest

from ingot.doctor.causes import TABLE, first_cause, match
from ingot.doctor.finding import Finding, ordered

LINES = [
    ("vllm.service: Main process exited, code=dumped, status=4/ILL", "wrong-processor", "does not have"),
    ("Worker proc VllmWorker-0 died with signal 4", "wrong-processor", "does not have"),
    (
        "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory",
        "missing-library",
        "libnuma.so.1",
    ),
    (
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'",
        "extension-not-imported",
        "swallows",
    ),
    ("'_C' object has no attribute 'init_cpu_memory_env'", "extension-not-imported", "swallows"),
    (
        "ImportError: /opt/v/torch/lib/libtorch_python.so: undefined symbol: _ZN3c10",
        "undefined-symbol",
        "_ZN3c10",
    ),
    ("RPC error: InvalidAuthToken: Authentication token is missing or incorrect.", "wrong-token", "token"),
    (
        "RuntimeError: Version mismatch: The cluster was started with:",
        "version-mismatch",
        "another Ray or Python",
    ),
    ("vllm.service: Failed to set up credentials: No such file or directory", "credentials", "credential"),
    (
        "ray-head.service: Failed to load environment files: No such file or directory",
        "environment-file",
        "not been configured",
    ),
    (
        "WARNING: Unable to find precompiled artifacts from /opt/ingot/neuron/ab12. Recompiling...",
        "neuron-recompile",
        "could not load the programs in /opt/ingot/neuron/ab12",
    ),
    ("OSError: [Errno 28] No space left on device: '/var/cache/ingot/x'", "disk-full", "full"),
    ("Out of memory: Killed process 4711 (VLLM::Worker)", "out-of-memory", "ran out of memory"),
    (
        "ray-worker.service: A process of this unit has been killed by the OOM killer.",
        "out-of-memory",
        "ran out",
    ),
    (
        "Task was killed due to the node running low on memory.",
        "out-of-memory",
        "ran out",
    ),
    (
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
        "out-of-memory",
        "ran out",
    ),
    ("vllm.service: Main process exited, code=killed, status=9/KILL", "killed", "SIGKILL"),
    (
        "PermissionError: [Errno 13] Permission denied: '/opt/ingot/models/a/b/config.json'",
        "model-unreadable",
        "/opt/ingot/models/a/b/config.json",
    ),
    (
        "OSError: /opt/ingot/models/x does not appear to have a file named config.json. Checkout",
        "model-missing",
        "not where",
    ),
    (
        "safetensors_rust.SafetensorError: Error while deserializing header: InvalidHeaderDeserialization",
        "model-damaged",
        "cut short",
    ),
    ("PermissionError: [Errno 13] Permission denied: '/.cache'", "permission", "/.cache"),
    (
        "OSError: [Errno 98] error while attempting to bind on address: address already in use",
        "port-taken",
        "",
    ),
    ("RuntimeError: Failed to bind to address '0.0.0.0:8000'.", "port-taken", "taken"),
    (
        "[ALERT] (99) : Starting frontend api: cannot bind socket (Address already in use) [10.0.0.1:8080]",
        "port-taken",
        "taken",
    ),
    (
        "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found",
        "no-compiler",
        "C++ compiler",
    ),
    (
        "torch._inductor.exc.InductorError: CppCompileError: C++ compile error",
        "compiler-fails",
        "cannot compile",
    ),
    ("cc1plus: error: unknown value 'armv9-a' for '-march'", "compiler-fails", "cannot compile"),
    ("OSError: [Errno 24] Too many open files", "limits", "limit"),
    ("api_server.py: error: unrecognized arguments: --device cpu", "engine-argument", "argument"),
    ("ValueError: Unknown engine argument: device", "engine-argument", "argument"),
    ("ModuleNotFoundError: No module named 'grpc_reflection'", "module-missing", "grpc_reflection"),
    ("vllm.service: Failed at step EXEC: status=203/EXEC", "executable", "program"),
    ("ray-head.service: Main process exited, code=exited, status=226/NAMESPACE", "sandbox", "sandbox"),
    (
        "ingot: the head 10.0.0.1:6379 does not answer (connection refused)",
        "gcs-unreachable",
        "does not answer",
    ),
    ("rpc_client.h:153: Failed to connect to GCS at address 10.0.0.1:6379", "gcs-unreachable", "head"),
    (
        "[ALERT]    (7) : config : parsing [/etc/haproxy/haproxy.cfg:9] : unknown keyword",
        "haproxy-config",
        ":9",
    ),
    ("vllm.service: Start request repeated too quickly.", "start-limit", "given up"),
    ("The deployment failed to start 11 times in a row.", "deployment-failed", "replica"),
    (
        "ValueError: To serve at least one request, 1.5 GiB KV cache is needed, which is larger than the "
        "available KV cache memory (1.0 GiB)",
        "kv-cache-too-small",
        "KV cache",
    ),
    (
        "ingot: refused: this node's lock is aaa and the head's is bbb. Do: launch both from one image",
        "refused",
        "aaa and the head's is bbb",
    ),
]

# As Podman 5.4.2 and crun 1.21 of Debian 13 said it, made to fail so by hand, but for those with a source.
PODMAN = [
    (
        "Error: localhost/t@sha256:" + "0" * 64 + ": image not known",
        "container-missing",
        "localhost/t@sha256:000",
    ),
    (
        "Error: configure storage: 'overlay' is not supported over overlayfs, a mount_program is required: "
        "backing file system is unsupported for this graph driver",
        "container-storage",
        "not supported over overlayfs",
    ),
    (
        "Error: configure storage: kernel does not support overlay fs: unable to create kernel-style "
        "whiteout: operation not permitted",
        "container-storage",
        "whiteout",
    ),
    (
        'Error: default OCI runtime "crun" not found: invalid argument',
        "container-program-missing",
        "not on this node",
    ),
    (
        "Error: no valid executable found for OCI runtime /usr/bin/nothing: invalid argument",
        "container-program-missing",
        "not on this node",
    ),
    (
        "Error: could not find a working conmon binary (configured options: [/usr/libexec/podman/conmon "
        "/usr/bin/conmon]: invalid argument)",
        "container-program-missing",
        "conmon",
    ),
    (
        'Error: running container create option: no secret with name or id "ingot-vllm-api-key": no such '
        "secret",
        "container-secret",
        "ingot-vllm-api-key",
    ),
    ("Error: unable to find user vllm: no matching entries in passwd file", "container-user", "name"),
    (
        "Error: crun: cannot setresuid to `65540`: Operation not permitted: OCI permission denied",
        "container-user",
        "number",
    ),
    (
        "Error: container uses ID mappings ([]specs.LinuxIDMapping{specs.LinuxIDMapping{ContainerID:0x0, "
        "HostID:0x186a0, Size:0xa}}), but doesn't map UID 65540",
        "container-user",
        "number",
    ),
    (
        "Error: creating container storage: not enough unused IDs in user namespace",
        "container-user",
        "number",
    ),
    # containers/podman at v5.4.2, vendor/github.com/containers/storage/pkg/idtools/idtools.go; in full in its
    # issue 22092.
    (
        "Error: copying system image: writing blob: adding layer: processing tar file(potentially "
        "insufficient UIDs or GIDs available in user namespace (requested 172761424:0 for /opt/app): Check "
        '/etc/subuid and /etc/subgid if configured locally and run "podman system migrate": lchown /opt/app: '
        "invalid argument)",
        "container-user",
        "number",
    ),
    (
        "Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied",
        "container-limits",
        "RLIMIT_NOFILE that it is given: Operation not permitted.",
    ),
    ("setrlimit `RLIMIT_MEMLOCK`: Operation not permitted", "container-limits", "RLIMIT_MEMLOCK"),
    (
        "Error: statfs /opt/ingot/models: no such file or directory",
        "container-path",
        "/opt/ingot/models, which",
    ),
    (
        "Error: OCI runtime error: crun: mount `/etc` to `bin/sh`: Not a directory",
        "container-mount",
        "/etc to bin/sh in the container: Not a directory.",
    ),
    # containers/podman, issue 20453
    (
        "Error: crun: mount `proc` to `proc`: Operation not permitted: OCI permission denied",
        "container-mount",
        "Operation not permitted.",
    ),
    (
        "Error: crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime "
        "attempted to invoke a command that was not found",
        "container-command",
        "python3",
    ),
    (
        "Error: OCI runtime error: crun: invalid file system type on `/sys/fs/cgroup`",
        "container-fails",
        "invalid file system type",
    ),
    (
        'Error: parsing file "/etc/ingot/vllm-container.env": open /etc/ingot/vllm-container.env: no such '
        "file or directory",
        "environment-file",
        "not been configured",
    ),
    # Go's wording of what Python calls "No space left on device": syscall.ENOSPC
    (
        "Error: configure storage: mkdir /var/lib/containers/storage: no space left on device",
        "disk-full",
        "full",
    ),
]
LINES += PODMAN

# The unit's journal on a machine of the local EC2 that might raise no limit, when its quadlet gave some.
UNIT = """\
Starting vllm.service - vLLM, OpenAI-compatible server, in a container...
039ae51591c93ead5bd8565a7
setrlimit `RLIMIT_NOFILE`: Operation not permitted
conmon a3e69e7eb795d1e4e6b3 <error>: Failed to create container: exit status 1
Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied
vllm.service: Main process exited, code=exited, status=126/n/a
039ae51591c93ead5bd8565a7
vllm.service: Failed with result 'exit-code'.
Failed to start vllm.service - vLLM, OpenAI-compatible server, in a container.
vllm.service: Scheduled restart job, restart counter is at 1.
"""


def test_what_vllm_warns_of_at_every_start_is_no_cause() -> None:
    warning = (
        "WARNING 12-01 10:19:04 [system_utils.py:255] Found ulimit of 20000 and failed to automatically"
        " increase with error current limit exceeds maximum limit. This can cause fd limit errors like"
        " `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n"
    )
    assert first_cause([warning]) is None


def test_a_container_that_may_not_have_its_limits_is_known_by_the_journal_of_its_unit() -> None:
    finding = first_cause([*UNIT.splitlines(), "vllm.service: Start request repeated too quickly."])
    assert finding is not None and finding.cause == "container-limits"
    assert "--ulimit=host" in finding.action


@pytest.mark.parametrize(("line", "cause", "says"), LINES, ids=[line[:40] for line, _, _ in LINES])
def test_a_line_means(line: str, cause: str, says: str) -> None:
    finding = match(line)
    assert finding is not None
    assert finding.cause == cause
    assert says in finding.what
    assert finding.action
    assert finding.evidence == line


def test_every_entry_of_the_table_is_tried() -> None:
    assert {cause.id for cause in TABLE} == {cause for _, cause, _ in LINES}


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-30 13:00:00 [api_server.py:1] Starting vLLM API server",
        "WARNING libtcmalloc is not found in LD_PRELOAD.",
        "raylet: memory usage 0.5",
    ],
)
def test_an_ordinary_line_means_nothing(line: str) -> None:
    assert match(line) is None


def test_the_root_wins_over_its_consequences_wherever_it_stands() -> None:
    chain = [
        "The deployment failed to start 11 times in a row.",
        "AttributeError: '_C' object has no attribute 'init_cpu_memory_env'",
        "vllm.service: Start request repeated too quickly.",
        "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory",
    ]
    finding = first_cause(chain)
    assert finding is not None and finding.cause == "missing-library"
    assert first_cause(["all is well"]) is None


def test_ordered_gives_roots_first_and_each_once() -> None:
    late = Finding("b", "b", "do", rank=5, unit="u")
    early = Finding("a", "a", "do", rank=1, unit="u")
    assert ordered([late, early, late]) == [early, late]


def test_text_says_what_where_and_what_to_do() -> None:
    text = Finding("a", "It broke.", "Mend it.", 1, "n1", "vllm.service", "journal", "the line").text()
    assert text == "It broke.  [n1, vllm.service, journal]\n    seen: the line\n    do:   Mend it."
