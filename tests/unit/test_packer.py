"""The templates as Packer itself sees them: each stands alone, and refuses what cannot work at once.

They are one text with different names (tools/packer_templates.py), so refusals are tried on that of x86.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import packer_templates

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(
    os.environ.get("INGOT_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ingot"
)
PACKER = CACHE / "packer/bin/packer"
TEMPLATE = "packer/x86.pkr.hcl"
LOCK = "files/locks/vllm-cpu.txt"
WHEEL = (
    "vllm @ https://github.com/vllm-project/vllm/releases/download/v0/vllm-0.whl \\\n    --hash=sha256:0\n"
)
IMAGES = sorted(yaml.safe_load((ROOT / "packer/images.yml").read_text())["images"])

pytestmark = pytest.mark.skipif(not PACKER.exists(), reason="Packer is not in the cache yet: `make setup`")


def _packer(*arguments: str, cwd: Path, plugins: Path | None = None, typed: str = "") -> str:
    """What Packer says, on one line (it wraps its own), with its exit status in front."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PKR_VAR_")}
    # A region is asked for; the endpoint is one where nobody answers, so that any call to EC2 fails.
    environment |= {
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "CHECKPOINT_DISABLE": "1",
        "PACKER_PLUGIN_PATH": str(plugins or cwd / "no-plugins"),
    }
    result = subprocess.run(
        [str(PACKER), *arguments],
        cwd=cwd,
        env=environment,
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return " ".join(f"{result.returncode}: {result.stdout}{result.stderr}".split())


@pytest.fixture(scope="module")
def variables_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose template ends before the source and the build.

    All variables, checks and locals are there, but Packer loads no plugin, which takes seconds each time.
    """
    root = tmp_path_factory.mktemp("checkout")
    for name in ("packer", "files", "inventories/image", "inventories/rehearsal"):
        shutil.copytree(ROOT / name, root / name)
    for role in (ROOT / "roles").iterdir():
        for part in ("tasks", "meta"):
            shutil.copytree(role / part, root / "roles" / role.name / part)
    lock = root / LOCK
    lock.write_text(lock.read_text() + WHEEL)  # as `make locks` leaves it, where it reaches GitHub
    template = root / TEMPLATE
    head, found, _ = template.read_text().partition("# ---- the build ---")
    assert found
    head, count = re.subn(r"  required_plugins \{.*?^  \}\n", "", head, flags=re.MULTILINE | re.DOTALL)
    assert count == 1
    template.write_text(head)
    return root


@pytest.fixture
def checkout(variables_only: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    return shutil.copytree(variables_only, tmp_path / "checkout")


def _value(root: Path, expression: str, *flags: str, template: str = TEMPLATE) -> str:
    """What a string with ${...} in it comes to."""
    said = _packer("console", *flags, template, cwd=root, typed=f'"{expression}"')
    status, _, value = said.partition(": ")
    assert status == "0", said
    return value


def _flags(variables: dict[str, str]) -> list[str]:
    return [flag for name, value in variables.items() for flag in ("-var", f"{name}={value}")]


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("folder", ["", "packer"])
def test_the_template_stands_alone_from_either_folder(folder: str, name: str) -> None:
    template = f"{name}.pkr.hcl" if folder else f"packer/{name}.pkr.hcl"
    inventory = f"inventory={ROOT / 'inventories/rehearsal'}"
    said = _packer(
        "validate", "-var", inventory, template, cwd=ROOT / folder, plugins=CACHE / "packer/plugins"
    )
    assert said == "0: The configuration is valid."


@pytest.mark.parametrize(
    ("variables", "refusal"),
    [
        ({"instance_type": "m7g.xlarge"}, "instance type m7g.xlarge is arm64, but the image x86 is x86_64"),
        ({"base": "debian12"}, "the image x86 does not start from debian12, but from debian13"),
        ({"instance_type": "a1.large"}, "instance type a1.large is arm64"),
        ({"instance_type": "c7gn.large"}, "instance type c7gn.large is arm64"),
        ({"instance_type": "xlarge"}, "must have EC2's form"),
        ({"region": "Ireland"}, "must be a code such as eu-west-1"),
        ({"region": "eu-west-1a"}, "without an availability zone"),
        ({"volume_size": "4"}, "volume_size 4 GiB is too small"),
        ({"volume_size": "-1"}, "whole number of GiB"),
        ({"volume_throughput": "90"}, "125 to 2000 MiB/s"),
        ({"volume_throughput": "1000"}, "needs volume_iops of at least 4000, not 3000"),
        ({"image_prefix": "My Image"}, "lower-case letters, digits or hyphens"),
        ({"base_image_id": "debian-13"}, "must look like ami-"),
        ({"ssh_interface": "session_manager"}, "public_ip or private_ip"),
        ({"ssh_interface": "private_ip"}, "private_ip needs builder_cidrs"),
        ({"builder_cidrs": '["0.0.0.0/0"]'}, "no wider than /8"),
        ({"builder_cidrs": '["10.0.0.1"]'}, "IPv4 networks such as"),
        ({"share_with_accounts": '["123456789012"]'}, "share_with_accounts needs kms_key_id"),
        ({"share_with_accounts": '["me"]'}, "account numbers of 12 digits"),
        ({"kms_key_id": "alias/aws/ebs"}, "name a key of your own"),
        ({"kms_key_id": "arn:aws:kms:eu-west-1:123456789012:alias/aws/s3"}, "name a key of your own"),
        ({"kms_key_id": "my-key"}, "must be a key's id"),
        ({"kms_key_id": "1234abcd-12ab-34cd-56ef"}, "must be a key's id"),
        (
            {"kms_key_id": "arn:aws:kms:eu-west-1:123456789012:1234abcd-12ab-34cd-56ef-1234567890ab"},
            "key's id",
        ),
        ({"kms_key_id": "key/1234abcd-12ab-34cd-56ef-1234567890ab"}, "must be a key's id"),
        ({"kms_key_id": "alias/mine", "encrypt": "false"}, "kms_key_id is given but encrypt is false"),
        ({"playbook_extra_vars": "vllm_method=wheel"}, "must be a JSON object"),
        ({"commit": "a b"}, "letters, digits, dots"),
        ({"inventory": "/nowhere/at/all"}, "inventory /nowhere/at/all does not exist or is empty"),
        ({"extra_tags": '{"aws:x" = "1"}'}, "must not begin with aws:"),
        ({"extra_tags": '{"ingot:image" = "mine"}'}, "must not be Name nor begin with ingot:"),
        ({"extra_tags": '{"ingot:cluster" = "ingot"}'}, "which a builder must never be taken for"),
        ({"extra_tags": '{"Name" = "mine"}'}, "must not be Name nor begin with ingot:"),
        ({"playbook_extra_vars": '{"vlm_mcpu": "x"}'}, "sets vlm_mcpu, which no role has"),
        ({"playbook_extra_vars": '{"image_build": {}}'}, "sets image_build, which no role has"),
        (
            {"playbook_extra_vars": '{"vllm_mcpu": "neoverse-v9", "vllm_lock": "mine.txt"}'},
            'sets vllm_mcpu to "neoverse-v9"; choices are ["","neoverse-v1"',
        ),
        (
            {"playbook_extra_vars": '{"kernel_thp": true, "cpu_tuning_allocator": "mimalloc"}'},
            'sets cpu_tuning_allocator to "mimalloc"; choices are ["tcmalloc","jemalloc","none"]',
        ),
        ({"vllm_methd": "wheel"}, "vllm_methd"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    variables_only: Path, variables: dict[str, str], refusal: str
) -> None:
    said = _packer("validate", *_flags(variables), TEMPLATE, cwd=variables_only)
    assert said.startswith("1: ")
    assert refusal in said


@pytest.mark.parametrize(
    "variables",
    [
        {"instance_type": "g5.xlarge"},
        {"instance_type": "c7i-flex.large"},
        {"region": "us-gov-east-1"},
        {"ssh_interface": "private_ip", "builder_cidrs": '["10.0.4.17/32"]'},
        {"share_with_accounts": '["123456789012"]', "kms_key_id": "alias/mine"},
        {"share_with_accounts": '["123456789012"]', "encrypt": "false"},
        {"base_image_id": "ami-0a1b2c3d4e5f67890"},
        {"playbook_extra_vars": '{"base_packages_extra": ["htop"], "ansible_verbosity": 2}'},
        {"playbook_extra_vars": '{"vllm_method": "source", "vllm_mcpu": "x86-64-v3"}'},
        {"extra_tags": '{"team" = "search", "ingot:inputs" = "0"}'},
        {"kms_key_id": "1234abcd-12ab-34cd-56ef-1234567890ab"},
        {"kms_key_id": "mrk-1234abcd12ab34cd56ef1234567890ab"},
        {"kms_key_id": "arn:aws-us-gov:kms:us-gov-west-1:123456789012:alias/a/b"},
        {"kms_key_id": "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"},
        {"inventory": "inventories/rehearsal"},
        {"subnet_id": "subnet-0a1b2c3d", "volume_size": "100", "volume_throughput": "500"},
    ],
)
def test_what_can_work_is_not_refused(variables_only: Path, variables: dict[str, str]) -> None:
    assert _value(variables_only, "${local.name}", *_flags(variables)) == "x86"


@pytest.fixture
def graviton4(checkout: Path) -> Path:
    """A folder with the template of graviton4, as the others are made."""
    packer = checkout / "packer"
    (packer / "graviton4.pkr.hcl").write_text(
        packer_templates.text_of("graviton4", (packer / "x86.pkr.hcl").read_text())
    )
    return packer


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("m7i.xlarge", "instance type m7i.xlarge is x86_64, but the image graviton4 is arm64"),
        (
            "c7g.xlarge",
            "instance type c7g.xlarge has neoverse-v1 cores, but the image graviton4 is compiled for",
        ),
        ("t4g.xlarge", "instance type t4g.xlarge has neoverse-n1 cores"),
    ],
)
def test_a_graviton_template_refuses_a_builder_that_lacks_its_core(
    graviton4: Path, kind: str, said: str
) -> None:
    answer = _packer("validate", "-var", f"instance_type={kind}", "graviton4.pkr.hcl", cwd=graviton4)
    assert answer.startswith("1: ")
    assert said in answer
    assert answer.count("instance type") == 1


def test_an_image_has_the_core_as_a_tag(graviton4: Path, variables_only: Path) -> None:
    later = ("-var", "instance_type=m9g.xlarge")
    tag = '${local.tags["ingot:core"]}'
    assert _value(graviton4, tag, *later, template="graviton4.pkr.hcl") == "neoverse-v2"
    assert _value(variables_only, '${contains(keys(local.tags), "ingot:core")}') == "false"


def test_a_persons_own_variable_is_one_that_their_inventory_reads(checkout: Path) -> None:
    given = ["-var", 'playbook_extra_vars={"our_mirror": "https://pypi.example"}']
    inventory = checkout / "ours/group_vars"
    inventory.mkdir(parents=True)
    (inventory / "all.yml").write_text('python_runtime_index_url: "{{ our_mirrors }}"\n')
    said = _packer("validate", "-var", "inventory=ours", *given, TEMPLATE, cwd=checkout)
    assert "sets our_mirror, which no role has" in said
    (inventory / "all.yml").write_text('python_runtime_index_url: "{{ our_mirror }}"\n')
    assert _value(checkout, "${local.name}", "-var", "inventory=ours", *given) == "x86"


def test_a_lock_without_vllms_own_wheel_is_refused_before_there_is_a_builder(checkout: Path) -> None:
    lock = checkout / LOCK
    lock.write_text(lock.read_text().removesuffix(WHEEL))
    said = _packer("validate", TEMPLATE, cwd=checkout)
    assert said.startswith("1: ")
    assert "vllm-cpu.txt has no entry for vLLM's own wheel: run `make locks`" in said
    # Another lock or method is the person's own to answer for, wherever it is said.
    inventory = checkout / "ours/group_vars"
    inventory.mkdir(parents=True)
    (inventory / "x86.yml").write_text("vllm_lock: /mine.txt\n")
    for given in (
        "inventory=ours",
        'playbook_extra_vars={"vllm_lock": "/mine.txt"}',
        'playbook_extra_vars={"vllm_method": "source", "vllm_mcpu": "x86-64-v3"}',
    ):
        assert _value(checkout, "${local.name}", "-var", given) == "x86", given
    (inventory / "x86.yml").write_text("base_packages_extra: [htop]\n")
    said = _packer("validate", "-var", "inventory=ours", TEMPLATE, cwd=checkout)
    assert "vllm-cpu.txt has no entry" in said
    graviton = packer_templates.text_of("graviton3", (checkout / TEMPLATE).read_text())
    (checkout / "packer/graviton3.pkr.hcl").write_text(graviton)
    assert "REFUSED" not in _packer("validate", "packer/graviton3.pkr.hcl", cwd=checkout)


def test_an_unknown_role_is_refused_by_name(checkout: Path) -> None:
    table = checkout / "packer/images.yml"
    table.write_text(table.read_text().replace("- vllm\n", "- vlm\n"))
    said = _packer("validate", TEMPLATE, cwd=checkout)
    assert said.startswith("1: ")
    assert "role vlm of image x86 does not exist" in said


def test_a_packer_that_is_too_old_says_so(checkout: Path) -> None:
    """The template's floor is raised above this Packer, as it is for someone with an old one."""
    template = checkout / TEMPLATE
    floor = re.compile(r'required_version = ">= [^"]+"')
    text, count = floor.subn('required_version = ">= 99.0.0"', template.read_text())
    assert count == 1
    template.write_text(text)
    said = _packer("validate", TEMPLATE, cwd=checkout)
    assert said.startswith("1: ")
    assert "does not support Packer version" in said and "99.0.0" in said


@pytest.mark.parametrize("packed", [False, True])
def test_the_image_is_named_after_the_commit(checkout: Path, packed: bool) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *arguments]
        return subprocess.run(
            command, cwd=checkout, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "x")
    if packed:
        git("pack-refs", "--all")
    commit, name = _value(checkout, "${local.commit} ${local.ami_name}").split()
    assert commit == git("rev-parse", "HEAD")
    assert re.fullmatch(rf"ingot-x86-[0-9]{{8}}-[0-9]{{6}}-{commit[:12]}", name)
    git("checkout", "-q", "--detach")
    assert _value(checkout, "${local.commit}") == commit
    assert _value(checkout, "${local.commit}", "-var", "commit=v1-dirty") == "v1-dirty"


def test_without_git_the_commit_is_unknown(variables_only: Path) -> None:
    assert _value(variables_only, "${local.commit}") == "unknown"


def test_what_protects_builder_and_image_is_set() -> None:
    """The plugin's defaults would each be the other way."""
    template = re.sub(r" +", " ", (ROOT / TEMPLATE).read_text())
    for setting in (
        'http_tokens = "required"',
        'imds_support = "v2.0"',
        'temporary_key_pair_type = "ed25519"',
        "ssh_clear_authorized_keys = true",
        "use_proxy = false",
        "force_deregister = false",
        "temporary_security_group_source_public_ip = length(var.builder_cidrs) == 0",
    ):
        assert setting in template


def test_every_variable_is_described_and_every_message_is_a_sentence() -> None:
    template = (ROOT / TEMPLATE).read_text()
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', template, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 10
    for name, body in blocks:
        assert re.search(r'^  description = "[^"]{20,}', body, re.MULTILINE), name
        assert re.search(r"^  default +=", body, re.MULTILINE), f"{name}: packer build needs no -var"


def test_the_table_has_a_template_for_each_image() -> None:
    templates = {path.name.removesuffix(".pkr.hcl") for path in (ROOT / "packer").glob("*.pkr.hcl")}
    assert templates == set(IMAGES)
