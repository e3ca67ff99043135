//go:build tools

// Package tools only pins the program: bootstrap builds github.com/hashicorp/packer from this module.
package tools

import _ "github.com/hashicorp/packer"
